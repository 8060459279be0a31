"""What is chosen before sampling: windows, metric, control variate, step size.

Step size: stationary variances are inflated by gradient noise and by discretisation (`MATH.md` §3.2);
ε is the largest that keeps each excess to a few percent. Noise falls as one over the batch: as many
windows are drawn as keep it from limiting the step, or all rows are taken where these are fewer.
"""

import dataclasses
import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from sojourn.dynamics import (
    SGHMC,
    SGLD,
    SGRLD,
    Decay,
    Metric,
    Sampler,
    Shape,
    dimension,
    own_blocks,
    push,
)
from sojourn.gradients import Center, Estimator, Source, full, measure_slopes, windowed
from sojourn.models.base import Coords, Model
from sojourn.series import Series, Windows
from sojourn.tuning.buffer_errors import whitened, window_gradients
from sojourn.tuning.buffers import check, choose, reference_windows
from sojourn.tuning.curvature import complete_root
from sojourn.tuning.modes import Mode, find_mode, place

# Excess of the stationary variance allowed from gradient noise, and where the steps make up for it.
_EXCESS = 0.05

# That of a control variate's noise at twice the posterior's distance from the centre: it grows with the
# distance, and where it outweighs the drift a chain would be lost.
_FAR_EXCESS = 0.1
_MADE_UP_FOR = 0.15

# Variation of the curvature above which the posterior is too wide for what is measured near its mode:
# a control variate would be exact at the centre and worse than none in the tails.
_WIDE = 1.0

# Langevin steps shorter than this take many to cross the posterior: momentum, with little friction,
# crosses it in fewer, if gradients are exact.
_SLOW = 0.3
_FRICTION = 0.25

# Up to this many rows a full pass costs no more than a good batch of windows.
_FULL_ROWS = 4096

# Windows of a step: the fewest worth its fixed cost, and the most.
_MIN_BATCH = 16
_MAX_BATCH = 4096

# Steps within which slopes of a control variate pay back the passes that they take.
_PAID_BACK = 1000

# Rows of a window that count: as few as this many buffers, as the rows of a window run one after the
# other and windows at once; within bounds.
_BUFFERS = 8
_LENGTHS = (32, 200)

_NOISE_WINDOWS = 1024

# Full gradients that Monte Carlo noise is measured from.
_NOISE_REPEATS = 40


@dataclass(frozen=True, eq=False)
class Tuned:
    """Everything fixed before sampling.

    Attributes:
        sampler: The sampler.
        estimator: Estimator of the statistics.
        source: What it reads.
        metric: The metric.
        buffer: Buffer of the tiles where all rows are used.
        reference: Windows that the error of the buffer was measured on; None where all rows are used.
        epsilon: Step size ε; the schedule's first value for a `Decay`.
        center: Coordinates near the mode.
        choices: What was chosen, by name, for the user.
    """

    sampler: Sampler
    estimator: Estimator
    source: Source
    metric: Metric
    buffer: int
    reference: Windows | None
    epsilon: float
    center: dict[str, Array]
    choices: dict[str, Any]


def tune(
    model: Model,
    series: Series,
    asked: Sampler | None,
    windows: Windows | str,
    control_variate: bool | str,
    center: dict[str, Array],
    key: Array,
) -> Tuned:
    """Choose windows, metric, control variate, step size, and the sampler if none is asked for."""
    sampler = SGRLD() if asked is None else asked
    if model.regimes is not None:
        # The error of a Monte Carlo average at the centre would stay in every gradient.
        if control_variate is True:
            raise ValueError(
                f"a control variate needs exact statistics at its centre, which {type(model).__name__} "
                "does not have; use control_variate=False"
            )
        control_variate = False
    key_buffer, key_mode, key_noise = jax.random.split(key, 3)
    start = place(model, series, center)
    is_long = start.metric.num_rows > _FULL_ROWS
    longest = max(series.lengths) - model.num_lags
    shape = Windows(min(_LENGTHS[1], longest), 64, 64)
    choices: dict[str, Any] = {}
    reference = None
    if windows == "auto" and is_long:
        # On windows as short as they may get: in longer ones a buffer leaves a smaller error.
        shortest = longest if model.regimes else min(_LENGTHS[0], longest)
        short = dataclasses.replace(shape, length=min(shortest, _LENGTHS[1]))
        reference = reference_windows(short)
        buffer, error = choose(model, series, reference, center, start.metric, key_buffer)
        shape = dataclasses.replace(shape, buffer=buffer)
        choices["buffer_error"] = _rounded(error)
    mode = find_mode(model, series, sampler, shape, start, key_mode)
    if control_variate == "auto" and mode.shape.variation > _WIDE:
        control_variate = False

    steps = None
    if isinstance(windows, Windows) and not windows.is_full:
        steps = _from_windows(model, series, sampler, windows, control_variate, mode, key_noise)
        reference, at = reference_windows(windows), (mode.coords, start.metric, key_buffer)
        error, bias = check(model, series, reference, windows.buffer, *at)
        choices |= {"buffer_error": _rounded(error)}
        if steps.source.center is None:  # at the centre of a control variate the bias cancels
            choices["buffer_bias"] = _rounded(bias)
    elif windows == "auto" and is_long:
        if model.regimes is None:
            length = int(np.clip(_BUFFERS * shape.buffer, *_LENGTHS))
            shape = dataclasses.replace(shape, length=min(length, longest))
        steps = _from_windows(model, series, sampler, shape, control_variate, mode, key_noise)
        steps = _fit_batch(sampler, steps, mode, may_take_all=not series.streams)
    if steps is None:
        steps = _from_all(model, series, sampler, mode, key_noise)
        choices, reference = {"windows": "full"}, None
    else:
        taken = steps.estimator.windows
        choices |= {name: getattr(taken, name) for name in ("length", "buffer", "batch", "scheme")}
    epsilon = step_size(sampler, model, mode, steps)
    if asked is None and epsilon < _SLOW and _can_turn(model, mode, steps):
        sampler = SGHMC(friction=_FRICTION)
        epsilon = step_size(sampler, model, mode, steps)
    if not np.isfinite(epsilon):
        raise ValueError(
            "no step size could be found: the statistics near the start are not finite; check that "
            "some rows are complete (with their lags), and centre and scale data far from zero"
        )
    makes_up = _makes_up(model, sampler, mode.metric) and steps.covariance.size > 0
    choices |= {
        "control_variate": steps.source.center is not None,
        "metric": _describe_metric(model, sampler, mode),
        "step_size": _rounded(epsilon),
        "discretisation": _rounded(
            sampler.discretisation(model, mode.metric, _shape(sampler, model, mode), epsilon)
        ),
        "noise_fraction": _rounded(sampler.noise_share(epsilon, steps.noise)),
        "noise_made_up_for": makes_up,
    }
    metric = mode.metric
    if makes_up:
        metric = metric._replace(noise=tuple(map(jnp.asarray, np.linalg.eigh(steps.covariance))))
    return Tuned(
        sampler=sampler,
        estimator=steps.estimator,
        source=steps.source,
        metric=metric,
        buffer=mode.tiles.buffer,
        reference=reference,
        epsilon=epsilon,
        center=mode.coords,
        choices=choices,
    )


def _can_turn(model: Model, mode: Mode, steps: "_Steps") -> bool:
    """Whether momentum can be kept: gradients are exact, and all blocks move in a constant metric."""
    return not steps.covariance.size and not own_blocks(model, mode.metric)


class _Steps(NamedTuple):
    """An estimator, what it reads, and Eᵀ Σ_g E / T of its gradients' noise: typical, and far out."""

    estimator: Estimator
    source: Source
    covariance: np.ndarray
    far: np.ndarray

    @property
    def noise(self) -> float:
        """Largest variance in a direction."""
        return _largest(self.covariance)

    def excess(self, sampler: Sampler, epsilon: float, allowed: float) -> float:
        """Return by how much noise is more than allowed, typically or far out, as a factor."""
        share = sampler.noise_share(epsilon, self.noise) / allowed
        return max(share, sampler.noise_share(epsilon, _largest(self.far)) / _FAR_EXCESS)

    @property
    def num_passes(self) -> int:
        """How often a step passes over its windows."""
        return 1 if self.source.center is None else self.source.center.num_passes


def _from_windows(
    model: Model,
    series: Series,
    sampler: Sampler,
    windows: Windows,
    control_variate: bool | str,
    mode: Mode,
    key: Array,
) -> _Steps:
    """Return steps on windows, with a control variate if that is asked for or lowers the noise."""
    estimator, source = windowed(model, series, windows)
    sources = []
    if control_variate is not True:
        sources.append(source)
    if control_variate is not False:
        sources.append(source._replace(center=Center(mode.coords, mode.statistics, {})))
    found = [_measured(estimator, s, sampler, mode, key) for s in sources]
    best = min(found, key=lambda steps: steps.noise)
    return _with_slopes(best, series, sampler, mode, key)


def _largest(covariance: np.ndarray) -> float:
    return float(np.linalg.eigvalsh(covariance)[-1]) if covariance.size else 0.0


def _measured(
    estimator: Estimator, source: Source, sampler: Sampler, mode: Mode, key: Array
) -> _Steps:
    """Measure the noise where chains go and, of a control variate, twice as far out."""
    at = (estimator, sampler, source, mode.coords, mode.metric, key)
    typical = gradient_noise(*at)
    far = np.zeros((0, 0)) if source.center is None else gradient_noise(*at, spread=2.0)
    return _Steps(estimator, source, typical, far)


def _with_slopes(steps: _Steps, series: Series, sampler: Sampler, mode: Mode, key: Array) -> _Steps:
    """Return steps whose control variate has slopes, if that saves more rows than it costs."""
    estimator, source = steps.estimator, steps.source
    if source.center is None or series.streams:
        return steps
    zeros, size = _zero_slopes(mode), estimator.rows
    trial = source._replace(center=source.center._replace(slopes=zeros))
    quiet = _measured(estimator, trial, sampler, mode, key)
    rows = [_batch_for(one, sampler, mode) * size * one.num_passes for one in (steps, quiet)]
    d = ravel_pytree(mode.coords)[0].size
    if d * mode.metric.num_rows > _PAID_BACK * (rows[0] - rows[1]):
        return steps
    slopes = measure_slopes(estimator.model, series, mode.coords, mode.statistics)
    return quiet._replace(source=source._replace(center=source.center._replace(slopes=slopes)))


def _zero_slopes(mode: Mode) -> dict[str, Any]:
    d = ravel_pytree(mode.coords)[0].size
    return jax.tree.map(lambda s: jnp.zeros((d, *jnp.shape(s))), mode.statistics)


def _batch_for(steps: _Steps, sampler: Sampler, mode: Mode) -> int:
    """Return the windows of a step that keep noise from limiting the step size."""
    model, windows = steps.estimator.model, steps.estimator.windows
    if sampler.step_size != "auto":
        return windows.batch
    allowed = _allowed_noise(model, sampler, mode, steps.source)
    excess = steps.excess(sampler, _largest_step(sampler, model, mode), allowed)
    return max(_MIN_BATCH, int(np.ceil(windows.batch * excess)))


def _fit_batch(sampler: Sampler, steps: _Steps, mode: Mode, *, may_take_all: bool) -> _Steps | None:
    """Return steps with as many windows as their noise asks for, or None if all rows are fewer."""
    estimator = steps.estimator
    windows = estimator.windows
    if sampler.step_size != "auto":
        return steps
    batch = _batch_for(steps, sampler, mode)
    if may_take_all and batch * estimator.rows * steps.num_passes >= mode.metric.num_rows:
        return None
    batch = min(batch, _MAX_BATCH)
    estimator = dataclasses.replace(estimator, windows=dataclasses.replace(windows, batch=batch))
    share = windows.batch / batch
    return _Steps(estimator, steps.source, steps.covariance * share, steps.far * share)


def _from_all(model: Model, series: Series, sampler: Sampler, mode: Mode, key: Array) -> _Steps:
    """Return steps on all rows."""
    estimator, source = full(model, series, mode.tiles)
    noise = np.zeros((0, 0))
    if model.regimes is not None:
        noise = monte_carlo_noise(estimator, sampler, source, mode.coords, mode.metric, key)
    return _Steps(estimator, source, noise, np.zeros((0, 0)))


def _allowed_noise(model: Model, sampler: Sampler, mode: Mode, source: Source) -> float:
    """Return the share of noise that the step size may leave.

    Noise that steps make up for is known as it is on average, and not where chains are, if the
    posterior is wide. That of a control variate grows with the distance from its centre: much of it
    would make the tails heavy, and lose a chain in them.
    """
    known = _makes_up(model, sampler, mode.metric) and mode.shape.variation <= _WIDE
    known = known and source.center is None
    return _MADE_UP_FOR if known else _EXCESS


def _makes_up(model: Model, sampler: Sampler, metric: Metric) -> bool:
    """Whether steps inject less noise to make up for that of the gradients."""
    return isinstance(sampler, SGRLD) and not own_blocks(model, metric)


def _describe_metric(model: Model, sampler: Sampler, mode: Mode) -> str:
    if isinstance(sampler, SGLD):
        return "none"
    own = [block.names[0] for block in own_blocks(model, mode.metric)]
    if len(own) == len(model.blocks):
        return "complete"
    return "observed" + (f" (complete for {', '.join(own)})" if own else "")


def step_size(sampler: Sampler, model: Model, mode: Mode, steps: _Steps) -> float:
    """Return ε: the user's, or the largest with small errors from discretisation and noise."""
    if isinstance(sampler.step_size, Decay):
        return sampler.step_size.initial
    if sampler.step_size != "auto":
        return float(sampler.step_size)
    epsilon = _largest_step(sampler, model, mode)
    allowed = _allowed_noise(model, sampler, mode, steps.source)
    while steps.excess(sampler, epsilon, allowed) > 1:
        epsilon *= 0.9
    return float(epsilon)


def _largest_step(sampler: Sampler, model: Model, mode: Mode) -> float:
    """Return the largest ε with a small error of discretisation."""
    return sampler.largest_step(model, mode.metric, _shape(sampler, model, mode))


def _shape(sampler: Sampler, model: Model, mode: Mode) -> Shape:
    """Return the shape in the sampler's metric; for SGLD, that of complete data bounds it."""
    if not isinstance(sampler, SGLD):
        return mode.shape
    return mode.shape._replace(curvature=_complete_curvature(model, mode))


def _complete_curvature(model: Model, mode: Mode) -> float:
    """Return the largest eigenvalue of the complete-data information per row."""
    names = tuple(block.names[0] for block in model.blocks)
    root = complete_root(model, mode.coords, mode.metric.pilots, names, 1.0)
    smallest = np.linalg.svd(np.concatenate(list(root.values())), compute_uv=False)[-1]
    return float(smallest**-2)


def gradient_noise(
    estimator: Estimator,
    sampler: Sampler,
    source: Source,
    center: Coords,
    metric: Metric,
    key: Array,
    spread: float = 1.0,
) -> np.ndarray:
    """Return Eᵀ Σ_g E / T of one step's gradient, measured where chains go.

    A control variate is exact at its centre, so its noise must be measured away from it: at places
    with the spread of the posterior, or twice the complete-data one where only that is known; or with
    some times that.
    """
    white, batch = [], estimator.windows.batch
    sds = 1.0 if metric.root else 2.0
    # At least two windows at each place, so that their spread does not include that of the places.
    W = max(2, estimator.windows.batch)
    estimator = dataclasses.replace(
        estimator, windows=dataclasses.replace(estimator.windows, batch=W)
    )
    keys = jax.random.split(key, -(-_NOISE_WINDOWS // W))
    for k in keys:
        key_place, key_windows = jax.random.split(k)
        place = disperse(estimator.model, center, metric, key_place, spread * sds)
        found = window_gradients(estimator, sampler, source, key_windows, place, metric)
        white.append(np.asarray(found))
    deviations = np.concatenate([w - w.mean(0) for w in white])
    count = len(deviations) - len(white)
    # The sum over W windows varies W times as much as one of them, each of which is over W.
    covariance = W * deviations.T @ deviations / count * (W / batch)
    return covariance / float(metric.num_rows)


def monte_carlo_noise(
    estimator: Estimator,
    sampler: Sampler,
    source: Source,
    center: Coords,
    metric: Metric,
    key: Array,
) -> np.ndarray:
    """Return Eᵀ Σ_g E / T of a full gradient whose expectations are Monte Carlo averages."""
    white = np.stack(
        [
            np.asarray(_full_gradient(estimator, sampler, source, k, center, metric))
            for k in jax.random.split(key, _NOISE_REPEATS)
        ]
    )
    return np.cov(white, rowvar=False).reshape(white.shape[1], -1) / float(metric.num_rows)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _full_gradient(
    estimator: Estimator,
    sampler: Sampler,
    source: Source,
    key: Array,
    coords: Coords,
    metric: Metric,
) -> Array:
    statistics = estimator(source, key, coords)
    return whitened(estimator.model, sampler, coords, metric)(statistics)


def _rounded(value: float) -> float:
    """Return six digits of a number: what a reader wants to see."""
    return float(f"{value:.6g}")


@functools.partial(jax.jit, static_argnums=0)
def disperse(
    model: Model, center: Coords, metric: Metric, key: Array, sds: float = 2.0
) -> dict[str, Array]:
    """Return coordinates some posterior sds from the centre, as far as the metric tells."""
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
            n: own[n] + jnp.clip(sds * step[n] / jnp.sqrt(metric.num_rows), -1, 1) for n in own
        }
    return moved
