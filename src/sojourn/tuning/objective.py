"""The log-posterior and its gradient, as the windows of a step, or all of them, tell.

Legend: u coordinates, E root of the complete-data metric, r with u = centre + E r.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from sojourn._compile import compiled
from sojourn.batch import Seam
from sojourn.dynamics import posterior_gradient, pull
from sojourn.gradients import Estimator, Source, fetch
from sojourn.models.base import Coords


def log_posterior(estimator: Estimator, source: Source, key: Array, coords: Coords) -> Array:
    """Return an estimate of the log-posterior from the windows of one step."""
    return _log_posterior(estimator, fetch(estimator, source, key), key, coords)


def log_posteriors(
    estimator: Estimator, source: Source, key: Array, places: Coords, count: Any
) -> Array:
    """Return the log-posterior at the first `count` of several places, all from the same windows.

    These are drawn with equal chances: others are made for what a control variate leaves.
    """
    source = source._replace(chances=None)
    return _log_posteriors(estimator, fetch(estimator, source, key), key, places, count)


@compiled(static_argnums=0, quick=True)
def _log_posterior(estimator: Estimator, source: Source, key: Array, coords: Coords) -> Array:
    model = estimator.model

    def score(batch: Any) -> Array:
        nowhere = jnp.zeros(batch.weight.shape[1], int)
        seam = Seam(nowhere, nowhere, nowhere)
        return model.window_scores(coords, batch, seam, estimator.missing)[0].sum()

    if source.tiles is not None:
        total = jax.lax.map(score, source.tiles).sum()
    else:
        total = score(estimator.batch(source, key))
    return total + model.log_prior(coords)


@compiled(static_argnums=0, quick=True)
def _log_posteriors(
    estimator: Estimator, source: Source, key: Array, places: Coords, count: Any
) -> Array:
    def one(n: Array, found: Array) -> Array:
        coords = jax.tree.map(lambda u: u[n], dict(places))
        return found.at[n].set(_log_posterior(estimator, source, key, coords))

    size = len(jax.tree.leaves(dict(places))[0])
    return jax.lax.fori_loop(0, count, one, jnp.zeros(size))


@compiled(static_argnums=0, quick=True)
def pulled(
    estimator: Estimator, source: Source, key: Array, root: Mapping[str, Array], coords: Coords
) -> Array:
    """Return the gradient of the log-posterior in r."""
    statistics = estimator(source, key, coords)
    return pull(root, posterior_gradient(estimator.model, coords, statistics))


@compiled(static_argnums=0, quick=True)
def value_and_pulled(
    estimator: Estimator, source: Source, key: Array, root: Mapping[str, Array], coords: Coords
) -> tuple[Array, Array]:
    """Return the log-posterior and its gradient in r."""
    value = _log_posterior(estimator, source, key, coords)
    return value, pulled(estimator, source, key, root, coords)
