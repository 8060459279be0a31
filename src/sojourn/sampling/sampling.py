"""`sample`, `resume`: from data to draws."""

import dataclasses
import warnings
from collections.abc import Mapping
from os import PathLike
from typing import Any, Literal

import jax
import numpy as np

from sojourn._files import RunError, WriteError
from sojourn._precision import double
from sojourn._progress import Progress
from sojourn._validation import check_size
from sojourn.dynamics import Sampler
from sojourn.gibbs import Gibbs
from sojourn.models.base import Model, check_data
from sojourn.results import Fit, largest_block, make_fit, mixing
from sojourn.runs import Run, create_run, open_run, versions
from sojourn.sampling.centring import tune_where_chains_are
from sojourn.sampling.chains import LangevinChain, gibbs_chain, statistic_names
from sojourn.sampling.restoring import (
    Prepared,
    config_of,
    read_prepared,
    series_of,
    settings_of,
    write_prepared,
)
from sojourn.sampling.settings import Settings
from sojourn.sampling.traces import Diverged, run_chains
from sojourn.series import Series, Windows
from sojourn.tuning import TOLERANCE, Tuned, Watch, find_start, place

# Scales between zero and the median of a column from which on a missing intercept is worth a warning.
_FAR = 10

# Sweeps of Gibbs before the first draw and, where neighbouring sweeps are much alike, from draw to draw:
# discrete and continuous states drawn in turn, parameters that are not identified.
_GIBBS_WARMUP = 200
_GIBBS_THIN = 5


class DivergenceError(RuntimeError):
    """A chain left the finite numbers; `fit` holds what all chains drew before, or None."""

    def __init__(self, message: str, fit: Fit | None) -> None:
        super().__init__(message)
        self.fit = fit


class Interrupted(KeyboardInterrupt):
    """The user stopped a run; `fit` holds what all chains drew before, or None."""

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
    out: str | PathLike[str] | None = None,
    progress: bool = True,
) -> Fit:
    """Draw from the posterior of the parameters.

    Args:
        model: The model. Priors that were not given are set in the units of the data.
        data: An array (T,) or (T, D), one series; a list of (T_i, D) arrays or an (N, T, D) array,
            several; a data frame, an xarray object, a path or an address, as in `open_series`. NaN
            means missing.
        sampler: `SGRLD()`, `SGLD()`, `SGHMC()`, `SGNHT()`, `Gibbs()`. If none is given, `SGRLD()`, or
            `SGHMC()` with little friction where all rows are used and the posterior is far from a
            Gaussian; `Gibbs()` for an SLDS, and a linear model that is not identified, in memory.
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
        out: A new directory that keeps the run as it goes, for `load` and `resume`.
        progress: Whether to show a progress bar.

    Returns:
        A `Fit`.

    Raises:
        DivergenceError: A chain diverged, or was lost in warm-up time and again; what was drawn is in
            its `fit`.
        Interrupted: The user stopped the run; what was drawn is in its `fit`.
        RunError: `out` cannot be written, or already holds something.
    """
    series = check_data(model, data)
    settings = Settings(
        sampler=sampler,
        windows=windows,
        num_samples=num_samples,
        num_chains=num_chains,
        num_warmup=num_warmup,
        thin=thin,
        control_variate=control_variate,
        init=init,
        seed=seed,
    )
    if isinstance(windows, Windows):
        windows.check(series, model.num_lags)
    if isinstance(sampler, Gibbs) and not model.is_conjugate:
        raise ValueError(
            "Gibbs needs a law of the first state that does not depend on the parameters; use "
            "another initial, or SGRLD()"
        )
    K, T = model.param_shapes.get("transition_matrix", (1,))[0], model.num_rows(series)
    if K > T:
        raise ValueError(f"num_states={K} is more than the {T} rows of the data; use far fewer")
    if control_variate is True and not model.is_exact:
        raise ValueError(
            f"a control variate needs exact statistics at its centre, which {type(model).__name__} "
            "does not have; use control_variate=False"
        )
    outer = model.scaled_to(series)
    if model.units is None:
        _warn_of_location(outer, series)
    _warn_of_basis(outer)
    if isinstance(init, Mapping):
        outer.to_coords(init)  # what is wrong with it is said before a directory is made
    if out is None:
        return _draw(outer, series, settings, None, progress)
    with create_run(out, config_of(outer, series, settings)) as run:
        return _draw(outer, series, settings, run, progress)


@double
def resume(
    path: str | PathLike[str],
    data: Any = None,
    num_samples: int | None = None,
    *,
    progress: bool = True,
) -> Fit:
    """Continue a run to the number of draws that was asked for, or to more.

    The draws are those of a run that was never stopped, bit for bit on the same machine with the same
    versions.

    Args:
        path: The directory of the run.
        data: The data again, if they were in memory; otherwise they are opened again.
        num_samples: Draws per chain to reach; what was asked for if not given.
        progress: Whether to show a progress bar.

    Returns:
        A `Fit` of all draws, old and new.

    Raises:
        RunError: There is no run, it is damaged or in use, or the data are not its data.
    """
    run = open_run(path)
    settings_of(run)
    _warn_of_versions(run)
    with run.locked():
        run = open_run(path)  # another process may have extended it just before
        series = series_of(run, data)
        if num_samples is not None:
            check_size("num_samples", num_samples)
            most = max(chain.num_draws for chain in run.chains)
            if num_samples < most:
                raise RunError(f"{path} has {most} draws per chain; ask for at least as many")
            run = run.extend(int(num_samples))
        return _draw(run.model, series, settings_of(run), run, progress)


def _draw(outer: Model, series: Series, settings: Settings, run: Run | None, progress: bool) -> Fit:
    """Tune, unless a run has that behind it, and draw what is not drawn yet."""
    model, own = outer.enter(series)
    settings = _with_sampler(settings, model, own)
    sampler, init, count = settings.sampler, settings.init, settings.num_samples
    start = outer.to_coords(init) if isinstance(init, Mapping) else None
    key_start, key_tune, key_chains = jax.random.split(jax.random.key(settings.seed), 3)
    with Progress(enabled=progress) as bar:
        if run is not None and run.is_tuned:
            prepared = read_prepared(run, model, own)
        else:
            bar.describe("finding a start")
            refine = not isinstance(sampler, Gibbs)
            center, gap = find_start(model, own, start or init, key_start, refine=refine)
            bar.describe("tuning")
            prepared = _prepare(model, own, settings, center, key_tune)
            prepared.choices["start_gap"] = gap
            if run is not None:
                write_prepared(run, prepared)
        choices, tuned = prepared.choices, prepared.tuned
        warmup, every = choices["num_warmup"], choices["thin"]
        if tuned is None:
            metric = prepared.metric if start is None else None
            lengths = (warmup, count, every)
            chain = gibbs_chain(outer, model, own, prepared.center, metric, *lengths, bar)
        else:
            watch = _watch(tuned, own, may_grow=settings.windows == "auto")
            chain = LangevinChain(outer, tuned, watch, start, warmup, count, every, bar)
        bar.announce(choices)
        stores, done = None, 0
        if run is not None:
            run.make_room(statistic_names(tuned))
            stores = run.chains
            done = sum(store.num_draws * every + warmup for store in stores if store.num_draws)
        bar.start(settings.num_chains * (warmup + count * every), done)
        try:
            traces, failure = run_chains(chain, settings.num_chains, key_chains, stores)
        except WriteError as error:
            assert run is not None
            raise WriteError(
                f"{error}; {run.num_draws} draws per chain are kept: then call sojourn.resume"
            ) from error
    chosen = largest_block([trace.num_draws for trace in traces])
    fit = None
    if chosen:
        kept = {i: traces[i].store.read() for i in chosen}
        fit = make_fit(
            outer,
            series.columns,
            kept,
            choices=choices,
            seed=settings.seed,
            treatment=series.treatment,
            units=series.units,
        )
    if failure is not None:
        _report(failure, fit, run, settings, model)
    assert fit is not None
    if progress:
        bar.say("; ".join(check.judge() for check in mixing(fit.posterior) if check.is_judged))
    return fit


def _with_sampler(settings: Settings, model: Model, series: Series) -> Settings:
    """Return settings with `Gibbs` where none is asked for and gradients do not serve.

    A gradient of Monte Carlo averages costs, on all rows, many sweeps, which begin anew at every step:
    that leaves an error that grows as √T beside the posterior's spread, where Gibbs goes on from its
    last states. Where parameters are not identified there is no mode to measure a metric at. Windows
    that are asked for, and rows that are not in memory, are for gradients.
    """
    on_all_rows = settings.windows == "auto" and not series.streams
    if settings.sampler is not None or settings.control_variate is True or not on_all_rows:
        return settings
    if _gradients_serve(model) or not model.is_conjugate:
        return settings
    return dataclasses.replace(settings, sampler=Gibbs())


def _gradients_serve(model: Model) -> bool:
    return model.is_exact and model.is_identified


def _prepare(
    model: Model, series: Series, settings: Settings, center: dict[str, Any], key: Any
) -> Prepared:
    sampler, num_warmup, thin = settings.sampler, settings.num_warmup, settings.thin
    if isinstance(sampler, Gibbs):
        metric, tuned = place(model, series, center).metric, None
        auto_thin = 1 if _gradients_serve(model) else _GIBBS_THIN
        warmup = _GIBBS_WARMUP if num_warmup == "auto" else int(num_warmup)
        every = auto_thin if thin == "auto" else int(thin)
        choices: dict[str, Any] = {}
    else:
        tuned = tune_where_chains_are(model, series, settings, center, key)
        warmup, every = _lengths(tuned, num_warmup, thin)
        sampler = tuned.sampler
        _warn_of_buffer(tuned.choices, auto=settings.windows == "auto")
        metric, center, choices = tuned.metric, tuned.center, tuned.choices
    choices |= {"num_warmup": warmup, "thin": every, "sampler": type(sampler).__name__}
    return Prepared(center, metric, choices, tuned)


def _watch(tuned: Tuned, series: Series, *, may_grow: bool) -> Watch | None:
    """Return what looks after the buffer while chains run; nothing where all rows are used."""
    if tuned.reference is None:
        return None
    return Watch(
        tuned.estimator, tuned.source, series, tuned.reference, tuned.metric, may_grow=may_grow
    )


def _report(
    failure: Diverged | KeyboardInterrupt,
    fit: Fit | None,
    run: Run | None,
    settings: Settings,
    model: Model,
) -> None:
    """Raise what stopped the chains early, with what they drew."""
    kept = "no draws" if fit is None else _counted(fit, settings.num_chains)
    if isinstance(failure, Diverged):
        advice = "Check the data"
        if not isinstance(settings.sampler, Gibbs):
            advice = "Use a smaller step_size or a larger batch"
            advice += ", or the sampler Gibbs" if model.is_conjugate else ""
        raise DivergenceError(
            f"chain {failure.chain} diverged at step {failure.step}: {failure.parameter} is not "
            f"finite; {kept} before that"
            + ("" if fit is None else " are kept in this error's `fit`")
            + f". {advice}",
            fit,
        )
    where = "this exception's `fit`" if run is None else f"{run.path}"
    onward = "" if run is None else f"; continue with sojourn.resume({str(run.path)!r})"
    raise Interrupted(f"stopped: {kept} are kept in {where}{onward}", fit)


def _counted(fit: Fit, num_chains: int) -> str:
    draws, chains = fit.posterior.sizes["draw"], fit.posterior["chain"].to_numpy()
    counted = "1 draw" if draws == 1 else f"{draws} draws"
    if len(chains) == num_chains:
        return f"{counted} per chain"
    each = "chain" if len(chains) == 1 else "each of chains"
    return f"{counted} of {each} {', '.join(map(str, chains))}"


def _lengths(tuned: Tuned, num_warmup: int | str, thin: int | str) -> tuple[int, int]:
    """Return warm-up steps and steps per draw: twenty relaxation times, and one."""
    relaxation = tuned.sampler.relaxation(tuned.epsilon)
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
            f"{_FAR} scales from zero: subtract it from the data, or "
            "open_series(data, standardize=True)",
            depth=3,  # `sample`, what wraps it, the user
        )


def _warn_of_basis(model: Model) -> None:
    """Warn where the default of C does not keep the basis of x from changing."""
    if model.is_identified or getattr(model, "emission_matrix", None) != "identified":
        return
    n, m = model.param_shapes["A"][-1], model.emission_dim
    _warn(
        f"state_dim={n} is more than the {m} columns of the data: A and Q are known up to a change of "
        "basis of x, and their draws mix slowly; predictions and eigenvalues of A do not depend on it",
        depth=3,  # `sample`, what wraps it, the user
    )


def _warn_of_versions(run: Run) -> None:
    """Warn where draws may differ from those of the versions that a run was begun with."""
    before, now = run.config.get("versions", {}), versions()
    other = [name for name in ("sojourn", "jax", "numpy") if before.get(name) != now[name]]
    if other:
        said = ", ".join(f"{name} {before.get(name, 'unknown')}, now {now[name]}" for name in other)
        _warn(
            f"{run.path} was begun with {said}: what is drawn from here on may differ from what an "
            "unbroken run would have drawn; install the same versions for the same bits",
            depth=3,  # `resume`, what wraps it, the user
        )


def _warn_of_buffer(choices: Mapping[str, Any], *, auto: bool) -> None:
    error = choices.get("buffer_error", 0.0)
    if auto and error > TOLERANCE:
        length, buffer, batch = (choices[name] for name in ("length", "buffer", "batch"))
        _warn(
            f"buffer={buffer} leaves an error of {error:.1%} of a gradient's noise, more than "
            f"{TOLERANCE:.0%}: set a longer one, windows=Windows({length}, buffer={4 * buffer}, "
            f"batch={batch}), or Windows.full()",
            depth=5,  # `_prepare`, `_draw`, `sample`, what wraps it, the user
        )


def _warn(message: str, depth: int) -> None:
    """Warn the user, whose call is `depth` calls above the caller of this."""
    warnings.warn(message, UserWarning, stacklevel=2 + depth)
