"""How well a model fits a series, states and draws the truth."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jax import Array

from sojourn._precision import double
from sojourn._random import random_key
from sojourn._validation import as_real, check_size, shown
from sojourn.models.base import Model, Params, check_data
from sojourn.passes import estimated_score, full_statistics, total_prediction, total_score
from sojourn.results.align import match_states, permute, signature

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
    key = random_key(seed)
    series = check_data(model, data)
    raw, coords = raw_units(model, params)
    if model.is_exact:
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
        horizon: How many rows ahead. With lags, rows farther than one depend on those in between, and
            densities are averages over 64 paths of the states there, always the same.
        seed: As in `log_likelihood`.
        num_particles: As in `log_likelihood`.
    """
    check_size("horizon", horizon)
    key = random_key(seed)
    series = check_data(model, data)
    longest = max(series.lengths) - model.num_lags
    if horizon >= longest:
        raise ValueError(f"horizon={horizon} leaves no row to predict; use less than {longest}")
    raw, coords = raw_units(model, params)
    if model.is_exact:
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
    series = check_data(model, data)
    if not model.is_conjugate:
        raise ValueError(
            "em_lower_bound needs an initial law that does not depend on the parameters; "
            "use log_likelihood"
        )
    raw, coords = raw_units(model, params)
    statistics, _ = full_statistics(raw, coords, series)
    return float(raw.expected_log_joint(coords, statistics))


def nmi(states: Any, truth: Any) -> float:
    """Return the normalised mutual information I / √(H H') of two labellings, zero if an entropy is.

    Rows labelled −1 in either, such as those that only serve as lags, are left out.
    """
    one, other = (_labels(name, of) for name, of in (("states", states), ("truth", truth)))
    if one.shape != other.shape:
        raise ValueError(f"states and truth must have one length; got {len(one)} and {len(other)}")
    kept = (one >= 0) & (other >= 0)
    if not kept.any():
        raise ValueError("no row is labelled in both; unlabelled rows are −1")
    _, first = np.unique(one[kept], return_inverse=True)
    _, second = np.unique(other[kept], return_inverse=True)
    joint = np.zeros((first.max() + 1, second.max() + 1))
    np.add.at(joint, (first, second), 1 / kept.sum())
    entropies = [_entropy(joint.sum(axis)) for axis in (0, 1)]
    product = float(np.prod(entropies))
    information = sum(entropies) - _entropy(joint.ravel())
    return float(np.clip(information / np.sqrt(product), 0, 1)) if product > 0 else 0.0


def _labels(name: str, values: Any) -> np.ndarray:
    array = np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "iub":
        raise TypeError(f"{name} must be a one-dimensional array of integers; got {shown(values)}")
    return array.astype(np.int64)


def _entropy(p: np.ndarray) -> float:
    p = p[p > 0]
    return float(-(p * np.log(p)).sum())


def rmse(x: Any, truth: Any) -> float:
    """Return (1/T Σ_t ‖x_t − x*_t‖²)^(1/2) of states (T,) or (T, n); NaN rows are left out."""
    one, other = as_real("x", x), as_real("truth", truth)
    if one.shape != other.shape:
        raise ValueError(f"x and truth must have one shape; got {one.shape} and {other.shape}")
    squares = np.square(one - other).reshape(len(one), -1).sum(1)
    if np.isnan(squares).all():
        raise ValueError("no row is known in both; unknown rows are NaN")
    return float(np.sqrt(np.nanmean(squares)))


def running_mse(
    draws: Mapping[str, np.ndarray],
    truth: Mapping[str, Any],
    dims: Mapping[str, tuple[str, ...]],
) -> dict[str, np.ndarray]:
    """Return the mean squared error of running averages of draws, states matched to the truth.

        MSE_s = mean_entries ((1/s) Σ_{i ≤ s} θ_i − θ*)²

    Args:
        draws: Parameters, (chain, draw, ...).
        truth: Their true values.
        dims: Names of the axes of each parameter, `model.param_dims`.

    Returns:
        Errors by parameter, (chain, draw). The states of each chain are put in the order that comes
        closest to the truth.
    """
    wanted = {name: as_real(name, truth[name]) for name in draws if name in truth}
    for name, value in wanted.items():
        if value.shape != draws[name].shape[2:]:
            raise ValueError(
                f"the true {name} must have shape {draws[name].shape[2:]}; got {value.shape}"
            )
    if not wanted:
        raise ValueError(f"truth has none of the parameters {sorted(draws)}")
    labelled = [name for name in wanted if "state" in dims[name]]
    errors = {name: np.zeros(draws[name].shape[:2]) for name in wanted}
    for chain in range(len(next(iter(draws.values())))):
        order = None
        if labelled:
            known, _ = signature({n: wanted[n][None, None] for n in labelled}, dims)
            found, noise = signature({n: draws[n][chain : chain + 1] for n in labelled}, dims)
            order = match_states(known[0], found[0], noise)
        for name, value in wanted.items():
            own = draws[name][chain]
            if order is not None:
                own = permute(own, dims[name], order, leading=1)
            count = np.arange(1, len(own) + 1).reshape(-1, *(1,) * value.ndim)
            wrong = np.square(np.cumsum(own, axis=0) / count - value)
            errors[name][chain] = wrong.reshape(len(own), -1).mean(1)
    return errors


def raw_units(model: Model, params: Params) -> tuple[Model, dict[str, Array]]:
    """Return the model in the data's raw units and the coordinates of the parameters there."""
    raw = model.raw()
    return raw, raw.to_coords(params)
