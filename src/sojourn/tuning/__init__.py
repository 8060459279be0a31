"""Before sampling: start, mode, metric, buffer, windows, step size. While it runs: the buffer."""

from sojourn.tuning.buffers import TOLERANCE, BufferChoice, choose_buffer, gradient_error
from sojourn.tuning.modes import place
from sojourn.tuning.noise import disperse
from sojourn.tuning.objective import log_posteriors
from sojourn.tuning.starts import find_start
from sojourn.tuning.tables import tabulate
from sojourn.tuning.tuning import Tuned, tune
from sojourn.tuning.watching import Watch

__all__ = [
    "TOLERANCE",
    "BufferChoice",
    "Tuned",
    "Watch",
    "choose_buffer",
    "disperse",
    "find_start",
    "gradient_error",
    "log_posteriors",
    "place",
    "tabulate",
    "tune",
]
