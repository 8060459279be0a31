"""Estimators of the statistics that gradients are made of: windowed, control variate, full.

An estimator is configuration, closed over by compiled functions; what it reads is in `Source`. It maps
a random key and coordinates to expected statistics scaled to the whole data, from which the model
makes the gradient, `MATH.md` §2.2:

    g̃(θ) = ∇_θ E[log p(y, u | θ)] at the statistics  Σ_{t in S} w_t E[ · | y_window]
"""

import dataclasses
import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from sojourn._precision import double, to_host
from sojourn._validation import check_seed, shown
from sojourn.batch import Batch, Missing
from sojourn.models.base import Coords, Model, check_lags, check_model
from sojourn.passes import Tiles, effective_missing, full_statistics, gather_tiles, pads
from sojourn.series import Layout, Series, Windows, as_series, draw, gather, layout
from sojourn.series.windows import window_rows

# Windows of a full estimator that run together.
_GROUP = 64


class Center(NamedTuple):
    """Where a control variate is exact: coordinates and the statistics of all rows there."""

    coords: dict[str, Array]
    statistics: dict[str, Any]


class Source(NamedTuple):
    """What an estimator reads.

    Attributes:
        values: All rows, columns first; empty for a full estimator.
        where: Layout of the series; None for a full estimator.
        tiles: All windows, gathered by groups; None for a windowed estimator.
        center: Centre of the control variate, if any.
    """

    values: Array
    where: Layout | None
    tiles: Batch | None
    center: Center | None


@dataclass(frozen=True)
class Estimator:
    """Statistics of all rows, estimated from windows or computed from all of them."""

    model: Model
    windows: Windows
    rows: int
    pad: bool
    missing: Missing

    def batch(self, source: Source, key: Array) -> Batch:
        """Draw and gather the windows of one step."""
        assert source.where is not None
        drawn = draw(key, source.where, self.windows, self.rows)
        return gather(
            source.values,
            drawn,
            self.rows,
            num_lags=self.model.num_lags,
            windows=self.windows,
            pad=self.pad,
        )

    def __call__(self, source: Source, key: Array, coords: Coords) -> dict[str, Any]:
        """Return statistics at `coords`, scaled to the whole data."""
        if source.tiles is not None:
            return self._full(source.tiles, key, coords)
        key_windows, key_states = jax.random.split(key)
        batch = self.batch(source, key_windows)
        at = functools.partial(self.model.statistics, key_states, batch=batch, missing=self.missing)
        if source.center is None:
            return at(coords)
        # Control variate on the statistics (`MATH.md` §3.3): the same windows, in one pass for both.
        both = jax.tree.map(lambda a, b: jnp.stack([a, b]), dict(coords), source.center.coords)
        pair = jax.vmap(at)(both)
        return jax.tree.map(lambda s, p: s + p[0] - p[1], source.center.statistics, pair)

    def _full(self, tiles: Batch, key: Array, coords: Coords) -> dict[str, Any]:
        keys = jax.random.split(key, tiles.weight.shape[0])

        def add(total: Any, group: tuple[Batch, Array]) -> tuple[Any, None]:
            statistics = self.model.statistics(group[1], coords, group[0], self.missing)
            return jax.tree.map(jnp.add, total, statistics), None

        first = jax.tree.map(lambda x: x[0], tiles)
        total = self.model.statistics(keys[0], coords, first, self.missing)
        if keys.shape[0] == 1:
            return total
        rest = jax.tree.map(lambda x: x[1:], tiles)
        return jax.lax.scan(add, total, (rest, keys[1:]))[0]


def windowed(model: Model, series: Series, windows: Windows) -> tuple[Estimator, Source]:
    """Return an estimator from windows drawn at random, and its source."""
    windows.check(series, model.num_lags)
    rows = window_rows(series, model.num_lags, windows)
    pad = pads(model, series, rows)
    missing = effective_missing(model, series, rows)
    estimator = Estimator(model, windows, rows, pad, missing)
    where = layout(series, model.num_lags, windows)
    return estimator, Source(series.resident(), where, None, None)


def full(model: Model, series: Series, tiles: Tiles) -> tuple[Estimator, Source]:
    """Return an estimator from all rows, and its source: the windows, gathered once."""
    values = series.resident()
    every = jax.tree.map(jnp.asarray, tiles.drawn)
    pad = pads(model, series, tiles.rows)
    count = len(tiles.drawn.start)
    batch, _ = gather_tiles(values, every, 0, count, tiles.rows, model.num_lags, pad)
    missing = effective_missing(model, series, tiles.rows)
    estimator = Estimator(model, Windows.full(), tiles.rows, False, missing)
    return estimator, _grouped(batch)


def frozen(estimator: Estimator, source: Source, key: Array) -> tuple[Estimator, Source]:
    """Return an estimator that reads the windows of one step again and again."""
    batch = jax.jit(estimator.batch)(source, key)
    return dataclasses.replace(estimator, windows=Windows.full()), _grouped(batch)


def _grouped(batch: Batch) -> Source:
    """Return windows, in groups that run together, as a source; windows left over are of no weight."""
    count = batch.weight.shape[-1]
    size = min(_GROUP, count)
    groups = -(-count // size)

    def split(x: Array) -> Array:
        index = jnp.arange(groups * size) % count
        return jnp.moveaxis(x[..., index].reshape(*x.shape[:-1], groups, size), -2, 0)

    again = jnp.arange(groups * size).reshape(groups, 1, size) >= count
    weight = jnp.where(again, 0.0, split(batch.weight))
    tiles = Batch(split(batch.y), weight, split(batch.first))
    return Source(jnp.zeros((0, 0)), None, tiles, None)


@functools.partial(jax.jit, static_argnums=0)
def _windowed_gradient(
    estimator: Estimator, source: Source, key: Array, coords: Coords
) -> dict[str, Array]:
    return estimator.model.gradient(coords, estimator(source, key, coords))


@functools.partial(jax.jit, static_argnums=0)
def gradient_from(model: Model, coords: Coords, statistics: Any) -> dict[str, Array]:
    """Return the gradient of the log-likelihood from statistics, compiled."""
    return model.gradient(coords, statistics)


@double
def gradient(
    model: Model, coords: Coords, data: Any, windows: Windows | None = None, seed: int = 0
) -> dict[str, np.ndarray]:
    """Return the gradient of the log-likelihood in the coordinates of `model.to_coords`.

    The prior is not included. Without windows it is the gradient on all rows, exact to rounding; with
    windows, an unbiased estimate up to the error of the buffers. One seed draws the same windows
    whatever the buffer.

    Args:
        model: The model.
        coords: Coordinates, from `model.to_coords`.
        data: The series, as in `sample`.
        windows: Windows to estimate from.
        seed: Which windows are drawn.
    """
    check_model(model)
    if windows is not None and not isinstance(windows, Windows):
        raise TypeError(f"windows must be a Windows or None; got {shown(windows)}")
    series = as_series(data, model.emission_dim)
    check_lags(model, series)
    key = jax.random.key(check_seed(seed))
    coords = model.check_coords(coords)
    model, series = model.enter(series)
    if windows is None or windows.is_full:
        statistics, _ = full_statistics(model, coords, series)
        return to_host(gradient_from(model, coords, statistics))
    estimator, source = windowed(model, series, windows)
    return to_host(_windowed_gradient(estimator, source, key, coords))
