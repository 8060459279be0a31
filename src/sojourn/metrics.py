"""How well a model fits a series."""

from typing import Any

from jax import Array

from sojourn._precision import double
from sojourn.models.base import Model, Params, check_lags, check_model
from sojourn.passes import total_score
from sojourn.series import as_series


@double
def log_likelihood(model: Model, params: Params, data: Any) -> float:
    """Return log p(y | params), exact to rounding, run in parallel over windows of the series.

    Several series add up; missing values are integrated out. An ARHMM's first rows are conditioned on.
    """
    check_model(model)
    series = as_series(data, model.emission_dim)
    check_lags(model, series)
    raw, coords = raw_units(model, params)
    return total_score(raw, coords, series)[0]


def raw_units(model: Model, params: Params) -> tuple[Model, dict[str, Array]]:
    """Return the model in the data's raw units and the coordinates of the parameters there."""
    raw = model.raw()
    return raw, raw.to_coords(params)
