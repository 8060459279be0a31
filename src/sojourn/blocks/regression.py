"""Linear regression with Gaussian noise, one for all rows or one per discrete state.

Legend: y_t = A χ_t + e_t, e ~ N(0, Σ); A (d, q), regressors χ (q); precision Λ = Σ⁻¹ = ψ ψᵀ with ψ lower
triangular; prior A | Σ ~ MN(M, Σ, P⁻¹), Λ ~ Wishart(ν, Ψ⁻¹). `MATH.md` §4, §5, §11.

Inside, matrices come first and states last, (d, q, K), so that small matrices are written out over
the states; outside, states come first, (K, d, q).
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import multigammaln
from jaxtyping import Float

from sojourn._linalg import matmul, solve_lower, solve_lower_transposed
from sojourn._random import gamma
from sojourn.blocks.base import Block, Coords, Params, Pilot, freeze
from sojourn.blocks.transition import MIN_OCCUPANCY


class RegressionStatistics(NamedTuple):
    """Expected or sampled moments of the rows of each state, weighted to the whole data."""

    n: Float[Array, "*K"]
    yy: Float[Array, "*K d d"]
    yx: Float[Array, "*K d q"]
    xx: Float[Array, "*K q q"]


@dataclass(frozen=True)
class Regression(Block):
    """Regression matrix and noise covariance under the matrix-normal–Wishart prior.

    Coordinates: A as it is; the log-Cholesky factor of the precision, packed by rows, with log ψ_bb in
    place of the diagonal.

    Args:
        matrix: Name of the regression matrix.
        covariance: Name of the noise covariance.
        num_states: Number of states K that have a regression of their own; None for one in all.
        dim: Dimension d of the response.
        num_regressors: Dimension q of the regressors.
        mean: Prior mean M, shape (d, q).
        precision: Prior column precision P, shape (q, q).
        dof: Wishart degrees of freedom ν.
        scale: Wishart scale Ψ, shape (d, d); the prior mean of Λ is ν Ψ⁻¹.
        vector: The only regressor is the constant 1: the matrix is a mean, of shape (K, d).
    """

    matrix: str
    covariance: str
    num_states: int | None
    dim: int
    num_regressors: int
    mean: Any
    precision: Any
    dof: float
    scale: Any
    vector: bool = False

    def __post_init__(self) -> None:
        d, q = self.dim, self.num_regressors
        for name, shape in (("mean", (d, q)), ("precision", (q, q)), ("scale", (d, d))):
            value = np.asarray(getattr(self, name), dtype=float)
            if value.shape != shape:
                raise ValueError(f"prior {name} must have shape {shape}; got {value.shape}")
            if name != "mean":
                _check_positive_definite(value, name)
            object.__setattr__(self, name, freeze(value))
        if not self.dof > d - 1:
            raise ValueError(
                f"degrees of freedom must exceed dimension - 1 = {d - 1}; got {self.dof}"
            )

    @property
    def names(self) -> tuple[str, ...]:
        return (self.matrix, self.covariance)

    def to_coords(self, params: Params) -> dict[str, Array]:
        covariance = jnp.asarray(params[self.covariance])
        # Σ = ψ⁻ᵀ ψ⁻¹: a Cholesky factor of Σ with both axes reversed is an upper one, and its
        # inverse transpose the lower-triangular ψ.
        upper = jnp.linalg.cholesky(covariance[..., ::-1, ::-1])[..., ::-1, ::-1]
        identity = jnp.broadcast_to(jnp.eye(self.dim), covariance.shape)
        psi = jax.scipy.linalg.solve_triangular(upper, identity, lower=False, trans=1)
        return {
            self.matrix: jnp.asarray(params[self.matrix]),
            self.covariance: _pack(psi),
        }

    def to_params(self, coords: Coords) -> dict[str, Array]:
        _, psi = self.unpack(coords)
        inverse = solve_lower(psi, jnp.broadcast_to(_eye(self.dim, psi), psi.shape))
        covariance = matmul(_t(inverse), inverse)
        matrix = jnp.asarray(coords[self.matrix])
        return {self.matrix: matrix, self.covariance: _states_first(covariance)}

    def unpack(self, coords: Coords) -> tuple[Array, Array]:
        """Return A (d, q, *K) and ψ (d, d, *K)."""
        A = jnp.asarray(coords[self.matrix])
        A = A[..., None] if self.vector else A
        packed = jnp.asarray(coords[self.covariance])
        return _states_last(A), _states_last(_unpack(packed, self.dim))

    def log_prior(self, coords: Coords) -> Array:
        """Return the matrix-normal–Wishart density with the Jacobians of `MATH.md` §4.2."""
        d, q, nu = self.dim, self.num_regressors, self.dof
        A, psi = self.unpack(coords)
        log_diag = jnp.log(_diagonal(psi))
        half_log_det = log_diag.sum(0)
        jacobian = jnp.tensordot(d + 1.0 - jnp.arange(d), log_diag, 1) + d * np.log(2)
        log_det_scale = np.linalg.slogdet(np.asarray(self.scale))[1]
        log_det_precision = np.linalg.slogdet(np.asarray(self.precision))[1]
        wishart = (
            (nu - d - 1) * half_log_det
            - nu * d / 2 * np.log(2)
            + nu / 2 * log_det_scale
            - multigammaln(nu / 2, d)
        )
        normal = q * half_log_det - d * q / 2 * np.log(2 * np.pi) + d / 2 * log_det_precision
        quadratic = _trace_product(self._prior_scatter(A), psi)
        return (wishart + normal + jacobian - quadratic / 2).sum()

    def expected_log_likelihood(self, coords: Coords, statistics: RegressionStatistics) -> Array:
        """Return Σ_k n_k (½ log|Λ_k| − d/2 log 2π) − ½ tr(Λ_k Ŝ_k). `MATH.md` §4.1, §5."""
        A, psi = self.unpack(coords)
        half_log_det = jnp.log(_diagonal(psi)).sum(0)
        constant = half_log_det - self.dim / 2 * np.log(2 * np.pi)
        quadratic = _trace_product(_scatter(A, statistics), psi)
        return (statistics.n * constant - quadratic / 2).sum()

    def draw(self, key: Array, statistics: RegressionStatistics) -> dict[str, Array]:
        """Draw Λ ~ Wishart(ν_n, Ψ_n⁻¹), then A | Σ ~ MN(M_n, Σ, V_n). `MATH.md` §11."""
        nu, M_n, precision, Psi_n = self._posterior(statistics)
        d = self.dim
        key_gamma, key_lower, key_matrix = jax.random.split(key, 3)
        # Bartlett: Λ = U T Tᵀ Uᵀ with U = chol(Ψ_n)⁻ᵀ, so Σ = F Fᵀ with F = chol(Ψ_n) T⁻ᵀ.
        shape = (nu[..., None] - jnp.arange(d)) / 2
        diagonal = jnp.sqrt(2 * gamma(key_gamma, shape))
        lower = jnp.tril(jax.random.normal(key_lower, (*nu.shape, d, d)), -1)
        T = lower + diagonal[..., None] * jnp.eye(d)
        root = jnp.linalg.cholesky(Psi_n)
        F = jnp.swapaxes(_solve(T, jnp.swapaxes(root, -1, -2)), -1, -2)
        noise = jax.random.normal(key_matrix, M_n.shape)
        column_root = jnp.linalg.cholesky(precision)
        scaled = jnp.swapaxes(
            _solve(column_root, jnp.swapaxes(noise, -1, -2), transposed=True), -1, -2
        )
        return self._named(M_n + F @ scaled, F @ jnp.swapaxes(F, -1, -2))

    def center(self, statistics: RegressionStatistics) -> dict[str, Array]:
        nu, M_n, _, Psi_n = self._posterior(statistics)
        return self._named(M_n, Psi_n / nu[..., None, None])

    def pilot(self, statistics: RegressionStatistics, num_rows: float) -> Pilot:
        n, xx = jnp.maximum(statistics.n, 0.0), statistics.xx
        states = tuple(range(n.ndim))
        # One row's worth of the average over states keeps states without data regular.
        average = xx.sum(states) / n.sum()
        average = average + 1e-6 * jnp.trace(average) * jnp.eye(self.num_regressors)
        moment = (xx + average) / (n + 1.0)[..., None, None]
        root = jnp.linalg.cholesky(moment)
        whitener = _solve(root, jnp.broadcast_to(jnp.eye(self.num_regressors), root.shape))
        return Pilot(jnp.maximum(n / num_rows, MIN_OCCUPANCY), whitener)

    def precondition(self, coords: Coords, vector: Coords, pilot: Pilot) -> dict[str, Array]:
        """Return Σ v V̂⁻¹ for A and ψ hl(ψᵀ v) for ψ, over the occupancy. `MATH.md` §4.3, §5."""
        _, psi = self.unpack(coords)
        whitener = _states_last(pilot.whitener)
        v, G = self._unpack_vector(vector, psi)
        v = solve_lower_transposed(psi, solve_lower(psi, v))
        v = matmul(matmul(v, _t(whitener)), whitener)
        G = _half_lower(matmul(_t(psi), G))
        return self._pack_vector(v / pilot.occupancy, matmul(psi, G) / pilot.occupancy, psi)

    def sqrt_metric(self, coords: Coords, vector: Coords, pilot: Pilot) -> dict[str, Array]:
        """Return ψ⁻ᵀ v L⁻¹ for A and ψ ṽ for ψ, ṽ_bb = v_bb / √2. `MATH.md` §3.4, §5."""
        _, psi = self.unpack(coords)
        v = jnp.asarray(vector[self.matrix])
        v = _states_last(v[..., None] if self.vector else v)
        packed = jnp.asarray(vector[self.covariance])
        w = _states_last(_unpack(packed, self.dim, log_diagonal=False))
        v = matmul(solve_lower_transposed(psi, v), _states_last(pilot.whitener))
        w = matmul(psi, w * _noise_scale(self.dim, w))
        root = jnp.sqrt(pilot.occupancy)
        return self._pack_vector(v / root, w / root, psi)

    def divergence(self, coords: Coords, pilot: Pilot) -> dict[str, Array]:
        """Return ½(d − b) for log ψ_bb, ½(d − b + 1) ψ_ab below, 0 for A. `MATH.md` §4.3(c)."""
        A, psi = self.unpack(coords)
        column = _column(self.dim, psi)
        correction = jnp.where(
            _eye(self.dim, psi) > 0, (self.dim - 1 - column) / 2, (self.dim - column) / 2
        )
        return self._pack_vector(jnp.zeros_like(A), psi * correction / pilot.occupancy, psi)

    def step(
        self,
        key: Array,
        coords: Coords,
        statistics: RegressionStatistics,
        step: Array,
        pilot: Pilot,
        *,
        tame: Array | float,
    ) -> dict[str, Array]:
        """Move ψ by a triangular factor near the identity and A by an Euler step.

            ψ' = ψ R,  R_bb = exp(h [G_bb + ½(d − b)] + √(2h) ω_bb),  R_ab = h G_ab + √(2h) ω_ab
            A' = A + h [Ŝ_yx + M P − A (Ŝ_xx + P)] V̂⁻¹ + √(2h) ψ⁻ᵀ ξ L⁻¹

        with G = hl(diag κ − ψᵀ W ψ), ω_bb ~ N(0, ½), ω_ab ~ N(0, 1). `MATH.md` §4.4, §5.
        """
        d = self.dim
        A, psi = self.unpack(coords)
        whitener = _states_last(pilot.whitener)
        M, P = (_like(np.asarray(value), psi) for value in (self.mean, self.precision))
        h = step / pilot.occupancy
        key_psi, key_matrix = jax.random.split(key)

        kappa = statistics.n + self.dof + self.num_regressors - _column(d, psi)
        W = _scatter(A, statistics) + self._prior_scatter(A)
        G = _half_lower(kappa * _eye(d, psi) - matmul(_t(psi), matmul(W, psi)))
        G = G / (1 + tame * h * jnp.sqrt(jnp.square(G).sum((0, 1))))
        omega = jax.random.normal(key_psi, psi.shape) * _noise_scale(d, psi)
        move = h * (G + _eye(d, psi) * (d - 1 - _column(d, psi)) / 2) + jnp.sqrt(2 * h) * omega
        factor = jnp.where(_eye(d, psi) > 0, jnp.exp(move), move)

        yx, xx = _states_last(statistics.yx), _states_last(statistics.xx)
        drift = yx + matmul(M, P) - matmul(A, xx + P)
        drift = matmul(matmul(drift, _t(whitener)), whitener)
        xi = jax.random.normal(key_matrix, A.shape)
        noise = matmul(solve_lower_transposed(psi, xi), whitener)
        A = A + h * drift + jnp.sqrt(2 * h) * noise
        A = _states_first(A)
        return {
            self.matrix: A[..., 0] if self.vector else A,
            self.covariance: _pack(_states_first(matmul(psi, factor))),
        }

    def _posterior(self, s: RegressionStatistics) -> tuple[Array, Array, Array, Array]:
        """Return ν_n, M_n, V_n⁻¹ and Ψ_n of the conjugate conditional."""
        M, P = jnp.asarray(self.mean), jnp.asarray(self.precision)
        precision = P + s.xx
        right = jnp.swapaxes(M @ P + s.yx, -1, -2)
        root = jnp.linalg.cholesky(precision)
        half = _solve(root, right)
        M_n = jnp.swapaxes(_solve(root, half, transposed=True), -1, -2)
        Psi_n = jnp.asarray(self.scale) + s.yy + M @ P @ M.T - jnp.swapaxes(half, -1, -2) @ half
        return self.dof + s.n, M_n, precision, (Psi_n + jnp.swapaxes(Psi_n, -1, -2)) / 2

    def _prior_scatter(self, A: Array) -> Array:
        """Return Ψ + (A − M) P (A − M)ᵀ, of shape (d, d, *K)."""
        M, P, Psi = (_like(np.asarray(v), A) for v in (self.mean, self.precision, self.scale))
        return Psi + matmul(A - M, matmul(P, _t(A - M)))

    def _named(self, A: Array, covariance: Array) -> dict[str, Array]:
        return {self.matrix: A[..., 0] if self.vector else A, self.covariance: covariance}

    def _unpack_vector(self, vector: Coords, psi: Array) -> tuple[Array, Array]:
        """Turn a gradient in coordinates into gradients of A and of plain ψ."""
        v = jnp.asarray(vector[self.matrix])
        v = _states_last(v[..., None] if self.vector else v)
        packed = jnp.asarray(vector[self.covariance])
        G = _states_last(_unpack(packed, self.dim, log_diagonal=False))
        return v, G / _log_scale(psi)

    def _pack_vector(self, v: Array, w: Array, psi: Array) -> dict[str, Array]:
        """Turn displacements of A and of plain ψ into displacements of the coordinates."""
        w = w / _log_scale(psi)
        v = _states_first(v)
        return {
            self.matrix: v[..., 0] if self.vector else v,
            self.covariance: _pack(_states_first(w), log_diagonal=False),
        }


def _scatter(A: Array, statistics: RegressionStatistics) -> Array:
    """Return Ŝ_yy − A Ŝ_yxᵀ − Ŝ_yx Aᵀ + A Ŝ_xx Aᵀ, of shape (d, d, *K)."""
    yy, yx, xx = (_states_last(m) for m in (statistics.yy, statistics.yx, statistics.xx))
    cross = matmul(A, _t(yx))
    return yy - cross - _t(cross) + matmul(A, matmul(xx, _t(A)))


def _trace_product(S: Array, psi: Array) -> Array:
    """Return tr(S ψ ψᵀ) for each state."""
    return (matmul(S, psi) * psi).sum((0, 1))


def _half_lower(X: Array) -> Array:
    """Return hl(X): the lower triangle with half the diagonal."""
    d = X.shape[0]
    return X * _like(np.tril(np.ones((d, d)), -1) + np.eye(d) / 2, X)


def _noise_scale(d: int, like: Array) -> Array:
    """Standard deviations of ω: 1 below the diagonal, 1/√2 on it, 0 above."""
    return _like(np.tril(np.ones((d, d)), -1) + np.eye(d) / np.sqrt(2), like)


def _column(d: int, like: Array) -> Array:
    """Column index b = 0, …, d − 1 of each entry of ψ."""
    return _like(np.broadcast_to(np.arange(d, dtype=float), (d, d)), like)


def _eye(d: int, like: Array) -> Array:
    return _like(np.eye(d), like)


def _like(matrix: np.ndarray, like: Array) -> Array:
    """Give a constant matrix the trailing state axes of `like`, of size 1."""
    return jnp.asarray(matrix.reshape(matrix.shape + (1,) * (like.ndim - 2)))


def _log_scale(psi: Array) -> Array:
    """Return dψ_ab / d(coordinate): ψ_bb on the diagonal, where the coordinate is its log, else 1."""
    return jnp.where(_eye(psi.shape[0], psi) > 0, psi, 1.0)


def _diagonal(M: Array) -> Array:
    return jnp.stack([M[b, b] for b in range(M.shape[0])])


def _t(M: Array) -> Array:
    return jnp.swapaxes(M, 0, 1)


def _states_last(M: Array) -> Array:
    return jnp.moveaxis(M, (-2, -1), (0, 1))


def _states_first(M: Array) -> Array:
    return jnp.moveaxis(M, (0, 1), (-2, -1))


def _solve(L: Array, B: Array, *, transposed: bool = False) -> Array:
    return jax.scipy.linalg.solve_triangular(L, B, lower=True, trans=1 if transposed else 0)


def _pack(M: Array, *, log_diagonal: bool = True) -> Array:
    """Return the lower triangle by rows, (..., d(d+1)/2), the diagonal in logs."""
    rows, columns = np.tril_indices(M.shape[-1])
    packed = M[..., rows, columns]
    if not log_diagonal:
        return packed
    diagonal = rows == columns
    return jnp.where(diagonal, jnp.log(jnp.where(diagonal, packed, 1.0)), packed)


def _unpack(packed: Array, d: int, *, log_diagonal: bool = True) -> Array:
    """Invert `_pack`."""
    rows, columns = np.tril_indices(d)
    if log_diagonal:
        diagonal = rows == columns
        packed = jnp.where(diagonal, jnp.exp(jnp.where(diagonal, packed, 0.0)), packed)
    index = np.full((d, d), len(rows))
    index[rows, columns] = np.arange(len(rows))
    padded = jnp.concatenate([packed, jnp.zeros_like(packed[..., :1])], axis=-1)
    return padded[..., index]


def _check_positive_definite(value: np.ndarray, name: str) -> None:
    symmetric = np.all(np.isfinite(value)) and np.allclose(value, value.T)
    if not symmetric or np.linalg.eigvalsh(value)[0] <= 0:
        raise ValueError(f"prior {name} must be symmetric and positive definite")
