"""Chains: chunks of compiled steps, what they keep, divergence.

Draws do not depend on how they fall into chunks, so that chunks follow the clock, and a chain that goes
on from a `Checkpoint` draws what it would have drawn without a stop.
"""

import functools
import time
from collections.abc import Mapping
from dataclasses import dataclass
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
from sojourn.tuning import Tuned, Watch, disperse, log_posteriors

# Pieces that a run is cut into; after each, Python looks at the chain once and what it drew is kept.
_CHUNKS = 20

# Fewest and most draws of a piece, and seconds that it should take at most.
_CHUNK_DRAWS = (10, 1000)
_CHUNK_SECONDS = 5.0

# Draws that the arrays which programs fill have room for; the last is enough for any piece.
_ROOMS = (128, 1024)

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


@dataclass(frozen=True, eq=False)
class LangevinChain:
    """Chains of a gradient sampler; called with the number, key and trace of one, it runs that.

    Attributes:
        outer: The model, in the units of the user.
        tuned: What was chosen before.
        watch: What looks after the buffer; None where all rows are used.
        start: Coordinates to start from; None for places around the mode.
        num_warmup: Steps before the first draw.
        num_samples: Draws to keep.
        thin: Steps per draw.
        bar: Where progress is shown.
    """

    outer: Model
    tuned: Tuned
    watch: Watch | None
    start: dict[str, Array] | None
    num_warmup: int
    num_samples: int
    thin: int
    bar: Progress

    def __call__(self, index: int, key: Array, trace: Trace) -> None:
        key_start, key = jax.random.split(key)
        at = trace.store.checkpoint() or self._begin(key_start)
        coords, memory = jax.tree.map(jnp.asarray, (at.coords, at.memory))
        at = self._warm_up(index, key, trace, at._replace(coords=coords, memory=memory))
        count, wanted = trace.num_draws, self._capacity
        while count < self.num_samples:
            trace.check()
            began = time.monotonic()
            size = min(wanted, self.num_samples - count)
            at, size = self._draw(index, key, trace, at, count, size)
            count += size
            seconds = (time.monotonic() - began) / max(size, 1)
            wanted = _next_size(wanted, wanted * seconds, self._capacity)

    def _begin(self, key: Array) -> Checkpoint:
        state = _begin(self.tuned, self.start, key)
        buffer = self.tuned.estimator.windows.buffer
        return Checkpoint(*state, epsilon=self.tuned.epsilon, buffer=buffer)

    def _warm_up(self, index: int, key: Array, trace: Trace, at: Checkpoint) -> Checkpoint:
        """Take what is left of the steps of warm-up; a chain that is lost goes back and halves them."""
        sizes = _chunks(self.num_warmup)
        for chunk in range(at.warmed, len(sizes)):
            size = sizes[chunk]
            # A tamed drift survives far starts but also hides a step that is too large: the second
            # half runs as sampling will.
            tame = 1.0 if chunk < len(sizes) // 2 else 0.0
            while True:
                trace.check()
                state, drawn = self._advance(key, at, 1, size, tame)
                # After a restart steps go on counting: the same noise might lead to the same end.
                at = at._replace(step=at.step + size)
                bad = _first_non_finite(drawn, self._to_params(drawn))
                if bad is None:
                    break
                at = at._replace(halvings=at.halvings + 1, epsilon=at.epsilon / 2)
                if at.halvings > _MAX_HALVINGS:
                    raise Diverged(index, at.step, bad[1])
                tame = 1.0
            at = at._replace(coords=state.coords, memory=state.memory, warmed=chunk + 1)
            trace.store.warm(at)
            lp = self._log_posteriors(drawn, np.zeros(1, int))
            self.bar.advance(size, float(lp[0]))
        return at

    def _draw(
        self, index: int, key: Array, trace: Trace, at: Checkpoint, count: int, size: int
    ) -> tuple[Checkpoint, int]:
        """Keep up to `size` more draws behind the first `count`; return where the chain is then."""
        if self.watch is not None:
            if count % _WATCH_EVERY == 0:
                buffer, error = self.watch(at.coords, at.buffer)
                at = at._replace(buffer=buffer, buffer_error=error)
            size = min(size, _WATCH_EVERY - count % _WATCH_EVERY)
        state, drawn = self._advance(key, at, size, self.thin)
        params = self._to_params(drawn)
        # Finite coordinates may stand for infinite parameters.
        bad = _first_non_finite(drawn, params)
        if bad is not None:
            size = bad[0]
            state, drawn = self._advance(key, at, size, self.thin)
            params = self._to_params(drawn)
        statistics = self._statistics(at, drawn, count, size)
        at = at._replace(
            coords=state.coords,
            memory=state.memory,
            step=at.step + size * self.thin,
            lp=statistics["lp"][-1] if size else at.lp,
        )
        trace.store.append(params, statistics, at)
        if bad is not None:
            raise Diverged(index, at.step, bad[1])
        self.bar.advance(size * self.thin, at.lp)
        return at, size

    def _advance(
        self, key: Array, at: Checkpoint, count: int, every: int, tame: float = 0.0
    ) -> tuple[State, dict[str, np.ndarray]]:
        estimator, source = self.tuned.estimator, self.tuned.source
        if self.watch is not None:
            estimator, source = self.watch.with_buffer(at.buffer)
        state, kept = _advance(
            source,
            self.tuned.metric,
            key,
            State(at.coords, at.memory),
            jnp.asarray(at.step),
            jnp.asarray(at.epsilon),
            jnp.asarray(count),
            jnp.asarray(every),
            jnp.asarray(tame),
            estimator=estimator,
            sampler=self.tuned.sampler,
            decay=self._decay,
            capacity=self._room,
        )
        return state, {name: np.asarray(u)[:count] for name, u in kept.items()}

    def _statistics(
        self, at: Checkpoint, drawn: Mapping[str, np.ndarray], count: int, size: int
    ) -> dict[str, np.ndarray]:
        """Return what goes with each of `size` draws, taken from `at` on."""
        every = np.arange(-count % _LP_EVERY, size, _LP_EVERY)
        known = np.concatenate([[at.lp], self._log_posteriors(drawn, every)])
        lps = known[np.searchsorted(every, np.arange(size), side="right")]
        scale = np.ones(size)
        if self._decay is not None:
            taken = jnp.asarray(at.step + self.thin * (1 + np.arange(size)) - 1)
            scale = np.asarray(self._decay(taken)) / self._decay.initial
        found = {"step_size": at.epsilon * scale, "lp": lps}
        if self.watch is not None:
            found["buffer"] = np.full(size, float(at.buffer))
            found["buffer_error"] = np.full(size, at.buffer_error)
        return found

    def _log_posteriors(self, drawn: Mapping[str, Any], which: np.ndarray) -> np.ndarray:
        """Return the log-posterior at some draws, at most every `_LP_EVERY`-th of a piece."""
        if len(which) == 0:
            return np.empty(0)
        key = jax.random.key(0)  # the same windows for all chains, so that they can be compared
        padded = np.resize(which, -(-self._room // _LP_EVERY))
        places = {name: jnp.asarray(np.asarray(u)[padded]) for name, u in drawn.items()}
        count = jnp.asarray(len(which))
        found = log_posteriors(self.tuned.estimator, self.tuned.source, key, places, count)
        return np.asarray(found)[: len(which)]

    def _to_params(self, drawn: Mapping[str, Any]) -> dict[str, np.ndarray]:
        return _to_params(self.outer, self.tuned.estimator.model, drawn)

    @property
    def _decay(self) -> Decay | None:
        return _decay_of(self.tuned)

    @property
    def _capacity(self) -> int:
        return _capacity(self.num_samples)

    @property
    def _room(self) -> int:
        return _room(self.num_samples)


def run_ahead(tuned: Tuned, num_steps: int, num_samples: int, key: Array) -> dict[str, Array]:
    """Return where a chain from the centre is after tame steps, by the program of so many draws."""
    key_start, key = jax.random.split(key)
    counts = (0, tuned.epsilon, 1, num_steps, 1.0)
    state, _ = _advance(
        tuned.source,
        tuned.metric,
        key,
        _begin(tuned, tuned.center, key_start),
        *map(jnp.asarray, counts),
        estimator=tuned.estimator,
        sampler=tuned.sampler,
        decay=_decay_of(tuned),
        capacity=_room(num_samples),
    )
    return state.coords


def _begin(tuned: Tuned, start: dict[str, Array] | None, key: Array) -> State:
    """Return the state of a chain before its first step."""
    key_coords, key_state = jax.random.split(key)
    if start is None:
        coords = disperse(tuned.estimator.model, tuned.center, tuned.metric, key_coords)
    else:
        coords = {n: jnp.asarray(u) for n, u in start.items()}
    return tuned.sampler.start(key_state, coords, tuned.metric)


def _decay_of(tuned: Tuned) -> Decay | None:
    step_size = tuned.sampler.step_size
    return step_size if isinstance(step_size, Decay) else None


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


def _room(num_samples: int) -> int:
    """Return the draws that arrays have room for: of few sizes, so that a longer run has the same."""
    return next(room for room in _ROOMS if room >= _capacity(num_samples))


def _next_size(size: int, seconds: float, capacity: int) -> int:
    """Return the draws of the next piece: at most twice as many, for a few seconds at most."""
    rate = _CHUNK_SECONDS / max(seconds, 1e-3)
    return int(np.clip(size * min(rate, 2.0), 1, capacity))


def _chunks(total: int) -> list[int]:
    """Cut `total` into at most `_CHUNKS` equal pieces and a rest."""
    size = max(1, -(-total // _CHUNKS))
    return [size] * (total // size) + ([total % size] if total % size else [])
