"""`sample`: from data to draws."""

import warnings
from collections.abc import Mapping
from typing import Any, Literal

import jax
import numpy as np

from sojourn._precision import double
from sojourn._validation import check_seed, check_size, shown
from sojourn.buffers import TOLERANCE
from sojourn.chains import gibbs_chain, join, langevin_chain, run_chains
from sojourn.dynamics import SGRLD, Sampler
from sojourn.fit import Fit, make_fit
from sojourn.gibbs import Gibbs
from sojourn.models.base import Model, check_lags, check_model
from sojourn.progress import Progress
from sojourn.series import Series, Windows, as_series
from sojourn.starts import find_start
from sojourn.tuning import Tuned, tune

# Scales between zero and the median of a column from which on a missing intercept is worth a warning.
_FAR = 10


class DivergenceError(RuntimeError):
    """A chain left the finite numbers; `fit` holds what all chains drew before, or None."""

    def __init__(self, message: str, fit: Fit | None) -> None:
        super().__init__(message)
        self.fit = fit


@double
def sample(
    model: Model,
    data: Any,
    sampler: Sampler | Gibbs | None = None,
    *,
    windows: Windows | Literal["auto"] = "auto",
    num_samples: int = 1000,
    num_chains: int = 4,
    num_warmup: int | Literal["auto"] = "auto",
    thin: int | Literal["auto"] = "auto",
    control_variate: bool | Literal["auto"] = "auto",
    init: str | Mapping[str, Any] = "kmeans",
    seed: int = 0,
    progress: bool = True,
) -> Fit:
    """Draw from the posterior of the parameters.

    Args:
        model: The model. Priors that were not given are set in the units of the data.
        data: An array (T,) or (T, D), one series; a list of (T_i, D) arrays or an (N, T, D) array,
            several; a data frame. NaN means missing.
        sampler: `SGRLD()` by default; `SGLD()`, `Gibbs()`.
        windows: Windows that gradients are estimated from; `Windows.full()` for all rows at every
            step. "auto" takes all rows of short series and chooses the buffer for long ones.
        num_samples: Draws kept per chain.
        num_chains: Number of chains.
        num_warmup: Steps (sweeps) per chain before the first draw.
        thin: Steps (sweeps) per draw.
        control_variate: Whether gradients are corrected by the windows' gradients at a centre near
            the mode; "auto" if that lowers the measured noise.
        init: "kmeans", "prior", or parameters to start from.
        seed: Seed of everything random.
        progress: Whether to show a progress bar.

    Returns:
        A `Fit`.

    Raises:
        DivergenceError: A chain diverged after warm-up; what was drawn is in its `fit`.
    """
    check_model(model)
    sampler = SGRLD() if sampler is None else sampler
    series = as_series(data, model.emission_dim)
    check_lags(model, series)
    _check_arguments(
        sampler, windows, num_samples, num_chains, num_warmup, thin, control_variate, init
    )
    if isinstance(windows, Windows):
        windows.check(series, model.num_lags)
    if isinstance(sampler, Gibbs) and not model.is_conjugate:
        raise ValueError(
            "Gibbs needs a law of the first state that does not depend on the parameters; use "
            "another initial, or SGRLD()"
        )
    outer = model.scaled_to(series)
    if model.units is None:
        _warn_of_location(outer, series)
    start = outer.to_coords(init) if isinstance(init, Mapping) else init
    model, own = outer.enter(series)
    key_start, key_tune, key_chains = jax.random.split(jax.random.key(check_seed(seed)), 3)
    with Progress(enabled=progress) as bar:
        bar.describe("finding a start")
        gibbs = isinstance(sampler, Gibbs)
        center, gap = find_start(model, own, start, key_start, refine=not gibbs)
        given = None if isinstance(start, str) else start
        if isinstance(sampler, Gibbs):
            warmup = 200 if num_warmup == "auto" else num_warmup
            every = 1 if thin == "auto" else thin
            chain = gibbs_chain(outer, model, own, center, given, warmup, num_samples, every, bar)
            choices: dict[str, Any] = {}
        else:
            bar.describe("tuning")
            tuned = tune(model, own, sampler, windows, control_variate, center, key_tune)
            warmup, every = _lengths(tuned, num_warmup, thin)
            _warn_of_buffer(tuned.choices, auto=windows == "auto")
            chain = langevin_chain(outer, sampler, tuned, given, warmup, num_samples, every, bar)
            choices = tuned.choices
        choices |= {
            "start_gap": gap,
            "num_warmup": warmup,
            "thin": every,
            "sampler": type(sampler).__name__,
        }
        bar.announce(choices)
        bar.start(num_chains * (warmup + num_samples * every))
        traces, failure = run_chains(chain, num_chains, key_chains)
    fit = None
    if min(trace.num_draws for trace in traces) > 0:
        draws = [join(trace.draws) for trace in traces]
        statistics = [join(trace.statistics) for trace in traces]
        fit = make_fit(outer, series, draws, statistics, choices, seed)
    if failure is not None:
        kept = 0 if fit is None else fit.posterior.sizes["draw"]
        raise DivergenceError(
            f"chain {failure.chain} diverged at step {failure.step}: {failure.parameter} is not "
            f"finite; {kept} draws before that are kept in this error's `fit`. "
            + ("Check the data" if gibbs else "Use a smaller step_size or a larger batch"),
            fit,
        )
    assert fit is not None
    return fit


def _lengths(tuned: Tuned, num_warmup: int | str, thin: int | str) -> tuple[int, int]:
    """Return warm-up steps and steps per draw: twenty and one relaxation time 1/ε."""
    relaxation = 1 / tuned.epsilon
    warmup = int(np.clip(20 * relaxation, 200, 10_000)) if num_warmup == "auto" else int(num_warmup)
    every = int(np.clip(relaxation, 1, 100)) if thin == "auto" else int(thin)
    return warmup, every


def _warn_of_location(model: Model, series: Series) -> None:
    """Warn of columns far from zero where the model has nothing that takes up their level."""
    assert model.units is not None
    if any(model.units.location):
        return
    location, scale = series.location_scale()
    far = np.abs(location) > _FAR * scale
    if far.any():
        names = ", ".join(repr(n) for n, is_far in zip(series.columns, far, strict=True) if is_far)
        _warn(
            f"{type(model).__name__} has no intercept, and the median of {names} is more than "
            f"{_FAR} scales from zero: subtract it from the data"
        )


def _warn_of_buffer(choices: Mapping[str, Any], *, auto: bool) -> None:
    error = choices.get("buffer_error", 0.0)
    if auto and error > TOLERANCE:
        length, buffer = choices["length"], choices["buffer"]
        _warn(
            f"buffer={buffer} leaves an error of {error:.1%} of a gradient's noise, more than "
            f"{TOLERANCE:.0%}: set a longer one, windows=Windows({length}, buffer={4 * buffer}), "
            "or Windows.full()"
        )


def _warn(message: str) -> None:
    # From here: the caller of this, `sample`, what wraps it, the user.
    warnings.warn(message, UserWarning, stacklevel=5)


def _check_arguments(
    sampler: Any,
    windows: Any,
    num_samples: Any,
    num_chains: Any,
    num_warmup: Any,
    thin: Any,
    control_variate: Any,
    init: Any,
) -> None:
    if isinstance(sampler, type) or not (hasattr(sampler, "step") or isinstance(sampler, Gibbs)):
        raise TypeError(f"sampler must be one of SGLD(), SGRLD(), Gibbs(); got {shown(sampler)}")
    if not isinstance(windows, Windows):
        _check_choice("windows", windows, ("auto",), "a Windows")
    check_size("num_samples", num_samples)
    check_size("num_chains", num_chains)
    for name, value, least in (("num_warmup", num_warmup, 0), ("thin", thin, 1)):
        if isinstance(value, str):
            _check_choice(name, value, ("auto",), "an integer")
        else:
            check_size(name, value, least)
    if not isinstance(control_variate, bool):
        _check_choice("control_variate", control_variate, ("auto",), "True or False")
    if isinstance(sampler, Gibbs):
        if isinstance(windows, Windows) and not windows.is_full:
            raise ValueError("Gibbs() sweeps over all rows: leave windows='auto'")
        if control_variate is True:
            raise ValueError("Gibbs() has no gradients: leave control_variate='auto'")
    if not isinstance(init, Mapping):
        _check_choice("init", init, ("kmeans", "prior"), "a dict of parameters")


def _check_choice(name: str, value: Any, words: tuple[str, ...], other: str) -> None:
    """Raise unless `value` is one of the words; `other` says what else would do."""
    expected = f"{name} must be {', '.join(map(repr, words))} or {other}"
    if not isinstance(value, str):
        raise TypeError(f"{expected}; got {shown(value)}")
    if value not in words:
        raise ValueError(f"{expected}; got {shown(value)}")
