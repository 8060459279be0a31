"""Emission of a linear state: a matrix whose first rows are fixed, and the noise covariance.

Legend: y_t = C x_t + e_t, e ~ N(0, R); C = [C_1; C_2] (d, q) with C_1 (f, q) given; Λ = R⁻¹ = ψ ψᵀ;
independent priors C_2 ~ N(M_2, s²) entry by entry and Λ ~ Wishart(ν, Ψ⁻¹); Λ_2 the last d − f rows of
Λ, Λ_22 its last columns, R_22·1 = Λ_22⁻¹ the covariance of the free rows given the fixed ones.
`MATH.md` §4, §5, §11.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.linalg import cho_solve
from jaxtyping import Float

from sojourn._linalg import cholesky, matmul, solve_lower_transposed, transpose
from sojourn.blocks import precision
from sojourn.blocks.base import Block, Coords, Params, Pilot, freeze
from sojourn.blocks.precision import solve
from sojourn.blocks.regression import (
    RegressionStatistics,
    divide,
    regression_pilot,
    scale_columns,
    scatter,
)

# Conditional maximisations of R and C_2 in an M-step. The first starts from the prior's R, the second
# from that of a regression, so that three leave little to gain.
_CYCLES = 3


@dataclass(frozen=True, kw_only=True)
class Emission(Block):
    """Emission matrix with fixed first rows, and noise covariance, under independent priors.

    The fixed rows pin the basis of the state. Coordinates: the free rows of C as they are, if there
    are any; the log-Cholesky factor of the precision, packed by rows.

    Args:
        matrix: Name of the emission matrix; not a parameter if all its rows are fixed.
        covariance: Name of the noise covariance.
        dim: Dimension d of the response.
        num_regressors: Dimension q of the state.
        fixed: First rows C_1 of the matrix, shape (f, q) with 1 <= f <= d.
        mean: Prior mean M_2 of the free rows, a number or an array (d − f, q).
        variance: Prior variance s² of the free entries, a number or an array (d − f, q).
        dof: Wishart degrees of freedom ν.
        scale: Wishart scale Ψ, shape (d, d); the prior mean of Λ is ν Ψ⁻¹.
    """

    matrix: str = "C"
    covariance: str = "R"
    dim: int
    num_regressors: int
    fixed: Any
    mean: Any = 0.0
    variance: Any = 1.0
    dof: float
    scale: Any

    def __post_init__(self) -> None:
        d, q = self.dim, self.num_regressors
        fixed = np.asarray(self.fixed, dtype=float)
        if fixed.ndim != 2 or not 1 <= len(fixed) <= d or fixed.shape[1] != q:
            raise ValueError(
                f"fixed must have 1 to {d} rows of {q} numbers, the first rows of {self.matrix}; "
                f"got shape {fixed.shape}"
            )
        if not np.all(np.isfinite(fixed)):
            raise ValueError("fixed must be finite")
        object.__setattr__(self, "fixed", freeze(fixed))
        free = (d - len(fixed), q)
        for name in ("mean", "variance"):
            value = np.asarray(getattr(self, name), dtype=float)
            if value.shape not in ((), free):
                raise ValueError(
                    f"prior {name} must be a number or have shape {free}; got {value.shape}"
                )
            if not np.all(np.isfinite(value)) or (name == "variance" and np.any(value <= 0)):
                what = "positive and finite" if name == "variance" else "finite"
                raise ValueError(f"prior {name} must be {what}")
            object.__setattr__(self, name, freeze(value))
        object.__setattr__(self, "scale", precision.check_positive_definite("scale", self.scale, d))
        precision.check_dof(self.dof, d)

    @property
    def num_fixed(self) -> int:
        """Number f of fixed rows."""
        return len(self.fixed)

    @property
    def num_free(self) -> int:
        """Number d − f of free rows."""
        return self.dim - self.num_fixed

    @property
    def names(self) -> tuple[str, ...]:
        return (self.matrix, self.covariance) if self.num_free else (self.covariance,)

    def empty_statistics(self) -> RegressionStatistics:
        return RegressionStatistics.empty((), self.dim, self.num_regressors)

    def to_coords(self, params: Params) -> dict[str, Array]:
        packed = precision.from_covariance(jnp.asarray(params[self.covariance]))
        if not self.num_free:
            return {self.covariance: packed}
        free = jnp.asarray(params[self.matrix])[self.num_fixed :]
        return {self.matrix: free, self.covariance: packed}

    def to_params(self, coords: Coords) -> dict[str, Array]:
        C, psi = self.whole(coords)
        return self._named(C, precision.to_covariance(psi))

    def whole(self, coords: Coords) -> tuple[Float[Array, "d q"], Float[Array, "d d"]]:
        """Return the whole matrix C, fixed rows included, and ψ with R⁻¹ = ψ ψᵀ."""
        psi = precision.to_factor(coords[self.covariance], self.dim)
        if not self.num_free:
            return jnp.asarray(self.fixed), psi
        return self._join(jnp.asarray(coords[self.matrix])), psi

    def log_prior(self, coords: Coords) -> Array:
        """Return the normal density of C_2 and that of ψ with its Jacobians. `MATH.md` §4.2, §5."""
        C, psi = self.whole(coords)
        wishart = precision.log_wishart(psi, self.dof, self.scale)
        if not self.num_free:
            return wishart
        mean, variance = self._prior()
        squares = jnp.square(C[self.num_fixed :] - mean) / variance
        return wishart - (squares + np.log(2 * np.pi * variance)).sum() / 2

    def expected_log_likelihood(self, coords: Coords, statistics: RegressionStatistics) -> Array:
        """Return n (½ log|Λ| − d/2 log 2π) − ½ tr(Λ Ŝ). `MATH.md` §4.1, §5."""
        C, psi = self.whole(coords)
        return precision.log_likelihood(psi, statistics.n, scatter(C, statistics))

    def draw(
        self, key: Array, statistics: RegressionStatistics, params: Params
    ) -> dict[str, Array]:
        """Draw R given the current C, then C_2 given R: one Gibbs cycle. `MATH.md` §11."""
        key_diagonal, key_lower, key_matrix = jax.random.split(key, 3)
        C = jnp.asarray(params[self.matrix] if self.num_free else self.fixed)
        F = precision.draw_root(
            key_diagonal, key_lower, self.dof + statistics.n, self._total_scatter(C, statistics)
        )
        R = F @ F.T
        if self.num_free:
            mean, root = self._conditional(R, statistics)
            xi = jax.random.normal(key_matrix, (len(root),))
            C = self._join(mean + solve(root, xi, transposed=True).reshape(mean.shape))
        return self._named(C, R)

    def center(self, statistics: RegressionStatistics) -> dict[str, Array]:
        """Maximise over C_2 given R and set R to its conditional centre, in turn."""
        R, C = jnp.asarray(self.scale) / self.dof, jnp.asarray(self.fixed)
        for _ in range(_CYCLES if self.num_free else 1):
            if self.num_free:
                C = self._join(self._conditional(R, statistics)[0])
            R = self._total_scatter(C, statistics) / (self.dof + statistics.n)
        return self._named(C, R)

    def pilot(self, statistics: RegressionStatistics, num_rows: float) -> Pilot:
        return regression_pilot(statistics, num_rows)

    def precondition(self, coords: Coords, vector: Coords, pilot: Pilot) -> dict[str, Array]:
        """Return R_22·1 v V̂⁻¹ for C_2 and ψ hl(ψᵀ v) for ψ, over the occupancy."""
        _, psi = self.whole(coords)
        moved = {
            self.covariance: precision.precondition(psi, vector[self.covariance], pilot.occupancy)
        }
        if self.num_free:
            v = divide(self._free_root(psi), jnp.asarray(vector[self.matrix]))
            moved[self.matrix] = scale_columns(v, pilot) / pilot.occupancy
        return moved

    def sqrt_metric(self, coords: Coords, vector: Coords, pilot: Pilot) -> dict[str, Array]:
        """Return K⁻ᵀ v L⁻¹ for C_2, with K Kᵀ = Λ_22, and ψ ṽ for ψ, ṽ_bb = v_bb / √2."""
        _, psi = self.whole(coords)
        moved = {
            self.covariance: precision.sqrt_metric(psi, vector[self.covariance], pilot.occupancy)
        }
        if self.num_free:
            v = solve_lower_transposed(self._free_root(psi), jnp.asarray(vector[self.matrix]))
            moved[self.matrix] = matmul(v, pilot.whitener) / jnp.sqrt(pilot.occupancy)
        return moved

    def divergence(self, coords: Coords, pilot: Pilot) -> dict[str, Array]:
        """Return 0 for C_2, whose metric depends on ψ alone, and the Γ of ψ. `MATH.md` §4.3(c)."""
        _, psi = self.whole(coords)
        moved = {self.covariance: precision.divergence(psi, pilot.occupancy)}
        if self.num_free:
            moved[self.matrix] = jnp.zeros_like(coords[self.matrix])
        return moved

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
        """Move ψ by a triangular factor near the identity and C_2 by an Euler step.

            C_2' = C_2 + h R_22·1 [Λ_2 (Ŝ_yx − C Ŝ_xx) − (C_2 − M_2) / s²] V̂⁻¹ + √(2h) K⁻ᵀ ξ L⁻¹

        with K Kᵀ = Λ_22 and L Lᵀ = V̂. `MATH.md` §4.4, §5.
        """
        C, psi = self.whole(coords)
        h = step / pilot.occupancy
        key_psi, key_matrix = jax.random.split(key)
        W = self._total_scatter(C, statistics)
        dof = statistics.n + self.dof
        moved = {self.covariance: precision.group_euler(key_psi, psi, W, dof, h, tame=tame)}
        if self.num_free:
            mean, variance = self._prior()
            free, root = C[self.num_fixed :], self._free_root(psi)
            residual = statistics.yx - matmul(C, statistics.xx)
            gradient = matmul(psi[self.num_fixed :], matmul(transpose(psi), residual))
            drift = scale_columns(divide(root, gradient - (free - mean) / variance), pilot)
            xi = jax.random.normal(key_matrix, free.shape)
            noise = matmul(solve_lower_transposed(root, xi), pilot.whitener)
            moved[self.matrix] = free + h * drift + jnp.sqrt(2 * h) * noise
        return moved

    def _prior(self) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and variance of the free entries, of shape (d − f, q)."""
        shape = (self.num_free, self.num_regressors)
        mean, variance = (np.broadcast_to(v, shape) for v in (self.mean, self.variance))
        return mean, variance

    def _join(self, free: Array) -> Array:
        """Return C from its free rows."""
        return jnp.concatenate([jnp.asarray(self.fixed), free])

    def _named(self, C: Array, covariance: Array) -> dict[str, Array]:
        named = {self.matrix: C, self.covariance: covariance}
        return {name: named[name] for name in self.names}

    def _free_root(self, psi: Array) -> Array:
        """Return lower-triangular K with K Kᵀ = Λ_22."""
        rows = psi[self.num_fixed :]
        return cholesky(matmul(rows, transpose(rows)))

    def _total_scatter(self, C: Array, statistics: RegressionStatistics) -> Array:
        """Return Ŝ + Ψ, the inverse scale of the conditional Wishart law of Λ."""
        return scatter(C, statistics) + jnp.asarray(self.scale)

    def _conditional(self, R: Array, statistics: RegressionStatistics) -> tuple[Array, Array]:
        """Return the mean of C_2 given R, and a root of its precision, by rows of C_2.

        precision Λ_22 ⊗ Ŝ_xx + 1/s²,    natural mean Λ_2 Ŝ_yx − Λ_21 C_1 Ŝ_xx + M_2 / s²
        """
        f, size = self.num_fixed, self.num_free * self.num_regressors
        mean, variance = self._prior()
        Lambda = cho_solve((jnp.linalg.cholesky(R), True), jnp.eye(self.dim))[f:]
        natural = Lambda @ statistics.yx - Lambda[:, :f] @ jnp.asarray(self.fixed) @ statistics.xx
        total = jnp.einsum("ab,ij->aibj", Lambda[:, f:], statistics.xx).reshape(size, size)
        root = jnp.linalg.cholesky(total + np.diag(1 / variance.ravel()))
        solved = cho_solve((root, True), (natural + mean / variance).ravel())
        return solved.reshape(mean.shape), root
