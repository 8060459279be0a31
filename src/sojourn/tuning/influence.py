"""Which windows to draw more often: those that make most of a control variate's noise.

What windows leave of a control variate is the change of their statistics from its centre to where the
chain is. Where states are clear that is next to nothing, but for the few rows that could be of another
state than they seem: drawn once in thousands of windows, these would be errors of many sds. One pass
over all windows, at places that chains visit, tells how much each leaves. Drawn in proportion to that,
windows make the least noise; half of the chances stay equal, for places where others leave more.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from sojourn._compile import compiled
from sojourn.batch import Batch
from sojourn.dynamics import Metric, Sampler
from sojourn.gradients import Center, Estimator, Source
from sojourn.models.base import Coords
from sojourn.series import Series
from sojourn.tuning.noise import disperse
from sojourn.tuning.tables import by_block
from sojourn.tuning.whitening import whitened

# Places around the mode that windows are compared at.
_PLACES = 2


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
    model = estimator.model
    places = [disperse(model, center, metric, k, 1.0, 2.0) for k in jax.random.split(key, _PLACES)]
    stacked = jax.tree.map(lambda *parts: jnp.stack(parts), *places)

    at = (estimator, sampler, source.center, metric, stacked)
    return by_block(estimator, series, lambda batch: _squares(*at, batch))


@compiled(static_argnums=(0, 1), quick=True)
def _squares(
    estimator: Estimator,
    sampler: Sampler,
    center: Center,
    metric: Metric,
    places: dict[str, Array],
    batch: Batch,
) -> Array:
    """Return squares of windows, averaged over places."""
    model = estimator.model
    key = jax.random.key(0)  # control variates are of models without Monte Carlo averages

    def of_place(coords: Coords) -> Array:
        left = center.remainder(lambda at: estimator.by_window(key, at, batch), coords)
        white = jax.vmap(whitened(model, sampler, coords, metric))(left)
        return jnp.square(white).sum(1)

    return jax.lax.map(of_place, places).mean(0)
