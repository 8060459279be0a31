"""How far the gradient of a window is from what an unlimited buffer would give.

Error and noise are measured on the same windows, in the metric of the sampler, where the gradient of a
window is a vector of numbers of one kind. `MATH.md` §12.3.
"""

import dataclasses
import functools
import math

import jax
import numpy as np
from jax import Array

from sojourn._compile import compiled
from sojourn.batch import Batch
from sojourn.dynamics import SGLD, Metric, Sampler
from sojourn.gradients import Estimator, Source, fetch, windowed
from sojourn.models.base import Coords, Model
from sojourn.series import Series, Windows
from sojourn.tuning.whitening import cut, whiten_all, whitened, window_gradients


@compiled(static_argnums=(0, 1), quick=True)
def _window_bounds(
    estimator: Estimator,
    sampler: Sampler,
    source: Source,
    key: Array,
    coords: Coords,
    metric: Metric,
    buffer: Array,
) -> Array | None:
    """Return bounds on what a buffer changes in the gradients of `window_gradients`, (W,)."""
    model, length = estimator.model, estimator.windows.length
    assert length is not None
    halves = cut(estimator.batch(source, jax.random.split(key)[0]), buffer, model.num_lags)
    gradient = whitened(model, sampler, coords, metric)
    return model.error_bounds(coords, halves, estimator.missing, length, gradient)


class NotFiniteError(ValueError):
    """A gradient is not finite."""


class Errors:
    """Errors of buffers, all on the same windows and relative to the noise of their gradients.

    The error of B is the root mean square, over windows, of the difference to a buffer of `reference`
    rows. Where expectations are Monte Carlo averages, all buffers see the same random numbers, and the
    model is one whose draws far from a change stay as they were.

    Args:
        model: The model.
        series: The series, in the model's units.
        windows: Length, number and scheme of the windows; their buffer is the reference.
        sampler: Whose metric errors are measured in.
        coords: Where.
        metric: The metric.
        key: Which windows.
    """

    def __init__(
        self,
        model: Model,
        series: Series,
        windows: Windows,
        sampler: Sampler,
        coords: Coords,
        metric: Metric,
        key: Array,
    ) -> None:
        estimator, source = windowed(model.coupled(), series, windows)
        if estimator.missing == "none":
            estimator = dataclasses.replace(estimator, missing="rows")
        source = fetch(estimator, source, jax.random.split(key)[0])
        self._estimator, self._at = estimator, (source, key, coords, metric)
        self._sampler = sampler
        self._found: dict[int, np.ndarray] = {}
        self._plain = self._gradients(windows.buffer)
        self.reference = self._whitened(self._plain)
        if not np.isfinite(self.reference).all():
            raise NotFiniteError("gradients are not finite at these parameters; check their scales")
        deviation = self.reference - self.reference.mean(0)
        self.noise = float(np.sqrt(np.square(deviation).sum(1).mean()))

    def _gradients(self, buffer: int) -> np.ndarray:
        return np.asarray(window_gradients(self._estimator, SGLD(), *self._at, buffer))

    def _whitened(self, plain: np.ndarray) -> np.ndarray:
        _, _, coords, metric = self._at
        return np.asarray(whiten_all(self._estimator.model, self._sampler, coords, metric, plain))

    def plain_differences(self, buffer: int) -> np.ndarray:
        """Return what the buffer changes in the gradient of each window, in the model's coordinates."""
        if buffer not in self._found:
            self._found[buffer] = self._gradients(buffer) - self._plain
        return self._found[buffer]

    def differences(self, buffer: int) -> np.ndarray:
        """Return the same in units of the metric, (W, dimension)."""
        return self._whitened(self.plain_differences(buffer))

    def __call__(self, buffer: int) -> float:
        """Return the error of a buffer."""
        return self._relative(np.square(self.differences(buffer)).sum(1))

    def bound(self, buffer: int) -> float:
        """Return a bound on the error of a buffer, NaN where no theory gives one."""
        found = _window_bounds(self._estimator, self._sampler, *self._at, buffer)
        return math.nan if found is None else self._relative(np.square(np.asarray(found)))

    def rate(self) -> float:
        """Return the rate at which messages forget, NaN where no theory gives it."""
        source, key, coords, _ = self._at
        model = self._estimator.model
        batch = _gather(self._estimator, source, jax.random.split(key)[0])
        rate = model.forgetting_rate(coords, batch, self._estimator.missing)
        return math.nan if rate is None else float(rate)

    def _relative(self, squares: np.ndarray) -> float:
        size = float(np.sqrt(squares.mean()))
        return size / self.noise if self.noise > 0 else (math.inf if size > 0 else 0.0)


@functools.partial(jax.jit, static_argnums=0)
def _gather(estimator: Estimator, source: Source, key: Array) -> Batch:
    return estimator.batch(source, key)
