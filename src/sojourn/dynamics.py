"""Langevin and Hamiltonian dynamics with stochastic gradients: pure steps on a state.

A sampler is configuration: `start` makes a state of coordinates, `step` maps a state and the statistics
of an estimator at its coordinates to the next. Step sizes have one meaning for all of them: ε, with
h = ε / T for T rows of data, so that good values do not depend on T (`MATH.md` §3.2). Near the mode a
step of SGRLD contracts by ε λ, λ being the curvature of the log-posterior, per row, in the metric; the
samplers with momentum turn by an angle of √(ε λ).

Steps in a constant metric end with the half of their motion that the next noise decides, so that their
stationary law is exact for Gaussian posteriors at any stable ε:

    r ← r + √h Eᵀ g,   u ← u + √h/2 E r,   r ← c r + √(1 − c²) ξ,   u ← u + √h/2 E r

the splitting known as BAOAB; Langevin dynamics are its limit c = 0.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import Array

from sojourn._validation import check_positive
from sojourn.blocks import Pilot
from sojourn.models.base import Coords, Model


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

    def whiten(
        self, model: Model, coords: Coords, gradient: Coords, metric: Metric
    ) -> dict[str, Array]: ...

    def largest_step(self, model: Model, metric: Metric, curvature: float) -> float:
        """Return the largest ε with a small error of discretisation at this curvature per row."""
        ...

    def noise_share(self, epsilon: float, noise: float) -> float:
        """Return the excess of the stationary variance from gradients of a variance of noise · T."""
        ...


@dataclass(frozen=True)
class SGRLD:
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
        metric: "complete", "observed", or "auto": the one that mixes faster.
    """

    step_size: StepSize = "auto"
    metric: Literal["auto", "complete", "observed"] = "auto"

    def __post_init__(self) -> None:
        _check_step_size(self.step_size)
        if self.metric not in ("auto", "complete", "observed"):
            raise ValueError(
                f"metric must be 'auto', 'complete' or 'observed'; got {self.metric!r}"
            )

    def start(self, key: Array, coords: Coords, metric: Metric) -> State:
        """Return a state at `coords`."""
        return State(dict(coords), _momentum(key, metric) if metric.root else {})

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
        for block, block_key in zip(model.blocks, keys, strict=True):
            name = block.names[0]
            if name not in metric.root:
                own = {n: coords[n] for n in block.names}
                moved |= block.step(
                    block_key, own, statistics[name], h, metric.pilots[name], tame=tame
                )
        if not metric.root:
            return State(moved, {})
        # Refreshed whole, the momentum makes half its step size a step of Langevin dynamics.
        r = _made_up_for(state.memory["momentum"], epsilon, metric.noise)
        r = r + _kick(model, coords, statistics, 2 * h, metric, tame)
        moved = _drift(moved, r, 2 * h, metric)
        r = jax.random.normal(key_root, r.shape)
        return State(_drift(moved, r, 2 * h, metric), {"momentum": r})

    def whiten(
        self, model: Model, coords: Coords, gradient: Coords, metric: Metric
    ) -> dict[str, Array]:
        """Return the gradient in coordinates where D is the identity."""
        white: dict[str, Array] = {}
        for block in model.blocks:
            if block.names[0] not in metric.root:
                own = {n: gradient[n] for n in block.names}
                white |= block.whiten(coords, own, metric.pilots[block.names[0]])
        if metric.root:
            white["root"] = pull(metric.root, gradient)
        return white

    def largest_step(self, model: Model, metric: Metric, curvature: float) -> float:
        """Return ε with ε λ = 0.3, or 0.1 if a block moves in its own metric, of curvature one."""
        if all(block.names[0] in metric.root for block in model.blocks):
            return 0.3 / curvature
        return min(0.1, 0.3 / curvature) if metric.root else 0.1

    def noise_share(self, epsilon: float, noise: float) -> float:
        """Return ε noise / 2. `MATH.md` §3.2."""
        return epsilon * noise / 2


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

    def whiten(
        self, model: Model, coords: Coords, gradient: Coords, metric: Metric
    ) -> dict[str, Array]:
        """Return the gradient as it is: the metric is the identity."""
        del model, coords, metric
        return dict(gradient)

    def largest_step(self, model: Model, metric: Metric, curvature: float) -> float:
        """Return ε with an excess of the variance, ε λ / 2, of 5%."""
        del model, metric
        return 0.1 / curvature

    def noise_share(self, epsilon: float, noise: float) -> float:
        """Return ε noise / 2. `MATH.md` §3.2."""
        return epsilon * noise / 2


@dataclass(frozen=True)
class SGHMC:
    """Hamiltonian dynamics with friction and stochastic gradients, in a constant metric.

    `MATH.md` §3.4. Momentum is refreshed in part at every step, by c = exp(−friction √ε).

    Args:
        step_size: ε as for `SGRLD`: a step turns by an angle of √(ε λ).
        friction: Rate of refreshment, in units of the fastest oscillation; 2 is critical for it.
    """

    step_size: StepSize = "auto"
    friction: float = 2.0

    def __post_init__(self) -> None:
        _check_step_size(self.step_size)
        check_positive("friction", self.friction)

    def start(self, key: Array, coords: Coords, metric: Metric) -> State:
        """Return a state at `coords` with a momentum drawn from its law."""
        return State(dict(coords), _momentum(key, metric))

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
        r = state.memory["momentum"] + _kick(model, state.coords, statistics, h, metric, tame)
        coords = _drift(state.coords, r, h, metric)
        c = jnp.exp(-self.friction * jnp.sqrt(epsilon))
        r = c * r + jnp.sqrt(1 - c**2) * jax.random.normal(key, r.shape)
        return State(_drift(coords, r, h, metric), {"momentum": r})

    def whiten(
        self, model: Model, coords: Coords, gradient: Coords, metric: Metric
    ) -> dict[str, Array]:
        """Return the gradient in coordinates where D is the identity."""
        del model, coords
        return {"root": pull(metric.root, gradient)}

    def largest_step(self, model: Model, metric: Metric, curvature: float) -> float:
        """Return ε for angles of √(ε λ) = 0.7."""
        del model, metric
        return 0.5 / curvature

    def noise_share(self, epsilon: float, noise: float) -> float:
        """Return what a step adds to the momentum's variance over what friction takes away."""
        return math.sqrt(epsilon) * noise / (2 * self.friction)


@dataclass(frozen=True)
class SGNHT:
    """Hamiltonian dynamics whose friction adapts to the noise of the gradients: a thermostat.

    `MATH.md` §3.4. Gradient noise of unknown size, the same in all directions of the metric, is absorbed
    by a friction that moves until the momentum has its own variance.

    Args:
        step_size: ε as for `SGHMC`.
        friction: Friction of the injected noise, in units of the fastest oscillation.
    """

    step_size: StepSize = "auto"
    friction: float = 2.0

    def __post_init__(self) -> None:
        _check_step_size(self.step_size)
        check_positive("friction", self.friction)

    def start(self, key: Array, coords: Coords, metric: Metric) -> State:
        """Return a state at `coords` with a momentum drawn from its law."""
        memory = _momentum(key, metric)
        return State(dict(coords), memory | {"thermostat": jnp.asarray(self.friction)})

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
        """Kick, drift, half a thermostat, friction and noise, half a thermostat, drift."""
        h, step = epsilon / metric.num_rows, jnp.sqrt(epsilon)
        r, xi = state.memory["momentum"], state.memory["thermostat"]
        r = r + _kick(model, state.coords, statistics, h, metric, tame)
        coords = _drift(state.coords, r, h, metric)
        xi = xi + step / 2 * (jnp.square(r).mean() - 1)
        # r' = e^(−ξ s) r + √(2 a ∫ e^(−2 ξ t) dt) N, the exact solution of friction ξ and noise 2a.
        x = xi * step
        near_zero = jnp.abs(x) < 1e-8  # below, 1 − e^(−x) = x to half the digits of a double
        spread = jnp.where(near_zero, 2.0, -jnp.expm1(-2 * x) / jnp.where(near_zero, 1.0, x)) * step
        r = jnp.exp(-x) * r + jnp.sqrt(self.friction * spread) * jax.random.normal(key, r.shape)
        xi = xi + step / 2 * (jnp.square(r).mean() - 1)
        return State(_drift(coords, r, h, metric), {"momentum": r, "thermostat": xi})

    def whiten(
        self, model: Model, coords: Coords, gradient: Coords, metric: Metric
    ) -> dict[str, Array]:
        """Return the gradient in coordinates where D is the identity."""
        del model, coords
        return {"root": pull(metric.root, gradient)}

    def largest_step(self, model: Model, metric: Metric, curvature: float) -> float:
        """Return ε for angles of √(ε λ) = 0.7."""
        del model, metric
        return 0.5 / curvature

    def noise_share(self, epsilon: float, noise: float) -> float:
        """Return what a step adds to the momentum's variance over what friction takes away."""
        return math.sqrt(epsilon) * noise / (2 * self.friction)


def posterior_gradient(
    model: Model, coords: Coords, statistics: Mapping[str, Any]
) -> dict[str, Array]:
    """Return the gradient of the log-posterior from the statistics of the likelihood."""
    target = lambda u: model.expected_log_joint(u, statistics) + model.log_prior(u)  # noqa: E731
    return jax.grad(target)(dict(coords))


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


def _momentum(key: Array, metric: Metric) -> dict[str, Array]:
    dimension = next(iter(metric.root.values())).shape[1]
    return {"momentum": jax.random.normal(key, (dimension,))}


def pull(root: Mapping[str, Array], gradient: Coords) -> Array:
    """Return Eᵀ g."""
    parts = [E.T @ gradient[name].ravel() for name, E in root.items()]
    return jnp.sum(jnp.stack(parts), axis=0)


def push(coords: Coords, root: Mapping[str, Array], r: Array) -> dict[str, Array]:
    """Return u + E r."""
    moved = {n: coords[n] + (E @ r).reshape(coords[n].shape) for n, E in root.items()}
    return dict(coords) | moved


def _kick(
    model: Model,
    coords: Coords,
    statistics: Mapping[str, Any],
    h: Array,
    metric: Metric,
    tame: Array | float,
) -> Array:
    """Return √h Eᵀ g, bounded where it is to be tamed."""
    kick = jnp.sqrt(h) * pull(metric.root, posterior_gradient(model, coords, statistics))
    return kick / (1 + tame * jnp.sqrt(h) * jnp.linalg.norm(kick))


def _drift(coords: Coords, r: Array, h: Array, metric: Metric) -> dict[str, Array]:
    """Return coordinates after half a step, u + √h/2 E r."""
    return push(coords, metric.root, jnp.sqrt(h) / 2 * r)


def _check_step_size(step_size: Any) -> None:
    if isinstance(step_size, str):
        if step_size != "auto":
            raise ValueError(f"step_size must be a number, a Decay or 'auto'; got {step_size!r}")
    elif not isinstance(step_size, Decay):
        check_positive("step_size", step_size)
