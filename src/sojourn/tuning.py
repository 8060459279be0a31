"""What is chosen before sampling: start, windows, metric, control variate, step size.

Start: several starts, a few steps of stochastic EM on windows from each, the best kept by its
log-posterior on fresh windows, then more EM with averaging to the neighbourhood of the mode.

Step size: stationary variances are inflated by gradient noise and by discretisation (`MATH.md` §3.2),

    var / var_posterior = (1 + (h/2) λ_max(Eᵀ Σ_g E)) / (1 − ε λ / 2);

ε is the largest that keeps both excesses under 5%.
"""

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jax import Array

from sojourn.batch import Seam
from sojourn.buffers import choose, window_gradients
from sojourn.dynamics import SGRLD, Decay, Metric, Sampler
from sojourn.gradients import Center, Estimator, Source, fetch, fetched, full, windowed
from sojourn.models.base import Coords, Model
from sojourn.passes import Tiles, full_statistics
from sojourn.series import Series, Windows

# Excess of the stationary variance allowed from discretisation, ε λ / 2, and from gradient noise.
EXCESS = 0.05

# Up to this many rows a full pass costs no more than a good batch of windows.
_FULL_ROWS = 16_384

_SHORT_EM = 60

# Share of the variance that gradient noise may add where the step size is not limited by it, and the
# fewest windows worth a step's fixed cost.
_SMALL_NOISE = 0.01
_MIN_BATCH = 16

_LONG_EM = 200
_NOISE_WINDOWS = 1024

# Full gradients that Monte Carlo noise is measured from.
_NOISE_REPEATS = 40


@dataclass(frozen=True, eq=False)
class Tuned:
    """Everything fixed before sampling.

    Attributes:
        estimator: Estimator of the statistics.
        source: What it reads.
        metric: The metric.
        epsilon: Step size ε; the schedule's first value for a `Decay`.
        center: Coordinates near the mode.
        choices: What was chosen, by name, for the user.
    """

    estimator: Estimator
    source: Source
    metric: Metric
    epsilon: float
    center: dict[str, Array]
    choices: dict[str, Any]


def num_rows(model: Model, series: Series) -> int:
    """Rows T of the likelihood: all rows after the lags."""
    return series.num_rows - model.num_lags * len(series.lengths)


def find_start(
    model: Model, series: Series, init: Any, key: Array, *, refine: bool
) -> dict[str, Array]:
    """Return coordinates near the mode, from starts of the kind `init` or from given coordinates."""
    estimator, source = _em_estimator(model, series)
    key_seeds, key_em, key_score = jax.random.split(key, 3)
    if isinstance(init, Mapping):
        starts = [dict(init)]
    else:
        methods = model.starts(init)
        seeds = np.asarray(jax.random.randint(key_seeds, (len(methods),), 0, 2**30))
        starts = [
            model.initial_coords(series, method, int(seed))
            for method, seed in zip(methods, seeds, strict=True)
        ]
        starts = [_em(estimator, source, key_em, s, _SHORT_EM) for s in starts]
    scores = [float(log_posterior(estimator, source, key_score, start)) for start in starts]
    scores = np.nan_to_num(scores, nan=-np.inf)
    # Among starts within a nat of the best, which often differ in labels only, the first: rounding,
    # and with it the units of the data, should not decide.
    best = starts[int(np.argmax(scores >= scores.max() - 1))]
    return _em(estimator, source, key_em, best, _LONG_EM) if refine else best


def tune(
    model: Model,
    series: Series,
    sampler: Sampler,
    windows: Windows | str,
    control_variate: bool | str,
    center: dict[str, Array],
    key: Array,
) -> Tuned:
    """Choose windows, metric, control variate and step size at `center`."""
    T = num_rows(model, series)
    key_buffer, key_noise = jax.random.split(key)
    if model.regimes is not None:
        # The error of a Monte Carlo average at the centre would stay in every gradient.
        if control_variate is True:
            raise ValueError(
                f"a control variate needs exact statistics at its centre, which {type(model).__name__} "
                "does not have; use control_variate=False"
            )
        control_variate = False
    metric, statistics, tiles = pilot_at(model, series, center)
    choices: dict[str, Any] = {}
    fit_batch = windows == "auto"
    if windows == "auto":
        if T <= _FULL_ROWS:
            windows = Windows.full()
        else:
            shape = Windows(min(200, max(series.lengths) - model.num_lags), 0, 64)
            buffer, error = choose(model, series, shape, sampler, center, metric, key_buffer)
            windows = Windows(shape.length, buffer, shape.batch)
            choices["buffer_error"] = _rounded(error)
    assert isinstance(windows, Windows)
    if windows.is_full:
        estimator, source = full(model, series, tiles)
        noise = 0.0
        if model.regimes is not None:
            noise = monte_carlo_noise(estimator, sampler, source, center, metric, key_noise)
        choices |= {"windows": "full", "buffer": tiles.buffer, "control_variate": False}
    else:
        estimator, source = windowed(model, series, windows)
        varied = source._replace(center=Center(dict(center), statistics))
        measure = functools.partial(gradient_noise, center=center, metric=metric, key=key_noise)
        levels = {}
        if control_variate is not True:
            levels[False] = measure(estimator, sampler, source)
        if control_variate is not False:
            levels[True] = measure(estimator, sampler, varied)
        use = min(levels, key=lambda kind: levels[kind])
        noise, source = levels[use], varied if use else source
        epsilon = step_size(sampler, model, center, metric, noise)
        share = epsilon / T / 2 * noise
        if fit_batch and share < _SMALL_NOISE / 2:
            # Noise falls as one over the batch: give up windows that do not pay for themselves.
            batch = max(_MIN_BATCH, int(windows.batch * share / _SMALL_NOISE))
            noise *= windows.batch / batch
            windows = dataclasses.replace(windows, batch=batch)
            estimator = dataclasses.replace(estimator, windows=windows)
        choices |= {
            "length": windows.length,
            "buffer": windows.buffer,
            "batch": windows.batch,
            "scheme": windows.scheme,
            "control_variate": use,
        }
    epsilon = step_size(sampler, model, center, metric, noise)
    if not np.isfinite(epsilon):
        raise ValueError(
            "no step size could be found: the statistics near the start are not finite; check that "
            "some rows are complete (with their lags), and centre and scale data far from zero"
        )
    choices |= {"step_size": _rounded(epsilon), "noise_fraction": _rounded(epsilon / T / 2 * noise)}
    return Tuned(estimator, source, metric, epsilon, dict(center), choices)


def pilot_at(model: Model, series: Series, coords: Coords) -> tuple[Metric, dict[str, Any], Tiles]:
    """Return the complete-data metric, and the statistics of all rows that it comes from."""
    statistics, tiles = full_statistics(model, coords, series)
    T = float(num_rows(model, series))
    pilots = jax.jit(model.pilot, static_argnums=1)(statistics, T)
    return Metric(pilots, {}, T), statistics, tiles


def step_size(
    sampler: Sampler,
    model: Model,
    coords: Coords,
    metric: Metric,
    noise: float,
) -> float:
    """Return ε: the user's, or the largest with both excesses of the variance under 5%."""
    if isinstance(sampler.step_size, Decay):
        return sampler.step_size.initial
    if sampler.step_size != "auto":
        return float(sampler.step_size)
    # The metric of SGRLD is the inverse of the information: curvature one.
    curvature = 1.0
    if not isinstance(sampler, SGRLD):
        curvature = float(_curvature(sampler, model, coords, metric))
    limit = 2 * EXCESS / curvature
    return float(limit if noise == 0 else min(limit, 2 * EXCESS * metric.num_rows / noise))


def gradient_noise(
    estimator: Estimator,
    sampler: Sampler,
    source: Source,
    center: Coords,
    metric: Metric,
    key: Array,
) -> float:
    """Return λ_max(Eᵀ Σ_g E) of one step's gradient, measured about two posterior sds from the centre.

    A control variate is exact at its centre, so its noise must be measured where chains go.
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
        place = disperse(estimator.model, center, metric, key_place)
        found = window_gradients(estimator, sampler, source, key_windows, place, metric)
        white.append(np.asarray(found))
    deviations = np.concatenate([w - w.mean(0) for w in white])
    count = len(deviations) - len(white)
    # The sum over W windows varies W times as much as one of them, each of which is over W.
    return float(W * np.linalg.norm(deviations, 2) ** 2 / count * (W / batch))


def monte_carlo_noise(
    estimator: Estimator,
    sampler: Sampler,
    source: Source,
    center: Coords,
    metric: Metric,
    key: Array,
) -> float:
    """Return λ_max(Eᵀ Σ_g E) of a full gradient whose expectations are Monte Carlo averages."""
    white = np.stack(
        [
            np.asarray(_whitened(estimator, sampler, source, k, center, metric))
            for k in jax.random.split(key, _NOISE_REPEATS)
        ]
    )
    return float(np.linalg.norm(white - white.mean(0), 2) ** 2 / (len(white) - 1))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _whitened(
    estimator: Estimator,
    sampler: Sampler,
    source: Source,
    key: Array,
    coords: Coords,
    metric: Metric,
) -> Array:
    model = estimator.model
    gradient = model.gradient(coords, estimator(source, key, coords))
    white = sampler.whiten(model, coords, gradient, metric)
    return jnp.concatenate([white[name].ravel() for name in sorted(white)])


def _rounded(value: float) -> float:
    """Return six digits of a number: what a reader wants to see."""
    return float(f"{value:.6g}")


@functools.partial(jax.jit, static_argnums=0)
def disperse(model: Model, center: Coords, metric: Metric, key: Array) -> dict[str, Array]:
    """Return coordinates about two complete-data posterior sds from the centre."""
    moved: dict[str, Array] = {}
    for block, block_key in zip(
        model.blocks, jax.random.split(key, len(model.blocks)), strict=True
    ):
        own = {n: jnp.asarray(center[n]) for n in block.names}
        keys = dict(zip(own, jax.random.split(block_key, len(own)), strict=True))
        noise = {n: jax.random.normal(keys[n], u.shape) for n, u in own.items()}
        step = block.sqrt_metric(own, noise, metric.pilots[block.names[0]])
        # Directions that the data hardly inform are not moved further than the prior's order of one.
        moved |= {n: own[n] + jnp.clip(2 * step[n] / jnp.sqrt(metric.num_rows), -1, 1) for n in own}
    return moved


def log_posterior(estimator: Estimator, source: Source, key: Array, coords: Coords) -> Array:
    """Return an estimate of the log-posterior from the windows of one step."""
    return _log_posterior(estimator, fetch(estimator, source, key), key, coords)


@functools.partial(jax.jit, static_argnums=0)
def _log_posterior(estimator: Estimator, source: Source, key: Array, coords: Coords) -> Array:
    model = estimator.model

    def score(batch: Any) -> Array:
        nowhere = jnp.zeros(batch.weight.shape[1], int)
        seam = Seam(nowhere, nowhere)
        return model.window_scores(coords, batch, seam, estimator.missing)[0].sum()

    if source.tiles is not None:
        total = jax.lax.map(score, source.tiles).sum()
    else:
        total = score(estimator.batch(source, key))
    return total + model.log_prior(coords)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _curvature(sampler: Sampler, model: Model, coords: Coords, metric: Metric) -> Array:
    """Return λ_max(Eᵀ I_c E): the complete-data information per row in the sampler's metric."""
    largest = []
    for block in model.blocks:
        own = {n: jnp.asarray(coords[n]) for n in block.names}
        flat, unravel = jax.flatten_util.ravel_pytree(own)
        own_pilot = metric.pilots[block.names[0]]
        # The information is F Fᵀ with F = E⁻ᵀ, E the root of the block's own metric.
        root = jax.jacfwd(
            lambda v, own=own, p=own_pilot, b=block, r=unravel: jax.flatten_util.ravel_pytree(
                b.sqrt_metric(own, r(v), p)
            )[0]
        )(flat)
        information_root = jnp.linalg.inv(root).T
        white = jax.vmap(
            lambda g, r=unravel: jax.flatten_util.ravel_pytree(
                sampler.whiten(
                    model, coords, {**jax.tree.map(jnp.zeros_like, dict(coords)), **r(g)}, metric
                )
            )[0]
        )(information_root.T)
        largest.append(jnp.linalg.norm(white, 2) ** 2)
    return jnp.max(jnp.stack(largest))


def _em_estimator(model: Model, series: Series) -> tuple[Estimator, Source]:
    longest = max(series.lengths) - model.num_lags
    windows = Windows(min(200, longest), 32, 64)
    return windowed(model, series, windows)


def _em(
    estimator: Estimator, source: Source, key: Array, coords: Coords, num_steps: int
) -> dict[str, Array]:
    """Climb by stochastic EM: running averages of windowed statistics, then the M-step.

    s ← (1 − ρ_t) s + ρ_t ŝ(θ),   θ ← centre(s),   ρ_t = (t + 1)^(−0.6)
    """
    found, average = {n: jnp.asarray(u) for n, u in coords.items()}, None
    for begin, end, given in fetched(estimator, source, key, 0, num_steps, splits=1):
        found, average = _em_steps(estimator, given, key, found, average, begin, end)
    return found


@functools.partial(jax.jit, static_argnums=0)
def _em_steps(
    estimator: Estimator,
    source: Source,
    key: Array,
    coords: dict[str, Array],
    average: Any,
    begin: Any,
    end: Any,
) -> tuple[dict[str, Array], Any]:
    model = estimator.model

    def step(t: Array, carry: tuple[Any, Any]) -> tuple[Any, Any]:
        coords, average = carry
        found = estimator(source.at(t - begin), jax.random.fold_in(key, t), coords)
        rate = (t + 1.0) ** -0.6
        average = jax.tree.map(lambda s, new: s + rate * (new - s), average, found)
        return model.center(average), average

    if average is None:
        shapes = jax.eval_shape(estimator, source.at(0), key, coords)
        average = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    return jax.lax.fori_loop(begin, end, step, (coords, average))
