"""The buffer while chains move: its error where they are, and a longer one if need be."""

import dataclasses
import math
from dataclasses import dataclass

import jax

from sojourn.dynamics import SGRLD, Metric
from sojourn.gradients import Estimator, Source, windowed
from sojourn.models.base import Coords
from sojourn.series import Series, Windows
from sojourn.tuning.buffer_errors import Errors, NotFiniteError
from sojourn.tuning.buffers import LADDER, TOLERANCE


@dataclass(frozen=True, eq=False)
class Watch:
    """Looks after the buffer while chains move: its error where one is, and a longer one if need be.

    Attributes:
        estimator: The estimator of the run.
        source: What it reads.
        series: The series, in the model's units.
        reference: Windows that errors are measured on.
        metric: The metric of the run; errors are measured in that of complete data.
        may_grow: Whether buffers may grow, as those do that the user did not set.
    """

    estimator: Estimator
    source: Source
    series: Series
    reference: Windows
    metric: Metric
    may_grow: bool

    def __call__(self, coords: Coords, buffer: int) -> tuple[int, float]:
        """Return the buffer to go on with at these coordinates, and its error.

        Asked again at the same place, with what it returned, it returns the same.
        """
        metric = Metric(self.metric.pilots, {}, self.metric.num_rows)
        model, key = self.estimator.model, jax.random.key(0)  # the same windows for all chains
        try:
            errors = Errors(model, self.series, self.reference, SGRLD(), coords, metric, key)
        except NotFiniteError:  # the chain's next steps will tell
            return buffer, math.nan
        error = errors(buffer)
        while self.may_grow and error > TOLERANCE and buffer < LADDER[-1]:
            buffer = min(max(2 * buffer, 1), LADDER[-1])
            error = errors(buffer)
        return buffer, error

    def with_buffer(self, buffer: int) -> tuple[Estimator, Source]:
        """Return the estimator and what it reads, with windows of this buffer.

        What was tabulated is of windows with the first one.
        """
        windows = self.estimator.windows
        if buffer == windows.buffer:
            return self.estimator, self.source
        longer = dataclasses.replace(windows, buffer=buffer)
        estimator, source = windowed(self.estimator.model, self.series, longer)
        own = self.source
        return estimator, source._replace(center=own.center, chances=own.chances)
