"""Bayesian state space models for time series of any length."""

__version__ = "0.1.0"

from sojourn.buffers import BufferChoice, choose_buffer, gradient_error
from sojourn.dynamics import SGHMC, SGLD, SGNHT, SGRLD, Decay
from sojourn.fit import Fit, load
from sojourn.forecasts import forecast, impute
from sojourn.gibbs import Gibbs
from sojourn.gradients import gradient
from sojourn.metrics import KSD, em_lower_bound, ksd, log_likelihood, nmi, predictive_score, rmse
from sojourn.models import ARHMM, LGSSM, SLDS, GaussianHMM
from sojourn.sampling import DivergenceError, Interrupted, resume, sample
from sojourn.series import Series, Windows, as_series, open_series
from sojourn.states import decode, smooth
from sojourn.storage import RunError

__all__ = [
    "ARHMM",
    "KSD",
    "LGSSM",
    "SGHMC",
    "SGLD",
    "SGNHT",
    "SGRLD",
    "SLDS",
    "BufferChoice",
    "Decay",
    "DivergenceError",
    "Fit",
    "GaussianHMM",
    "Gibbs",
    "Interrupted",
    "RunError",
    "Series",
    "Windows",
    "as_series",
    "choose_buffer",
    "decode",
    "em_lower_bound",
    "forecast",
    "gradient",
    "gradient_error",
    "impute",
    "ksd",
    "load",
    "log_likelihood",
    "nmi",
    "open_series",
    "predictive_score",
    "resume",
    "rmse",
    "sample",
    "smooth",
]
