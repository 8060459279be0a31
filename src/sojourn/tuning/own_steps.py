"""How long steps may be where some blocks move in their own metric.

Legend: H curvature of the log-posterior, per row, in coordinates where the constant part of the metric
and, for the other blocks, the complete-data metric is the identity.

A Cox–Ingersoll–Ross step is exact for known states. What it gets wrong is what hidden states hide: near
the mode it moves by

    u' = u − q H u + √(q (2 − q)) ξ,    q = 1 − e^(−ε),

whose stationary variance, with a share λ of the information observed, is (2 − q) / (2 − λ q) of what it
should be. Blocks move at once, so that this holds of all of them together.
"""

from collections.abc import Mapping

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy.linalg import solve_discrete_lyapunov

from sojourn._compile import compiled
from sojourn.dynamics import OWN_ERROR, Metric, Shape, dimension, own_blocks, push
from sojourn.gradients import Estimator, Source
from sojourn.models.base import Coords, Model
from sojourn.tuning.curvature import complete_root, measure

# Step sizes to try, the longest first; the last is that of blocks whose steps are not exact.
_STEPS = np.geomspace(1.0, 0.1, 13)


def with_own_error(
    shape: Shape, estimator: Estimator, source: Source, key: Array, coords: Coords, metric: Metric
) -> Shape:
    """Return the shape with the error that steps of blocks in their own metric make.

    It stays what it is without exact steps, and where the curvature of these blocks is not that of a
    maximum.
    """
    model = estimator.model
    own = own_blocks(model, metric)
    if not own or not all(block.has_exact_step for block in own):
        return shape
    names = tuple(block.names[0] for block in own)
    root = _joined(metric, complete_root(model, coords, metric.pilots, names, metric.num_rows))
    H = measure(estimator, source, key, coords, root)
    if not np.isfinite(H).all() or np.linalg.eigvalsh(H)[0] <= 0:
        return shape
    slopes = np.asarray(_slopes(model, dict(coords), root))
    constant = dimension(metric.root)
    for epsilon in _STEPS:
        error = mixed_error(H, constant, slopes, epsilon)
        if error <= OWN_ERROR:
            return shape._replace(own_error=error / epsilon)
    return shape


def mixed_error(H: np.ndarray, constant: int, slopes: np.ndarray, epsilon: float) -> float:
    """Return the largest relative error of a parameter's variance from steps of ε near the mode.

    Args:
        H: Curvature.
        constant: How many coordinates, the first ones, move in the constant metric.
        slopes: Derivatives of the parameters, (parameters, coordinates).
        epsilon: The step size.
    """
    rate = np.full(len(H), -np.expm1(-epsilon))
    rate[:constant] = epsilon
    step = np.eye(len(H)) - rate[:, None] * H
    if np.abs(np.linalg.eigvals(step)).max() >= 1:
        return np.inf
    covariance = solve_discrete_lyapunov(step, np.diag(rate * (2 - rate)))
    found, right = (
        np.einsum("pi,ij,pj->p", slopes, S, slopes) for S in (covariance, np.linalg.inv(H))
    )
    return float(np.abs(found / right - 1).max())


def _joined(metric: Metric, own: Mapping[str, Array]) -> dict[str, Array]:
    """Return the root of all coordinates: columns of the constant part, then those of `own`."""
    constant = {n: E / jnp.sqrt(metric.num_rows) for n, E in metric.root.items()}
    before, behind = dimension(constant), dimension(own)
    return {
        **{n: jnp.pad(E, ((0, 0), (0, behind))) for n, E in constant.items()},
        **{n: jnp.pad(E, ((0, 0), (before, 0))) for n, E in own.items()},
    }


@compiled(static_argnums=0, quick=True)
def _slopes(model: Model, coords: Coords, root: Mapping[str, Array]) -> Array:
    """Return the derivatives of all parameters along the columns of the root."""

    def params(r: Array) -> Array:
        return jax.flatten_util.ravel_pytree(model.constrain(push(coords, root, r)))[0]

    return jax.jacfwd(params)(jnp.zeros(dimension(root)))
