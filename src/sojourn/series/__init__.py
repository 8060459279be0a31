"""Series of rows, and windows drawn from them."""

from sojourn.series.series import Series, as_series
from sojourn.series.windows import Drawn, Layout, Windows, draw, gather, layout, tile

__all__ = [
    "Drawn",
    "Layout",
    "Series",
    "Windows",
    "as_series",
    "draw",
    "gather",
    "layout",
    "tile",
]
