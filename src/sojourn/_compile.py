"""Programs compiled with the options their model asks for, and forgotten before they are too many."""

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
from jax.core import Tracer

# Chains and groups of windows use the cores side by side, a thread each. A program that, within such a
# thread, waited for threads of the runtime's own pool would gain nothing and, with few cores, could wait
# for ever.
_ONE_THREAD = (("xla_cpu_multi_thread_eigen", False),)

# For programs that run a few times: they compile in half the time, and run in up to twice.
_QUICK = (("xla_cpu_use_fusion_emitters", False), ("xla_backend_optimization_level", 1))

# Compiled programs hold memory maps, thousands for a fit, and a process may have only so many: the
# share of them above which programs are forgotten, and seconds between two looks.
_SHARE_OF_MAPS = 0.5
_LOOK_EVERY = 5.0
_PROC = Path("/proc")

_looked_at = time.monotonic()


def compiled(
    *, quick: bool = False, **settings: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compile a function whose first argument, a model or what has one, is static.

    Models name options of the compiler where its own choice costs them time. JAX takes options for whole
    programs alone: a function called within another program is compiled as that one is.

    Args:
        quick: Whether compiling takes longer than running, so that less is optimised.
        **settings: As of `jax.jit`.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.cache
        def program(options: tuple[tuple[str, Any], ...]) -> Callable[..., Any]:
            return jax.jit(function, compiler_options=dict(options), **settings)

        @functools.wraps(function)
        def call(first: Any, *args: Any, **kwargs: Any) -> Any:
            within = any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((args, kwargs)))
            options = dict(_ONE_THREAD + (_QUICK if quick else ()))
            options |= dict(getattr(first, "model", first).compiler_options)
            return program(() if within else tuple(options.items()))(first, *args, **kwargs)

        return call

    return decorate


def forget_programs() -> None:
    """Forget all compiled programs where they hold half the memory maps that the process may have.

    What is called again is compiled again. Without that, a process that fits one model after the other
    would end without a word, at the first program that gets no memory.
    """
    global _looked_at
    now = time.monotonic()
    if now - _looked_at < _LOOK_EVERY:
        return
    _looked_at = now
    try:
        most = int((_PROC / "sys/vm/max_map_count").read_text())
        with (_PROC / "self/maps").open("rb") as maps:
            count = sum(1 for _ in maps)
    except (OSError, ValueError):  # systems that do not tell have no such limit, or another
        return
    if count > _SHARE_OF_MAPS * most:
        jax.clear_caches()
