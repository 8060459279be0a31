"""What follows from draws: `Fit`, metrics, states, forecasts, diagnostics."""

from sojourn.results.align import match_states, permute
from sojourn.results.datasets import largest_block
from sojourn.results.diagnostics import Check, diagnose, mixing, readable, varying
from sojourn.results.fit import Fit, load, make_fit
from sojourn.results.forecasts import forecast, impute
from sojourn.results.metrics import em_lower_bound, log_likelihood, nmi, predictive_score, rmse
from sojourn.results.outputs import check_replaceable, columns_of
from sojourn.results.states import best_path, decode, smooth
from sojourn.results.stein import KSD, ksd

__all__ = [
    "KSD",
    "Check",
    "Fit",
    "best_path",
    "check_replaceable",
    "columns_of",
    "decode",
    "diagnose",
    "em_lower_bound",
    "forecast",
    "impute",
    "ksd",
    "largest_block",
    "load",
    "log_likelihood",
    "make_fit",
    "match_states",
    "mixing",
    "nmi",
    "permute",
    "predictive_score",
    "readable",
    "rmse",
    "smooth",
    "varying",
]
