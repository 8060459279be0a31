"""Langevin dynamics with stochastic gradients: pure steps on coordinates.

A sampler is configuration; its `step` maps coordinates and the statistics of an estimator to new
coordinates. Step sizes have one meaning for all of them: ε, with h = ε / T for T rows of data, so that
good values do not depend on T (`MATH.md` §3.2). Near the mode a step of SGRLD contracts by ε λ, λ being
the share of the complete-data information that is observed, in (0, 1].
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import jax
import jax.numpy as jnp
from jax import Array

from sojourn._validation import check_positive
from sojourn.blocks import Pilot
from sojourn.models.base import Coords, Model


@dataclass(frozen=True)
class Decay:
    """A decreasing step size ε_t = ε₀ (1 + t / offset)^(−power).

    Args:
        initial: ε₀.
        offset: Steps over which the step size stays about constant.
        power: In (1/2, 1] for convergence to the posterior.
    """

    initial: float
    offset: float = 1000.0
    power: float = 0.55

    def __post_init__(self) -> None:
        for name in ("initial", "offset", "power"):
            check_positive(name, getattr(self, name))

    def __call__(self, step: Array) -> Array:
        return self.initial * (1 + step / self.offset) ** (-self.power)


StepSize = float | Decay | Literal["auto"]


class Sampler(Protocol):
    """What `sample` needs of a gradient sampler."""

    @property
    def step_size(self) -> StepSize: ...

    def step(
        self,
        key: Array,
        model: Model,
        coords: Coords,
        statistics: Mapping[str, Any],
        h: Array,
        pilot: Mapping[str, Pilot],
        *,
        tame: Array | float,
    ) -> dict[str, Array]: ...

    def whiten(
        self, model: Model, coords: Coords, gradient: Coords, pilot: Mapping[str, Pilot]
    ) -> dict[str, Array]: ...


@dataclass(frozen=True)
class SGRLD:
    """Riemannian Langevin dynamics with stochastic gradients; RLD on full windows.

        u' = u + h [D(u) g(u) + Γ(u)] + N(0, 2 h D(u)),    Γ_i = Σ_j ∂D_ij/∂u_j

    Paper, Eq. sgrld_step. D is the inverse complete-data Fisher information of each block, and each
    block takes its own step: multiplicative for covariances, Cox–Ingersoll–Ross for transitions.

    Args:
        step_size: ε, a number, a `Decay`, or "auto": the largest that keeps the measured gradient
            noise and the discretisation error to a few percent of the posterior's spread.
    """

    step_size: StepSize = "auto"

    def __post_init__(self) -> None:
        _check_step_size(self.step_size)

    def step(
        self,
        key: Array,
        model: Model,
        coords: Coords,
        statistics: Mapping[str, Any],
        h: Array,
        pilot: Mapping[str, Pilot],
        *,
        tame: Array | float,
    ) -> dict[str, Array]:
        """Move every block from the same old coordinates."""
        moved: dict[str, Array] = {}
        keys = jax.random.split(key, len(model.blocks))
        for block, block_key in zip(model.blocks, keys, strict=True):
            name = block.names[0]
            own = {n: coords[n] for n in block.names}
            moved |= block.step(block_key, own, statistics[name], h, pilot[name], tame=tame)
        return moved

    def whiten(
        self, model: Model, coords: Coords, gradient: Coords, pilot: Mapping[str, Pilot]
    ) -> dict[str, Array]:
        """Return the gradient in coordinates where D is the identity."""
        white: dict[str, Array] = {}
        for block in model.blocks:
            own = {n: gradient[n] for n in block.names}
            white |= block.whiten(coords, own, pilot[block.names[0]])
        return white


@dataclass(frozen=True)
class SGLD:
    """Langevin dynamics with stochastic gradients; LD on full windows.

        u' = u + h g(u) + N(0, 2 h I)

    Paper, Eq. sgld_step.

    Args:
        step_size: As for `SGRLD`; without a metric, good values depend on the model's scales.
    """

    step_size: StepSize = "auto"

    def __post_init__(self) -> None:
        _check_step_size(self.step_size)

    def step(
        self,
        key: Array,
        model: Model,
        coords: Coords,
        statistics: Mapping[str, Any],
        h: Array,
        pilot: Mapping[str, Pilot],
        *,
        tame: Array | float,
    ) -> dict[str, Array]:
        """Move all coordinates by the gradient of the log-posterior and white noise."""
        del pilot
        target = lambda u: model.expected_log_joint(u, statistics) + model.log_prior(u)  # noqa: E731
        gradient = jax.grad(target)(dict(coords))
        norm = jnp.sqrt(sum(jnp.square(g).sum() for g in gradient.values()))
        gradient = jax.tree.map(lambda g: g / (1 + tame * h * norm), gradient)
        keys = dict(zip(coords, jax.random.split(key, len(coords)), strict=True))
        return {
            name: u
            + h * gradient[name]
            + jnp.sqrt(2 * h) * jax.random.normal(keys[name], jnp.shape(u))
            for name, u in coords.items()
        }

    def whiten(
        self, model: Model, coords: Coords, gradient: Coords, pilot: Mapping[str, Pilot]
    ) -> dict[str, Array]:
        """Return the gradient as it is: the metric is the identity."""
        del model, coords, pilot
        return dict(gradient)


def _check_step_size(step_size: Any) -> None:
    if isinstance(step_size, str):
        if step_size != "auto":
            raise ValueError(f"step_size must be a number, a Decay or 'auto'; got {step_size!r}")
    elif not isinstance(step_size, Decay):
        check_positive("step_size", step_size)
