"""Windows that tile a series, and the rows of them that count."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from sojourn.batch import Batch, Missing, Seam
from sojourn.models.base import Model
from sojourn.series import Drawn, Series, gather, tile
from sojourn.series.windows import read, weigh

# Windows per call: with a few hundred rows each, what a call touches stays in the cache.
_GROUP = 64


class Tiles(NamedTuple):
    """Windows that tile all series, in order."""

    drawn: Drawn
    rows: int
    core: int
    buffer: int

    @property
    def count(self) -> int:
        return len(self.drawn.start)

    @property
    def group(self) -> int:
        """Windows of one call."""
        return min(_GROUP, self.count)


def make_tiles(model: Model, series: Series, buffer: int) -> Tiles:
    """Tile all series with windows of this buffer, or with whole series where that is less work.

    Windows are 2 to 16 buffers long: short enough to have many in a batch, long enough that the
    buffers do not cost more than the rows that count.
    """
    return _tiles(series.lengths, model.num_lags, buffer)


@functools.lru_cache(maxsize=8)  # a sampler tiles the same series at every sweep
def _tiles(lengths: tuple[int, ...], num_lags: int, buffer: int) -> Tiles:
    longest = max(lengths) - num_lags
    core = int(np.clip(-(-sum(lengths) // _GROUP), 2 * buffer, 16 * buffer))
    core |= 1  # rows a power of two apart would share a few lines of the cache
    if longest <= core + 2 * buffer:
        core = longest
    drawn, rows = tile(lengths, num_lags, core, buffer)
    return Tiles(drawn, rows, core, buffer)


def pads(model: Model, series: Series, rows: int) -> bool:
    """Whether some series is shorter than a window."""
    return min(series.lengths) - model.num_lags < rows


def effective_missing(model: Model, series: Series, rows: int) -> Missing:
    """Which kind of missing rows the windows can hold, padding included."""
    kind = model.missing_kind(series.missing)
    return "rows" if kind == "none" and pads(model, series, rows) else kind


def seam(drawn: Drawn) -> Seam:
    """Return where the windows meet their neighbours."""
    return Seam(
        *(jnp.asarray(row - drawn.shift) for row in (drawn.start, drawn.stop, drawn.length))
    )


@functools.partial(jax.jit, static_argnums=(3, 4, 5, 6))
def gather_tiles(
    values: Array, every: Drawn, first: int, size: int, rows: int, num_lags: int, pad: bool
) -> tuple[Batch, Drawn]:
    """Gather `size` tiles; behind the last, that one again, with weight zero."""
    count = every.start.shape[0]
    index = first + jnp.arange(size)
    drawn = jax.tree.map(lambda field: field[jnp.minimum(index, count - 1)], every)
    batch = gather(values, drawn, rows, num_lags=num_lags, windows=None, pad=pad)
    return batch._replace(weight=jnp.where(index < count, batch.weight, 0.0)), drawn


@functools.partial(jax.jit, static_argnums=(3, 4))
def _weigh_tiles(y: Array, drawn: Drawn, real: Array, num_lags: int, pad: bool) -> Batch:
    batch = weigh(y, drawn, num_lags=num_lags, windows=None, pad=pad)
    return batch._replace(weight=jnp.where(real, batch.weight, 0.0))


def read_tiles(
    series: Series, every: Drawn, first: int, size: int, rows: int, num_lags: int, pad: bool
) -> tuple[Batch, Drawn]:
    """Do what `gather_tiles` does for rows that are not in memory."""
    index = first + np.arange(size)
    real = index < len(every.start)
    drawn = jax.tree.map(lambda field: field[np.minimum(index, len(field) - 1)], every)
    y = read(series, drawn.origin, rows + num_lags)
    return _weigh_tiles(jnp.asarray(y), drawn, real, num_lags, pad), drawn


def counted_rows(rows: Array, drawn: Drawn, core: int) -> Array:
    """Return the rows of each window that count, windows first: (L, ..., W) to (W, core, ...).

    Windows with fewer rows that count end in copies of their last.
    """
    first = (drawn.start - drawn.shift)[None]
    index = jnp.minimum(first + jnp.arange(core)[:, None], rows.shape[0] - 1)
    shape = (core, *(1,) * (rows.ndim - 2), rows.shape[-1])
    return jnp.moveaxis(jnp.take_along_axis(rows, index.reshape(shape), axis=0), -1, 0)


def in_order(tiles: Tiles, joined: np.ndarray) -> np.ndarray:
    """Return the rows of all windows (W, core, …) in order of time, each series after its lags."""
    counted = tiles.drawn.stop - tiles.drawn.start
    short = np.flatnonzero(counted < tiles.core)
    flat = joined.reshape(-1, *joined.shape[2:])
    if len(short) == 0:
        return flat
    if short[0] == len(counted) - 1:
        return flat[: counted.sum()]
    return flat[(np.arange(tiles.core) < counted[:, None]).ravel()]
