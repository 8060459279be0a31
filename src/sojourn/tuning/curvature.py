"""Curvature of the log-posterior near its mode, and a metric made of it.

Legend: u coordinates, E root of the complete-data metric at a centre, r = √T E⁻¹ (u − centre), in which
a posterior would have unit spread if states were observed; K curvature of the log-posterior in r, the
share of the complete-data information that is observed.

K comes from differences of gradients, which by Fisher's identity need no second derivative of any
recursion, on windows that stay the same, so that their sampling noise cancels. Its inverse is the
posterior's covariance in r, as far as that is Gaussian.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jax import Array

from sojourn._compile import compiled
from sojourn.blocks import Pilot
from sojourn.dynamics import dimension, pull, push
from sojourn.gradients import Estimator, Source, fetch
from sojourn.models.base import Coords, Model
from sojourn.tuning.objective import pulled

# Half the distance, in r, between the two gradients of a difference.
_DELTA = 0.5

# Smallest curvature believed in.
_FLOOR = 1e-4


class Curvature(NamedTuple):
    """Curvature K = V diag(values) Vᵀ in the coordinates r of `root`."""

    root: dict[str, Array]
    values: np.ndarray
    vectors: np.ndarray

    def spread(self) -> np.ndarray:
        """Return V diag(values)^(−1/2), a root of the posterior's covariance in r."""
        return self.vectors / np.sqrt(self.values)

    def newton(self, gradient: np.ndarray) -> tuple[np.ndarray, float]:
        """Return K⁻¹ g and gᵀ K⁻¹ g."""
        step = self.vectors @ ((self.vectors.T @ gradient) / self.values)
        return step, float(gradient @ step)


@compiled(static_argnums=(0, 3), quick=True)
def complete_root(
    model: Model, coords: Coords, pilots: Mapping[str, Pilot], names: tuple[str, ...], T: Any
) -> dict[str, Array]:
    """Return the root of the complete-data posterior covariance at `coords`: rows of E / √T by name.

    Args:
        model: The model.
        coords: Where.
        pilots: Constants of the blocks' metrics.
        names: First names of the blocks to include.
        T: Rows of the likelihood.
    """
    blocks = [block for block in model.blocks if block.names[0] in names]
    like = {n: jnp.asarray(coords[n]) for block in blocks for n in block.names}
    flat, unravel = jax.flatten_util.ravel_pytree(like)

    def displacement(r: Array) -> dict[str, Array]:
        vector, moved = unravel(r), {}
        for block in blocks:
            own = {n: vector[n] for n in block.names}
            moved |= block.sqrt_metric(like, own, pilots[block.names[0]])
        return moved

    columns = jax.vmap(displacement)(jnp.eye(flat.size) / jnp.sqrt(T))
    return {n: columns[n].reshape(flat.size, -1).T for n in like}


@compiled(static_argnums=0, quick=True)
def _differences(
    estimator: Estimator, source: Source, key: Array, coords: Coords, root: Mapping[str, Array]
) -> Array:
    """Return K by central differences along the columns of the root."""
    d = dimension(root)
    towards = jnp.concatenate([jnp.eye(d), -jnp.eye(d)])
    found = jax.lax.map(
        lambda r: pulled(estimator, source, key, root, push(coords, root, _DELTA * r)), towards
    )
    K = (found[d:] - found[:d]) / (2 * _DELTA)
    return (K + K.T) / 2


def measure(
    estimator: Estimator, source: Source, key: Array, coords: Coords, root: Mapping[str, Array]
) -> np.ndarray:
    """Return K at `coords`."""
    return np.asarray(_differences(estimator, source, key, dict(coords), dict(root)))


def from_scores(
    estimator: Estimator,
    source: Source,
    key: Array,
    coords: Coords,
    root: Mapping[str, Array],
    T: float,
) -> np.ndarray:
    """Return K from the covariance of windows' gradients that are Monte Carlo averages.

    Two independent averages of each window are paired, so that their Monte Carlo errors drop out.
    """
    key_windows, *keys = jax.random.split(key, 3)
    source = fetch(estimator, source, key_windows)
    at = (key_windows, dict(coords), dict(root))
    one, other = (np.asarray(_window_scores(estimator, source, k, *at)) for k in keys)
    length = estimator.windows.length
    assert length is not None
    prior = np.asarray(_prior_curvature(estimator.model, dict(coords), dict(root)))
    return information(one, other, length, T) + prior


def information(one: np.ndarray, other: np.ndarray, length: int, T: float) -> np.ndarray:
    """Return the share of the complete-data information that is observed, from scores of windows.

    The information of rows is the covariance of their score. Few windows are drawn towards a share of
    one in every direction, which counts as much as windows of the number of directions.

    Args:
        one: Score of each window, of W that together estimate that of all rows, in r, (W, d).
        other: The same, with Monte Carlo errors of its own; `one` itself if there are none.
        length: Rows of a window.
        T: Rows of the likelihood.
    """
    W, d = one.shape
    paired = (one - one.mean(0)).T @ (other - other.mean(0)) / (W - 1)
    K = (paired + paired.T) / 2 * length * W**2 / T
    return (W * K + d * np.eye(d)) / (W + d)


@compiled(static_argnums=0, quick=True)
def _window_scores(
    estimator: Estimator,
    source: Source,
    key: Array,
    key_windows: Array,
    coords: Coords,
    root: Mapping[str, Array],
) -> Array:
    """Return the gradient of the log-likelihood in r of each window, (W, dimension)."""
    statistics = estimator.by_window(key, coords, estimator.batch(source, key_windows))
    gradient = estimator.model.gradient
    return jax.vmap(lambda one: pull(root, gradient(coords, one)))(statistics)


@compiled(static_argnums=0, quick=True)
def _prior_curvature(model: Model, coords: Coords, root: Mapping[str, Array]) -> Array:
    log_prior = lambda r: model.log_prior(push(coords, root, r))  # noqa: E731
    return -jax.hessian(log_prior)(jnp.zeros(dimension(root)))


def decompose(K: np.ndarray, root: Mapping[str, Array]) -> Curvature:
    """Return eigenvalues and vectors of K, the values bounded away from zero."""
    values, vectors = np.linalg.eigh(K)
    return Curvature(dict(root), np.maximum(np.abs(values), _FLOOR), vectors)
