"""Hamiltonian dynamics with friction, in a constant metric."""

import abc
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from sojourn._validation import check_positive
from sojourn.dynamics.base import (
    Metric,
    Shape,
    State,
    StepSize,
    check_step_size,
    drift,
    kick,
    momentum,
    pull,
)
from sojourn.models.base import Coords, Model


@dataclass(frozen=True)
class _Hamiltonian(abc.ABC):
    """A kick, half a drift, friction and noise on the momentum, half a drift."""

    step_size: StepSize = "auto"
    friction: float = 2.0

    def __post_init__(self) -> None:
        check_step_size(self.step_size)
        check_positive("friction", self.friction)

    def start(self, key: Array, coords: Coords, metric: Metric) -> State:
        """Return a state at `coords` with a momentum drawn from its law."""
        return State(dict(coords), momentum(key, metric))

    @abc.abstractmethod
    def refresh(self, key: Array, memory: Mapping[str, Array], step: Array) -> dict[str, Array]:
        """Apply friction and noise to the momentum for a time of `step`."""

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
        """Kick, drift, refresh the momentum in part, drift."""
        h = epsilon / metric.num_rows
        r = state.memory["momentum"] + kick(model, state.coords, statistics, h, metric, tame)
        coords = drift(state.coords, r, h, metric)
        memory = self.refresh(key, {**state.memory, "momentum": r}, jnp.sqrt(epsilon))
        return State(drift(coords, memory["momentum"], h, metric), memory)

    def whiten(self, model: Model, coords: Coords, gradient: Coords, metric: Metric) -> Array:
        """Return the gradient in coordinates where D is the identity."""
        del model, coords
        return pull(metric.root, gradient)

    def largest_step(self, model: Model, metric: Metric, shape: Shape) -> float:
        """Return ε with an error of 4% from the splitting, and stable where the curvature is larger.

        Angles √(ε λ) are one at most, of those below two that are stable: in the tails of a wide
        posterior the curvature is many times that of the mode, and momentum that has become unstable
        leads far out.
        """
        del model, metric
        stable = 1 / (shape.curvature * (1 + shape.variation) ** 2)
        return min(stable, 2 * shape.accurate_step())

    def discretisation(self, model: Model, metric: Metric, shape: Shape, epsilon: float) -> float:
        """Return the splitting's error: Langevin dynamics with half this ε are the limit of friction."""
        del model, metric
        return shape.splitting_error(epsilon / 2)

    def noise_share(self, epsilon: float, noise: float) -> float:
        """Return what a step adds to the momentum's variance over what friction takes away."""
        return math.sqrt(epsilon) * noise / (2 * self.friction)

    def relaxation(self, epsilon: float) -> float:
        """Return the steps of a quarter of an oscillation, or those that friction takes if more."""
        return math.ceil(max(math.pi / 2, self.friction) / math.sqrt(epsilon))


@dataclass(frozen=True)
class SGHMC(_Hamiltonian):
    """Hamiltonian dynamics with friction and stochastic gradients, in a constant metric.

    `MATH.md` §3.4. Momentum is refreshed in part at every step, by c = exp(−friction √ε).

    Args:
        step_size: ε as for `SGRLD`: a step turns by an angle of √(ε λ).
        friction: Rate of refreshment, in units of the fastest oscillation; 2 is critical for it.
    """

    def refresh(self, key: Array, memory: Mapping[str, Array], step: Array) -> dict[str, Array]:
        """Solve friction and noise exactly."""
        r = memory["momentum"]
        c = jnp.exp(-self.friction * step)
        return {"momentum": c * r + jnp.sqrt(1 - c**2) * jax.random.normal(key, r.shape)}


@dataclass(frozen=True)
class SGNHT(_Hamiltonian):
    """Hamiltonian dynamics whose friction adapts to the noise of the gradients: a thermostat.

    `MATH.md` §3.4. Gradient noise of unknown size, the same in all directions of the metric, is absorbed
    by a friction that moves until the momentum has its own variance.

    Args:
        step_size: ε as for `SGHMC`.
        friction: Friction of the injected noise, in units of the fastest oscillation.
    """

    def start(self, key: Array, coords: Coords, metric: Metric) -> State:
        """Return a state at `coords`, its thermostat at the friction of the injected noise."""
        coords, memory = super().start(key, coords, metric)
        return State(coords, memory | {"thermostat": jnp.asarray(self.friction)})

    def refresh(self, key: Array, memory: Mapping[str, Array], step: Array) -> dict[str, Array]:
        """Move the thermostat for half the time, the momentum for all of it, the thermostat again."""
        r, xi = memory["momentum"], memory["thermostat"]
        xi = xi + step / 2 * (jnp.square(r).mean() - 1)
        # r' = e^(−ξ s) r + √(2 a ∫ e^(−2 ξ t) dt) N, the exact solution of friction ξ and noise 2a.
        x = xi * step
        near_zero = jnp.abs(x) < 1e-8  # below, 1 − e^(−x) = x to half the digits of a double
        spread = jnp.where(near_zero, 2.0, -jnp.expm1(-2 * x) / jnp.where(near_zero, 1.0, x)) * step
        r = jnp.exp(-x) * r + jnp.sqrt(self.friction * spread) * jax.random.normal(key, r.shape)
        xi = xi + step / 2 * (jnp.square(r).mean() - 1)
        return {"momentum": r, "thermostat": xi}
