"""Progress with numbers that help: a bar on a terminal or in a notebook, plain lines in a log."""

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from tqdm.auto import tqdm

Item = TypeVar("Item")

# Seconds between lines in a log.
_LINE_SECONDS = 10.0


class Progress:
    """A bar, or lines, shared by the threads of a run; silent when not enabled."""

    def __init__(self, *, enabled: bool) -> None:
        # Notebooks have no terminal, yet draw bars.
        draws = sys.stderr.isatty() or "ipykernel" in sys.modules
        self._says = enabled
        self._lines = enabled and not draws
        self._bar = tqdm(
            total=None, unit="step", disable=not enabled or self._lines, dynamic_ncols=True
        )
        self._lock = threading.Lock()
        self._done, self._total = 0, 0
        self._before: int | None = None
        self._began = self._said = time.monotonic()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.close()

    def describe(self, text: str) -> None:
        """Say what is going on."""
        self._bar.set_description_str(text)  # `set_description` adds a second colon
        self._line(text)

    def announce(self, choices: dict[str, Any]) -> None:
        """Print what was chosen, above the bar."""
        self.say(", ".join(f"{name}={_short(value)}" for name, value in choices.items()))

    def say(self, text: str) -> None:
        """Print a line, above the bar."""
        if self._says and text:
            self._bar.write(text, file=sys.stderr)

    def start(self, total: int, done: int = 0) -> None:
        """Begin to count steps, some of which a run may have behind it."""
        self.describe("sampling")
        self._bar.reset(total)
        self._bar.initial = self._bar.n = done
        self._before = None
        self._done, self._total = done, total
        self._began = self._said = time.monotonic()

    def advance(self, steps: int, log_posterior: float | None = None) -> None:
        """Count steps of one chain."""
        with self._lock:
            if log_posterior is not None:
                self._bar.set_postfix({"log posterior": f"{log_posterior:.6g}"}, refresh=False)
            self._bar.update(steps)
            self._done += steps
            now = time.monotonic()
            # The first steps had to be compiled: time is taken from here on.
            if self._before is None:
                self._began, self._before = now, self._done
            if now - self._said > _LINE_SECONDS or self._done == self._total:
                self._said = now
                share = self._done / max(self._total, 1)
                taken = self._done - self._before
                left = (now - self._began) * (self._total - self._done) / max(taken, 1)
                said = f"{self._done} of {self._total} steps ({share:.0%})"
                said += f", {left:.0f} s left" if taken else ""
                said += "" if log_posterior is None else f", log posterior {log_posterior:.6g}"
                self._line(said)

    def _line(self, text: str) -> None:
        if self._lines:
            print(text, file=sys.stderr, flush=True)


def track(items: Sequence[Item], unit: str, *, enabled: bool) -> Iterator[Item]:
    """Yield the items under a bar on standard error, if that is a terminal or a notebook."""
    return iter(tqdm(items, unit=unit, **_options(enabled=enabled)))


def count_rows(total: int, *, enabled: bool) -> tqdm:
    """Return a bar of rows, as in `track`."""
    return tqdm(total=total, unit="row", unit_scale=True, **_options(enabled=enabled))


def _options(*, enabled: bool) -> dict[str, Any]:
    return {"disable": None if enabled else True, "dynamic_ncols": True}


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
