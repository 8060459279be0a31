"""Series of rows, in memory or elsewhere, and windows drawn from them."""

from sojourn.series.opening import as_series, open_series, reopen
from sojourn.series.series import Series, check_known, suggestion
from sojourn.series.windows import Chances, Drawn, Layout, Windows, draw, gather, layout, tile

__all__ = [
    "Chances",
    "Drawn",
    "Layout",
    "Series",
    "Windows",
    "as_series",
    "check_known",
    "draw",
    "gather",
    "layout",
    "open_series",
    "reopen",
    "suggestion",
    "tile",
]
