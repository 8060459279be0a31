"""Tuning where chains are: around the mode, or around where they went from there."""

from typing import Any

import jax
from jax import Array

from sojourn.dynamics import has_left
from sojourn.models.base import Coords, Model
from sojourn.sampling.chains import run_ahead
from sojourn.sampling.settings import Settings
from sojourn.series import Series
from sojourn.tuning import Tuned, tune

# Centres of a control variate that are tried.
_CENTRES = 2

# Relaxation times that a chain runs ahead for, and the fewest and most steps.
_AHEAD = 10
_AHEAD_STEPS = (50, 1000)


def tune_where_chains_are(
    model: Model, series: Series, settings: Settings, center: Coords, key: Array
) -> Tuned:
    """Choose what is fixed before sampling, around a centre that chains do not leave.

    The noise of a control variate grows with the distance from its centre, and a metric is worth what
    the curvature is where chains go. So one runs ahead. Where it leaves the centre, all is tuned again
    around its end; where it leaves that too, the posterior is no hill with a mode in its middle, and
    windows do without a control variate unless one is asked for.
    """
    asked = settings.control_variate

    def around(center: Coords, control_variate: bool | str) -> Tuned:
        how: Any = (settings.sampler, settings.windows, control_variate, dict(center), key)
        return tune(model, series, *how)

    tuned = around(center, asked)
    for attempt in range(_CENTRES):
        if tuned.source.center is None or not tuned.metric.root:
            return tuned
        relaxation = tuned.sampler.relaxation(tuned.epsilon)
        num_steps = int(min(max(_AHEAD * relaxation, _AHEAD_STEPS[0]), _AHEAD_STEPS[1]))
        end = run_ahead(tuned, num_steps, settings.num_samples, jax.random.fold_in(key, attempt))
        if not has_left(end, tuned.center, tuned.metric):
            return tuned
        last = attempt == _CENTRES - 1
        tuned = around(end, False if last and asked == "auto" else asked)
    return tuned
