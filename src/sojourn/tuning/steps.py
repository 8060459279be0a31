"""What a step reads, how noisy that makes it, and how long steps may be.

Noise falls as one over the batch: as many windows are drawn as keep it from limiting the step, or all
rows are taken where these are fewer.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree
from scipy.stats import chi2

from sojourn.dynamics import SGLD, SGRLD, Metric, Sampler, Shape, own_blocks
from sojourn.gradients import Center, Estimator, Source, full, measure_slopes, windowed
from sojourn.models.base import Model
from sojourn.passes import Tiles, make_tiles
from sojourn.series import Chances, Series, Windows
from sojourn.tuning.curvature import complete_root
from sojourn.tuning.influence import influence
from sojourn.tuning.modes import Mode
from sojourn.tuning.noise import NO_NOISE, Noise, gradient_noise, monte_carlo_noise
from sojourn.tuning.tables import pays, tabulate
from sojourn.tuning.whitening import full_gradient, whitened

# Excess of the stationary variance allowed from gradient noise, and where the steps make up for it.
_EXCESS = 0.05
_MADE_UP_FOR = 0.15

# That of a control variate's noise as far from its centre as one draw in a thousand goes: it grows with
# the distance, and where it outweighs the drift a chain would be lost.
_FAR_EXCESS = 0.2
_FAR = 0.999

# Variation of the curvature above which the posterior is too wide for what is measured near its mode:
# a control variate would be exact at the centre and worse than none in the tails.
WIDE = 1.0

# Windows of a step: the fewest worth its fixed cost, and the most.
_MIN_BATCH = 16
_MAX_BATCH = 4096
_BEYOND = 2**40  # stands for more than there could be

# If the noisiest 1% of the windows cause at least this share of the noise, all windows are measured and
# drawn by their influence. Where windows are equally noisy, in tens of directions, it is some 2%.
_FEW_MAKE = 0.25

# Shift of the posterior mean, in sds at the mode, allowed from shorter tiles than seams ask for; far out
# it was seen to be fifteen times as much.
_FELT = 0.002

# Steps within which slopes of a control variate pay back the passes that they take.
_PAID_BACK = 1000


class Steps(NamedTuple):
    """What steps read.

    Attributes:
        estimator: The estimator.
        source: What it reads.
        noise: Noise of its gradients, as measured.
        far: The same far out.
        unseen: Factor by which noise may be more than what was measured.
    """

    estimator: Estimator
    source: Source
    noise: Noise
    far: Noise
    unseen: float = 1.0

    @property
    def largest_noise(self) -> float:
        """Largest variance in a direction."""
        return self.unseen * self.noise.largest

    def excess(self, sampler: Sampler, epsilon: float, allowed: float) -> float:
        """Return by how much noise is more than allowed, typically or far out, as a factor."""
        far = self.unseen * self.far.largest
        share = sampler.noise_share(epsilon, self.largest_noise) / allowed
        return max(share, sampler.noise_share(epsilon, far) / _FAR_EXCESS)


def from_windows(
    model: Model,
    series: Series,
    sampler: Sampler,
    windows: Windows,
    control_variate: bool | str,
    mode: Mode,
    key: Array,
    *,
    may_choose: bool,
    limit: float,
) -> Steps:
    """Return steps on windows, with a control variate if that is asked for or lowers the noise.

    Args:
        model: The model.
        series: The series.
        sampler: The sampler.
        windows: The windows.
        control_variate: Whether there is one; "auto" for the lower noise.
        mode: Its centre.
        key: Which windows are measured.
        may_choose: Whether blocks of a partition may be drawn instead, of rows in memory.
        limit: Rows that a step would pass over if it took all; infinite where it may not.
    """
    estimator, source = windowed(model, series, windows)
    sources = []
    if control_variate is not True:
        sources.append(source)
    if control_variate is not False:
        sources.append(source._replace(center=Center(mode.coords, mode.statistics, {})))
    found = [_measured(estimator, s, sampler, mode, key) for s in sources]
    best = min(found, key=lambda steps: (not np.isfinite(steps.far.largest), steps.noise.largest))
    if may_choose:
        best = _with_chances(best, series, sampler, mode, key)
    return _with_slopes(best, series, sampler, mode, key, may_choose, limit)


def _measured(
    estimator: Estimator, source: Source, sampler: Sampler, mode: Mode, key: Array
) -> Steps:
    """Measure the noise where chains go and, of a control variate, far out."""
    at = (estimator, sampler, source, mode.coords, mode.metric, key)
    typical = gradient_noise(*at)
    d = ravel_pytree(mode.coords)[0].size
    spread = float(np.sqrt(chi2.ppf(_FAR, d) / d))
    far = NO_NOISE if source.center is None else gradient_noise(*at, spread=spread)
    return Steps(estimator, source, typical, far)


def _with_chances(steps: Steps, series: Series, sampler: Sampler, mode: Mode, key: Array) -> Steps:
    """Return steps that draw windows by what they tell, if a few make much of the noise.

    What a pass over all windows knows of their noise stands beside what is measured from some: these may
    have the rarest among them or not.
    """
    estimator, source = steps.estimator, steps.source
    if source.center is None or steps.noise.of_few < _FEW_MAKE or sampler.step_size != "auto":
        return steps
    squares = influence(estimator, sampler, source, series, mode.coords, mode.metric, key)
    if not np.isfinite(squares).all() or not squares.any():
        return steps
    share = np.sqrt(squares) / np.sqrt(squares).sum()
    each = (share + 1 / len(share)) / 2
    estimator, source = _partitioned(estimator, source, series)
    source = source._replace(chances=Chances.of(each))
    found = _measured(estimator, source, sampler, mode, key)
    # In all directions.
    known = (squares / each).sum() / (estimator.windows.batch * mode.metric.num_rows)
    return found._replace(unseen=max(1.0, known / np.trace(found.noise.covariance)))


def _with_slopes(
    steps: Steps,
    series: Series,
    sampler: Sampler,
    mode: Mode,
    key: Array,
    may_choose: bool,
    limit: float,
) -> Steps:
    """Return steps whose control variate has slopes, if that saves more rows than it costs.

    Where windows may be chosen, what is subtracted of them is tabulated, if that pays.
    """
    estimator, source = steps.estimator, steps.source
    if source.center is None or sampler.step_size != "auto":
        return steps
    d, T = ravel_pytree(mode.coords)[0].size, mode.metric.num_rows
    # Noise is what windows differ by: the slopes of all rows need not be known for it.
    zeros = jax.tree.map(lambda s: jnp.zeros((d, *jnp.shape(s))), mode.statistics)
    center = source.center._replace(slopes=zeros)
    passes, cost = center.num_passes, d * T / _PAID_BACK
    tabulates = False
    if may_choose:
        blocks, of_blocks = _partitioned(estimator, source, series)
        assert of_blocks.where is not None
        tabulates = pays(estimator, center, int(of_blocks.where.last_window[-1]))
        if tabulates:
            estimator, source, passes, cost = blocks, of_blocks, 1, 2 * cost
    # At best as few windows as a step may have.
    most = min(_rows_for(steps, sampler, mode), limit) - cost
    if most < _MIN_BATCH * estimator.rows * passes:
        return steps
    quiet = _measured(estimator, source._replace(center=center), sampler, mode, key)
    quiet = quiet._replace(unseen=steps.unseen)
    if most < _batch_for(quiet, sampler, mode) * estimator.rows * passes:
        return steps
    slopes = measure_slopes(estimator.model, series, mode.coords, mode.statistics)
    center = center._replace(slopes=slopes)
    table = tabulate(estimator, center, series) if tabulates else None
    return quiet._replace(source=source._replace(center=center, table=table))


def _partitioned(estimator: Estimator, source: Source, series: Series) -> tuple[Estimator, Source]:
    """Return an estimator whose windows are blocks of a partition, and what it reads."""
    if estimator.windows.scheme == "partition":
        return estimator, source
    windows = dataclasses.replace(estimator.windows, scheme="partition")
    blocks, other = windowed(estimator.model, series, windows)
    return blocks, other._replace(center=source.center)


def _rows_for(steps: Steps, sampler: Sampler, mode: Mode) -> int:
    """Return the rows that a step with as many windows as it needs passes over."""
    return _batch_for(steps, sampler, mode) * steps.estimator.rows * steps.source.num_passes


def _batch_for(steps: Steps, sampler: Sampler, mode: Mode) -> int:
    """Return the windows of a step that keep noise from limiting the step size."""
    model, windows = steps.estimator.model, steps.estimator.windows
    if sampler.step_size != "auto":
        return windows.batch
    allowed = allowed_noise(model, sampler, mode, steps.source)
    excess = steps.excess(sampler, largest_step(sampler, model, mode), allowed)
    wanted = np.ceil(windows.batch * excess)
    return int(np.clip(np.nan_to_num(wanted, nan=_MIN_BATCH), _MIN_BATCH, _BEYOND))


def fit_batch(sampler: Sampler, steps: Steps, mode: Mode, *, may_take_all: bool) -> Steps | None:
    """Return steps with as many windows as their noise asks for, or None if all rows are fewer."""
    estimator = steps.estimator
    windows = estimator.windows
    if sampler.step_size != "auto":
        return steps
    batch = _batch_for(steps, sampler, mode)
    if may_take_all and _rows_for(steps, sampler, mode) >= mode.metric.num_rows:
        return None
    batch = min(batch, _MAX_BATCH)
    estimator = dataclasses.replace(estimator, windows=dataclasses.replace(windows, batch=batch))
    share = windows.batch / batch
    noise, far = steps.noise.scaled(share), steps.far.scaled(share)
    return steps._replace(estimator=estimator, noise=noise, far=far)


def tiles_with(model: Model, series: Series, mode: Mode, buffer: int) -> Tiles:
    """Return tiles with a buffer, if the posterior does not feel it; otherwise those of the mode.

    A gradient that is wrong by b moves the mean by |Eᵀ b| / √T sds.
    """
    if not model.is_exact or buffer >= mode.tiles.buffer:
        return mode.tiles
    tiles = make_tiles(model, series, buffer)
    estimator, source = full(model, series, tiles)
    sampler, at = SGRLD(), (mode.coords, mode.metric)
    nothing_random = jax.random.key(0)
    found = full_gradient(estimator, sampler, source, nothing_random, *at)
    exact = jax.jit(whitened(model, sampler, *at))(mode.statistics)
    shift = float(jnp.linalg.norm(found - exact)) / np.sqrt(mode.metric.num_rows)
    return tiles if shift < _FELT else mode.tiles


def from_all(
    model: Model, series: Series, sampler: Sampler, mode: Mode, tiles: Tiles, key: Array
) -> Steps:
    """Return steps on all rows."""
    estimator, source = full(model, series, tiles)
    noise = NO_NOISE
    if not model.is_exact:
        noise = monte_carlo_noise(estimator, sampler, source, mode.coords, mode.metric, key)
    return Steps(estimator, source, noise, NO_NOISE)


def allowed_noise(model: Model, sampler: Sampler, mode: Mode, source: Source) -> float:
    """Return the share of noise that the step size may leave.

    Noise that steps make up for is known as it is on average, and not where chains are, if the
    posterior is wide. That of a control variate grows with the distance from its centre: much of it
    would make the tails heavy, and lose a chain in them.
    """
    known = makes_up_for_noise(model, sampler, mode.metric) and mode.shape.variation <= WIDE
    known = known and source.center is None
    return _MADE_UP_FOR if known else _EXCESS


def makes_up_for_noise(model: Model, sampler: Sampler, metric: Metric) -> bool:
    """Whether steps inject less noise to make up for that of the gradients."""
    return isinstance(sampler, SGRLD) and not own_blocks(model, metric)


def largest_step(sampler: Sampler, model: Model, mode: Mode) -> float:
    """Return the largest ε with a small error of discretisation."""
    return sampler.largest_step(model, mode.metric, shape_for(sampler, model, mode))


def shape_for(sampler: Sampler, model: Model, mode: Mode) -> Shape:
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
