"""`sample` and `resume`: chains side by side, chunk by chunk, and where their draws go."""

from sojourn.sampling.restoring import series_of
from sojourn.sampling.sampling import DivergenceError, Interrupted, resume, sample

__all__ = [
    "DivergenceError",
    "Interrupted",
    "resume",
    "sample",
    "series_of",
]
