"""Draws of each discrete state in turn, the continuous process integrated out.

Legend as in `switching.py`.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Int

from sojourn._linalg import (
    cholesky,
    diagonal,
    eye,
    matmul,
    solve_lower,
    solve_lower_transposed,
    transpose,
)
from sojourn.messages import discrete
from sojourn.messages.particle import System
from sojourn.messages.rows import Rows


def single_site(key: Array, system: System, rows: Rows, z: Int[Array, "N W"]) -> Int[Array, "N W"]:
    """Draw each z_t in turn given all others, x integrated out. `MATH.md` §9.2.

        p(z_t = k | others, y) ∝ Π[z_{t−1}, k] Π[k, z_{t+1}] ∫ N(x; A_k m, A_k P A_kᵀ + Q_k) β(x) dx

    with N(m, P) the filtered law before row t and β the likelihood of row t and all later ones. These
    β are computed once, from right to left, and the filter moves along with the draws from left to
    right: O(L), not O(L²), for a sweep.
    """
    uniform = jax.random.uniform(key, z.shape)
    betas = _likelihoods_ahead(system, rows, z)
    log_Pi = jnp.log(system.Pi)
    into = jnp.swapaxes(jnp.take(log_Pi, z[1:], axis=1), 0, 1)  # log Π[k, z_{t+1}], (L, K, W)
    # Nothing follows the last row.
    into = jnp.concatenate([into, jnp.zeros_like(into[:1])])
    h, precision = betas

    # The state before the first row: no dynamics lead to it.
    zero = jnp.zeros((*system.root.shape[1:],), system.root.dtype)
    score = jnp.log(system.law) + into[0] + _integral(zero, system.root, h[0], precision[0])
    start = _draw_state(score, uniform[0])
    picked = jnp.take_along_axis(system.root, start[None, None, None], axis=2)[:, :, 0]
    mean = jnp.zeros((picked.shape[0], z.shape[1]), picked.dtype)
    A, Q = system.A[..., None], system.Q[..., None]
    L = z.shape[0] - 1
    C = jnp.broadcast_to(rows.whitened.C, (L, *rows.whitened.C.shape[1:]))

    def step(carry: tuple[Array, Array, Array], row: Any) -> tuple[Any, Array]:
        previous, mean, P = carry
        y, c, to_next, h_t, precision_t, u = row
        means = matmul(A, mean[:, None, None])[:, 0]
        predicted = matmul(matmul(A, P[:, :, None]), transpose(A)) + Q
        root = cholesky((predicted + transpose(predicted)) / 2)
        score = jnp.take(log_Pi, previous, axis=0).T + to_next
        state = _draw_state(score + _integral(means, root, h_t, precision_t), u)
        mean = jnp.take_along_axis(means, state[None, None], axis=1)[:, 0]
        root = jnp.take_along_axis(root, state[None, None, None], axis=2)[:, :, 0]
        residual = y - matmul(c, mean[:, None])[:, 0]
        # P' = L (I + Lᵀ Cᵀ C L)⁻¹ Lᵀ with P = L Lᵀ
        seen = matmul(c, root)
        inner = cholesky(eye(root.shape[0], root) + matmul(transpose(seen), seen))
        half = solve_lower(inner, transpose(root))
        P = matmul(transpose(half), half)
        mean = mean + matmul(P, matmul(transpose(c), residual[:, None]))[:, 0]
        return (state, mean, P), state

    carry = (start, mean, matmul(picked, transpose(picked)))
    rows_in = (rows.whitened.y, C, into[1:], h[1:], precision[1:], uniform[1:])
    _, states = lax.scan(step, carry, rows_in)
    return jnp.concatenate([start[None], states])


def _likelihoods_ahead(system: System, rows: Rows, z: Array) -> tuple[Array, Array]:
    """Return h, Λ with p(rows from t on | x_t, z) ∝ exp(hᵀ x − ½ xᵀ Λ x), before row 0 and at each row.

    Entry 0 is of x before row 0 and of all rows; entry t + 1 of x at row t, that row included.
    """
    L, W = rows.whitened.log_constant.shape
    n = system.A.shape[0]
    one_hot = (z[1:, None] == jnp.arange(system.A.shape[2])[:, None]).astype(system.A.dtype)
    A, Q = (select(M, one_hot) for M in (system.A, system.Q))
    C = jnp.broadcast_to(rows.whitened.C, (L, *rows.whitened.C.shape[1:]))

    def step(carry: tuple[Array, Array], row: Any) -> tuple[Any, Any]:
        h, precision = carry
        y, c, a, q = row
        h = h + matmul(transpose(c), y[:, None])[:, 0]
        precision = precision + matmul(transpose(c), c)
        root = cholesky(q)
        inner = cholesky(eye(n, q) + matmul(transpose(root), matmul(precision, root)))
        half = solve_lower(inner, matmul(transpose(root), precision))
        pull = solve_lower_transposed(
            inner, solve_lower(inner, matmul(transpose(root), h[:, None]))
        )
        before = matmul(transpose(a), h[:, None] - matmul(precision, matmul(root, pull)))[:, 0]
        reduced = precision - matmul(transpose(half), half)
        reduced = matmul(transpose(a), matmul((reduced + transpose(reduced)) / 2, a))
        return (before, (reduced + transpose(reduced)) / 2), (h, precision)

    nothing = (jnp.zeros((n, W), A.dtype), jnp.zeros((n, n, W), A.dtype))
    first, rest = lax.scan(step, nothing, (rows.whitened.y, C, A, Q), reverse=True)
    h, precision = (jnp.concatenate([f[None], r]) for f, r in zip(first, rest, strict=True))
    return h, precision


def _integral(mean: Array, root: Array, h: Array, precision: Array) -> Array:
    """Return log ∫ N(x; m, L Lᵀ) exp(hᵀ x − ½ xᵀ Λ x) dx for means (n, K, W) and roots (n, n, K, W)."""
    h, precision = h[:, None], precision[:, :, None]
    pushed = h - matmul(precision, mean[:, None])[:, 0]
    inner = cholesky(eye(root.shape[0], root) + matmul(transpose(root), matmul(precision, root)))
    white = solve_lower(inner, matmul(transpose(root), pushed[:, None]))
    log_root = jnp.log(diagonal(inner)).sum(0)
    own = (mean * (h + pushed)).sum(0) / 2
    return own + 0.5 * jnp.square(white).sum((0, 1)) - log_root


def _draw_state(score: Array, u: Array) -> Array:
    """Draw a state with log-probabilities (K, W), up to a constant."""
    return discrete.choose(jnp.exp(score - score.max(0)), u)


def select(M: Array, one_hot: Array) -> Array:
    """Return the matrices (n, n, K) of the states (L, K, W), of shape (L, n, n, W)."""
    K = M.shape[2]
    terms = (one_hot[:, k, None, None] * M[None, :, :, k, None] for k in range(1, K))
    return sum(terms, start=one_hot[:, 0, None, None] * M[None, :, :, 0, None])
