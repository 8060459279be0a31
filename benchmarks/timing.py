"""One core, interleaved repetitions, least times."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax


def pin() -> None:
    """Keep this process, its threads and its children on one core.

    To be called before JAX starts its backend, which makes as many threads as it sees cores.
    """
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"


def least_seconds(functions: Mapping[str, Callable[[], Any]], repetitions: int) -> dict[str, float]:
    """Time functions by turns and return the least of each.

    What else runs on the machine only adds time, and hits all functions alike when they take turns;
    the first call of each, which compiles, is not counted.
    """
    for function in functions.values():
        jax.block_until_ready(function())
    seconds = dict.fromkeys(functions, float("inf"))
    for _ in range(repetitions):
        for name, function in functions.items():
            start = time.perf_counter()
            jax.block_until_ready(function())
            seconds[name] = min(seconds[name], time.perf_counter() - start)
    return seconds


def import_seconds(modules: tuple[str, ...], repetitions: int) -> dict[str, float]:
    """Time `import module` in fresh interpreters, by turns; the least of each.

    One import more goes first, uncounted, to write byte code and fill the page cache.
    """
    seconds = dict.fromkeys(modules, float("inf"))
    for turn in range(repetitions + 1):
        for module in modules:
            code = f"import time; t = time.perf_counter(); import {module}; "
            code += "print(time.perf_counter() - t)"
            out = subprocess.run(
                [sys.executable, "-c", code], check=True, capture_output=True, text=True
            )
            if turn > 0:
                seconds[module] = min(seconds[module], float(out.stdout))
    return seconds
