"""How noisy gradients are where chains go."""

import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from sojourn._compile import compiled
from sojourn.dynamics import Metric, Sampler, dimension, own_blocks, push
from sojourn.gradients import Estimator, Source
from sojourn.models.base import Coords, Model
from sojourn.tuning.whitening import full_gradient, window_gradients

# Windows that noise is measured from, and the part of them that is compared with the rest.
_NOISE_WINDOWS = 2048
_FEW = 0.01

# Full gradients that Monte Carlo noise is measured from.
_NOISE_REPEATS = 40


class Noise(NamedTuple):
    """Noise of a gradient.

    Attributes:
        covariance: Eᵀ Σ_g E / T of one step.
        of_few: How much of the sum of squares a hundredth of the windows makes.
    """

    covariance: np.ndarray
    of_few: float

    @property
    def largest(self) -> float:
        """Largest variance in a direction."""
        if not np.isfinite(self.covariance).all():
            return math.inf
        return float(np.linalg.eigvalsh(self.covariance)[-1]) if self.covariance.size else 0.0

    def scaled(self, factor: float) -> "Noise":
        """Return the noise of so many times fewer windows."""
        return self._replace(covariance=self.covariance * factor)


NO_NOISE = Noise(np.zeros((0, 0)), 0.0)


def gradient_noise(
    estimator: Estimator,
    sampler: Sampler,
    source: Source,
    center: Coords,
    metric: Metric,
    key: Array,
    spread: float = 1.0,
) -> Noise:
    """Return the noise of one step's gradient, measured where chains go.

    A control variate is exact at its centre, so its noise must be measured away from it: at places
    with the spread of the posterior, or twice the complete-data one where only that is known; or with
    some times that.
    """
    white, batch = [], estimator.windows.batch
    # At least two windows at each place, so that their spread does not include that of the places.
    W = max(2, estimator.windows.batch)
    estimator = dataclasses.replace(
        estimator, windows=dataclasses.replace(estimator.windows, batch=W)
    )
    keys = jax.random.split(key, -(-_NOISE_WINDOWS // W))
    for k in keys:
        key_place, key_windows = jax.random.split(k)
        place = disperse(estimator.model, center, metric, key_place, spread, 2 * spread)
        found = window_gradients(estimator, sampler, source, key_windows, place, metric)
        white.append(np.asarray(found))
    deviations = np.concatenate([w - w.mean(0) for w in white])
    count = len(deviations) - len(white)
    # The sum over W windows varies W times as much as one of them, each of which is over W.
    covariance = W * deviations.T @ deviations / count * (W / batch)
    squares = np.sort(np.square(deviations).sum(1))
    few, total = max(1, int(_FEW * len(squares))), squares.sum()
    of_few = float(squares[-few:].sum() / total) if total > 0 else 0.0
    return Noise(covariance / float(metric.num_rows), of_few)


def monte_carlo_noise(
    estimator: Estimator,
    sampler: Sampler,
    source: Source,
    center: Coords,
    metric: Metric,
    key: Array,
) -> Noise:
    """Return the noise of a full gradient whose expectations are Monte Carlo averages."""
    white = np.stack(
        [
            np.asarray(full_gradient(estimator, sampler, source, k, center, metric))
            for k in jax.random.split(key, _NOISE_REPEATS)
        ]
    )
    covariance = np.cov(white, rowvar=False).reshape(white.shape[1], -1)
    return Noise(covariance / float(metric.num_rows), 0.0)


@compiled(static_argnums=0, quick=True)
def disperse(
    model: Model,
    center: Coords,
    metric: Metric,
    key: Array,
    sds: float = 2.0,
    own_sds: float = 2.0,
) -> dict[str, Array]:
    """Return coordinates some posterior sds from the centre, as far as the metric tells.

    Blocks in a metric of their own are moved by as many sds given all states, which are smaller.
    """
    # Directions that the data hardly inform are not moved further than the prior's order of one.
    key, key_root = jax.random.split(key)
    moved: dict[str, Array] = {}
    if metric.root:
        r = jax.random.normal(key_root, (dimension(metric.root),))
        far = push(center, metric.root, sds * r / jnp.sqrt(metric.num_rows))
        moved = {n: center[n] + jnp.clip(u - center[n], -1, 1) for n, u in far.items()}
    block_keys = dict(zip(model.blocks, jax.random.split(key, len(model.blocks)), strict=True))
    for block in own_blocks(model, metric):
        own = {n: jnp.asarray(center[n]) for n in block.names}
        keys = dict(zip(own, jax.random.split(block_keys[block], len(own)), strict=True))
        noise = {n: jax.random.normal(keys[n], u.shape) for n, u in own.items()}
        step = block.sqrt_metric(own, noise, metric.pilots[block.names[0]])
        moved |= {
            n: own[n] + jnp.clip(own_sds * step[n] / jnp.sqrt(metric.num_rows), -1, 1) for n in own
        }
    return moved
