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
from jaxtyping import Float

from sojourn._linalg import matmul, solve_lower, solve_lower_transposed, transpose
from sojourn.blocks import precision
from sojourn.blocks.base import Block, Coords, Params, Pilot
from sojourn.blocks.precision import constant, solve, states_first, states_last
from sojourn.blocks.transition import MIN_OCCUPANCY


class RegressionStatistics(NamedTuple):
    """Expected or sampled moments of the rows of each state, weighted to the whole data."""

    n: Float[Array, "*K"]
    yy: Float[Array, "*K d d"]
    yx: Float[Array, "*K d q"]
    xx: Float[Array, "*K q q"]

    @classmethod
    def empty(
        cls, states: tuple[int, ...], dim: int, num_regressors: int
    ) -> "RegressionStatistics":
        """Return the moments of no rows."""
        d, q = dim, num_regressors
        return cls(*(jnp.zeros((*states, *shape)) for shape in ((), (d, d), (d, q), (q, q))))


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
        for name, value in (
            ("mean", precision.check_matrix("mean", self.mean, (d, q))),
            ("precision", precision.check_positive_definite("precision", self.precision, q)),
            ("scale", precision.check_positive_definite("scale", self.scale, d)),
        ):
            object.__setattr__(self, name, value)
        precision.check_dof(self.dof, d)

    @property
    def names(self) -> tuple[str, ...]:
        return (self.matrix, self.covariance)

    def empty_statistics(self) -> RegressionStatistics:
        states = () if self.num_states is None else (self.num_states,)
        return RegressionStatistics.empty(states, self.dim, self.num_regressors)

    def to_coords(self, params: Params) -> dict[str, Array]:
        return {
            self.matrix: jnp.asarray(params[self.matrix]),
            self.covariance: precision.from_covariance(jnp.asarray(params[self.covariance])),
        }

    def to_params(self, coords: Coords) -> dict[str, Array]:
        _, psi = self.unpack(coords)
        matrix = jnp.asarray(coords[self.matrix])
        return {self.matrix: matrix, self.covariance: precision.to_covariance(psi)}

    def unpack(self, coords: Coords) -> tuple[Array, Array]:
        """Return A (d, q, *K) and ψ (d, d, *K)."""
        psi = precision.to_factor(coords[self.covariance], self.dim)
        return self._states_last(coords), psi

    def log_prior(self, coords: Coords) -> Array:
        """Return the matrix-normal–Wishart density with the Jacobians of `MATH.md` §4.2."""
        d, q = self.dim, self.num_regressors
        A, psi = self.unpack(coords)
        log_det_precision = np.linalg.slogdet(np.asarray(self.precision))[1]
        normal = (
            q * precision.half_log_det(psi)
            - d * q / 2 * np.log(2 * np.pi)
            + d / 2 * log_det_precision
            - precision.trace_product(self._coupling(A), psi) / 2
        )
        return (precision.log_wishart(psi, self.dof, self.scale) + normal).sum()

    def expected_log_likelihood(self, coords: Coords, statistics: RegressionStatistics) -> Array:
        """Return Σ_k n_k (½ log|Λ_k| − d/2 log 2π) − ½ tr(Λ_k Ŝ_k). `MATH.md` §4.1, §5."""
        A, psi = self.unpack(coords)
        return precision.log_likelihood(psi, statistics.n, scatter(A, statistics))

    def draw(
        self, key: Array, statistics: RegressionStatistics, params: Params
    ) -> dict[str, Array]:
        """Draw Λ ~ Wishart(ν_n, Ψ_n⁻¹), then A | Σ ~ MN(M_n, Σ, V_n). `MATH.md` §11."""
        del params
        nu, M_n, column_precision, Psi_n = self._posterior(statistics)
        key_diagonal, key_lower, key_matrix = jax.random.split(key, 3)
        F = precision.draw_root(key_diagonal, key_lower, nu, Psi_n)
        noise = jax.random.normal(key_matrix, M_n.shape)
        column_root = jnp.linalg.cholesky(column_precision)
        scaled = jnp.swapaxes(
            solve(column_root, jnp.swapaxes(noise, -1, -2), transposed=True), -1, -2
        )
        return self._named(M_n + F @ scaled, F @ jnp.swapaxes(F, -1, -2))

    def center(self, statistics: RegressionStatistics) -> dict[str, Array]:
        nu, M_n, _, Psi_n = self._posterior(statistics)
        return self._named(M_n, Psi_n / nu[..., None, None])

    def pilot(self, statistics: RegressionStatistics, num_rows: float) -> Pilot:
        return regression_pilot(statistics, num_rows)

    def precondition(self, coords: Coords, vector: Coords, pilot: Pilot) -> dict[str, Array]:
        """Return Σ v V̂⁻¹ for A and ψ hl(ψᵀ v) for ψ, over the occupancy. `MATH.md` §4.3, §5."""
        _, psi = self.unpack(coords)
        v = scale_columns(divide(psi, self._states_last(vector)), pilot)
        w = precision.precondition(psi, vector[self.covariance], pilot.occupancy)
        return self._named(states_first(v / pilot.occupancy), w)

    def sqrt_metric(self, coords: Coords, vector: Coords, pilot: Pilot) -> dict[str, Array]:
        """Return ψ⁻ᵀ v L⁻¹ for A and ψ ṽ for ψ, ṽ_bb = v_bb / √2. `MATH.md` §3.4, §5."""
        _, psi = self.unpack(coords)
        v = solve_lower_transposed(psi, self._states_last(vector))
        v = matmul(v, states_last(pilot.whitener)) / jnp.sqrt(pilot.occupancy)
        w = precision.sqrt_metric(psi, vector[self.covariance], pilot.occupancy)
        return self._named(states_first(v), w)

    def divergence(self, coords: Coords, pilot: Pilot) -> dict[str, Array]:
        """Return 0 for A and the Γ of ψ. `MATH.md` §4.3(c), §5."""
        _, psi = self.unpack(coords)
        return {
            self.matrix: jnp.zeros_like(coords[self.matrix]),
            self.covariance: precision.divergence(psi, pilot.occupancy),
        }

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

            A' = A + h [Ŝ_yx + M P − A (Ŝ_xx + P)] V̂⁻¹ + √(2h) ψ⁻ᵀ ξ L⁻¹

        `MATH.md` §4.4, §5.
        """
        A, psi = self.unpack(coords)
        M, P = (constant(value, psi) for value in (self.mean, self.precision))
        h = step / pilot.occupancy
        key_psi, key_matrix = jax.random.split(key)

        W = scatter(A, statistics) + (constant(self.scale, A) + self._coupling(A))
        dof = statistics.n + self.dof + self.num_regressors
        moved = precision.group_euler(key_psi, psi, W, dof, h, tame=tame)

        yx, xx = states_last(statistics.yx), states_last(statistics.xx)
        drift = scale_columns(yx + matmul(M, P) - matmul(A, xx + P), pilot)
        xi = jax.random.normal(key_matrix, A.shape)
        noise = matmul(solve_lower_transposed(psi, xi), states_last(pilot.whitener))
        return self._named(states_first(A + h * drift + jnp.sqrt(2 * h) * noise), moved)

    def _posterior(self, s: RegressionStatistics) -> tuple[Array, Array, Array, Array]:
        """Return ν_n, M_n, V_n⁻¹ and Ψ_n of the conjugate conditional."""
        M, P = jnp.asarray(self.mean), jnp.asarray(self.precision)
        column_precision = P + s.xx
        right = jnp.swapaxes(M @ P + s.yx, -1, -2)
        root = jnp.linalg.cholesky(column_precision)
        half = solve(root, right)
        M_n = jnp.swapaxes(solve(root, half, transposed=True), -1, -2)
        Psi_n = jnp.asarray(self.scale) + s.yy + M @ P @ M.T - jnp.swapaxes(half, -1, -2) @ half
        # A difference of sums: where the fit is all but perfect, rounding must not make it indefinite.
        rounding = 16 * jnp.finfo(Psi_n.dtype).eps * jnp.diagonal(s.yy, axis1=-2, axis2=-1)
        Psi_n = Psi_n + rounding[..., None] * jnp.eye(self.dim)
        return self.dof + s.n, M_n, column_precision, (Psi_n + jnp.swapaxes(Psi_n, -1, -2)) / 2

    def _coupling(self, A: Array) -> Array:
        """Return (A − M) P (A − M)ᵀ, of shape (d, d, *K)."""
        M, P = constant(self.mean, A), constant(self.precision, A)
        return matmul(A - M, matmul(P, transpose(A - M)))

    def _named(self, A: Array, covariance: Array) -> dict[str, Array]:
        return {self.matrix: A[..., 0] if self.vector else A, self.covariance: covariance}

    def _states_last(self, coords: Coords) -> Array:
        """Return A, or a displacement of it, of shape (d, q, *K)."""
        A = jnp.asarray(coords[self.matrix])
        return states_last(A[..., None] if self.vector else A)


def scatter(A: Array, statistics: RegressionStatistics) -> Array:
    """Return Ŝ_yy − A Ŝ_yxᵀ − Ŝ_yx Aᵀ + A Ŝ_xx Aᵀ, of shape (d, d, *K)."""
    yy, yx, xx = (states_last(m) for m in (statistics.yy, statistics.yx, statistics.xx))
    cross = matmul(A, transpose(yx))
    return yy - cross - transpose(cross) + matmul(A, matmul(xx, transpose(A)))


def regression_pilot(statistics: RegressionStatistics, num_rows: float) -> Pilot:
    """Estimate occupancy and second moment of the regressors of each state."""
    n, xx = jnp.maximum(statistics.n, 0.0), statistics.xx
    states, identity = tuple(range(n.ndim)), jnp.eye(xx.shape[-1])
    # One row's worth of the average over states keeps states without data regular.
    average = xx.sum(states) / n.sum()
    # A millionth more on the diagonal, in whatever units, keeps regressors that are alike regular.
    squares = jnp.diagonal(average)
    average = average + 1e-6 * jnp.diag(jnp.where(squares > 0, squares, squares.sum()))
    moment = (xx + average) / (n + 1.0)[..., None, None]
    root = jnp.linalg.cholesky(moment)
    whitener = solve(root, jnp.broadcast_to(identity, root.shape))
    return Pilot(jnp.maximum(n / num_rows, MIN_OCCUPANCY), whitener)


def scale_columns(v: Array, pilot: Pilot) -> Array:
    """Return v V̂⁻¹, of shape (d, q, *K)."""
    whitener = states_last(pilot.whitener)
    return matmul(matmul(v, transpose(whitener)), whitener)


def divide(root: Array, v: Array) -> Array:
    """Return (L Lᵀ)⁻¹ v."""
    return solve_lower_transposed(root, solve_lower(root, v))
