"""What all samplers share: states, metrics, step sizes, and motion in a constant metric."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from sojourn._validation import check_positive
from sojourn.blocks import Block, Pilot
from sojourn.models.base import Coords, Model

# Posterior sds, beyond the typical √d, that no draw is from the mode: one in a million of Gaussian ones.
_BEYOND = 5.0

# Relative error of variances allowed from the splitting of steps in a constant metric.
_SPLITTING_ERROR = 0.04


class State(NamedTuple):
    """Where a chain is.

    Attributes:
        coords: Coordinates of the parameters.
        memory: What the dynamics carry besides: momentum, thermostat.
    """

    coords: dict[str, Array]
    memory: dict[str, Array]


class Metric(NamedTuple):
    """The metric D = E Eᵀ per row of data, fixed before sampling.

    Attributes:
        pilots: Constants of the blocks' own metrics, which follow the coordinates.
        root: For coordinates that move in a constant metric: rows of E, of shape (size, dimension), by
            name. Blocks that are not named here move in their own.
        num_rows: Rows T of the likelihood.
        noise: Mean covariance Eᵀ Σ_g E / T of gradient noise that Langevin steps make up for, as
            eigenvalues (dimension,) and eigenvectors; empty if there is none.
    """

    pilots: dict[str, Pilot]
    root: dict[str, Array]
    num_rows: Any
    noise: tuple[Array, ...] = ()


class Shape(NamedTuple):
    """Measured departure of the log-posterior near its mode from a Gaussian with this metric.

    Attributes:
        curvature: Largest curvature per row, in the metric.
        variation: Largest change of the curvature, in the metric, between places that chains visit; zero
            for a Gaussian.
        own_error: Relative error of variances, per ε, where blocks move in their own metric.
    """

    curvature: float
    variation: float
    own_error: float = 0.5

    def splitting_error(self, epsilon: float) -> float:
        """Return the relative error of variances of the splitting in a constant metric.

        It is of second order in ε, and none where the curvature is the same everywhere.
        """
        return (epsilon * self.curvature / 2) ** 2 * self.variation

    def accurate_step(self) -> float:
        """Return the largest ε whose splitting error is small; no more than is stable."""
        variation = max(self.variation, _SPLITTING_ERROR)
        return 2 * math.sqrt(_SPLITTING_ERROR / variation) / self.curvature


@dataclass(frozen=True)
class Decay:
    """A decreasing step size ε_t = ε₀ (1 + t / offset)^(−power).

    Args:
        initial: ε₀.
        offset: Steps over which the step size stays about constant.
        power: At most 1, so that chains can still travel any distance.
    """

    initial: float
    offset: float = 1000.0
    power: float = 0.55

    def __post_init__(self) -> None:
        for name in ("initial", "offset", "power"):
            check_positive(name, getattr(self, name))
        if self.power > 1:
            raise ValueError(f"power must be at most 1; got {self.power}")

    def __call__(self, step: Array) -> Array:
        return self.initial * (1 + step / self.offset) ** (-self.power)


StepSize = float | Decay | Literal["auto"]


class Sampler(Protocol):
    """What `sample` needs of a gradient sampler."""

    @property
    def step_size(self) -> StepSize: ...

    def start(self, key: Array, coords: Coords, metric: Metric) -> State: ...

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
    ) -> State: ...

    def whiten(self, model: Model, coords: Coords, gradient: Coords, metric: Metric) -> Array:
        """Return Eᵀ g: the gradient, as a vector, in coordinates where D is the identity."""
        ...

    def largest_step(self, model: Model, metric: Metric, shape: Shape) -> float:
        """Return the largest ε with a small error of discretisation for a posterior of this shape."""
        ...

    def discretisation(self, model: Model, metric: Metric, shape: Shape, epsilon: float) -> float:
        """Return the relative error of variances from steps of ε, near enough."""
        ...

    def noise_share(self, epsilon: float, noise: float) -> float:
        """Return the excess of the stationary variance from gradients of a variance of noise · T."""
        ...

    def relaxation(self, epsilon: float) -> float:
        """Return the steps after which a draw has all but forgotten the one before."""
        ...


def check_step_size(step_size: Any) -> None:
    """Raise unless a step size is a positive number, a `Decay` or "auto"."""
    if isinstance(step_size, str):
        if step_size != "auto":
            raise ValueError(f"step_size must be a number, a Decay or 'auto'; got {step_size!r}")
    elif not isinstance(step_size, Decay):
        check_positive("step_size", step_size)


def posterior_gradient(
    model: Model, coords: Coords, statistics: Mapping[str, Any]
) -> dict[str, Array]:
    """Return the gradient of the log-posterior from the statistics of the likelihood."""
    target = lambda u: model.expected_log_joint(u, statistics) + model.log_prior(u)  # noqa: E731
    return jax.grad(target)(dict(coords))


def has_left(coords: Coords, center: Coords, metric: Metric) -> bool:
    """Whether coordinates are farther from the mode than draws ever are, in the constant metric.

    The distance in posterior sds is √T |E⁻¹ (u − center)|.
    """
    root = np.concatenate([np.asarray(E) for E in metric.root.values()])
    away = np.concatenate([np.ravel(np.asarray(coords[n]) - center[n]) for n in metric.root])
    if not np.isfinite(away).all():
        return True
    r = np.linalg.lstsq(root, away)[0] * math.sqrt(metric.num_rows)
    return bool(np.linalg.norm(r) > math.sqrt(len(r)) + _BEYOND)


def own_blocks(model: Model, metric: Metric) -> list[Block]:
    """Return the blocks that move in their own metric."""
    return [block for block in model.blocks if block.names[0] not in metric.root]


def dimension(root: Mapping[str, Array]) -> int:
    """Return the number of columns of E."""
    return next(iter(root.values())).shape[1]


def momentum(key: Array, metric: Metric) -> dict[str, Array]:
    """Return a momentum drawn from its law, a standard normal."""
    return {"momentum": jax.random.normal(key, (dimension(metric.root),))}


def pull(root: Mapping[str, Array], gradient: Coords) -> Array:
    """Return Eᵀ g."""
    parts = [E.T @ gradient[name].ravel() for name, E in root.items()]
    return jnp.sum(jnp.stack(parts), axis=0)


def push(coords: Coords, root: Mapping[str, Array], r: Array) -> dict[str, Array]:
    """Return u + E r."""
    moved = {n: coords[n] + (E @ r).reshape(coords[n].shape) for n, E in root.items()}
    return dict(coords) | moved


def kick(
    model: Model,
    coords: Coords,
    statistics: Mapping[str, Any],
    h: Array,
    metric: Metric,
    tame: Array | float,
) -> Array:
    """Return √h Eᵀ g, bounded where it is to be tamed.

    In any case a kick leads no farther than twice the distance from the mode that draws ever have. Far
    out, where the curvature may be many times that of the metric, it would otherwise lead farther out
    on the other side, and a chain away for good.
    """
    r = jnp.sqrt(h) * pull(metric.root, posterior_gradient(model, coords, statistics))
    norm = jnp.linalg.norm(r)
    # A kick leads √h r, in posterior sds √(h T) |r|, and draws are √d ± 1 of these from the mode.
    farthest = 2 * (jnp.sqrt(1.0 * len(r)) + _BEYOND)
    r = r * jnp.minimum(1.0, farthest / (jnp.sqrt(h * metric.num_rows) * norm))
    return r / (1 + tame * jnp.sqrt(h) * norm)


def drift(coords: Coords, r: Array, h: Array, metric: Metric) -> dict[str, Array]:
    """Return coordinates after half a step, u + √h/2 E r."""
    return push(coords, metric.root, jnp.sqrt(h) / 2 * r)
