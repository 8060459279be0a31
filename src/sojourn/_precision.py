"""Double precision without touching the user's global JAX configuration."""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
import numpy as np
from jax.core import Tracer

_P = ParamSpec("_P")
_R = TypeVar("_R")


def double(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Run `function` with 64-bit JAX types, whatever the setting around it.

    The setting is local to the thread and to the call, so that importing or calling Sojourn
    leaves other JAX code in the same process as it was.
    """

    @functools.wraps(function)
    def wrapper(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        with jax.enable_x64(True):
            return function(*args, **kwargs)

    return wrapper


def to_host(tree: Any) -> Any:
    """Turn the arrays of a result into NumPy's, writable and of 64 bits outside; traced values stay."""
    return jax.tree.map(lambda x: x if isinstance(x, Tracer) else np.array(x), tree)
