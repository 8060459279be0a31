"""Gradients in coordinates where the metric is one: of a whole step, and of each of its windows."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from sojourn._compile import compiled
from sojourn.batch import Batch, Cut
from sojourn.dynamics import Metric, Sampler
from sojourn.gradients import Estimator, Source, fetch
from sojourn.models.base import Coords, Model


def whitened(
    model: Model, sampler: Sampler, coords: Coords, metric: Metric
) -> Callable[[dict[str, Any]], Array]:
    """Return the map from statistics to the gradient in coordinates where the metric is one."""
    return lambda statistics: sampler.whiten(
        model, coords, model.gradient(coords, statistics), metric
    )


@compiled(static_argnums=(0, 1))
def full_gradient(
    estimator: Estimator,
    sampler: Sampler,
    source: Source,
    key: Array,
    coords: Coords,
    metric: Metric,
) -> Array:
    """Return the whitened gradient of one step, (dimension,)."""
    statistics = estimator(source, key, coords)
    return whitened(estimator.model, sampler, coords, metric)(statistics)


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


@compiled(static_argnums=(0, 1), quick=True)
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
        batch = cut(batch, buffer, model.num_lags).near

    at = functools.partial(estimator.by_window, key_states, batch=batch)
    if source.center is None:
        statistics = at(coords)
    else:
        W, center = batch.weight.shape[1], source.center
        share, rest = center.expand(coords), center.remainder(at, coords)
        statistics = jax.tree.map(lambda s, r: s / W + r, share, rest)
    return jax.vmap(whitened(model, sampler, coords, metric))(statistics)


@functools.partial(jax.jit, static_argnums=(0, 1))
def whiten_all(
    model: Model, sampler: Sampler, coords: Coords, metric: Metric, plain: Array
) -> Array:
    """Return gradients (W, coordinates), names in order, in units of the sampler's metric."""
    names = sorted(coords)
    sizes = np.cumsum([np.size(coords[name]) for name in names])

    def one(gradient: Array) -> Array:
        parts = zip(names, jnp.split(gradient, sizes[:-1]), strict=True)
        own = {name: part.reshape(jnp.shape(coords[name])) for name, part in parts}
        return sampler.whiten(model, coords, own, metric)

    return jax.vmap(one)(plain)


def cut(batch: Batch, buffer: Array, num_lags: int) -> Cut:
    """Hide the rows beyond the buffer as missing ones; lags of rows that stay are kept."""
    L = batch.weight.shape[0]
    counts = batch.weight > 0
    start = jnp.argmax(counts, axis=0) - buffer
    stop = L - jnp.argmax(counts[::-1], axis=0) + buffer
    t = jnp.arange(-num_lags, L)[:, None]
    after = jnp.where((t >= start - num_lags)[:, None], batch.y, jnp.nan)
    near = jnp.where((t < stop)[:, None], after, jnp.nan)
    return Cut(batch, batch._replace(y=after), batch._replace(y=near), start, stop)
