"""Where chains start: near the best of several modes.

Several starts, steps of stochastic EM on windows of its own from each, the best kept by its
log-posterior on all rows or on many fresh windows, then more EM with averaging to the neighbourhood of
the mode.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from sojourn._compile import compiled
from sojourn.gradients import Estimator, Source, fetched, windowed
from sojourn.models.base import Coords, Model
from sojourn.passes import total_score
from sojourn.series import Series, Windows
from sojourn.tuning.objective import log_posterior

# Steps of EM from every start, and from the best.
_SHORT_EM = 100
_LONG_EM = 200

# Starts are compared on all rows up to so many, and else on so many windows: what tells modes apart may
# be rare.
_COMPARED_ROWS = 2**19
_COMPARED_WINDOWS = 1024


def find_start(
    model: Model, series: Series, init: Any, key: Array, *, refine: bool
) -> tuple[dict[str, Array], float]:
    """Return coordinates near the mode, from starts of the kind `init` or from given coordinates.

    Also by how many nats the best start beat the worst: large where there are several modes.
    """
    estimator, source = _em_estimator(model, series)
    rough = dataclasses.replace(estimator, model=model.rough())
    key_seeds, key_short, key_long, key_score = jax.random.split(key, 4)
    if isinstance(init, Mapping):
        starts = [dict(init)]
    else:
        methods = model.starts(init)
        seeds = np.asarray(jax.random.randint(key_seeds, (len(methods),), 0, 2**30))
        starts = [
            model.initial_coords(series, method, int(seed))
            for method, seed in zip(methods, seeds, strict=True)
        ]
        # The windows of the first steps have a say in where EM ends, so that each start has its own.
        keys = jax.random.split(key_short, len(starts))
        starts = [_em(rough, source, k, s, _SHORT_EM) for k, s in zip(keys, starts, strict=True)]
    scores = np.array([0.0])
    if len(starts) > 1:
        scores = _compare(model, series, key_score, starts)
    scores = np.where(np.isnan(scores), -np.inf, scores)
    # Among starts within a nat of the best, which often differ in labels only, the first: rounding,
    # and with it the units of the data, should not decide.
    best = starts[int(np.argmax(scores >= scores.max() - 1))]
    gap = float(scores.max() - scores.min()) if np.isfinite(scores).all() else math.inf
    return _em(rough, source, key_long, best, _LONG_EM) if refine else best, gap


def _em_estimator(model: Model, series: Series, batch: int = 64) -> tuple[Estimator, Source]:
    longest = max(series.lengths) - model.num_lags
    return windowed(model, series, Windows(min(200, longest), 32, batch))


def _compare(
    model: Model, series: Series, key: Array, starts: list[dict[str, Array]]
) -> np.ndarray:
    """Return the log-posterior at each start, or estimates from the same windows."""
    if model.is_exact and model.num_rows(series) <= _COMPARED_ROWS:
        found = [total_score(model, s, series)[0] + float(model.log_prior(s)) for s in starts]
    else:
        many = _em_estimator(model, series, _COMPARED_WINDOWS)
        found = [float(log_posterior(*many, key, start)) for start in starts]
    return np.array(found)


def _em(
    estimator: Estimator, source: Source, key: Array, coords: Coords, num_steps: int
) -> dict[str, Array]:
    """Climb by stochastic EM: running averages of windowed statistics, then the M-step.

    s ← (1 − ρ_t) s + ρ_t ŝ(θ),   θ ← centre(s),   ρ_t = (t + 1)^(−0.6)
    """
    found, average = {n: jnp.asarray(u) for n, u in coords.items()}, None
    for begin, end, given in fetched(estimator, source, key, 0, num_steps, splits=1):
        found, average = _em_steps(estimator, given, key, found, average, begin, end)
    return found


@compiled(static_argnums=0, quick=True)
def _em_steps(
    estimator: Estimator,
    source: Source,
    key: Array,
    coords: dict[str, Array],
    average: Any,
    begin: Any,
    end: Any,
) -> tuple[dict[str, Array], Any]:
    model = estimator.model

    def step(t: Array, carry: tuple[Any, Any]) -> tuple[Any, Any]:
        coords, average = carry
        found = estimator(source.at(t - begin), jax.random.fold_in(key, t), coords)
        rate = (t + 1.0) ** -0.6
        average = jax.tree.map(lambda s, new: s + rate * (new - s), average, found)
        return model.center(average), average

    if average is None:
        shapes = jax.eval_shape(estimator, source.at(0), key, coords)
        average = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    return jax.lax.fori_loop(begin, end, step, (coords, average))
