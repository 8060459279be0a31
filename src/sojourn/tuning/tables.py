"""What is computed once of every block of a partition, and the expansions of a control variate so kept.

What a control variate subtracts of a window, its statistics at the centre and their slopes, does not
change while a chain runs. Where the blocks of a partition are few enough to keep that of all of them, a
step passes over its windows once and looks up the rest.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from sojourn._compile import compiled
from sojourn._cores import num_cores
from sojourn._precision import double
from sojourn.gradients import SLOPE_STEP, Estimator, Source
from sojourn.series import Drawn, Series, gather, tile

# Windows that run together, and how many such groups one after the other in one call.
_GROUP = 512
_GROUPS = 16

# Bytes of a table, and of what one group makes of it.
_TABLE_BYTES = 2**28
_GROUP_BYTES = 2**22


def fits(source: Source) -> bool:
    """Whether the table of all blocks may be kept in memory."""
    assert source.where is not None
    return int(source.where.last_window[-1]) * _row_bytes(source) <= _TABLE_BYTES


def _row_bytes(source: Source) -> int:
    assert source.center is not None
    sizes = [
        ravel_pytree(part)[0].size for part in (source.center.coords, source.center.statistics)
    ]
    return 8 * (1 + sizes[0]) * sizes[1]


def tabulate(estimator: Estimator, source: Source, series: Series) -> Array:
    """Return the table of a `Source`: each block's statistics at the centre, then their slopes.

    Args:
        estimator: The estimator; its windows are blocks of a partition.
        source: What it reads, with a centre.
        series: The series.
    """
    step = SLOPE_STEP / float(np.sqrt(estimator.model.num_rows(series)))
    group = int(np.clip(_GROUP_BYTES // _row_bytes(source), 1, _GROUP))
    source = source._replace(table=None)
    return jnp.asarray(
        by_block(
            estimator, series, lambda drawn: _expansions(estimator, source, step, drawn), group
        )
    )


def summed_slopes(source: Source) -> dict[str, Any]:
    """Return the slopes of the statistics of all rows, which a table adds up to."""
    assert source.center is not None and source.table is not None
    unravel = ravel_pytree(source.center.statistics)[1]
    return jax.vmap(unravel)(source.table[:, 1:].sum(0))


def by_block(
    estimator: Estimator, series: Series, program: Callable[[Drawn], Array], group: int = _GROUP
) -> np.ndarray:
    """Return what a program finds of each block of the estimator's partition, in order.

    Args:
        estimator: The estimator; its windows say how long blocks and buffers are.
        series: The series.
        program: Takes groups of windows (groups, windows); returns an array of as many rows.
        group: Windows of a group, at most.
    """
    windows = estimator.windows
    assert windows.length is not None
    every, _ = tile(series.lengths, estimator.model.num_lags, windows.length, windows.buffer)
    count = len(every.start)
    size = min(group, count)
    groups = min(_GROUPS, -(-count // size))
    calls = -(-count // (size * groups))
    index = np.arange(calls * groups * size).reshape(calls, groups, size) % count

    @double
    def rows(part: np.ndarray) -> np.ndarray:
        found = np.asarray(program(jax.tree.map(lambda x: jnp.asarray(x[part]), every)))
        return found.reshape(groups * size, *found.shape[2:])

    with ThreadPoolExecutor(num_cores()) as pool:
        later = pool.map(rows, index)
        whole = np.empty(0)
        for start, found in zip(range(0, count, groups * size), later, strict=True):
            if start == 0:  # one array for all, not twice their memory
                whole = np.empty((count, *found.shape[1:]))
            whole[start : start + len(found)] = found[: count - start]
    return whole


@compiled(static_argnums=0, quick=True)
def _expansions(estimator: Estimator, source: Source, step: float, drawn: Drawn) -> Array:
    """Return the rows of the table of groups of windows, (groups, windows, 1 + d, statistics)."""
    model, center, values = estimator.model, source.center, source.values
    assert center is not None and not isinstance(values, Series)
    key = jax.random.key(0)  # control variates are of models without Monte Carlo averages
    how = {"num_lags": model.num_lags, "windows": None, "pad": estimator.pad}
    flat, unravel = ravel_pytree(center.coords)
    places = jnp.concatenate([flat[None], flat + step * jnp.eye(flat.size)])

    def of_group(drawn: Drawn) -> Array:
        batch = gather(values, drawn, estimator.rows, **how)

        def at(place: Array) -> Array:
            found = estimator.by_window(key, unravel(place), batch)
            return jax.vmap(lambda one: ravel_pytree(one)[0])(found)

        found = jax.lax.map(at, places)
        slopes = (found[1:] - found[0]) / step
        return jnp.moveaxis(jnp.concatenate([found[:1], slopes]), 0, 1)

    return jax.lax.map(of_group, drawn)
