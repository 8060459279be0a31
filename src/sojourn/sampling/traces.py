"""Chains side by side: where each is kept while it runs, and the word that all should stop."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

import jax
import numpy as np
from jax import Array

from sojourn._cores import num_cores
from sojourn._precision import double
from sojourn.runs import Arrays, Checkpoint


class Diverged(Exception):
    def __init__(self, chain: int, step: int, parameter: str) -> None:
        self.chain, self.step, self.parameter = chain, step, parameter


class Stopped(Exception):
    """Another chain failed, or the user interrupted."""


class Store(Protocol):
    """Where a chain is kept: in memory, or in files."""

    @property
    def num_draws(self) -> int: ...

    def checkpoint(self) -> Checkpoint | None: ...

    def warm(self, checkpoint: Checkpoint) -> None: ...

    def append(self, draws: Arrays, statistics: Arrays, checkpoint: Checkpoint) -> None: ...

    def read(self) -> tuple[Arrays, Arrays]: ...


class Memory:
    """A chain in memory."""

    def __init__(self) -> None:
        self._draws: list[Arrays] = []
        self._statistics: list[Arrays] = []

    @property
    def num_draws(self) -> int:
        return sum(len(next(iter(part.values()))) for part in self._draws)

    def checkpoint(self) -> None:
        return None

    def warm(self, checkpoint: Checkpoint) -> None:
        pass

    def append(self, draws: Arrays, statistics: Arrays, checkpoint: Checkpoint) -> None:
        self._draws.append(draws)
        self._statistics.append(statistics)

    def read(self) -> tuple[Arrays, Arrays]:
        return join(self._draws), join(self._statistics)


@dataclass(frozen=True, eq=False)
class Trace:
    """Where one chain is kept, and the word that it should stop."""

    stop: threading.Event
    store: Store = field(default_factory=Memory)

    @property
    def num_draws(self) -> int:
        return self.store.num_draws

    def check(self) -> None:
        """Leave the chain if it should stop; called about as often as Python has its turn."""
        if self.stop.is_set():
            raise Stopped


Chain = Callable[[int, Array, Trace], None]


def run_chains(
    chain: Chain, num_chains: int, key: Array, stores: Sequence[Store] | None = None
) -> tuple[list[Trace], Diverged | KeyboardInterrupt | None]:
    """Run the chains side by side, one thread each, as many at a time as there are cores.

    Returns:
        What the chains kept, and what stopped them early: a divergence, or the user.
    """
    stop = threading.Event()
    traces = [Trace(stop, store) for store in stores or [Memory() for _ in range(num_chains)]]

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
        except KeyboardInterrupt as interrupt:
            stop.set()
            failure = interrupt
        except BaseException:
            stop.set()
            raise
    return traces, failure


def join(parts: Sequence[Arrays]) -> Arrays:
    """Return pieces of draws as one."""
    names = parts[0] if parts else ()
    return {name: np.concatenate([part[name] for part in parts]) for name in names}
