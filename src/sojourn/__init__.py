"""Bayesian state space models for time series of any length."""

__version__ = "0.1.0"

from sojourn.dynamics import SGHMC, SGLD, SGNHT, SGRLD, Decay
from sojourn.fit import Fit
from sojourn.gibbs import Gibbs
from sojourn.gradients import gradient
from sojourn.metrics import em_lower_bound, log_likelihood, predictive_score
from sojourn.models import ARHMM, LGSSM, SLDS, GaussianHMM
from sojourn.sampling import DivergenceError, sample
from sojourn.series import Series, Windows, as_series, open_series
from sojourn.states import decode, smooth

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
    "Series",
    "Windows",
    "as_series",
    "decode",
    "em_lower_bound",
    "gradient",
    "log_likelihood",
    "open_series",
    "predictive_score",
    "sample",
    "smooth",
]
