"""What is computed once of every block of a partition, and the expansions of a control variate so kept.

What a control variate subtracts of a window, its statistics at the centre and their slopes, does not
change while a chain runs. Where the blocks of a partition are few enough to keep that of all of them, a
step passes over its windows once and looks up the rest.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from sojourn._compile import compiled
from sojourn._cores import num_cores
from sojourn._precision import double
from sojourn.batch import Batch
from sojourn.gradients import SLOPE_STEP, Center, Estimator
from sojourn.passes import gather_tiles, read_tiles
from sojourn.series import Series, tile

# Windows that run together.
_GROUP = 512

# Tables are in single precision. Roundings of blocks, 3e-8 of what they hold, are independent: of blocks
# of S rows, m of their sds from zero, the sum moves the posterior by 3e-8 √S m² of its sds. That is 4e-5
# at 200 rows and ten sds; a warning tells of data that are farther.
_ITEM = np.float32
_ITEM_BYTES = 4

# Bytes of a table, and of what one group makes of it.
_TABLE_BYTES = 2**28
_GROUP_BYTES = 2**22

# Bytes to look up for each row of a window. From about ten times as many on, two passes over it take no
# longer (measured with an HMM of eight states); and thousands of windows are looked up at once.
_BYTES_PER_ROW = 256


def pays(estimator: Estimator, center: Center, blocks: int) -> bool:
    """Whether the table of so many blocks fits into memory, and is faster than what it replaces."""
    size = _row_bytes(center)
    return blocks * size <= _TABLE_BYTES and size <= _BYTES_PER_ROW * estimator.rows


def _row_bytes(center: Center) -> int:
    coords, statistics = (ravel_pytree(part)[0] for part in (center.coords, center.statistics))
    return _ITEM_BYTES * (1 + coords.size) * statistics.size


def tabulate(estimator: Estimator, center: Center, series: Series) -> Array:
    """Return the table of a `Source`: each block's statistics at the centre, then their slopes.

    Args:
        estimator: The estimator; its windows are blocks of a partition.
        center: The centre.
        series: The series.
    """
    step = SLOPE_STEP / float(np.sqrt(estimator.model.num_rows(series)))
    made = 2 * _row_bytes(center)  # in double precision
    group = int(np.clip(_GROUP_BYTES // made, 1, _GROUP))
    coords = center.coords
    expand = lambda batch: _expansions(estimator, coords, step, batch)  # noqa: E731
    return jnp.asarray(by_block(estimator, series, expand, group, _ITEM))


def by_block(
    estimator: Estimator,
    series: Series,
    program: Callable[[Batch], Array],
    group: int = _GROUP,
    dtype: type = float,
) -> np.ndarray:
    """Return what a program finds of each block of the estimator's partition, in order.

    Args:
        estimator: The estimator; its windows say how long blocks and buffers are.
        series: The series.
        program: Takes windows, whose rows that count weigh one; returns an array with a row for each.
        group: Windows to give it at a time, at most.
        dtype: Type of the numbers that are kept.
    """
    windows, num_lags = estimator.windows, estimator.model.num_lags
    assert windows.length is not None
    every, rows = tile(series.lengths, num_lags, windows.length, windows.buffer)
    count = len(every.start)
    size = min(group, count)
    where = (size, rows, num_lags, estimator.pad)
    values = None if series.streams else series.resident()

    @double
    def found_from(first: int) -> np.ndarray:
        if values is None:
            batch, _ = read_tiles(series, every, first, *where)
        else:
            batch, _ = gather_tiles(values, every, first, *where)
        return np.asarray(program(batch))

    starts = range(0, count, size)
    with ThreadPoolExecutor(num_cores()) as pool:
        whole = np.empty(0)
        for start, found in zip(starts, pool.map(found_from, starts), strict=True):
            if start == 0:  # one array for all, not twice their memory
                whole = np.empty((count, *found.shape[1:]), dtype)
            whole[start : start + size] = found[: count - start]
    return whole


@compiled(static_argnums=0, quick=True)
def _expansions(estimator: Estimator, coords: dict[str, Array], step: float, batch: Batch) -> Array:
    """Return the rows of the table of some windows, (windows, 1 + d, statistics)."""
    key = jax.random.key(0)  # control variates are of models without Monte Carlo averages
    flat, unravel = ravel_pytree(coords)
    places = jnp.concatenate([flat[None], flat + step * jnp.eye(flat.size)])

    def at(place: Array) -> Array:
        found = estimator.by_window(key, unravel(place), batch)
        return jax.vmap(lambda one: ravel_pytree(one)[0])(found)

    found = jax.lax.map(at, places)
    slopes = (found[1:] - found[0]) / step
    return jnp.moveaxis(jnp.concatenate([found[:1], slopes]), 0, 1)
