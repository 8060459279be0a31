"""The neighbourhood of the mode: where it is, and the metric that its curvature makes.

The mode of a fixed sample of windows first, which costs the same for any length of the series, then a
few steps on all rows. All blocks climb, those too that will not move in the constant metric: a control
variate is worth what its centre is.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from sojourn.dynamics import (
    SGLD,
    SGRLD,
    Metric,
    Sampler,
    Shape,
    dimension,
    posterior_gradient,
    pull,
    push,
)
from sojourn.gradients import Estimator, Source, fetch, frozen, full, windowed
from sojourn.models.base import Coords, Model
from sojourn.passes import Tiles, full_statistics, total_score
from sojourn.series import Series, Windows
from sojourn.tuning.ascent import NOT_FINITE, approach, ascend, climb, maximize
from sojourn.tuning.curvature import Curvature, complete_root, decompose, from_scores, measure
from sojourn.tuning.objective import pulled
from sojourn.tuning.own_steps import with_own_error

# Rows of the windows that curvature is measured on.
_SAMPLE_ROWS = 65_536

# Coordinates up to which measuring curvature, two gradients for each, is worth its time.
_MAX_DIMENSION = 300

# Newton steps, and so passes over all rows, from the mode of the sample to that of all rows.
_FULL_STEPS = 3

# Squared Newton decrement that may be left after them, and what follows where it is more: evaluations on
# so many rows in all, two passes each, but at least and at most so many of them.
_NEAR = 1.0
_EVALUATED_ROWS = 2**29
_EVALUATIONS = (10, 200)

# Rows of a window whose score counts as one of many, steps of noisy gradients, and the shape that a
# metric from scores is trusted to.
_SCORE_ROWS = 50
_NOISY_STEPS = 40
_ROUGH = Shape(curvature=2.0, variation=1.0)

# Variation of a curvature that could not be measured on both sides of the mode.
_WILD = 2.0

# Longest step in units of √T: a fraction of what one row tells.
_LONGEST = 0.3


class Mode(NamedTuple):
    """Coordinates near the mode and what holds there.

    Attributes:
        coords: The coordinates.
        metric: The metric for the sampler.
        statistics: Expected statistics of all rows.
        tiles: The tiles that these were computed on.
        shape: Shape of the log-posterior near the mode, in the constant part of the metric.
    """

    coords: dict[str, Array]
    metric: Metric
    statistics: dict[str, Any]
    tiles: Tiles
    shape: Shape


def place(model: Model, series: Series, coords: Coords) -> Mode:
    """Return what holds at `coords`, with the complete-data metric."""
    statistics, tiles = full_statistics(model, coords, series)
    T = float(model.num_rows(series))
    pilots = jax.jit(model.pilot, static_argnums=1)(statistics, T)
    return Mode(dict(coords), Metric(pilots, {}, T), statistics, tiles, Shape(1.0, 1.0))


def find_mode(
    model: Model, series: Series, sampler: Sampler, windows: Windows, start: Mode, key: Array
) -> Mode:
    """Return the mode near `start` and the metric for the sampler there.

    Models with very many coordinates stay where they are, with the complete-data metric. Those without
    exact gradients approach the mode as near as these allow.

    Args:
        model: The model.
        series: The series.
        sampler: The sampler.
        windows: Length and buffer of the windows to sample if the series is long.
        start: Where to start.
        key: Which windows are sampled.
    """
    T = start.metric.num_rows
    every = tuple(block.names[0] for block in model.blocks)
    root = complete_root(model, start.coords, start.metric.pilots, every, T)
    if dimension(root) > _MAX_DIMENSION:
        return _with_complete_metric(model, sampler, start)
    if not model.is_exact:
        return _approach_mode(model, series, sampler, windows, start, key)

    if T <= _SAMPLE_ROWS:
        estimator, source = full(model, series, start.tiles)
        mode = place(model, series, ascend(estimator, source, key, start.coords, root))
    else:
        count = _SAMPLE_ROWS // (windows.length or 1)
        many = dataclasses.replace(windows, batch=count)
        estimator, source = frozen(*windowed(model, series, many), key)
        coords = ascend(estimator, source, key, start.coords, root)
        curvature = decompose(measure(estimator, source, key, coords, root), root)
        mode = _on_all_rows(model, series, coords, curvature)
    names = constant_blocks(model, sampler, mode)
    if not names:
        return mode
    root = complete_root(model, mode.coords, mode.metric.pilots, names, T)
    average, shape = _average(estimator, source, key, mode.coords, root)
    metric = _constant(mode.metric, root, average.spread())
    shape = with_own_error(shape, estimator, source, key, mode.coords, metric)
    return mode._replace(metric=metric, shape=shape)


def _on_all_rows(model: Model, series: Series, coords: Coords, curvature: Curvature) -> Mode:
    """Return the mode of all rows, from that of a sample and the curvature there.

    A few Newton steps where the sample stands for all rows. Where it does not, as real series are less
    alike from one stretch to another than their model has it, many more steps.
    """
    seen: list[Mode] = []

    def gradient(root: Mapping[str, Array], coords: Coords) -> Array:
        seen.append(place(model, series, coords))
        return pull(root, _gradient(model, coords, seen[-1].statistics))

    def value_and_gradient(root: Mapping[str, Array], coords: Coords) -> tuple[float, Array]:
        score, _ = total_score(model, coords, series)
        return score + float(model.log_prior(coords)), gradient(root, coords)

    coords, left = climb(
        functools.partial(gradient, curvature.root), coords, curvature, _FULL_STEPS
    )
    if not left < _NEAR:
        root = {n: E @ curvature.spread() for n, E in curvature.root.items()}
        most = int(np.clip(_EVALUATED_ROWS // model.num_rows(series), *_EVALUATIONS))
        coords = maximize(functools.partial(value_and_gradient, root), coords, root, most)
    return next(m for m in reversed(seen) if _same(m.coords, coords))


def _with_complete_metric(model: Model, sampler: Sampler, at: Mode) -> Mode:
    """Return the place with a metric that nothing need be measured for."""
    names = constant_blocks(model, sampler, at)
    if isinstance(sampler, SGRLD) or not names:
        return at
    root = complete_root(model, at.coords, at.metric.pilots, names, at.metric.num_rows)
    return at._replace(metric=_constant(at.metric, root, np.eye(dimension(root))))


def _approach_mode(
    model: Model,
    series: Series,
    sampler: Sampler,
    windows: Windows,
    start: Mode,
    key: Array,
) -> Mode:
    """Do what `find_mode` does with gradients that are Monte Carlo averages."""
    names = constant_blocks(model, sampler, start)
    if not names:
        return start
    T = start.metric.num_rows
    root = complete_root(model, start.coords, start.metric.pilots, names, T)
    # Short windows, so that there are many of them.
    short = dataclasses.replace(windows, length=min(_SCORE_ROWS, windows.length or 1))
    count = int(np.clip(T // (short.length or 1), 64, _SAMPLE_ROWS // _SCORE_ROWS))
    many = windowed(model, series, dataclasses.replace(short, batch=count))
    key_scores, key_steps = jax.random.split(key)
    curvature = decompose(from_scores(*many, key_scores, start.coords, root, T), root)
    estimator, source = full(model, series, start.tiles) if T <= _SAMPLE_ROWS else many

    def gradient(t: int, coords: Coords) -> Array:
        key_step = jax.random.fold_in(key_steps, t)
        own = fetch(estimator, source, jax.random.split(key_step)[0])
        return pulled(estimator, own, key_step, root, coords)

    longest = _LONGEST * float(np.sqrt(T))
    coords = approach(gradient, start.coords, curvature, longest, _NOISY_STEPS)
    mode = place(model, series, coords)
    metric = _constant(mode.metric, root, curvature.spread())
    return mode._replace(metric=metric, shape=_ROUGH)


def constant_blocks(model: Model, sampler: Sampler, at: Mode) -> tuple[str, ...]:
    """Return the first names of the blocks that move in a constant metric.

    A Langevin sampler leaves blocks whose coordinates are far from Gaussian to their own steps.
    """
    if isinstance(sampler, SGLD) or (isinstance(sampler, SGRLD) and sampler.metric == "complete"):
        return ()
    return tuple(
        block.names[0]
        for block in model.blocks
        if not isinstance(sampler, SGRLD) or block.is_regular(at.statistics[block.names[0]])
    )


@functools.partial(jax.jit, static_argnums=0)
def _gradient(model: Model, coords: Coords, statistics: dict[str, Any]) -> dict[str, Array]:
    return posterior_gradient(model, coords, statistics)


def _average(
    estimator: Estimator, source: Source, key: Array, coords: Coords, root: dict[str, Array]
) -> tuple[Curvature, Shape]:
    """Return the curvature averaged over the mode and two places a posterior sd from it on either side.

    Also the shape found there, in the metric of the average.
    """
    key_states, key_away = jax.random.split(key)
    here = measure(estimator, source, key_states, coords, root)
    if not np.isfinite(here).all():
        raise ValueError(NOT_FINITE)
    spread = decompose(here, root).spread()
    away = spread @ np.asarray(jax.random.normal(key_away, (len(spread),)))
    sides = [push(coords, root, jnp.asarray(side)) for side in (-away, away)]
    found = [here, *(measure(estimator, source, key_states, side, root) for side in sides)]
    found = [K for K in found if np.isfinite(K).all()]
    mean = np.mean(found, axis=0)
    average = decompose(mean, root)
    spread = average.spread()

    def largest(K: np.ndarray) -> float:
        return float(np.abs(np.linalg.eigvalsh(spread.T @ K @ spread)).max())

    steepest = max(map(largest, found))
    if len(found) < 3:  # not finite a posterior sd from the mode: as far from Gaussian as can be
        return average, Shape(steepest, _WILD)
    # Differences to the mean itself: directions flatter than the metric allows for change nothing.
    return average, Shape(steepest, max(largest(K - mean) for K in found))


def _constant(metric: Metric, root: dict[str, Array], spread: np.ndarray) -> Metric:
    """Return the metric with a constant part: `root` times `spread`, per row."""
    scale = jnp.asarray(spread) * jnp.sqrt(metric.num_rows)
    return metric._replace(root={name: E @ scale for name, E in root.items()})


def _same(a: Coords, b: Coords) -> bool:
    return all(np.array_equal(a[name], b[name]) for name in a)
