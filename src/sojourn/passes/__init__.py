"""Full passes: windows that tile a series, run as one batch and checked where they meet."""

from sojourn.passes.passes import (
    PATH_TOLERANCE,
    Kernel,
    apply_to_rows,
    best_states,
    estimated_score,
    full_statistics,
    run,
    state_marginals,
    stream,
    total_prediction,
    total_score,
)
from sojourn.passes.tiles import (
    Tiles,
    counted_rows,
    effective_missing,
    gather_tiles,
    in_order,
    make_tiles,
    pads,
    read_tiles,
    seam,
)

__all__ = [
    "PATH_TOLERANCE",
    "Kernel",
    "Tiles",
    "apply_to_rows",
    "best_states",
    "counted_rows",
    "effective_missing",
    "estimated_score",
    "full_statistics",
    "gather_tiles",
    "in_order",
    "make_tiles",
    "pads",
    "read_tiles",
    "run",
    "seam",
    "state_marginals",
    "stream",
    "total_prediction",
    "total_score",
]
