"""Which windows to draw more often: those that make most of a control variate's noise.

What windows leave of a control variate is the change of their statistics from its centre to where the
chain is. Where states are clear that is next to nothing, but for the few rows that could be of another
state than they seem: drawn once in thousands of windows, these would be errors of many sds. One pass
over all windows, at places that chains visit, tells how much each leaves. Drawn in proportion to that,
windows make the least noise; half of the chances stay equal, for places where others leave more.
"""

from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from sojourn._compile import compiled
from sojourn._cores import num_cores
from sojourn._precision import double
from sojourn.dynamics import Metric, Sampler
from sojourn.gradients import Estimator, Source
from sojourn.models.base import Coords
from sojourn.series import Drawn, Series, gather, tile
from sojourn.tuning.noise import disperse
from sojourn.tuning.whitening import whitened

# Places around the mode that windows are compared at.
_PLACES = 2

# Windows that run together, and how many such groups one after the other in one call.
_GROUP = 512
_GROUPS = 16


def influence(
    estimator: Estimator,
    sampler: Sampler,
    source: Source,
    series: Series,
    center: Coords,
    metric: Metric,
    key: Array,
) -> np.ndarray:
    """Return, of each block of S rows, the square of what it leaves of a control variate, in the metric.

    Args:
        estimator: The estimator; its windows say how long blocks and buffers are.
        sampler: The sampler.
        source: What it reads, with a centre.
        series: The series.
        center: Where the centre is.
        metric: The metric.
        key: Which places are compared.
    """
    model, windows = estimator.model, estimator.windows
    assert windows.length is not None
    places = [disperse(model, center, metric, k, 1.0, 2.0) for k in jax.random.split(key, _PLACES)]
    stacked = jax.tree.map(lambda *parts: jnp.stack(parts), *places)
    every, _ = tile(series.lengths, model.num_lags, windows.length, windows.buffer)
    count = len(every.start)
    size = min(_GROUP, count)
    groups = min(_GROUPS, -(-count // size))
    calls = -(-count // (size * groups))
    index = np.arange(calls * groups * size).reshape(calls, groups, size) % count

    @double
    def squares(part: np.ndarray) -> np.ndarray:
        drawn = jax.tree.map(lambda x: jnp.asarray(x[part]), every)
        return np.asarray(_squares(estimator, sampler, source, metric, stacked, drawn))

    with ThreadPoolExecutor(num_cores()) as pool:
        found = list(pool.map(squares, index))
    return np.concatenate(found).ravel()[:count]


@compiled(static_argnums=(0, 1), quick=True)
def _squares(
    estimator: Estimator,
    sampler: Sampler,
    source: Source,
    metric: Metric,
    places: dict[str, Array],
    drawn: Drawn,
) -> Array:
    """Return squares of groups of windows, (groups, windows), averaged over places."""
    model, center, values = estimator.model, source.center, source.values
    assert center is not None and not isinstance(values, Series)
    key = jax.random.key(0)  # control variates are of models without Monte Carlo averages
    how = {"num_lags": model.num_lags, "windows": None, "pad": estimator.pad}

    def of_group(drawn: Drawn) -> Array:
        batch = gather(values, drawn, estimator.rows, **how)

        def of_place(coords: Coords) -> Array:
            left = center.remainder(lambda at: estimator.by_window(key, at, batch), coords)
            white = jax.vmap(whitened(model, sampler, coords, metric))(left)
            return jnp.square(white).sum(1)

        return jax.lax.map(of_place, places).mean(0)

    return jax.lax.map(of_group, drawn)
