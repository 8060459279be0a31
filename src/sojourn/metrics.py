"""How well a model fits a series."""

from typing import Any

import jax
from jax import Array

from sojourn._precision import double
from sojourn._validation import check_seed, check_size
from sojourn.models.base import Model, Params, check_lags, check_model
from sojourn.passes import estimated_score, full_statistics, total_prediction, total_score
from sojourn.series import as_series

# Particles of an estimated likelihood.
_PARTICLES = 100


@double
def log_likelihood(
    model: Model, params: Params, data: Any, *, seed: int = 0, num_particles: int | None = None
) -> float:
    """Return log p(y | params), exact to rounding, run in parallel over windows of the series.

    Several series add up; missing values are integrated out. An ARHMM's first rows are conditioned on.
    For an SLDS it is the logarithm of an unbiased estimate, by particles that run through each series.

    Args:
        model: The model.
        params: Parameters.
        data: The series, as in `sample`.
        seed: Which particles are drawn; exact likelihoods do not depend on it.
        num_particles: Number of particles, 100 if not given; only where the likelihood is estimated.
    """
    check_model(model)
    key = jax.random.key(check_seed(seed))
    series = as_series(data, model.emission_dim)
    check_lags(model, series)
    raw, coords = raw_units(model, params)
    if model.regimes is None:
        _refuse_particles(model, num_particles)
        return total_score(raw, coords, series)[0]
    count = _PARTICLES if num_particles is None else num_particles
    check_size("num_particles", count)
    return estimated_score(raw, coords, series, key, count)


@double
def predictive_score(
    model: Model,
    params: Params,
    data: Any,
    horizon: int = 10,
    *,
    seed: int = 0,
    num_particles: int | None = None,
) -> float:
    """Return Σ_t log p(y_{t+h} | y_1, …, y_t, params), h the horizon: how well rows ahead are predicted.

    Args:
        model: The model.
        params: Parameters.
        data: The series, as in `sample`.
        horizon: How many rows ahead.
        seed: As in `log_likelihood`.
        num_particles: As in `log_likelihood`.
    """
    check_model(model)
    check_size("horizon", horizon)
    key = jax.random.key(check_seed(seed))
    series = as_series(data, model.emission_dim)
    check_lags(model, series)
    longest = max(series.lengths) - model.num_lags
    if horizon >= longest:
        raise ValueError(f"horizon={horizon} leaves no row to predict in {longest} rows")
    if model.num_lags and horizon > 1:
        raise ValueError(
            f"the rows ahead of {type(model).__name__} depend on rows in between, which horizon="
            f"{horizon} leaves out; use horizon=1"
        )
    raw, coords = raw_units(model, params)
    if model.regimes is None:
        _refuse_particles(model, num_particles)
        return total_prediction(raw, coords, series, horizon)[0]
    count = _PARTICLES if num_particles is None else num_particles
    check_size("num_particles", count)
    return estimated_score(raw, coords, series, key, count, horizon)


def _refuse_particles(model: Model, num_particles: int | None) -> None:
    if num_particles is not None:
        raise ValueError(
            f"the likelihood of {type(model).__name__} is exact; leave num_particles out"
        )


@double
def em_lower_bound(model: Model, params: Params, data: Any) -> float:
    """Return E[log p(y, states | params) | y], which the paper calls an EM lower bound.

    It is not a bound, and it ranks parameters wrongly (`MATH.md` §9.6, erratum 20):

        log p(y) = E[log p(y, x, z) | y] + H[p(x, z | y)]

    and the entropy H, which is left out, is differential in x: it can be negative, as soon as the noise
    is small, and it changes with the parameters. Use `log_likelihood` to compare models; this is for
    comparison with published numbers. The law of the state before each series, which does not depend on
    the parameters, is left out; for an SLDS the expectation is an average over Gibbs sweeps.
    """
    check_model(model)
    series = as_series(data, model.emission_dim)
    check_lags(model, series)
    if not model.is_conjugate:
        raise ValueError(
            "em_lower_bound needs an initial law that does not depend on the parameters"
        )
    raw, coords = raw_units(model, params)
    statistics, _ = full_statistics(raw, coords, series)
    return float(raw.expected_log_joint(coords, statistics))


def raw_units(model: Model, params: Params) -> tuple[Model, dict[str, Array]]:
    """Return the model in the data's raw units and the coordinates of the parameters there."""
    raw = model.raw()
    return raw, raw.to_coords(params)
