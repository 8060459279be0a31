"""Double precision without touching the user's global JAX configuration."""

import functools
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
import numpy as np
from jax.core import Tracer

from sojourn._compile import forget_programs

_P = ParamSpec("_P")
_R = TypeVar("_R")

_lock = threading.Lock()
_running = 0  # calls, in all threads


def double(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Run `function` with 64-bit JAX types, whatever the setting around it.

    The setting is local to the thread and to the call, so that importing or calling Sojourn
    leaves other JAX code in the same process as it was.
    """

    @functools.wraps(function)
    def wrapper(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        _enter()
        try:
            with jax.enable_x64(True):
                return function(*args, **kwargs)
        finally:
            _leave()

    return wrapper


def _enter() -> None:
    """Count a call; before the only one, there are no programs in use."""
    global _running
    with _lock:
        if _running == 0:
            forget_programs()
        _running += 1


def _leave() -> None:
    global _running
    with _lock:
        _running -= 1


def to_host(tree: Any) -> Any:
    """Turn the arrays of a result into NumPy's, writable and of 64 bits outside; traced values stay."""
    return jax.tree.map(lambda x: x if isinstance(x, Tracer) else np.array(x), tree)
