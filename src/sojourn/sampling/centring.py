"""Tuning where chains are: around the mode, or around another where they went from there."""

import warnings
from typing import Any

import jax
import numpy as np
from jax import Array

from sojourn.dynamics import has_left
from sojourn.models.base import Coords, Model
from sojourn.sampling.chains import run_ahead
from sojourn.sampling.settings import Settings
from sojourn.series import Series
from sojourn.tuning import Tuned, tune

# Relaxation times that a chain runs ahead for, and the fewest and most steps.
_AHEAD = 10
_AHEAD_STEPS = (50, 1000)


def tune_where_chains_are(
    model: Model, series: Series, settings: Settings, center: Coords, key: Array
) -> Tuned:
    """Choose what is fixed before sampling, around a centre that chains do not leave.

    The noise of a control variate grows with the distance from its centre, and a metric is worth what
    the curvature is where chains go. So, where there are both, one chain runs ahead. Where it leaves
    the centre, all is tuned again around the mode nearest its end. Where that is the same mode, or left
    too, the posterior is no hill with a mode in its middle, and windows do without a control variate
    unless one is asked for. Steps of a given size may be what leads away: they say nothing of a mode.
    """
    asked = settings.control_variate
    is_given = getattr(settings.sampler, "step_size", "auto") != "auto"
    key_tune, key_first, key_second = jax.random.split(key, 3)

    def around(center: Coords, control_variate: bool | str) -> Tuned:
        how: Any = (settings.sampler, settings.windows, control_variate, dict(center), key_tune)
        return tune(model, series, *how)

    tuned = around(center, asked)
    end = _left_for(tuned, settings, key_first)
    if end is None:
        return tuned
    if is_given:
        end = tuned.center
    elif _is_finite(end):
        first, tuned = tuned, around(end, asked)
        if has_left(tuned.center, first.center, first.metric):
            end = _left_for(tuned, settings, key_second)
            if end is None:
                return tuned
    if asked == "auto":
        return around(end if _is_finite(end) else tuned.center, False)
    warnings.warn(
        "chains leave the centre of the control variate, far from which its noise is large: with "
        "control_variate='auto' they would do without",
        UserWarning,
        stacklevel=6,  # this, `_prepare`, `_draw`, `sample`, what wraps it, the user
    )
    return tuned


def _left_for(tuned: Tuned, settings: Settings, key: Array) -> dict[str, Array] | None:
    """Return where a chain ends that leaves the centre of a control variate; None if it stays."""
    if tuned.source.center is None or not tuned.metric.root:
        return None
    relaxation = tuned.sampler.relaxation(tuned.epsilon)
    num_steps = int(min(max(_AHEAD * relaxation, _AHEAD_STEPS[0]), _AHEAD_STEPS[1]))
    end = run_ahead(tuned, num_steps, settings.num_samples, key)
    return end if has_left(end, tuned.center, tuned.metric) else None


def _is_finite(coords: Coords) -> bool:
    return all(np.isfinite(u).all() for u in coords.values())
