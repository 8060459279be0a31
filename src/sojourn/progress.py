"""A progress bar with numbers that help: step rate, log-posterior, time left."""

import threading
from typing import Any

from tqdm.auto import tqdm


class Progress:
    """A bar shared by the threads of a run; silent when not enabled."""

    def __init__(self, *, enabled: bool) -> None:
        self._bar = tqdm(total=None, unit="step", disable=not enabled, dynamic_ncols=True)
        self._lock = threading.Lock()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.close()

    def describe(self, text: str) -> None:
        """Say what is going on."""
        self._bar.set_description_str(text)  # `set_description` adds a second colon

    def announce(self, choices: dict[str, Any]) -> None:
        """Print what was chosen, above the bar."""
        if not self._bar.disable:
            said = ", ".join(f"{name}={_short(value)}" for name, value in choices.items())
            self._bar.write(said)

    def start(self, total: int) -> None:
        """Begin to count steps."""
        self.describe("sampling")
        self._bar.reset(total)

    def advance(self, steps: int, log_posterior: float | None = None) -> None:
        """Count steps of one chain."""
        with self._lock:
            if log_posterior is not None:
                self._bar.set_postfix({"log posterior": f"{log_posterior:.6g}"}, refresh=False)
            self._bar.update(steps)


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
