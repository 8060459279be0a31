"""`sample`: chains, chunks of compiled steps, progress, divergence."""

import functools
import threading
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from sojourn._cores import num_cores
from sojourn._precision import double
from sojourn._validation import check_seed, check_size, shown
from sojourn.buffers import TOLERANCE
from sojourn.dynamics import SGRLD, Decay, Sampler
from sojourn.fit import Fit, make_fit
from sojourn.gibbs import Gibbs, make_sweep
from sojourn.gradients import Estimator, Source
from sojourn.models.base import Model, check_lags, check_model
from sojourn.progress import Progress
from sojourn.series import Series, Windows, as_series
from sojourn.tuning import Tuned, disperse, find_start, log_posterior, num_rows, pilot_at, tune

# Pieces that a run is cut into; after each, Python looks at the chain once.
_CHUNKS = 20

# Halvings of the step size in warm-up before giving up.
_MAX_HALVINGS = 10

# Scales between zero and the median of a column from which on a missing intercept is worth a warning.
_FAR = 10


class DivergenceError(RuntimeError):
    """A chain left the finite numbers; `fit` holds what all chains drew before, or None."""

    def __init__(self, message: str, fit: Fit | None) -> None:
        super().__init__(message)
        self.fit = fit


class _Diverged(Exception):
    def __init__(self, chain: int, step: int, parameter: str) -> None:
        self.chain, self.step, self.parameter = chain, step, parameter


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
        center = find_start(model, own, start, key_start, refine=not gibbs)
        given = None if isinstance(start, str) else start
        if isinstance(sampler, Gibbs):
            warmup = 200 if num_warmup == "auto" else num_warmup
            every = 1 if thin == "auto" else thin
            chain = _gibbs_chain(outer, model, own, center, given, warmup, num_samples, every, bar)
            choices: dict[str, Any] = {}
        else:
            bar.describe("tuning")
            tuned = tune(model, own, sampler, windows, control_variate, center, key_tune)
            warmup, every = _lengths(tuned, num_warmup, thin)
            _warn_of_buffer(tuned.choices)
            T = num_rows(model, own)
            chain = _langevin_chain(
                outer, sampler, tuned, T, given, warmup, num_samples, every, bar
            )
            choices = tuned.choices
        choices |= {"num_warmup": warmup, "thin": every, "sampler": type(sampler).__name__}
        bar.announce(choices)
        bar.start(num_chains * (warmup + num_samples * every))
        traces, failure = _run_chains(chain, num_chains, key_chains)
    fit = None
    if min(trace.num_draws for trace in traces) > 0:
        draws = [_join(trace.draws) for trace in traces]
        statistics = [_join(trace.statistics) for trace in traces]
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


class _Stopped(Exception):
    """Another chain failed, or the user interrupted."""


@dataclass(frozen=True, eq=False)
class _Trace:
    """What one chain keeps, piece by piece, and the word that it should stop."""

    stop: threading.Event
    draws: list[dict[str, np.ndarray]] = field(default_factory=list)
    statistics: list[dict[str, np.ndarray]] = field(default_factory=list)

    @property
    def num_draws(self) -> int:
        return sum(len(next(iter(part.values()))) for part in self.draws)

    def keep(self, draws: dict[str, np.ndarray], statistics: dict[str, np.ndarray]) -> None:
        self.draws.append(draws)
        self.statistics.append(statistics)

    def check(self) -> None:
        """Leave the chain if it should stop; called about as often as Python has its turn."""
        if self.stop.is_set():
            raise _Stopped


Chain = Callable[[int, Array, _Trace], None]


def _run_chains(chain: Chain, num_chains: int, key: Array) -> tuple[list[_Trace], _Diverged | None]:
    """Run the chains side by side, one thread each, as many at a time as there are cores."""
    stop = threading.Event()
    traces = [_Trace(stop) for _ in range(num_chains)]

    @double
    def run(index: int) -> None:
        try:
            chain(index, jax.random.fold_in(key, index), traces[index])
        except _Stopped:
            pass
        except BaseException:
            stop.set()
            raise

    failure = None
    with ThreadPoolExecutor(min(num_chains, num_cores())) as pool:
        futures = [pool.submit(run, index) for index in range(num_chains)]
        try:
            for future in futures:
                try:
                    future.result()
                except _Diverged as diverged:
                    failure = failure or diverged
        except BaseException:
            stop.set()
            raise
    return traces, failure


def _join(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _langevin_chain(
    outer: Model,
    sampler: Sampler,
    tuned: Tuned,
    T: int,
    start: dict[str, Array] | None,
    num_warmup: int,
    num_samples: int,
    thin: int,
    bar: Progress,
) -> Chain:
    """Return a function that runs one chain of a gradient sampler."""
    estimator, source, pilot = tuned.estimator, tuned.source, tuned.pilot
    decay = sampler.step_size if isinstance(sampler.step_size, Decay) else None
    capacity = max(_chunks(num_samples))
    to_params = functools.partial(_to_params, outer, estimator.model)

    def advance(
        key: Array, coords: Any, first: int, epsilon: float, count: int, every: int, tame: float
    ) -> tuple[dict[str, Array], dict[str, np.ndarray]]:
        coords, kept = _advance(
            source,
            pilot,
            key,
            coords,
            jnp.asarray(first),
            jnp.asarray(epsilon),
            jnp.asarray(float(T)),
            jnp.asarray(count),
            jnp.asarray(every),
            jnp.asarray(tame),
            estimator=estimator,
            sampler=sampler,
            decay=decay,
            capacity=capacity,
        )
        return coords, {name: np.asarray(u)[:count] for name, u in kept.items()}

    def chain(index: int, key: Array, trace: _Trace) -> None:
        key_start, key = jax.random.split(key)
        if start is None:
            coords = disperse(estimator.model, tuned.center, pilot, key_start, T)
        else:
            coords = {n: jnp.asarray(u) for n, u in start.items()}
        epsilon, first, halvings = tuned.epsilon, 0, 0
        sizes = _chunks(num_warmup)
        for chunk, size in enumerate(sizes):
            # A tamed drift survives far starts but also hides a step that is too large: the second
            # half runs as sampling will.
            tame = 1.0 if chunk < len(sizes) // 2 else 0.0
            while True:
                trace.check()
                # After a restart steps go on counting: the same noise might lead to the same end.
                last, drawn = advance(key, coords, first, epsilon, 1, size, tame)
                first += size
                bad = _first_non_finite(drawn) or _first_non_finite(to_params(drawn))
                if bad is None:
                    break
                halvings += 1
                if halvings > _MAX_HALVINGS:
                    raise _Diverged(index, first, bad[1])
                epsilon, tame = epsilon / 2, 1.0
            coords = last
            bar.advance(size, float(log_posterior(estimator, source, key, coords)))
        for size in _chunks(num_samples):
            trace.check()
            coords, drawn = advance(key, coords, first, epsilon, size, thin, 0.0)
            params = to_params(drawn)
            # Finite coordinates may stand for infinite parameters.
            bad = _first_non_finite(drawn) or _first_non_finite(params)
            if bad is not None:
                good = {n: p[: bad[0]] for n, p in params.items()}
                nothing = np.full(bad[0], np.nan)
                trace.keep(good, {"step_size": np.full(bad[0], epsilon), "lp": nothing})
                raise _Diverged(index, first + bad[0] * thin, bad[1])
            steps = jnp.asarray(first + thin * (1 + np.arange(size)) - 1)
            scale = np.ones(size) if decay is None else np.asarray(decay(steps)) / decay.initial
            first += size * thin
            lp = float(log_posterior(estimator, source, key, coords))
            trace.keep(params, {"step_size": epsilon * scale, "lp": np.full(size, lp)})
            bar.advance(size * thin, lp)

    return chain


@functools.partial(jax.jit, static_argnames=("estimator", "sampler", "decay", "capacity"))
def _advance(
    source: Source,
    pilot: Any,
    key: Array,
    coords: dict[str, Array],
    first: Any,
    epsilon: Any,
    T: Any,
    num_draws: Any,
    thin: Any,
    tame: Any,
    *,
    estimator: Estimator,
    sampler: Sampler,
    decay: Decay | None,
    capacity: int,
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Take num_draws · thin steps, keeping every thin-th in an array of `capacity` draws.

    Step t uses the key folded with t alone, so that chunks, stops and resumes change nothing. Counts
    are traced: warm-up, chunks and the last, shorter one share one compiled program.
    """

    def step(t: Array, coords: dict[str, Array]) -> dict[str, Array]:
        key_windows, key_noise = jax.random.split(jax.random.fold_in(key, t))
        statistics = estimator(source, key_windows, coords)
        # Halvings in warm-up scale a schedule as a whole.
        h = epsilon * (1.0 if decay is None else decay(t) / decay.initial) / T
        return sampler.step(key_noise, estimator.model, coords, statistics, h, pilot, tame=tame)

    def draw(n: Array, carry: Any) -> Any:
        coords, kept = carry
        begin = first + n * thin
        coords = lax.fori_loop(begin, begin + thin, step, coords)
        return coords, {name: kept[name].at[n].set(u) for name, u in coords.items()}

    kept = {name: jnp.zeros((capacity, *u.shape), u.dtype) for name, u in coords.items()}
    return lax.fori_loop(0, num_draws, draw, (coords, kept))


def _to_params(outer: Model, model: Model, drawn: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return draws of coordinates as parameters in the units of the user."""
    params = outer.standardise(_constrain(model, dict(drawn)), inverse=True)
    return {name: np.asarray(value) for name, value in params.items()}


@functools.partial(jax.jit, static_argnums=0)
def _constrain(model: Model, coords: dict[str, Array]) -> dict[str, Array]:
    return jax.vmap(model.constrain)(coords)


def _gibbs_chain(
    outer: Model,
    model: Model,
    series: Series,
    center: dict[str, Array],
    start: dict[str, Array] | None,
    num_warmup: int,
    num_samples: int,
    thin: int,
    bar: Progress,
) -> Chain:
    """Return a function that runs one chain of Gibbs sweeps."""
    T = num_rows(model, series)
    pilot = None if start is not None else pilot_at(model, series, center)[0]

    def chain(index: int, key: Array, trace: _Trace) -> None:
        key_start, key = jax.random.split(key)
        if pilot is None:
            coords = {n: jnp.asarray(u) for n, u in center.items()}
        else:
            coords = disperse(model, center, pilot, key_start, T)
        sweep = make_sweep(model, series)
        for t in range(num_warmup + num_samples * thin):
            trace.check()
            coords = sweep(jax.random.fold_in(key, t), coords)
            bar.advance(1)
            if t >= num_warmup and (t - num_warmup) % thin == thin - 1:
                drawn = _to_params(outer, model, {n: u[None] for n, u in coords.items()})
                bad = _first_non_finite(drawn)
                if bad is not None:
                    raise _Diverged(index, t, bad[1])
                trace.keep(drawn, {})

    return chain


def _first_non_finite(drawn: Mapping[str, Any]) -> tuple[int, str] | None:
    """Return the first draw with a value that is not finite, and the parameter's name."""
    found = []
    for name, values in drawn.items():
        bad = ~np.isfinite(np.asarray(values)).reshape(len(values), -1).all(1)
        if bad.any():
            found.append((int(np.argmax(bad)), name))
    return min(found, default=None)


def _chunks(total: int) -> list[int]:
    """Cut `total` into at most `_CHUNKS` equal pieces and a rest."""
    size = max(1, -(-total // _CHUNKS))
    return [size] * (total // size) + ([total % size] if total % size else [])


def _lengths(tuned: Tuned, num_warmup: int | str, thin: int | str) -> tuple[int, int]:
    """Return warm-up steps and steps per draw: twenty and half a relaxation time 1/ε of a block."""
    relaxation = 1 / tuned.epsilon
    warmup = int(np.clip(20 * relaxation, 200, 10_000)) if num_warmup == "auto" else int(num_warmup)
    every = int(np.clip(relaxation / 2, 1, 100)) if thin == "auto" else int(thin)
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


def _warn_of_buffer(choices: Mapping[str, Any]) -> None:
    error = choices.get("buffer_error", 0.0)
    if error > TOLERANCE:
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
