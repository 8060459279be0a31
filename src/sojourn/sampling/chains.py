"""Chains: chunks of compiled steps, what they keep, divergence.

Draws do not depend on how they fall into chunks, so that chunks follow the clock, and a chain that goes
on from a `Checkpoint` draws what it would have drawn without a stop.
"""

import functools
import time
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from sojourn._compile import compiled
from sojourn._progress import Progress
from sojourn.dynamics import Decay, Metric, Sampler, State
from sojourn.gibbs import make_sweep
from sojourn.gradients import Estimator, Source, fetched
from sojourn.models.base import Model
from sojourn.runs import Arrays, Checkpoint
from sojourn.sampling.traces import Chain, Diverged, Stopped, Trace, join
from sojourn.series import Series
from sojourn.tuning import Tuned, Watch, disperse, log_posterior

# Pieces that a run is cut into; after each, Python looks at the chain once and what it drew is kept.
_CHUNKS = 20

# Fewest and most draws of a piece, and seconds that it should take at most.
_CHUNK_DRAWS = (10, 1000)
_CHUNK_SECONDS = 5.0

# The log-posterior is estimated at every so many draws.
_LP_EVERY = 10

# And the error of the buffer at every so many.
_WATCH_EVERY = 500

# Halvings of the step size in warm-up before giving up.
_MAX_HALVINGS = 10


def statistic_names(tuned: Tuned | None) -> tuple[str, ...]:
    """Return the names of the statistics that come with each draw."""
    if tuned is None:
        return ()
    return ("step_size", "lp") + (() if tuned.reference is None else ("buffer", "buffer_error"))


def langevin_chain(
    outer: Model,
    tuned: Tuned,
    watch: Watch | None,
    start: dict[str, Array] | None,
    num_warmup: int,
    num_samples: int,
    thin: int,
    bar: Progress,
) -> Chain:
    """Return a function that runs one chain of a gradient sampler."""
    sampler, estimator, source, metric = tuned.sampler, tuned.estimator, tuned.source, tuned.metric
    decay = sampler.step_size if isinstance(sampler.step_size, Decay) else None
    capacity = _capacity(num_samples)
    to_params = functools.partial(_to_params, outer, estimator.model)

    def advance(
        steps: tuple[Estimator, Source],
        key: Array,
        state: State,
        first: int,
        epsilon: float,
        count: int,
        every: int,
        tame: float,
    ) -> tuple[State, dict[str, np.ndarray]]:
        state, kept = _advance(
            steps[1],
            metric,
            key,
            state,
            jnp.asarray(first),
            jnp.asarray(epsilon),
            jnp.asarray(count),
            jnp.asarray(every),
            jnp.asarray(tame),
            estimator=steps[0],
            sampler=sampler,
            decay=decay,
            capacity=capacity,
        )
        return state, {name: np.asarray(u)[:count] for name, u in kept.items()}

    def begin(key: Array) -> Checkpoint:
        key_coords, key_state = jax.random.split(key)
        if start is None:
            coords = disperse(estimator.model, tuned.center, metric, key_coords)
        else:
            coords = {n: jnp.asarray(u) for n, u in start.items()}
        state = sampler.start(key_state, coords, metric)
        return Checkpoint(*state, epsilon=tuned.epsilon, buffer=estimator.windows.buffer)

    def chain(index: int, key: Array, trace: Trace) -> None:
        key_start, key = jax.random.split(key)
        key_lp = jax.random.key(0)  # the same windows for all chains, so that they can be compared
        at = trace.store.checkpoint() or begin(key_start)
        state = State(*jax.tree.map(jnp.asarray, (at.coords, at.memory)))
        first, epsilon, halvings, lp = at.step, at.epsilon, at.halvings, at.lp
        buffer, buffer_error = at.buffer, at.buffer_error
        steps = (estimator, source) if watch is None else watch.with_buffer(buffer)
        sizes = _chunks(num_warmup)
        for chunk in range(at.warmed, len(sizes)):
            size = sizes[chunk]
            # A tamed drift survives far starts but also hides a step that is too large: the second
            # half runs as sampling will.
            tame = 1.0 if chunk < len(sizes) // 2 else 0.0
            while True:
                trace.check()
                # After a restart steps go on counting: the same noise might lead to the same end.
                last, drawn = advance(steps, key, state, first, epsilon, 1, size, tame)
                first += size
                bad = _first_non_finite(drawn, to_params(drawn))
                if bad is None:
                    break
                halvings += 1
                if halvings > _MAX_HALVINGS:
                    raise Diverged(index, first, bad[1])
                epsilon, tame = epsilon / 2, 1.0
            state = last
            trace.store.warm(Checkpoint(*state, chunk + 1, first, epsilon, halvings, buffer=buffer))
            bar.advance(size, float(log_posterior(estimator, source, key_lp, state.coords)))
        count, wanted = trace.num_draws, capacity
        while count < num_samples:
            trace.check()
            if watch is not None and count % _WATCH_EVERY == 0:
                buffer, buffer_error = watch(state.coords, buffer)
                steps = watch.with_buffer(buffer)
            size, began = min(wanted, num_samples - count), time.monotonic()
            if watch is not None:
                size = min(size, _WATCH_EVERY - count % _WATCH_EVERY)
            last, drawn = advance(steps, key, state, first, epsilon, size, thin, 0.0)
            params = to_params(drawn)
            # Finite coordinates may stand for infinite parameters.
            bad = _first_non_finite(drawn, params)
            if bad is not None:
                size = bad[0]
                last, drawn = advance(steps, key, state, first, epsilon, size, thin, 0.0)
                params = to_params(drawn)
            lps = np.empty(size)
            for n in range(size):
                if (count + n) % _LP_EVERY == 0:
                    coords = {name: jnp.asarray(u[n]) for name, u in drawn.items()}
                    lp = float(log_posterior(estimator, source, key_lp, coords))
                lps[n] = lp
            taken = jnp.asarray(first + thin * (1 + np.arange(size)) - 1)
            scale = np.ones(size) if decay is None else np.asarray(decay(taken)) / decay.initial
            statistics = {"step_size": epsilon * scale, "lp": lps}
            if watch is not None:
                statistics["buffer"] = np.full(size, float(buffer))
                statistics["buffer_error"] = np.full(size, buffer_error)
            state, first, count = last, first + size * thin, count + size
            now = (len(sizes), first, epsilon, halvings, lp, buffer, buffer_error)
            trace.store.append(params, statistics, Checkpoint(*state, *now))
            if bad is not None:
                raise Diverged(index, first, bad[1])
            bar.advance(size * thin, lp)
            seconds = (time.monotonic() - began) / max(size, 1)
            wanted = _next_size(wanted, wanted * seconds, capacity)

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
            estimator,
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
            sampler=sampler,
            decay=decay,
        )
        # The thread should not run further ahead than one block.
        jax.block_until_ready(kept)
    return state, kept


@compiled(static_argnums=0, static_argnames=("sampler", "decay"))
def _take_steps(
    estimator: Estimator,
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
    metric: Metric | None,
    num_warmup: int,
    num_samples: int,
    thin: int,
    bar: Progress,
) -> Chain:
    """Return a function that runs one chain of Gibbs sweeps, begun apart if there is a metric."""

    def chain(index: int, key: Array, trace: Trace) -> None:
        key_start, key = jax.random.split(key)
        sweep = make_sweep(model, series)
        at = trace.store.checkpoint()
        if at is not None:
            coords = {n: jnp.asarray(u) for n, u in at.coords.items()}
            sweep.restore(at.memory)
        elif metric is None:
            coords = {n: jnp.asarray(u) for n, u in center.items()}
        else:
            coords = disperse(model, center, metric, key_start)
        now, capacity = at or Checkpoint(coords, sweep.memory), _capacity(num_samples)
        pending: list[Arrays] = []
        kept_at = time.monotonic()

        def keep() -> None:
            if pending:
                trace.store.append(join(pending), {}, now)
            elif trace.num_draws == 0:
                trace.store.warm(now)
            pending.clear()

        try:
            for t in range(now.step, num_warmup + num_samples * thin):
                trace.check()
                coords = sweep(jax.random.fold_in(key, t), coords)
                if t >= num_warmup and (t - num_warmup) % thin == thin - 1:
                    drawn = _to_params(outer, model, {n: u[None] for n, u in coords.items()})
                    bad = _first_non_finite(drawn)
                    if bad is not None:
                        raise Diverged(index, t, bad[1])
                    pending.append(drawn)
                now = Checkpoint(coords, sweep.memory, step=t + 1)
                if len(pending) == capacity or time.monotonic() - kept_at > _CHUNK_SECONDS:
                    keep()
                    kept_at = time.monotonic()
                bar.advance(1)
        except (Stopped, Diverged):
            keep()
            raise
        keep()

    return chain


def _first_non_finite(*drawn: Mapping[str, Any]) -> tuple[int, str] | None:
    """Return the first draw with a value that is not finite, and the parameter's name."""
    found = []
    for name, values in (item for part in drawn for item in part.items()):
        bad = ~np.isfinite(np.asarray(values)).reshape(len(values), -1).all(1)
        if bad.any():
            found.append((int(np.argmax(bad)), name))
    return min(found, default=None)


def _capacity(num_samples: int) -> int:
    """Return the most draws that a piece may have."""
    return int(np.clip(-(-num_samples // _CHUNKS), *_CHUNK_DRAWS))


def _next_size(size: int, seconds: float, capacity: int) -> int:
    """Return the draws of the next piece: at most twice as many, for a few seconds at most."""
    rate = _CHUNK_SECONDS / max(seconds, 1e-3)
    return int(np.clip(size * min(rate, 2.0), 1, capacity))


def _chunks(total: int) -> list[int]:
    """Cut `total` into at most `_CHUNKS` equal pieces and a rest."""
    size = max(1, -(-total // _CHUNKS))
    return [size] * (total // size) + ([total % size] if total % size else [])
