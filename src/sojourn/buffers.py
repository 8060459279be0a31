"""How far the gradient of a window is from what an unlimited buffer would give.

Error and noise are measured on the same windows, in the metric of the sampler, where the gradient of a
window is a vector of numbers of one kind. `MATH.md` §12.3.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from sojourn.batch import Batch
from sojourn.dynamics import Metric, Sampler
from sojourn.gradients import Estimator, Source, fetch, windowed
from sojourn.models.base import Coords, Model
from sojourn.series import Series, Windows

# Buffers tried, each against one twice the longest.
_LADDER = (1, 2, 4, 8, 16, 32, 64, 128)

# Root-mean-square error of a window's gradient that a buffer may leave, relative to its noise.
TOLERANCE = 0.01


def window_gradients(
    estimator: Estimator,
    sampler: Sampler,
    source: Source,
    key: Array,
    coords: Coords,
    metric: Metric,
    buffer: int | None = None,
) -> Array:
    """Return the whitened gradient of each window of one step, (W, dimension); they sum to the step's.

    With a `buffer`, rows further than that from the rows that count are treated as missing. Inside a
    series this equals a window with that buffer: the stationary edge law passes through missing rows
    unchanged, and missing rows after the window carry nothing back.
    """
    source = fetch(estimator, source, jax.random.split(key)[0])
    return _window_gradients(estimator, sampler, source, key, coords, metric, buffer)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _window_gradients(
    estimator: Estimator,
    sampler: Sampler,
    source: Source,
    key: Array,
    coords: Coords,
    metric: Metric,
    buffer: Any,
) -> Array:
    key_windows, key_states = jax.random.split(key)
    model, batch = estimator.model, estimator.batch(source, key_windows)
    if buffer is not None:
        batch = batch._replace(y=_hide(batch, buffer, model.num_lags))

    def gradients(at: Coords) -> Any:
        moments = model.moments(key_states, at, batch, estimator.missing)
        return jax.vmap(model.collect, in_axes=-1)(moments)

    statistics = gradients(coords)
    if source.center is not None:
        W = batch.weight.shape[1]
        share = jax.tree.map(lambda s: s / W, source.center.statistics)
        there = gradients(source.center.coords)
        statistics = jax.tree.map(lambda s, a, b: s + a - b, share, statistics, there)

    def whitened(one: Any) -> Array:
        gradient = model.gradient(coords, one)
        white = sampler.whiten(model, coords, gradient, metric)
        return jnp.concatenate([white[name].ravel() for name in sorted(white)])

    return jax.vmap(whitened)(statistics)


def choose(
    model: Model,
    series: Series,
    windows: Windows,
    sampler: Sampler,
    coords: Coords,
    metric: Metric,
    key: Array,
) -> tuple[int, float]:
    """Return the smallest buffer whose gradient error is small beside the noise, and that error.

    The error of B is the root mean square, over windows, of the difference to a buffer twice as long
    as the longest tried; a buffer passes if it and all longer ones are below the tolerance. If none
    does, the longest is returned, with an error above the tolerance.

    Where expectations are Monte Carlo averages, all buffers see the same random numbers, and the model
    is one whose draws far from a change stay as they were.
    """
    assert windows.length is not None
    sized = Windows(windows.length, 2 * _LADDER[-1], 64, windows.scheme)
    estimator, source = windowed(model.coupled(), series, sized)
    if estimator.missing == "none":
        estimator = dataclasses.replace(estimator, missing="rows")

    def measure(buffer: int) -> np.ndarray:
        found = window_gradients(estimator, sampler, source, key, coords, metric, buffer)
        return np.asarray(found)

    reference = measure(2 * _LADDER[-1])
    noise = np.sqrt(np.square(reference - reference.mean(0)).sum(1).mean())

    def error_of(buffer: int) -> float:
        return float(np.sqrt(np.square(measure(buffer) - reference).sum(1).mean()) / noise)

    chosen, error = _LADDER[-1], error_of(_LADDER[-1])
    for buffer in reversed(_LADDER[:-1]):
        if error > TOLERANCE or (shorter := error_of(buffer)) > TOLERANCE:
            break
        chosen, error = buffer, shorter
    return chosen, error


def _hide(batch: Batch, buffer: Array, num_lags: int) -> Array:
    """Return the rows with those beyond the buffer missing; lags of rows that stay are kept."""
    L = batch.weight.shape[0]
    counts = batch.weight > 0
    start = jnp.argmax(counts, axis=0)
    stop = L - jnp.argmax(counts[::-1], axis=0)
    t = jnp.arange(-num_lags, L)[:, None]
    seen = (t >= start - buffer - num_lags) & (t < stop + buffer)
    return jnp.where(seen[:, None], batch.y, jnp.nan)
