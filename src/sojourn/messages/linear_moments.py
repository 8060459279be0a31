"""Sums over rows of products of linear Gaussian states and rows, expected or of given states."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Bool, Float

from sojourn._linalg import matmul, transpose
from sojourn.messages import gaussian
from sojourn.messages.rows import Rows, draw_missing


class Moments(NamedTuple):
    """Weighted sums over the rows of each window: of pairs of states, and of rows with states."""

    n: Float[Array, "W"]
    cc: Float[Array, "n n W"]
    cp: Float[Array, "n n W"]
    pp: Float[Array, "n n W"]
    rows: Float[Array, "W"]
    yy: Float[Array, "m m W"]
    yx: Float[Array, "m n W"]
    xx: Float[Array, "n n W"]


def expected_moments(
    smoothed: gaussian.Smoothed,
    first: Bool[Array, "W"] | None,
    weight: Float[Array, "L W"],
    rows: Rows,
) -> Moments:
    """Sum E[x_t x_tᵀ], E[x_t x_{t−1}ᵀ], E[x_{t−1} x_{t−1}ᵀ] and y_t E[x_t]ᵀ, y_t y_tᵀ. `MATH.md` §8.3.

    Args:
        smoothed: Moments of the states of each window.
        first: As in `gaussian.forward`.
        weight: Weight of each row; zero in buffers.
        rows: Rows; missing entries are completed by their moments.
    """
    y, seen = rows.y, rows.seen_rows
    n, m = smoothed.mean.shape[1], y.shape[1]
    observed = weight if seen is None else jnp.where(seen, weight, 0.0)
    # Products of a row's (x_t, x_{t−1}, y_t), all in one array: one loop body, one kernel.
    i, j = (np.concatenate(index) for index in zip(*_pairs(n, m), strict=True))
    by_row = (i >= 2 * n)[:, None]

    def step(total: Array, row: tuple[Array, ...]) -> tuple[Array, None]:
        now, before, row_y, w, w_seen = row
        u = jnp.concatenate([now, before, row_y])
        return total + u[i] * u[j] * jnp.where(by_row, w_seen, w), None

    scanned = (smoothed.mean[1:], smoothed.mean[:-1], y, weight, observed)
    total, _ = lax.scan(step, jnp.zeros((len(i), weight.shape[1]), y.dtype), scanned)
    sizes = np.cumsum([len(pair[0]) for pair in _pairs(n, m)])[:-1]
    cc, cp, pp, yx, yy = jnp.split(total, sizes)
    covariances = (smoothed.covariance[1:], smoothed.cross, smoothed.covariance[:-1])
    around = _picked_sum(jnp.stack(covariances, axis=1), first, weight)
    cc, cp, pp = (
        _square(cc, n) + around[0],
        cp.reshape(n, n, -1) + around[1],
        _square(pp, n) + around[2],
    )
    xx = cc
    if seen is not None:
        mean = smoothed.mean[1:]
        xx = (mean[:, :, None] * (mean * observed[:, None])[:, None]).sum(0)
        xx = xx + _picked_sum(smoothed.covariance[1:, None], first, observed)[0]
    yx = yx.reshape(m, n, -1)
    found = Moments(weight.sum(0), cc, cp, pp, observed.sum(0), _square(yy, m), yx, xx)
    if rows.completion is None:
        return found
    return _completed(found, smoothed, first, observed, rows.completion)


def sampled_moments(
    key: Array, x: Float[Array, "N n W"], weight: Float[Array, "L W"], rows: Rows
) -> Moments:
    """Return the sums of `expected_moments` for given states, missing entries drawn given these."""
    complete = rows._replace(y=draw_missing(key, x, rows), seen=rows.seen_rows, completion=None)
    return expected_moments(known(x), None, weight, complete)


def known(x: Float[Array, "N n W"]) -> gaussian.Smoothed:
    """Return the law of states that are known."""
    N, n, _ = x.shape
    nothing = jnp.zeros((N, n, n, 1), x.dtype)
    return gaussian.Smoothed(x, nothing, nothing[1:])


def _pairs(n: int, m: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return which entries of (x_t, x_{t−1}, y_t) are multiplied: cc, cp, pp, yx, yy."""
    x, rows = np.tril_indices(n), np.tril_indices(m)
    full, mixed = np.indices((n, n)).reshape(2, -1), np.indices((m, n)).reshape(2, -1)
    return [
        x,
        (full[0], n + full[1]),
        (n + x[0], n + x[1]),
        (2 * n + mixed[0], mixed[1]),
        (2 * n + rows[0], 2 * n + rows[1]),
    ]


def _square(packed: Array, n: int) -> Array:
    """Return symmetric matrices from their lower triangles by rows, packed along the first axis."""
    index = np.empty((n, n), dtype=int)
    rows, columns = np.tril_indices(n)
    index[rows, columns] = index[columns, rows] = np.arange(len(rows))
    return packed[index]


def _completed(
    moments: Moments,
    smoothed: gaussian.Smoothed,
    first: Array | None,
    observed: Array,
    completion: tuple[Array, Array, Array],
) -> Moments:
    """Return the moments with those of rows and states completed for entries that are missing."""
    u, H, S = completion
    mean = jnp.moveaxis(smoothed.mean[1:], 1, 0)
    covariance = jnp.moveaxis(smoothed.covariance[1:], 0, 2)
    covariance = covariance if first is None else gaussian.by_window(covariance, first)
    second = mean[:, None] * mean[None] + covariance
    cross = u[:, None] * mean[None] + matmul(H, second)
    yy = u[:, None] * u[None] + matmul(cross, transpose(H)) + matmul(H, mean[:, None]) * u[None] + S
    return moments._replace(
        yy=(yy * observed).sum(2),
        yx=(cross * observed).sum(2),
        xx=(second * observed).sum(2),
    )


def _picked_sum(rows: Array, first: Array | None, weight: Array) -> Array:
    """Return Σ_t w_t M_t for each window, from matrices (L, c, a, b, V)."""
    if first is None:
        return (rows * weight[:, None, None, None]).sum(0)
    L, *shape, V = rows.shape
    total = (jnp.moveaxis(rows, -1, 1).reshape(L, -1).T @ weight).reshape(V, *shape, -1)
    return jnp.where(first, total[1], total[0])
