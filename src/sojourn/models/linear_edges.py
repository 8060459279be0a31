"""What windows of linear Gaussian states are compared by where they meet."""

import functools

import jax.numpy as jnp
from jax import Array

from sojourn.batch import Edges, Seam, rows_at
from sojourn.messages import gaussian


def filtered_edges(
    found: gaussian.Gains,
    filtered: gaussian.Filtered,
    first: Array | None,
    scale: Array,
    seam: Seam,
) -> Edges:
    """Return the filtered moments at the seams; nothing backward."""
    L = filtered.previous.shape[0]
    means = jnp.concatenate([filtered.previous, filtered.last[None]])
    covariances = jnp.concatenate([found.previous, found.last[None]])
    before = _message(means, covariances, first, scale, seam.start)
    at_end = _message(means, covariances, first, scale, jnp.minimum(seam.stop, L))
    nothing = jnp.zeros((1, means.shape[2]))
    return Edges(before, at_end, nothing, nothing)


def _message(
    means: Array, covariances: Array, first: Array | None, scale: Array, row: Array
) -> Array:
    """Return, at one row of each window, means over the state's scale and logs of variances, (2n, W)."""
    variances = jnp.stack([covariances[:, a, a] for a in range(means.shape[1])], axis=1)
    if first is None:
        picked = rows_at(variances, row)
    else:
        picked = jnp.where(first, variances[row, :, 1].T, variances[row, :, 0].T)
    return jnp.concatenate([rows_at(means, row) / scale[:, None], jnp.log(picked)])


def with_smoothed(
    found: Edges,
    smoothed: gaussian.Smoothed,
    first: Array | None,
    scale: Array,
    seam: Seam,
) -> Edges:
    """Add the smoothed moments at the seams."""
    # `smoothed` begins with the state before the first row.
    L = smoothed.mean.shape[0] - 1
    message = functools.partial(_message, smoothed.mean, smoothed.covariance, first, scale)
    ahead = message(jnp.minimum(seam.stop, L - 1) + 1)
    return found._replace(own=message(seam.start + 1), ahead=ahead)


def with_paths(found: Edges, x: Array, scale: Array, seam: Seam) -> Edges:
    """Add what tells sampled paths (L+1, n, W) apart: a state and the one before it, at the seams."""
    pair = jnp.concatenate([x[1:], x[:-1]], axis=1) / jnp.tile(scale, 2)[:, None]
    ahead = jnp.minimum(seam.stop, pair.shape[0] - 1)
    return found._replace(own=rows_at(pair, seam.start), ahead=rows_at(pair, ahead))
