"""Bayesian state space models for time series of any length."""

__version__ = "0.1.0"

from sojourn._files import RunError
from sojourn.dynamics import SGHMC, SGLD, SGNHT, SGRLD, Decay
from sojourn.gibbs import Gibbs
from sojourn.gradients import gradient
from sojourn.models import ARHMM, LGSSM, SLDS, GaussianHMM
from sojourn.results import (
    KSD,
    Fit,
    decode,
    em_lower_bound,
    forecast,
    impute,
    ksd,
    load,
    log_likelihood,
    nmi,
    predictive_score,
    rmse,
    smooth,
)
from sojourn.sampling import DivergenceError, Interrupted, resume, sample
from sojourn.series import Series, Windows, as_series, open_series
from sojourn.tuning import BufferChoice, choose_buffer, gradient_error

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
