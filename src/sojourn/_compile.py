"""Programs compiled with the options their model asks for."""

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax.core import Tracer

# Chains and groups of windows use the cores side by side, a thread each. A program that, within such a
# thread, waited for threads of the runtime's own pool would gain nothing and, with few cores, could wait
# for ever.
_ONE_THREAD = (("xla_cpu_multi_thread_eigen", False),)

# For programs that run a few times: they compile in half the time, and run in up to twice.
_QUICK = (("xla_cpu_use_fusion_emitters", False), ("xla_backend_optimization_level", 1))


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
