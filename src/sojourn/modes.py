"""The neighbourhood of the mode: where it is, and the metric that its curvature makes.

Newton's method on a fixed sample of windows first, which costs the same for any length of the series,
then a few steps on all rows.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from sojourn.curvature import AT_MODE, Curvature, climb, complete_root, decompose, measure, pulled
from sojourn.dynamics import SGLD, SGRLD, Metric, Sampler, posterior_gradient, pull, push
from sojourn.gradients import Estimator, Source, frozen, full, windowed
from sojourn.models.base import Coords, Model
from sojourn.passes import Tiles, full_statistics
from sojourn.series import Series, Windows

# Rows of the windows that curvature is measured on.
_SAMPLE_ROWS = 65_536

# Coordinates up to which measuring curvature, two gradients for each, is worth its time.
_MAX_DIMENSION = 300

# Measurements of the curvature on the way to the mode of the sample, and steps after each.
_ROUNDS = 3
_STEPS = 12

# Steps, and so passes over all rows, from the mode of the sample to that of all rows.
_FULL_STEPS = 3

# Longest step in units of √T: a fraction of what one row tells.
_LONGEST = 0.3


class Mode(NamedTuple):
    """Coordinates near the mode and what holds there.

    Attributes:
        coords: The coordinates.
        metric: The metric for the sampler.
        statistics: Expected statistics of all rows.
        tiles: The tiles that these were computed on.
        curvature: Largest curvature of the log-posterior per row, in the constant part of the metric,
            near the mode.
    """

    coords: dict[str, Array]
    metric: Metric
    statistics: dict[str, Any]
    tiles: Tiles
    curvature: float


def num_rows(model: Model, series: Series) -> int:
    """Rows T of the likelihood: all rows after the lags."""
    return series.num_rows - model.num_lags * len(series.lengths)


def place(model: Model, series: Series, coords: Coords) -> Mode:
    """Return what holds at `coords`, with the complete-data metric."""
    statistics, tiles = full_statistics(model, coords, series)
    T = float(num_rows(model, series))
    pilots = jax.jit(model.pilot, static_argnums=1)(statistics, T)
    return Mode(dict(coords), Metric(pilots, {}, T), statistics, tiles, 1.0)


def find_mode(
    model: Model, series: Series, sampler: Sampler, windows: Windows, start: Mode, key: Array
) -> Mode:
    """Return the mode near `start` and the metric for the sampler there.

    Models without exact gradients, or with very many coordinates, stay where they are, with the
    complete-data metric.

    Args:
        model: The model.
        series: The series.
        sampler: The sampler.
        windows: Length and buffer of the windows to sample if the series is long.
        start: Where to start.
        key: Which windows are sampled.
    """
    blocks = tuple(b for b in model.blocks if b.names[0] in constant_blocks(model, sampler, start))
    names = tuple(block.names[0] for block in blocks)
    if not names:
        return start
    T = start.metric.num_rows
    root = complete_root(model, start.coords, start.metric.pilots, names, T)
    dimension = next(iter(root.values())).shape[1]
    if model.regimes is not None or dimension > _MAX_DIMENSION:
        if isinstance(sampler, SGRLD):
            return start
        return start._replace(metric=_constant(start.metric, root, np.eye(dimension)))

    whole = T <= _SAMPLE_ROWS
    if whole:
        estimator, source = full(model, series, start.tiles)
    else:
        count = _SAMPLE_ROWS // (windows.length or 1)
        many = dataclasses.replace(windows, batch=count)
        estimator, source = frozen(*windowed(model, series, many), key)
    coords, curvature, mode = start.coords, None, start
    on_sample = functools.partial(_on_sample, estimator, source, key, root)
    longest = _LONGEST * float(np.sqrt(T))
    for _ in range(_ROUNDS):
        curvature = decompose(measure(estimator, source, key, coords, root), root)
        coords, left = climb(on_sample, coords, curvature, longest, _STEPS)
        if left < AT_MODE:
            break
    assert curvature is not None
    seen: list[Mode] = []

    def on_all(coords: Coords) -> Array:
        seen.append(place(model, series, coords))
        return pull(root, _gradient(model, coords, seen[-1].statistics))

    if whole:
        mode = place(model, series, coords)
    else:
        coords, _ = climb(on_all, coords, curvature, longest, _FULL_STEPS)
        mode = next(m for m in reversed(seen) if _same(m.coords, coords))
    average, largest = _average(estimator, source, key, mode.coords, curvature)
    metric = _constant(mode.metric, root, average.spread())
    return mode._replace(metric=metric, curvature=largest)


def constant_blocks(model: Model, sampler: Sampler, at: Mode) -> set[str]:
    """Return the first names of the blocks that move in a constant metric.

    A Langevin sampler leaves blocks whose coordinates are far from Gaussian to their own steps.
    """
    if isinstance(sampler, SGLD) or (isinstance(sampler, SGRLD) and sampler.metric == "complete"):
        return set()
    names = {block.names[0]: block for block in model.blocks}
    if not isinstance(sampler, SGRLD):
        return set(names)
    return {name for name, block in names.items() if block.is_regular(at.statistics[name])}


def _on_sample(
    estimator: Estimator, source: Source, key: Array, root: dict[str, Array], coords: Coords
) -> Array:
    return pulled(estimator, source, key, coords, root)


@functools.partial(jax.jit, static_argnums=0)
def _gradient(model: Model, coords: Coords, statistics: dict[str, Any]) -> dict[str, Array]:
    return posterior_gradient(model, coords, statistics)


def _average(
    estimator: Estimator, source: Source, key: Array, coords: Coords, curvature: Curvature
) -> tuple[Curvature, float]:
    """Return the curvature averaged over the mode and two places a posterior sd from it on either side.

    Also the largest curvature found there, in the metric of the average.
    """
    root = curvature.root
    here = measure(estimator, source, key, coords, root)
    spread = decompose(here, root).spread()
    away = spread @ np.asarray(jax.random.normal(key, (len(spread),)))
    found = [here]
    for side in (-away, away):
        found.append(measure(estimator, source, key, push(coords, root, jnp.asarray(side)), root))
    average = decompose(np.mean([K for K in found if np.isfinite(K).all()], axis=0), root)
    spread = average.spread()
    largest = max(np.linalg.eigvalsh(spread.T @ K @ spread)[-1] for K in found)
    return average, float(largest)


def _constant(metric: Metric, root: dict[str, Array], spread: np.ndarray) -> Metric:
    """Return the metric with a constant part: `root` times `spread`, per row."""
    scale = jnp.asarray(spread) * jnp.sqrt(metric.num_rows)
    return metric._replace(root={name: E @ scale for name, E in root.items()})


def _same(a: Coords, b: Coords) -> bool:
    return all(np.array_equal(a[name], b[name]) for name in a)
