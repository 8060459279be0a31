"""Transition matrix of a Markov chain: K independent Dirichlet rows.

Legend: Π (K, K) rows "from"; φ = e^η > 0 expanded mean, Φ_k = Σ_j φ_kj, Π_kj = φ_kj / Φ_k;
α Dirichlet concentration; N̂_kj expected transition counts. `MATH.md` §6.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import gammaln, logsumexp
from jaxtyping import Float

from sojourn._random import gamma, log_gamma
from sojourn._validation import check_array
from sojourn.blocks.base import Block, Coords, Params, Pilot, freeze

# Shape A₀ of the Gamma law of the scale Φ_k, whose mean is 1. The scale is independent of Π, so this
# changes no posterior; a sd of A₀^(-1/2) = 10% keeps the metric, which goes as 1/Φ, near constant.
SCALE_SHAPE = 100.0

# States visited less often than this are moved as if visited this often: bounds the step h / π̄_k.
MIN_OCCUPANCY = 0.01

# Transitions from which on log φ ~ log Gamma, of skewness −1/√count, counts as Gaussian.
_REGULAR = 30.0

_TINY = np.finfo(np.float64).tiny


class TransitionStatistics(NamedTuple):
    """Expected or sampled transition counts, weighted to the whole data."""

    counts: Float[Array, "K K"]


@dataclass(frozen=True)
class Transition(Block):
    """K rows Π_k ~ Dirichlet(α_k), in coordinates η = log φ with Π = softmax(η).

    The redundant scale Φ_k has its own Gamma(A₀, A₀) law, independent of Π, without which it would
    drift away (`MATH.md` §6.3).

    Args:
        num_states: Number of states K.
        concentration: Dirichlet concentration α, a scalar or a (K, K) array.
        name: Name of the parameter.
    """

    num_states: int
    concentration: Any = 1.0
    name: str = "transition_matrix"
    has_exact_step: ClassVar[bool] = True
    _alpha: tuple[tuple[float, ...], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        K = self.num_states
        alpha = check_array("concentration", self.concentration, (), (K, K))
        if np.any(alpha <= 0):
            raise ValueError(f"concentration must be positive; got {alpha.min():.6g}")
        object.__setattr__(self, "concentration", freeze(alpha) if alpha.ndim else float(alpha))
        object.__setattr__(self, "_alpha", freeze(np.broadcast_to(alpha, (K, K))))

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    def empty_statistics(self) -> TransitionStatistics:
        return TransitionStatistics(jnp.zeros((self.num_states, self.num_states)))

    def to_coords(self, params: Params) -> dict[str, Array]:
        """Return η = log Π, with true zeros at the smallest normal number."""
        return {self.name: jnp.log(jnp.maximum(jnp.asarray(params[self.name]), _TINY))}

    def to_params(self, coords: Coords) -> dict[str, Array]:
        return {self.name: jax.nn.softmax(coords[self.name], axis=-1)}

    def free(self, coords: Coords, scores: Coords) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return log Π_kj / Π_kK and its scores, without the redundant scale.

        At Φ = 1, where `to_coords` is, the gradient of `log_prior` is α_k − α_k· Π_k: that of the
        Dirichlet density, Jacobian included, in log-ratios, the last entry being left out.
        """
        eta = coords[self.name]
        return {self.name: (eta - eta[..., -1:])[..., :-1]}, {
            self.name: scores[self.name][..., :-1]
        }

    def log_prior(self, coords: Coords) -> Array:
        """Return Σ_k Σ_j α_kj η_kj + (A₀ − α_k·) log Φ_k − A₀ Φ_k + constants. `MATH.md` §6.2."""
        eta, alpha = coords[self.name], jnp.asarray(self._alpha)
        total = alpha.sum(-1)
        log_scale = logsumexp(eta, axis=-1)
        dirichlet = gammaln(total) - gammaln(alpha).sum(-1)
        scale = SCALE_SHAPE * np.log(SCALE_SHAPE) - gammaln(SCALE_SHAPE)
        rows = (
            (alpha * eta).sum(-1)
            + (SCALE_SHAPE - total) * log_scale
            - SCALE_SHAPE * jnp.exp(log_scale)
            + dirichlet
            + scale
        )
        return rows.sum()

    def expected_log_likelihood(self, coords: Coords, statistics: TransitionStatistics) -> Array:
        """Return Σ_kj N̂_kj log Π_kj."""
        return (statistics.counts * jax.nn.log_softmax(coords[self.name], axis=-1)).sum()

    def draw(
        self, key: Array, statistics: TransitionStatistics, params: Params
    ) -> dict[str, Array]:
        """Draw Π_k ~ Dirichlet(α_k + N_k). `MATH.md` §11."""
        del params
        drawn = log_gamma(key, jnp.asarray(self._alpha) + statistics.counts)
        return {self.name: jax.nn.softmax(drawn, axis=-1)}

    def center(self, statistics: TransitionStatistics) -> dict[str, Array]:
        posterior = jnp.asarray(self._alpha) + jnp.maximum(statistics.counts, 0.0)
        return {self.name: posterior / posterior.sum(-1, keepdims=True)}

    def is_regular(self, statistics: TransitionStatistics) -> bool:
        """Whether every transition was seen often enough that its logarithm is about Gaussian."""
        counts = np.asarray(statistics.counts) + np.asarray(self._alpha)
        return bool(np.min(counts) >= _REGULAR)

    def pilot(self, statistics: TransitionStatistics, num_rows: float) -> Pilot:
        occupancy = jnp.maximum(statistics.counts.sum(-1) / num_rows, MIN_OCCUPANCY)
        return Pilot(occupancy, jnp.ones((self.num_states, 0, 0)))

    def precondition(self, coords: Coords, vector: Coords, pilot: Pilot) -> dict[str, Array]:
        """Return v / (φ π̄_k): the metric diag(φ) of the expanded mean, carried to η."""
        return {self.name: vector[self.name] * self._metric(coords, pilot)}

    def sqrt_metric(self, coords: Coords, vector: Coords, pilot: Pilot) -> dict[str, Array]:
        return {self.name: vector[self.name] * jnp.sqrt(self._metric(coords, pilot))}

    def divergence(self, coords: Coords, pilot: Pilot) -> dict[str, Array]:
        return {self.name: -self._metric(coords, pilot)}

    def _metric(self, coords: Coords, pilot: Pilot) -> Array:
        # True zeros stand at e^−708: what they divide is zero too, and must not meet an infinity.
        return jnp.exp(jnp.minimum(-coords[self.name], 600.0)) / pilot.occupancy[:, None]

    def step(
        self,
        key: Array,
        coords: Coords,
        statistics: TransitionStatistics,
        step: Array,
        pilot: Pilot,
        *,
        tame: Array | float,
    ) -> dict[str, Array]:
        """Draw φ' from the Cox–Ingersoll–Ross transition with frozen coefficients. `MATH.md` §6.2.

            dφ = (a − b φ) dt + √(2φ) dW,   a = α + N̂,   b = A₀ + (N̂_k + α_k· − A₀) / Φ_k

        Exact for fixed a, b; strictly positive, so that rows with true zeros neither absorb nor
        reflect. The drift is bounded by construction, so `tame` has nothing to do.
        """
        del tame
        alpha = jnp.asarray(self._alpha)
        phi = jnp.exp(coords[self.name])
        counts = jnp.maximum(statistics.counts, 0.0)  # control variates may dip below zero
        scale = phi.sum(-1, keepdims=True)
        a = alpha + counts
        b = SCALE_SHAPE + (a.sum(-1, keepdims=True) - SCALE_SHAPE) / scale
        h = step / pilot.occupancy[:, None]
        smallest = float(np.min(np.asarray(self._alpha)))
        return {self.name: jnp.log(_cir(key, phi, a, b, h, smallest_shape=smallest))}


def _cir(key: Array, phi: Array, a: Array, b: Array, h: Array, *, smallest_shape: float) -> Array:
    """Draw c χ'²(2a, λ), c = (1 − e^(−bh)) / 2b, λ = φ e^(−bh) / c, with c → h/2 as b → 0."""
    bh = b * h
    near_zero = jnp.abs(bh) < 1e-8  # below, 1 − e^(−x) = x to half the digits of a double
    c = jnp.where(near_zero, h / 2, -jnp.expm1(-bh) / (2 * jnp.where(near_zero, 1.0, b)))
    noncentrality = phi * jnp.exp(-bh) / c
    key_gamma, key_other = jax.random.split(key)
    if smallest_shape >= 1.0:
        # χ'²(2a, λ) = (Z + √λ)² + χ²(2a − 1): one normal instead of a Poisson number.
        normal = jax.random.normal(key_other, phi.shape)
        central = 2 * gamma(key_gamma, a - 0.5)
        drawn = c * (jnp.square(normal + jnp.sqrt(noncentrality)) + central)
    else:
        # Poisson rates beyond 1e9 exceed the integers it is drawn in; there it equals its mean to
        # three parts in 1e5 of the step's own noise.
        rate = noncentrality / 2
        poisson = jax.random.poisson(key_other, jnp.minimum(rate, 1e9))
        mixed = jnp.where(rate < 1e9, poisson, rate)
        drawn = 2 * c * gamma(key_gamma, a + mixed)
    return jnp.maximum(drawn, _TINY)
