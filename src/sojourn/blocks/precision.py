"""Coordinates of a precision matrix: the log-Cholesky factor, its prior, metric and step.

Legend: Λ = Σ⁻¹ = ψ ψᵀ, ψ lower triangular (d, d); Λ ~ Wishart(ν, Ψ⁻¹). Coordinates: ψ packed by rows,
(..., d(d+1)/2), with log ψ_bb in place of the diagonal. `MATH.md` §4.

Matrices come first and states last, (d, d, *K), so that small matrices are written out over the
states; packed coordinates and covariances have states first.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import multigammaln
from jax.typing import ArrayLike

from sojourn._linalg import diagonal, matmul, solve_lower, transpose
from sojourn._random import gamma
from sojourn._validation import check_array, check_covariance
from sojourn.blocks.base import freeze


def check_matrix(name: str, value: Any, shape: tuple[int, int]) -> Any:
    """Check the shape of a constant of a prior; returns it hashable."""
    return freeze(check_array(f"prior {name}", value, shape))


def check_positive_definite(name: str, value: Any, dim: int) -> Any:
    """Check a symmetric positive-definite constant of a prior; returns it hashable."""
    array = check_array(f"prior {name}", value, (dim, dim))
    check_covariance(f"prior {name}", array)
    return freeze(array)


def check_dof(dof: float, dim: int) -> None:
    """Check the degrees of freedom of a Wishart prior."""
    if not dof > dim - 1:
        raise ValueError(f"degrees of freedom must exceed dimension - 1 = {dim - 1}; got {dof}")


def from_covariance(covariance: Array) -> Array:
    """Return the coordinates of Σ⁻¹, for Σ of shape (*K, d, d)."""
    # Σ = ψ⁻ᵀ ψ⁻¹: a Cholesky factor of Σ with both axes reversed is an upper one, and its
    # inverse transpose the lower-triangular ψ.
    upper = jnp.linalg.cholesky(covariance[..., ::-1, ::-1])[..., ::-1, ::-1]
    identity = jnp.broadcast_to(jnp.eye(covariance.shape[-1]), covariance.shape)
    return pack(jax.scipy.linalg.solve_triangular(upper, identity, lower=False, trans=1))


def to_covariance(psi: Array) -> Array:
    """Return Σ = ψ⁻ᵀ ψ⁻¹ of shape (*K, d, d)."""
    inverse = solve_lower(psi, jnp.broadcast_to(_eye(psi), psi.shape))
    return states_first(matmul(transpose(inverse), inverse))


def to_factor(packed: ArrayLike, d: int) -> Array:
    """Return ψ (d, d, *K) from coordinates."""
    return states_last(unpack(jnp.asarray(packed), d))


def half_log_det(psi: Array) -> Array:
    """Return ½ log|Λ| for each state."""
    return jnp.log(diagonal(psi)).sum(0)


def trace_product(S: Array, psi: Array) -> Array:
    """Return tr(S ψ ψᵀ) for each state."""
    return (matmul(S, psi) * psi).sum((0, 1))


def log_wishart(psi: Array, dof: float, scale: Any) -> Array:
    """Return the log density of the coordinates of each state, with the Jacobians of `MATH.md` §4.2."""
    d = psi.shape[0]
    log_diag = jnp.log(diagonal(psi))
    jacobian = jnp.tensordot(d + 1.0 - jnp.arange(d), log_diag, 1) + d * np.log(2)
    wishart = (
        (dof - d - 1) * log_diag.sum(0)
        - dof * d / 2 * np.log(2)
        + dof / 2 * np.linalg.slogdet(np.asarray(scale))[1]
        - multigammaln(dof / 2, d)
    )
    quadratic = trace_product(constant(scale, psi), psi)
    return wishart + jacobian - quadratic / 2


def log_likelihood(psi: Array, n: Array, scatter: Array) -> Array:
    """Return Σ_k n_k (½ log|Λ_k| − d/2 log 2π) − ½ tr(Λ_k S_k), S the scatter of the residuals."""
    each = half_log_det(psi) - psi.shape[0] / 2 * np.log(2 * np.pi)
    return (n * each - trace_product(scatter, psi) / 2).sum()


def draw_root(key_diagonal: Array, key_lower: Array, dof: Array, scale: Array) -> Array:
    """Draw Λ ~ Wishart(ν, Ψ⁻¹), ν (*K) and Ψ (*K, d, d); returns F (*K, d, d) with F Fᵀ = Σ."""
    d = scale.shape[-1]
    # Bartlett: Λ = U T Tᵀ Uᵀ with U = chol(Ψ)⁻ᵀ, so Σ = F Fᵀ with F = chol(Ψ) T⁻ᵀ.
    shape = (dof[..., None] - jnp.arange(d)) / 2
    diagonal = jnp.sqrt(2 * gamma(key_diagonal, shape))
    lower = jnp.tril(jax.random.normal(key_lower, (*dof.shape, d, d)), -1)
    T = lower + diagonal[..., None] * jnp.eye(d)
    root = jnp.linalg.cholesky(scale)
    return jnp.swapaxes(solve(T, jnp.swapaxes(root, -1, -2)), -1, -2)


def precondition(psi: Array, vector: ArrayLike, occupancy: Array) -> Array:
    """Return D v = ψ hl(ψᵀ v) / π̄ in coordinates. `MATH.md` §4.3."""
    G = states_last(unpack(jnp.asarray(vector), psi.shape[0], log_diagonal=False)) / _slope(psi)
    G = _half_lower(matmul(transpose(psi), G))
    return _pack_displacement(matmul(psi, G) / occupancy, psi)


def sqrt_metric(psi: Array, vector: ArrayLike, occupancy: Array) -> Array:
    """Return ψ ṽ / √π̄ in coordinates, ṽ_bb = v_bb / √2. `MATH.md` §3.4."""
    w = states_last(unpack(jnp.asarray(vector), psi.shape[0], log_diagonal=False))
    w = matmul(psi, w * _noise_scale(w))
    return _pack_displacement(w / jnp.sqrt(occupancy), psi)


def divergence(psi: Array, occupancy: Array) -> Array:
    """Return ½(d − b) for log ψ_bb and ½(d − b + 1) ψ_ab below, over π̄. `MATH.md` §4.3(c)."""
    d, column = psi.shape[0], _column(psi)
    correction = jnp.where(_eye(psi) > 0, (d - 1 - column) / 2, (d - column) / 2)
    return _pack_displacement(psi * correction / occupancy, psi)


def group_euler(
    key: Array, psi: Array, W: Array, dof: Array, h: Array, *, tame: Array | float
) -> Array:
    """Move ψ by a triangular factor near the identity; returns new coordinates.

        ψ' = ψ R,  R_bb = exp(h [G_bb + ½(d − b)] + √(2h) ω_bb),  R_ab = h G_ab + √(2h) ω_ab

    with G = hl(diag κ − ψᵀ W ψ), ω_bb ~ N(0, ½), ω_ab ~ N(0, 1). `MATH.md` §4.4.

    Args:
        key: Random key.
        psi: Current ψ.
        W: Total scatter, (d, d, *K): of the residuals and of the prior.
        dof: κ_1 = κ_b + b − 1, the degrees of freedom of the conditional of Λ.
        h: Step size over the occupancy.
        tame: 1 to bound G, 0 otherwise.
    """
    d, eye, column = psi.shape[0], _eye(psi), _column(psi)
    kappa = dof - column
    G = _half_lower(kappa * eye - matmul(transpose(psi), matmul(W, psi)))
    G = G / (1 + tame * h * jnp.sqrt(jnp.square(G).sum((0, 1))))
    omega = jax.random.normal(key, psi.shape) * _noise_scale(psi)
    move = h * (G + eye * (d - 1 - column) / 2) + jnp.sqrt(2 * h) * omega
    factor = jnp.where(eye > 0, jnp.exp(move), move)
    return pack(states_first(matmul(psi, factor)))


def pack(M: Array, *, log_diagonal: bool = True) -> Array:
    """Return the lower triangle of M (*K, d, d) by rows, the diagonal in logs."""
    rows, columns = np.tril_indices(M.shape[-1])
    packed = M[..., rows, columns]
    if not log_diagonal:
        return packed
    diagonal = rows == columns
    return jnp.where(diagonal, jnp.log(jnp.where(diagonal, packed, 1.0)), packed)


def unpack(packed: Array, d: int, *, log_diagonal: bool = True) -> Array:
    """Invert `pack`."""
    rows, columns = np.tril_indices(d)
    if log_diagonal:
        diagonal = rows == columns
        packed = jnp.where(diagonal, jnp.exp(jnp.where(diagonal, packed, 0.0)), packed)
    index = np.full((d, d), len(rows))
    index[rows, columns] = np.arange(len(rows))
    padded = jnp.concatenate([packed, jnp.zeros_like(packed[..., :1])], axis=-1)
    return padded[..., index]


def constant(matrix: Any, like: Array) -> Array:
    """Give a constant matrix the trailing state axes of `like`, of size 1."""
    matrix = np.asarray(matrix)
    return jnp.asarray(matrix.reshape(matrix.shape + (1,) * (like.ndim - 2)))


def states_last(M: Array) -> Array:
    return jnp.moveaxis(M, (-2, -1), (0, 1))


def states_first(M: Array) -> Array:
    return jnp.moveaxis(M, (0, 1), (-2, -1))


def solve(L: Array, B: Array, *, transposed: bool = False) -> Array:
    """Return L⁻¹ B, or L⁻ᵀ B, with states first."""
    return jax.scipy.linalg.solve_triangular(L, B, lower=True, trans=1 if transposed else 0)


def _half_lower(X: Array) -> Array:
    """Return hl(X): the lower triangle with half the diagonal."""
    d = X.shape[0]
    return X * constant(np.tril(np.ones((d, d)), -1) + np.eye(d) / 2, X)


def _noise_scale(like: Array) -> Array:
    """Standard deviations of ω: 1 below the diagonal, 1/√2 on it, 0 above."""
    d = like.shape[0]
    return constant(np.tril(np.ones((d, d)), -1) + np.eye(d) / np.sqrt(2), like)


def _column(like: Array) -> Array:
    """Column index b = 0, …, d − 1 of each entry of ψ."""
    d = like.shape[0]
    return constant(np.broadcast_to(np.arange(d, dtype=float), (d, d)), like)


def _eye(like: Array) -> Array:
    return constant(np.eye(like.shape[0]), like)


def _slope(psi: Array) -> Array:
    """Return dψ_ab / d(coordinate): ψ_bb on the diagonal, where the coordinate is its log, else 1."""
    return jnp.where(_eye(psi) > 0, psi, 1.0)


def _pack_displacement(w: Array, psi: Array) -> Array:
    """Turn a displacement of plain ψ into one of the coordinates."""
    return pack(states_first(w / _slope(psi)), log_diagonal=False)
