"""What is found and chosen before sampling: start, mode, metric, buffer, windows, step size."""

from sojourn.tuning.buffers import TOLERANCE, BufferChoice, Watch, choose_buffer, gradient_error
from sojourn.tuning.modes import place
from sojourn.tuning.noise import disperse
from sojourn.tuning.starts import find_start, log_posterior
from sojourn.tuning.tuning import Tuned, tune

__all__ = [
    "TOLERANCE",
    "BufferChoice",
    "Tuned",
    "Watch",
    "choose_buffer",
    "disperse",
    "find_start",
    "gradient_error",
    "log_posterior",
    "place",
    "tune",
]
