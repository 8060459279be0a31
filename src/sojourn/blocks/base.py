"""What a block offers to models and samplers."""

import abc
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np
from jax import Array

Params = Mapping[str, Any]
Coords = Mapping[str, Any]


class Pilot(NamedTuple):
    """Constants of a block's metric, estimated in warm-up and fixed afterwards.

    They scale the metric D, never the target, so rough values only cost speed (`MATH.md` §4.4, §5).

    Attributes:
        occupancy: Share of the rows that inform each state, shape (K,) or ().
        whitener: L⁻¹ with L Lᵀ = V̂ ≈ E[χχᵀ], the second moment of the regressors of each state, shape
            (..., q, q); empty for blocks without regressors.
    """

    occupancy: Array
    whitener: Array


class Block(abc.ABC):
    """A conjugate piece of a model: a few named parameters with their prior and their statistics.

    `coords` are unconstrained and are what samplers move; `params` are constrained values.
    """

    # Whether `step` would be exact, whatever its size, with statistics of known states.
    has_exact_step: ClassVar[bool] = False

    @property
    @abc.abstractmethod
    def names(self) -> tuple[str, ...]:
        """Names of the parameters of this block, the keys of its params and coords."""

    @abc.abstractmethod
    def empty_statistics(self) -> Any:
        """Return the statistics of no rows."""

    @abc.abstractmethod
    def to_coords(self, params: Params) -> dict[str, Array]:
        """Map constrained parameters to coordinates."""

    @abc.abstractmethod
    def to_params(self, coords: Coords) -> dict[str, Array]:
        """Map coordinates to constrained parameters."""

    @abc.abstractmethod
    def log_prior(self, coords: Coords) -> Array:
        """Return the normalised log density of the coordinates, Jacobian included."""

    @abc.abstractmethod
    def expected_log_likelihood(self, coords: Coords, statistics: Any) -> Array:
        """Return the expected complete-data log-likelihood of this block.

        Its gradient at fixed statistics is, by Fisher's identity, the block's part of the gradient
        of the log-likelihood.
        """

    @abc.abstractmethod
    def draw(self, key: Array, statistics: Any, params: Params) -> dict[str, Array]:
        """Draw parameters given statistics of sampled states.

        From the conjugate conditional, or, where there is none for all of them at once, by one cycle
        of Gibbs steps from the current `params`, which leaves their conditional law as it is.
        """

    @abc.abstractmethod
    def center(self, statistics: Any) -> dict[str, Array]:
        """Return the centre of the conjugate conditional: the M-step of a penalised EM."""

    def is_regular(self, statistics: Any) -> bool:
        """Whether the coordinates' posterior is close to a Gaussian, as far as statistics tell."""
        del statistics
        return True

    @abc.abstractmethod
    def pilot(self, statistics: Any, num_rows: float) -> Pilot:
        """Estimate the constants of the metric from statistics of `num_rows` rows."""

    @abc.abstractmethod
    def precondition(self, coords: Coords, vector: Coords, pilot: Pilot) -> dict[str, Array]:
        """Return D(u) v, with D the inverse complete-data Fisher information per row."""

    @abc.abstractmethod
    def sqrt_metric(self, coords: Coords, vector: Coords, pilot: Pilot) -> dict[str, Array]:
        """Return E(u) v with E Eᵀ = D(u)."""

    @abc.abstractmethod
    def divergence(self, coords: Coords, pilot: Pilot) -> dict[str, Array]:
        """Return Γ(u), Γ_i = Σ_j ∂D_ij/∂u_j."""

    @abc.abstractmethod
    def step(
        self,
        key: Array,
        coords: Coords,
        statistics: Any,
        step: Array,
        pilot: Pilot,
        *,
        tame: Array | float,
    ) -> dict[str, Array]:
        """Take one step of Riemannian Langevin dynamics.

            u' ≈ u + h [D(u) g(u) + Γ(u)] + N(0, 2 h D(u))

        with an integrator that keeps the block's constraints.

        Args:
            key: Random key.
            coords: Current coordinates u.
            statistics: Expected statistics at u, scaled to the whole data.
            step: Step size h.
            pilot: Constants of the metric.
            tame: 1 to bound the drift, for starts far from the mode, at the cost of a bias of order h;
                0 otherwise.
        """

    def free(self, coords: Coords, scores: Coords) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return coordinates of the parameters alone, and the gradient of their log density.

        For blocks whose coordinates say more than their parameters do. `coords` are those of `to_coords`
        and `scores` the gradient of a log posterior density there, both with leading axes.
        """
        return dict(coords), dict(scores)

    def whiten(self, coords: Coords, gradient: Coords, pilot: Pilot) -> dict[str, Array]:
        """Return E(u)ᵀ g, the gradient in coordinates where the metric is the identity."""
        _, pullback = jax.vjp(lambda v: self.sqrt_metric(coords, v, pilot), dict(gradient))
        return pullback(dict(gradient))[0]


def freeze(value: Any) -> Any:
    """Turn an array into nested tuples, so that what holds it can be compared and hashed."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    return tuple(freeze(v) for v in value) if isinstance(value, list) else value
