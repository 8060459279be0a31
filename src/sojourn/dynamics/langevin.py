"""Langevin dynamics: a step of each block in its own metric, of all in a constant one, or in none."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import Array

from sojourn.dynamics.base import (
    Metric,
    Shape,
    State,
    StepSize,
    check_step_size,
    drift,
    kick,
    momentum,
    own_blocks,
    posterior_gradient,
    pull,
)
from sojourn.models.base import Coords, Model

# Relative error of variances allowed where blocks move in their own metric.
OWN_ERROR = 0.05


@dataclass(frozen=True)
class _Langevin:
    """The step size of Langevin dynamics, and what their gradients' noise does."""

    step_size: StepSize = "auto"

    def __post_init__(self) -> None:
        check_step_size(self.step_size)

    def noise_share(self, epsilon: float, noise: float) -> float:
        """Return ε noise / 2. `MATH.md` §3.2."""
        return epsilon * noise / 2

    def relaxation(self, epsilon: float) -> float:
        """Return 1/ε."""
        return 1 / epsilon


@dataclass(frozen=True)
class SGRLD(_Langevin):
    """Riemannian Langevin dynamics with stochastic gradients; RLD on full windows.

        u' = u + h [D(u) g(u) + Γ(u)] + N(0, 2 h D(u)),    Γ_i = Σ_j ∂D_ij/∂u_j

    Paper, Eq. sgrld_step. The complete-data metric D is the inverse complete-data Fisher information of
    each block, and each block takes its own step: multiplicative for covariances, Cox–Ingersoll–Ross for
    transitions. The observed-data metric is the inverse curvature of the log-posterior near its mode,
    measured before sampling and constant, so that Γ = 0; where hidden states hide most of the
    information about a parameter it mixes far faster.

    Args:
        step_size: ε, a number, a `Decay`, or "auto": the largest that keeps the measured gradient
            noise and the discretisation error to a few percent of the posterior's spread.
        metric: "observed" or "complete". Blocks whose posterior is far from Gaussian, such as rare
            transitions, keep the complete-data metric in any case.
    """

    metric: Literal["observed", "complete"] = "observed"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.metric not in ("observed", "complete"):
            raise ValueError(f"metric must be 'observed' or 'complete'; got {self.metric!r}")

    def start(self, key: Array, coords: Coords, metric: Metric) -> State:
        """Return a state at `coords`."""
        return State(dict(coords), momentum(key, metric) if metric.root else {})

    def step(
        self,
        key: Array,
        model: Model,
        state: State,
        statistics: Mapping[str, Any],
        epsilon: Array,
        metric: Metric,
        *,
        tame: Array | float,
    ) -> State:
        """Move every block from the same old coordinates."""
        coords, moved, h = state.coords, dict(state.coords), epsilon / metric.num_rows
        key_blocks, key_root = jax.random.split(key)
        keys = jax.random.split(key_blocks, len(model.blocks))
        own_keys = dict(zip(model.blocks, keys, strict=True))
        for block in own_blocks(model, metric):
            name, own = block.names[0], {n: coords[n] for n in block.names}
            moved |= block.step(
                own_keys[block], own, statistics[name], h, metric.pilots[name], tame=tame
            )
        if not metric.root:
            return State(moved, {})
        # Refreshed whole, the momentum makes half its step size a step of Langevin dynamics.
        r = _made_up_for(state.memory["momentum"], epsilon, metric.noise)
        r = r + kick(model, coords, statistics, 2 * h, metric, tame)
        moved = drift(moved, r, 2 * h, metric)
        r = jax.random.normal(key_root, r.shape)
        return State(drift(moved, r, 2 * h, metric), {"momentum": r})

    def whiten(self, model: Model, coords: Coords, gradient: Coords, metric: Metric) -> Array:
        """Return the gradient in coordinates where D is the identity."""
        white = [pull(metric.root, gradient)] if metric.root else []
        for block in own_blocks(model, metric):
            own = {n: gradient[n] for n in block.names}
            found = block.whiten(coords, own, metric.pilots[block.names[0]])
            white += [found[n].ravel() for n in block.names]
        return jnp.concatenate(white)

    def largest_step(self, model: Model, metric: Metric, shape: Shape) -> float:
        """Return ε with errors of 4% from the splitting, of 5% where blocks have a metric of their own.

        At most ε λ = 1, where draws follow each other almost independently.
        """
        own = OWN_ERROR / max(shape.own_error, OWN_ERROR)
        if not metric.root:
            return own
        constant = min(1 / shape.curvature, shape.accurate_step())
        return min(own, constant) if own_blocks(model, metric) else constant

    def discretisation(self, model: Model, metric: Metric, shape: Shape, epsilon: float) -> float:
        """Return the splitting's error, or that of blocks that move in their own metric."""
        constant = shape.splitting_error(epsilon) if metric.root else 0.0
        own = epsilon * shape.own_error if own_blocks(model, metric) else 0.0
        return max(constant, own)


@dataclass(frozen=True)
class SGLD(_Langevin):
    """Langevin dynamics with stochastic gradients; LD on full windows.

        u' = u + h g(u) + N(0, 2 h I)

    Paper, Eq. sgld_step.

    Args:
        step_size: As for `SGRLD`; without a metric, good values depend on the model's scales.
    """

    def start(self, key: Array, coords: Coords, metric: Metric) -> State:
        """Return a state at `coords`."""
        del key, metric
        return State(dict(coords), {})

    def step(
        self,
        key: Array,
        model: Model,
        state: State,
        statistics: Mapping[str, Any],
        epsilon: Array,
        metric: Metric,
        *,
        tame: Array | float,
    ) -> State:
        """Move all coordinates by the gradient of the log-posterior and white noise."""
        coords, h = state.coords, epsilon / metric.num_rows
        gradient = posterior_gradient(model, coords, statistics)
        norm = jnp.sqrt(sum(jnp.square(g).sum() for g in gradient.values()))
        gradient = jax.tree.map(lambda g: g / (1 + tame * h * norm), gradient)
        keys = dict(zip(coords, jax.random.split(key, len(coords)), strict=True))
        moved = {
            name: u
            + h * gradient[name]
            + jnp.sqrt(2 * h) * jax.random.normal(keys[name], jnp.shape(u))
            for name, u in coords.items()
        }
        return State(moved, {})

    def whiten(self, model: Model, coords: Coords, gradient: Coords, metric: Metric) -> Array:
        """Return the gradient as it is: the metric is the identity."""
        del model, coords, metric
        return jnp.concatenate([gradient[name].ravel() for name in sorted(gradient)])

    def largest_step(self, model: Model, metric: Metric, shape: Shape) -> float:
        """Return ε with an excess of the variance, ε λ / 2, of 5%."""
        del model, metric
        return 0.1 / shape.curvature

    def discretisation(self, model: Model, metric: Metric, shape: Shape, epsilon: float) -> float:
        """Return the excess of the variance, ε λ / 2."""
        del model, metric
        return epsilon * shape.curvature / 2


def _made_up_for(r: Array, epsilon: Array, noise: tuple[Array, ...]) -> Array:
    """Return the momentum less what gradient noise of share s = ε λ / 2 will add to the variance.

    In a direction of unit curvature u' = (1 − ε) u + √(ε/2) (c ξ + √(4s) ζ + ξ'), with ξ the ξ' of the
    step before and ζ the noise; its stationary variance is one for

        c = √((2 − ε)² − 4s) − (1 − ε)
    """
    if not noise:
        return r
    values, vectors = noise
    c = jnp.sqrt(jnp.maximum((2 - epsilon) ** 2 - 2 * epsilon * values, 0.0)) - (1 - epsilon)
    return vectors @ (jnp.maximum(c, 0.0) * (vectors.T @ r))
