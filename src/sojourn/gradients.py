"""Estimators of the statistics that gradients are made of: windowed, control variate, full.

An estimator is configuration, closed over by compiled functions; what it reads is in `Source`. It maps
a random key and coordinates to expected statistics scaled to the whole data, from which the model
makes the gradient, `MATH.md` §2.2:

    g̃(θ) = ∇_θ E[log p(y, u | θ)] at the statistics  Σ_{t in S} w_t E[ · | y_window]
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from sojourn._compile import compiled
from sojourn._precision import double, to_host
from sojourn._validation import check_seed, shown
from sojourn.batch import Batch, Missing
from sojourn.models.base import Coords, Model, check_data
from sojourn.passes import Tiles, effective_missing, full_statistics, gather_tiles, pads, read_tiles
from sojourn.series import Chances, Drawn, Layout, Series, Windows, draw, gather, layout
from sojourn.series.prefetch import prefetched
from sojourn.series.windows import block_numbers, read, weigh, window_rows

# Windows of a full estimator that run together, at most.
_GROUP = 128

# Share of the way δ from a centre along which slopes of windows are measured. Rounding leaves 1e-12 of
# the statistics, and the curvature 1e-4 of the remainder: neither shows.
_ALONG = 1e-4

# Finite-difference step for the slopes of the statistics of all rows, in units of 1/√T, about one
# posterior sd: what curvature adds to a slope is as small a part of the remainder.
SLOPE_STEP = 1e-3

# Bytes of windows, and steps, read ahead at a time: many windows for each file of a store, whose index
# is then read once for all of them; short beside a chunk of steps.
_FETCH_BYTES = 2**24
_FETCH_STEPS = 256


class Center(NamedTuple):
    """What a control variate expands statistics around (`MATH.md` §3.3), with slopes to first order.

        Y(θ) = Y(θ̂) + Y′(θ̂) δ  +  [Y(θ) − Y(θ̂) − Y′(θ̂) δ],    δ = θ − θ̂

    All rows give what stands before the bracket, windows the rest. Its noise is of the order of δ, or of
    δ² with slopes; the slopes of windows are differences along δ.

    Attributes:
        coords: Coordinates θ̂.
        statistics: Statistics of all rows there.
        slopes: Their derivatives by all coordinates, as `ravel_pytree` orders them, stacked; or empty.
    """

    coords: dict[str, Array]
    statistics: dict[str, Any]
    slopes: dict[str, Any]

    @property
    def num_passes(self) -> int:
        """How often windows are passed over for one estimate."""
        return 3 if self.slopes else 2

    def expand(self, coords: Coords) -> dict[str, Any]:
        """Return what all rows give at other coordinates, as far as the expansion goes."""
        if not self.slopes:
            return self.statistics
        delta = self.offset(coords)
        return jax.tree.map(
            lambda s, slope: s + jnp.tensordot(delta, slope, axes=1), self.statistics, self.slopes
        )

    def remainder(self, at: Callable[[Coords], Any], coords: Coords) -> dict[str, Any]:
        """Return what is left of statistics `at` coordinates, all places in one pass."""
        places = [dict(coords), self.coords]
        if self.slopes:
            along = jax.tree.map(lambda u, v: v + _ALONG * (u - v), dict(coords), self.coords)
            places.append(along)
        found = jax.vmap(at)(jax.tree.map(lambda *parts: jnp.stack(parts), *places))
        left = jax.tree.map(lambda y: y[0] - y[1], found)
        if not self.slopes:
            return left
        return jax.tree.map(lambda rest, y: rest - (y[2] - y[1]) / _ALONG, left, found)

    def offset(self, coords: Coords) -> Array:
        """Return the way δ to other coordinates."""
        return ravel_pytree(jax.tree.map(jnp.subtract, dict(coords), self.coords))[0]


def measure_slopes(
    model: Model, series: Series, coords: Coords, statistics: dict[str, Any]
) -> dict[str, Any]:
    """Return the slopes of a `Center`, from differences of a full pass for each coordinate."""
    flat, unravel = ravel_pytree(dict(coords))
    step = SLOPE_STEP / float(np.sqrt(model.num_rows(series)))
    slopes = []
    for i in range(flat.size):
        moved, _ = full_statistics(model, unravel(flat.at[i].add(step)), series)
        slopes.append(jax.tree.map(lambda y, at: (y - at) / step, moved, statistics))
    return jax.tree.map(lambda *parts: jnp.stack(parts), *slopes)


class Source(NamedTuple):
    """What an estimator reads.

    Attributes:
        values: All rows, columns first; empty for a full estimator; the series where they are too many
            to keep in memory, and then `fetch` and `fetched` give sources that compiled code can read.
        where: Layout of the series; None for a full estimator.
        tiles: All windows, gathered by groups; None for a windowed estimator.
        center: Centre of the control variate, if any.
        given: Rows of the windows that will be drawn, read beforehand, (L + p, D, W); for several
            steps, one after the other, (n, L + p, D, W).
        chances: How likely each window is drawn; all equally if None.
        table: Statistics of each block of a partition at the centre, its rows weighing one, and then
            their slopes, (blocks, 1 + coordinates, statistics): what else every step would pass over
            its windows for; None where it does.
    """

    values: Array | Series
    where: Layout | None
    tiles: Batch | None
    center: Center | None
    given: Array | None = None
    chances: Chances | None = None
    table: Array | None = None

    @property
    def num_passes(self) -> int:
        """How often windows are passed over for one estimate."""
        return 1 if self.center is None or self.table is not None else self.center.num_passes

    def at(self, n: Any) -> "Source":
        """Return what the n-th of several steps reads."""
        return self if self.given is None else self._replace(given=self.given[n])


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
        return self._gather(source, self._draw(source, key))

    def _draw(self, source: Source, key: Array) -> Drawn:
        assert source.where is not None
        return draw(key, source.where, self.windows, self.rows, source.chances)

    def _gather(self, source: Source, drawn: Drawn) -> Batch:
        how = {"num_lags": self.model.num_lags, "windows": self.windows, "pad": self.pad}
        if source.given is not None:
            return weigh(source.given, drawn, **how)
        assert not isinstance(source.values, Series)
        return gather(source.values, drawn, self.rows, **how)

    def by_window(self, key: Array, coords: Coords, batch: Batch) -> dict[str, Any]:
        """Return the statistics of each window of a batch, windows first; they sum to the batch's."""
        moments = self.model.moments(key, coords, batch, self.missing)
        return jax.vmap(self.model.collect, in_axes=-1)(moments)

    def __call__(self, source: Source, key: Array, coords: Coords) -> dict[str, Any]:
        """Return statistics at `coords`, scaled to the whole data."""
        if source.tiles is not None:
            return self._full(source.tiles, key, coords)
        key_windows, key_states = jax.random.split(key)
        drawn = self._draw(source, key_windows)
        batch = self._gather(source, drawn)
        at = functools.partial(self.model.statistics, key_states, batch=batch, missing=self.missing)
        center = source.center
        if center is None:
            return at(coords)
        if source.table is None:
            rest = center.remainder(at, coords)
        else:
            expanded = self._look_up(source.table, source.where, center, drawn, coords)
            rest = jax.tree.map(jnp.subtract, at(coords), expanded)
        return jax.tree.map(jnp.add, center.expand(coords), rest)

    def _look_up(
        self, table: Array, where: Layout | None, center: Center, drawn: Drawn, coords: Coords
    ) -> dict[str, Any]:
        """Return what windows give at other coordinates, as far as their own expansions go."""
        assert where is not None
        rows = table.reshape(len(table), -1)[block_numbers(drawn, where, self.windows)]
        along = jnp.concatenate([jnp.ones(1), center.offset(coords)])
        # A product of matrices for each: XLA takes ten times as long for both sums in one.
        total = along @ (drawn.scale @ rows).reshape(table.shape[1:])
        return ravel_pytree(center.statistics)[1](total)

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
    values = series if series.streams else series.resident()
    return estimator, Source(values, where, None, None)


def fetch(estimator: Estimator, source: Source, key: Array) -> Source:
    """Return a source that holds what `estimator.batch` reads with this key."""
    if not isinstance(source.values, Series):
        return source
    origin = _origins(estimator, source.where, source.chances, key[None])
    return _given(estimator, source, source.values, np.asarray(origin)).at(0)


def fetched(
    estimator: Estimator, source: Source, key: Array, first: int, stop: int, *, splits: int
) -> Iterator[tuple[int, int, Source]]:
    """Cut steps `first` to `stop` into blocks, with sources that hold what each of them reads.

    Windows are a function of the key and the step alone, so that a thread can read the rows of the next
    block while compiled code works on this one. Resident rows make one block.

    Args:
        estimator: The estimator.
        source: What it reads.
        key: Key of the chain; step t folds t into it.
        first: First step.
        stop: Step behind the last.
        splits: How often the key of a step is split, and its first half taken, before windows are drawn.

    Yields:
        First and last step of a block, and its source; step t reads `source.at(t - begin)`.
    """
    series = source.values
    if not isinstance(series, Series):
        yield first, stop, source
        return
    W, L = estimator.windows.batch, estimator.rows + estimator.model.num_lags
    size = int(np.clip(_FETCH_BYTES // (8 * W * L * series.dim), 1, _FETCH_STEPS))

    @double
    def read_block(begin: int, end: int) -> Source:
        keys = _step_keys(key, begin, size, splits)
        origin = np.asarray(_origins(estimator, source.where, source.chances, keys))
        # Blocks have one size, so that they share one program; the last may end early.
        given = _given(estimator, source, series, origin[: end - begin])
        assert given.given is not None
        unused = size - (end - begin)
        padding = [(0, unused), (0, 0), (0, 0), (0, 0)]
        return given._replace(given=jnp.pad(given.given, padding)) if unused else given

    yield from prefetched(read_block, first, stop, size)


@functools.partial(jax.jit, static_argnums=(2, 3))
def _step_keys(key: Array, begin: int, size: int, splits: int) -> Array:
    def one(t: Array) -> Array:
        own = jax.random.fold_in(key, t)
        for _ in range(splits):
            own = jax.random.split(own)[0]
        return own

    return jax.vmap(one)(begin + jnp.arange(size))


@functools.partial(jax.jit, static_argnums=0)
def _origins(estimator: Estimator, where: Layout, chances: Chances | None, keys: Array) -> Array:
    """Return the first row of each window drawn with each key, (n, W)."""
    how = (where, estimator.windows, estimator.rows, chances)
    return jax.vmap(lambda key: jnp.asarray(draw(key, *how).origin))(keys)


def _given(estimator: Estimator, source: Source, series: Series, origin: np.ndarray) -> Source:
    rows = read(series, origin, estimator.rows + estimator.model.num_lags)
    return source._replace(values=jnp.zeros((0, 0)), given=jnp.asarray(rows))


def full(model: Model, series: Series, tiles: Tiles) -> tuple[Estimator, Source]:
    """Return an estimator from all rows, and its source: the windows, gathered once."""
    pad = pads(model, series, tiles.rows)
    where = (0, len(tiles.drawn.start), tiles.rows, model.num_lags, pad)
    if series.streams:
        batch, _ = read_tiles(series, tiles.drawn, *where)
    else:
        every = jax.tree.map(jnp.asarray, tiles.drawn)
        batch, _ = gather_tiles(series.resident(), every, *where)
    missing = effective_missing(model, series, tiles.rows)
    estimator = Estimator(model, Windows.full(), tiles.rows, False, missing)
    return estimator, _grouped(batch)


def frozen(estimator: Estimator, source: Source, key: Array) -> tuple[Estimator, Source]:
    """Return an estimator that reads the windows of one step again and again."""
    batch = jax.jit(estimator.batch)(fetch(estimator, source, key), key)
    return dataclasses.replace(estimator, windows=Windows.full()), _grouped(batch)


def _grouped(batch: Batch) -> Source:
    """Return windows, in groups that run together, as a source; windows left over are of no weight."""
    count = batch.weight.shape[-1]
    groups = -(-count // _GROUP)
    size = -(-count // groups)

    def split(x: Array) -> Array:
        index = jnp.arange(groups * size) % count
        return jnp.moveaxis(x[..., index].reshape(*x.shape[:-1], groups, size), -2, 0)

    again = jnp.arange(groups * size).reshape(groups, 1, size) >= count
    weight = jnp.where(again, 0.0, split(batch.weight))
    tiles = Batch(split(batch.y), weight, split(batch.first))
    return Source(jnp.zeros((0, 0)), None, tiles, None)


@compiled(static_argnums=0)
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
    whatever the buffer. For an SLDS, whose expectations are averages over Gibbs sweeps, both are Monte
    Carlo estimates; on all rows always with the same random numbers.

    Args:
        model: The model.
        coords: Coordinates, from `model.to_coords`.
        data: The series, as in `sample`.
        windows: Windows to estimate from.
        seed: Which windows are drawn; of no effect on all rows.
    """
    if windows is not None and not isinstance(windows, Windows):
        raise TypeError(f"windows must be a Windows or None; got {shown(windows)}")
    series = check_data(model, data)
    key = jax.random.key(check_seed(seed))
    coords = model.check_coords(coords)
    model, series = model.enter(series)
    if windows is None or windows.is_full:
        statistics, _ = full_statistics(model, coords, series)
        return to_host(gradient_from(model, coords, statistics))
    estimator, source = windowed(model, series, windows)
    source = fetch(estimator, source, jax.random.split(key)[0])
    return to_host(_windowed_gradient(estimator, source, key, coords))
