"""What is chosen before sampling: windows, metric, control variate, step size.

Step size: stationary variances are inflated by gradient noise and by discretisation (`MATH.md` §3.2);
ε is the largest that keeps each excess to a few percent.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from sojourn.dynamics import SGHMC, SGLD, SGRLD, Decay, Metric, Sampler, own_blocks
from sojourn.gradients import Estimator, Source
from sojourn.models.base import Model
from sojourn.series import Series, Windows
from sojourn.tuning.ascent import NOT_FINITE
from sojourn.tuning.buffers import TOLERANCE, check, choose, reference_windows
from sojourn.tuning.modes import Mode, constant_blocks, find_mode, place
from sojourn.tuning.steps import (
    WIDE,
    Steps,
    allowed_noise,
    fit_batch,
    from_all,
    from_windows,
    largest_step,
    makes_up_for_noise,
    shape_for,
    tiles_with,
)

# Langevin steps shorter than this take many to cross the posterior: momentum, with little friction,
# crosses it in fewer, if gradients are exact.
_SLOW = 0.3
_FRICTION = 0.25

# Steps that would have to be shorter than this are a sign that something is not finite.
_SHORTEST = 1e-9

# Up to this many rows a full pass costs no more than a good batch of windows.
_FULL_ROWS = 4096

# Rows of a window that count: as few as this many buffers, as the rows of a window run one after the
# other and windows at once; within bounds.
_BUFFERS = 8
_LENGTHS = (32, 200)


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
    if not model.is_exact:
        # The error of a Monte Carlo average at the centre would stay in every gradient.
        control_variate = False
    key_buffer, key_mode, key_noise = jax.random.split(key, 3)
    start = place(model, series, center)
    if windows == "auto" and start.metric.num_rows <= _FULL_ROWS and control_variate is not True:
        windows = Windows.full()
    plan = _plan(model, series, windows, start, key_buffer)
    mode = start
    if control_variate is not False or constant_blocks(model, sampler, start):
        mode = find_mode(model, series, sampler, plan.sample, start, key_mode)
    if control_variate == "auto" and mode.shape.variation > WIDE:
        control_variate = False

    steps, tiles = None, mode.tiles
    if plan.windows is not None:
        may_choose = windows == "auto" and not series.streams
        may_take_all = may_choose and control_variate is not True
        limit = start.metric.num_rows if may_take_all else math.inf
        how = {"may_choose": may_choose, "limit": limit}
        at = (control_variate, mode, key_noise)
        steps = from_windows(model, series, sampler, plan.windows, *at, **how)
        if windows == "auto":
            steps = fit_batch(sampler, steps, mode, may_take_all=may_take_all)
    if steps is None:
        if plan.windows is not None and plan.error <= TOLERANCE:
            # Twice the buffer that windows would do with leaves about the square of its error.
            tiles = tiles_with(model, series, mode, max(1, 2 * plan.windows.buffer))
        steps = from_all(model, series, sampler, mode, tiles, key_noise)
        plan = plan._replace(windows=None, reference=None, error=math.nan)
    epsilon = step_size(sampler, model, mode, steps)
    if asked is None and epsilon < _SLOW and _can_turn(model, mode, steps):
        sampler = SGHMC(friction=_FRICTION)
        epsilon = step_size(sampler, model, mode, steps)
    if not np.isfinite(epsilon):
        raise ValueError(NOT_FINITE)
    makes_up = makes_up_for_noise(model, sampler, mode.metric) and steps.noise.covariance.size > 0
    metric = mode.metric
    if makes_up:
        metric = metric._replace(
            noise=tuple(map(jnp.asarray, np.linalg.eigh(steps.noise.covariance)))
        )
    choices = _describe_windows(model, series, plan, steps, mode, start.metric, key_buffer)
    choices |= {
        "control_variate": steps.source.center is not None,
        "metric": _describe_metric(model, sampler, mode),
        "step_size": _rounded(epsilon),
        "discretisation": _rounded(
            sampler.discretisation(model, mode.metric, shape_for(sampler, model, mode), epsilon)
        ),
        "noise_fraction": _rounded(sampler.noise_share(epsilon, steps.largest_noise)),
        "noise_made_up_for": makes_up,
    }
    return Tuned(
        sampler=sampler,
        estimator=steps.estimator,
        source=steps.source,
        metric=metric,
        buffer=tiles.buffer,
        reference=plan.reference,
        epsilon=epsilon,
        center=mode.coords,
        choices=choices,
    )


class _Plan(NamedTuple):
    """Windows to sample from.

    Attributes:
        sample: Windows that the mode is looked for on.
        windows: Windows that steps are taken on; None if these take all rows.
        reference: Windows that the error of their buffer is measured on.
        error: That error where it chose the buffer; NaN if the user set it.
    """

    sample: Windows
    windows: Windows | None
    reference: Windows | None
    error: float


def _plan(model: Model, series: Series, windows: Any, start: Mode, key: Array) -> _Plan:
    """Return the windows asked for, or those with the shortest buffer that leaves a small error."""
    longest = max(series.lengths) - model.num_lags
    sample = Windows(min(_LENGTHS[1], longest), 64, 64)
    if windows != "auto":
        own = None if windows.is_full else windows
        return _Plan(sample, own, own and reference_windows(own), math.nan)
    # On windows as short as they may get: in longer ones a buffer leaves a smaller error.
    short = sample
    if model.is_exact:
        short = dataclasses.replace(sample, length=min(_LENGTHS[0], longest))
    reference = reference_windows(short)
    buffer, error = choose(model, series, reference, start.coords, start.metric, key)
    sample = taken = dataclasses.replace(sample, buffer=buffer)
    if model.is_exact:
        length = int(np.clip(_BUFFERS * buffer, *_LENGTHS))
        taken = dataclasses.replace(sample, length=min(length, longest))
    return _Plan(sample, taken, reference, error)


def _describe_windows(
    model: Model,
    series: Series,
    plan: _Plan,
    steps: Steps,
    mode: Mode,
    metric: Metric,
    key: Array,
) -> dict[str, Any]:
    """Return the windows that are used and, of a buffer that the user set, the errors it leaves."""
    if plan.reference is None:
        return {"windows": "full"}
    taken = steps.estimator.windows
    error, found = plan.error, {}
    if math.isnan(error):
        error, bias, hidden = check(
            model, series, plan.reference, taken.buffer, mode.coords, metric, key
        )
        if steps.source.center is None:  # at the centre of a control variate the bias cancels
            found |= {"buffer_bias": _rounded(bias), "buffer_bias_error": _rounded(hidden)}
    found["buffer_error"] = _rounded(error)
    found |= {name: getattr(taken, name) for name in ("length", "buffer", "batch", "scheme")}
    return found | ({} if steps.source.chances is None else {"chances": "by influence"})


def _can_turn(model: Model, mode: Mode, steps: Steps) -> bool:
    """Whether momentum can be kept: gradients are exact, and all blocks move in a constant metric."""
    return not steps.noise.covariance.size and not own_blocks(model, mode.metric)


def _describe_metric(model: Model, sampler: Sampler, mode: Mode) -> str:
    if isinstance(sampler, SGLD):
        return "none"
    own = [block.names[0] for block in own_blocks(model, mode.metric)]
    if len(own) == len(model.blocks):
        return "complete"
    return "observed" + (f" (complete for {', '.join(own)})" if own else "")


def step_size(sampler: Sampler, model: Model, mode: Mode, steps: Steps) -> float:
    """Return ε: the user's, or the largest with small errors from discretisation and noise."""
    if isinstance(sampler.step_size, Decay):
        return sampler.step_size.initial
    if sampler.step_size != "auto":
        return float(sampler.step_size)
    epsilon = largest_step(sampler, model, mode)
    allowed = allowed_noise(model, sampler, mode, steps.source)
    while steps.excess(sampler, epsilon, allowed) > 1:
        epsilon *= 0.9
        if epsilon < _SHORTEST:
            return math.nan
    return float(epsilon)


def _rounded(value: float) -> float:
    """Return six digits of a number: what a reader wants to see."""
    return float(f"{value:.6g}")
