"""Bayesian state space models for time series of any length."""

__version__ = "0.1.0"

from sojourn.dynamics import SGHMC, SGLD, SGNHT, SGRLD, Decay
from sojourn.fit import Fit, load
from sojourn.gibbs import Gibbs
from sojourn.gradients import gradient
from sojourn.metrics import em_lower_bound, log_likelihood, predictive_score
from sojourn.models import ARHMM, LGSSM, SLDS, GaussianHMM
from sojourn.sampling import DivergenceError, Interrupted, resume, sample
from sojourn.series import Series, Windows, as_series, open_series
from sojourn.states import decode, smooth
from sojourn.storage import RunError

__all__ = [
    "ARHMM",
    "LGSSM",
    "SGHMC",
    "SGLD",
    "SGNHT",
    "SGRLD",
    "SLDS",
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
    "decode",
    "em_lower_bound",
    "gradient",
    "load",
    "log_likelihood",
    "open_series",
    "predictive_score",
    "resume",
    "sample",
    "smooth",
]
