"""Chains: chunks of compiled steps, what they keep, divergence."""

import functools
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from sojourn._cores import num_cores
from sojourn._precision import double
from sojourn.dynamics import Decay, Metric, Sampler, State
from sojourn.gibbs import make_sweep
from sojourn.gradients import Estimator, Source, fetched
from sojourn.models.base import Model
from sojourn.progress import Progress
from sojourn.series import Series
from sojourn.tuning import Tuned, disperse, log_posterior, pilot_at

# Pieces that a run is cut into; after each, Python looks at the chain once.
_CHUNKS = 20

# Halvings of the step size in warm-up before giving up.
_MAX_HALVINGS = 10


class Diverged(Exception):
    def __init__(self, chain: int, step: int, parameter: str) -> None:
        self.chain, self.step, self.parameter = chain, step, parameter


class Stopped(Exception):
    """Another chain failed, or the user interrupted."""


@dataclass(frozen=True, eq=False)
class Trace:
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
            raise Stopped


Chain = Callable[[int, Array, Trace], None]


def run_chains(chain: Chain, num_chains: int, key: Array) -> tuple[list[Trace], Diverged | None]:
    """Run the chains side by side, one thread each, as many at a time as there are cores."""
    stop = threading.Event()
    traces = [Trace(stop) for _ in range(num_chains)]

    @double
    def run(index: int) -> None:
        try:
            chain(index, jax.random.fold_in(key, index), traces[index])
        except Stopped:
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
                except Diverged as diverged:
                    failure = failure or diverged
        except BaseException:
            stop.set()
            raise
    return traces, failure


def join(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def langevin_chain(
    outer: Model,
    sampler: Sampler,
    tuned: Tuned,
    start: dict[str, Array] | None,
    num_warmup: int,
    num_samples: int,
    thin: int,
    bar: Progress,
) -> Chain:
    """Return a function that runs one chain of a gradient sampler."""
    estimator, source, metric = tuned.estimator, tuned.source, tuned.metric
    decay = sampler.step_size if isinstance(sampler.step_size, Decay) else None
    capacity = max(_chunks(num_samples))
    to_params = functools.partial(_to_params, outer, estimator.model)

    def advance(
        key: Array, state: State, first: int, epsilon: float, count: int, every: int, tame: float
    ) -> tuple[State, dict[str, np.ndarray]]:
        state, kept = _advance(
            source,
            metric,
            key,
            state,
            jnp.asarray(first),
            jnp.asarray(epsilon),
            jnp.asarray(count),
            jnp.asarray(every),
            jnp.asarray(tame),
            estimator=estimator,
            sampler=sampler,
            decay=decay,
            capacity=capacity,
        )
        return state, {name: np.asarray(u)[:count] for name, u in kept.items()}

    def chain(index: int, key: Array, trace: Trace) -> None:
        key_start, key = jax.random.split(key)
        if start is None:
            coords = disperse(estimator.model, tuned.center, metric, key_start)
        else:
            coords = {n: jnp.asarray(u) for n, u in start.items()}
        state = sampler.start(key_start, coords, metric)
        epsilon, first, halvings = tuned.epsilon, 0, 0
        sizes = _chunks(num_warmup)
        for chunk, size in enumerate(sizes):
            # A tamed drift survives far starts but also hides a step that is too large: the second
            # half runs as sampling will.
            tame = 1.0 if chunk < len(sizes) // 2 else 0.0
            while True:
                trace.check()
                # After a restart steps go on counting: the same noise might lead to the same end.
                last, drawn = advance(key, state, first, epsilon, 1, size, tame)
                first += size
                bad = _first_non_finite(drawn) or _first_non_finite(to_params(drawn))
                if bad is None:
                    break
                halvings += 1
                if halvings > _MAX_HALVINGS:
                    raise Diverged(index, first, bad[1])
                epsilon, tame = epsilon / 2, 1.0
            state = last
            bar.advance(size, float(log_posterior(estimator, source, key, state.coords)))
        for size in _chunks(num_samples):
            trace.check()
            state, drawn = advance(key, state, first, epsilon, size, thin, 0.0)
            params = to_params(drawn)
            # Finite coordinates may stand for infinite parameters.
            bad = _first_non_finite(drawn) or _first_non_finite(params)
            if bad is not None:
                good = {n: p[: bad[0]] for n, p in params.items()}
                nothing = np.full(bad[0], np.nan)
                trace.keep(good, {"step_size": np.full(bad[0], epsilon), "lp": nothing})
                raise Diverged(index, first + bad[0] * thin, bad[1])
            steps = jnp.asarray(first + thin * (1 + np.arange(size)) - 1)
            scale = np.ones(size) if decay is None else np.asarray(decay(steps)) / decay.initial
            first += size * thin
            lp = float(log_posterior(estimator, source, key, state.coords))
            trace.keep(params, {"step_size": epsilon * scale, "lp": np.full(size, lp)})
            bar.advance(size * thin, lp)

    return chain


def _advance(
    source: Source,
    metric: Metric,
    key: Array,
    state: State,
    first: Any,
    epsilon: Any,
    num_draws: Any,
    thin: Any,
    tame: Any,
    *,
    estimator: Estimator,
    sampler: Sampler,
    decay: Decay | None,
    capacity: int,
) -> tuple[State, dict[str, Array]]:
    """Take num_draws · thin steps, keeping every thin-th in an array of `capacity` draws.

    Step t uses the key folded with t alone, so that chunks, stops and resumes change nothing. Counts
    are traced: warm-up, chunks and the last, shorter one share one compiled program. Rows that are
    not in memory are read by a thread, block by block, one ahead of the steps.
    """
    kept = {name: jnp.zeros((capacity, *u.shape), u.dtype) for name, u in state.coords.items()}
    stop = int(first) + int(num_draws) * int(thin)
    for begin, end, given in fetched(estimator, source, key, int(first), stop, splits=2):
        state, kept = _take_steps(
            given,
            metric,
            key,
            state,
            kept,
            first,
            begin,
            end,
            epsilon,
            thin,
            tame,
            estimator=estimator,
            sampler=sampler,
            decay=decay,
        )
        # The thread should not run further ahead than one block.
        jax.block_until_ready(kept)
    return state, kept


@functools.partial(jax.jit, static_argnames=("estimator", "sampler", "decay"))
def _take_steps(
    source: Source,
    metric: Metric,
    key: Array,
    state: State,
    kept: dict[str, Array],
    first: Any,
    begin: Any,
    end: Any,
    epsilon: Any,
    thin: Any,
    tame: Any,
    *,
    estimator: Estimator,
    sampler: Sampler,
    decay: Decay | None,
) -> tuple[State, dict[str, Array]]:
    """Take steps `begin` to `end`; the draw that a step belongs to holds the last of its steps."""

    def step(t: Array, carry: Any) -> Any:
        state, kept = carry
        key_windows, key_noise = jax.random.split(jax.random.fold_in(key, t))
        statistics = estimator(source.at(t - begin), key_windows, state.coords)
        # Halvings in warm-up scale a schedule as a whole.
        now = epsilon * (1.0 if decay is None else decay(t) / decay.initial)
        state = sampler.step(key_noise, estimator.model, state, statistics, now, metric, tame=tame)
        n = (t - first) // thin
        return state, {name: kept[name].at[n].set(u) for name, u in state.coords.items()}

    return lax.fori_loop(begin, end, step, (state, kept))


def _to_params(outer: Model, model: Model, drawn: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return draws of coordinates as parameters in the units of the user."""
    params = outer.standardise(_constrain(model, dict(drawn)), inverse=True)
    return {name: np.asarray(value) for name, value in params.items()}


@functools.partial(jax.jit, static_argnums=0)
def _constrain(model: Model, coords: dict[str, Array]) -> dict[str, Array]:
    return jax.vmap(model.constrain)(coords)


def gibbs_chain(
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
    metric = None if start is not None else pilot_at(model, series, center)[0]

    def chain(index: int, key: Array, trace: Trace) -> None:
        key_start, key = jax.random.split(key)
        if metric is None:
            coords = {n: jnp.asarray(u) for n, u in center.items()}
        else:
            coords = disperse(model, center, metric, key_start)
        sweep = make_sweep(model, series)
        for t in range(num_warmup + num_samples * thin):
            trace.check()
            coords = sweep(jax.random.fold_in(key, t), coords)
            bar.advance(1)
            if t >= num_warmup and (t - num_warmup) % thin == thin - 1:
                drawn = _to_params(outer, model, {n: u[None] for n, u in coords.items()})
                bad = _first_non_finite(drawn)
                if bad is not None:
                    raise Diverged(index, t, bad[1])
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
