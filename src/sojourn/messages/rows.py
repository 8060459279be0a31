"""Rows of data as observations of a linear Gaussian state: whitened, missing entries completed.

Legend: n states, m columns, p whitened dimensions, L rows, W windows; y_t = C x_t + N(0, R), R⁻¹ = ψ ψᵀ.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float

from sojourn._linalg import (
    UNROLL,
    cholesky,
    diagonal,
    eye,
    matmul,
    solve_lower,
    solve_lower_transposed,
    transpose,
)
from sojourn.batch import Missing


class Observations(NamedTuple):
    """Rows as whitened observations of the state: y = C x + N(0, I), and what that leaves out.

    `log_constant` completes log N(y_t; C x_t, R) = log_constant − ½ ‖y − C x‖².
    """

    y: Float[Array, "L p W"]
    C: Float[Array, "Lc p n Wc"]
    log_constant: Float[Array, "L W"]


class Rows(NamedTuple):
    """Rows of data as messages and moments need them.

    Attributes:
        whitened: Rows as whitened observations of x.
        y: Rows, 0 where missing.
        seen: None if all are; (L, W) if rows are seen or missing as a whole; (L, m, W) by entry.
        completion: Missing entries given the seen ones and x, `complete`; None without.
    """

    whitened: Observations
    y: Float[Array, "L m W"]
    seen: Array | None
    completion: tuple[Array, Array, Array] | None

    @property
    def seen_rows(self) -> Array | None:
        """Rows with an entry that was seen, (L, W); None if all were."""
        if self.seen is None or self.seen.ndim == 2:
            return self.seen
        return self.seen.any(1)


def read_rows(
    C: Float[Array, "m n"], psi: Float[Array, "m m"], y: Float[Array, "L m W"], missing: Missing
) -> Rows:
    """Prepare rows, missing entries NaN, of which `missing` says what can occur; R⁻¹ = ψ ψᵀ."""
    nan = jnp.isnan(y)
    seen = {"none": None, "rows": ~nan.any(1), "entries": ~nan}[missing]
    filled = y if seen is None else jnp.where(seen if seen.ndim == 3 else seen[:, None], y, 0.0)
    completion = None
    if missing == "entries":
        completion = complete(C, psi, filled, ~nan)
    return Rows(observe(C, psi, filled, seen), filled, seen, completion)


def observe(
    C: Float[Array, "m n"], psi: Float[Array, "m m"], y: Float[Array, "L m W"], seen: Array | None
) -> Observations:
    """Whiten rows y = C x + N(0, R), R⁻¹ = ψ ψᵀ.

    Args:
        C: Observation matrix.
        psi: Lower-triangular factor of the precision.
        y: Rows, 0 where missing.
        seen: None if all are; (L, W) if rows are seen or missing as a whole; (L, m, W) by entry.
    """
    m, n = C.shape
    if seen is not None and seen.ndim == 3:
        return _observe_entries(C, psi, y, seen)
    white_C, white_y = psi.T @ C, apply_rows(psi.T[None, :, :, None], y)
    constant = jnp.log(jnp.diagonal(psi)).sum() - m / 2 * np.log(2 * np.pi)
    log_constant = jnp.broadcast_to(constant, (y.shape[0], y.shape[2]))
    if m > n:
        # Only the part of a row within the range of ψᵀC tells of the state.
        basis, reduced = jnp.linalg.qr(white_C)
        inside = apply_rows(basis.T[None, :, :, None], white_y)
        outside = white_y - apply_rows(basis[None, :, :, None], inside)
        log_constant = log_constant - 0.5 * jnp.square(outside).sum(1)
        white_C, white_y = reduced, inside
    if seen is None:
        return Observations(white_y, white_C[None, :, :, None], log_constant)
    by_row = jnp.where(seen[:, None, None], white_C[None, :, :, None], 0.0)
    return Observations(white_y, by_row, jnp.where(seen, log_constant, 0.0))


def _observe_entries(C: Array, psi: Array, y: Array, seen: Array) -> Observations:
    """Whiten the entries that were seen; the others become observations of nothing. `MATH.md` §2.4."""
    _, o, root = _seen_root(psi, seen)
    white_C = solve_lower(root, o[:, None] * C[:, :, None, None])
    white_y = solve_lower(root, (o * jnp.moveaxis(y, 1, 0))[:, None])[:, 0]
    log_constant = -jnp.log(diagonal(root)).sum(0) - o.sum(0) / 2 * np.log(2 * np.pi)
    return Observations(jnp.moveaxis(white_y, 0, 1), jnp.moveaxis(white_C, 2, 0), log_constant)


def _seen_root(psi: Array, seen: Array) -> tuple[Array, Array, Array]:
    """Return R (m, m, 1, 1), what was seen (m, L, W) as numbers, and the Cholesky factor of its noise.

    Rows and columns of missing entries become those of the identity.
    """
    m = psi.shape[0]
    inverse = jax.scipy.linalg.solve_triangular(psi, jnp.eye(m, dtype=psi.dtype), lower=True)
    R = (inverse.T @ inverse)[:, :, None, None]
    o = jnp.moveaxis(seen, 1, 0).astype(psi.dtype)
    return R, o, cholesky(o[:, None] * R * o[None] + eye(m, R) * (1 - o))


def complete(
    C: Float[Array, "m n"],
    psi: Float[Array, "m m"],
    y: Float[Array, "L m W"],
    seen: Bool[Array, "L m W"],
) -> tuple[Array, Array, Array]:
    """Return what missing entries are given the seen ones and the state: y = u + H x + N(0, S).

    Seen entries have rows of zeros in H and S. `MATH.md` §2.4.

    Returns:
        u (m, L, W), H (m, n, L, W), S (m, m, L, W).
    """
    R, o, root = _seen_root(psi, seen)
    half = solve_lower(root, o[:, None] * R)
    pull = solve_lower_transposed(root, half)  # (R_oo)⁻¹ R_o, zero rows where not seen
    hidden = (1 - o)[:, None]
    y_seen = o * jnp.moveaxis(y, 1, 0)
    u = y_seen + hidden[:, 0] * matmul(transpose(pull), y_seen[:, None])[:, 0]
    H = hidden * (C[:, :, None, None] - matmul(transpose(pull), C[:, :, None, None] * o[:, None]))
    S = hidden * (1 - o)[None] * (R - matmul(transpose(half), half))
    return u, H, S


def draw_missing(key: Array, x: Float[Array, "N n W"], rows: Rows) -> Float[Array, "L m W"]:
    """Return the rows with missing entries drawn given the seen ones and the states."""
    if rows.completion is None:
        return rows.y
    assert rows.seen is not None
    u, H, S = rows.completion
    o = jnp.moveaxis(rows.seen, 1, 0)
    root = cholesky(S + eye(S.shape[0], S) * o)
    noise = jnp.where(o, 0.0, matmul(root, jax.random.normal(key, o.shape)[:, None])[:, 0])
    y = u + matmul(H, jnp.moveaxis(x[1:], 1, 0)[:, None])[:, 0] + noise
    return jnp.moveaxis(y, 0, 1)


def apply_rows(M: Array, x: Array) -> Array:
    """Return M x for matrices (L or 1, d, e, W or 1) and vectors (L, e, W)."""
    e = M.shape[2]
    if e > UNROLL:
        return (M * x[:, None]).sum(2)
    return sum((M[:, :, c] * x[:, None, c] for c in range(1, e)), start=M[:, :, 0] * x[:, None, 0])
