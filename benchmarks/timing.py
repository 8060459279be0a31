"""One core, turns, least processor times.

On one core the processor time of a process is the time it would take on an idle machine; the least over
many turns is nearest to that, since other processes can only add to it, through the caches they share.
"""

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

# Rounds of turns at the least, and at the most.
_FEWEST, _MOST = 2, 100

# Seconds of a turn at the least: short functions are called repeatedly, with warm caches.
_TURN = 0.05


def pin() -> None:
    """Keep this process, its threads and its children on one core.

    To be called before NumPy and JAX are imported, which start as many threads as they see cores.
    """
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"


def keep_memory() -> None:
    """Let freed memory stay with the process, where the C library can be told so.

    Large arrays then come from pages already there. A virtual machine may take ten times as long as
    another to hand out new ones, which would hide what is compared.
    """
    if sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "mallopt"):
        library.mallopt(-4, 0)  # M_MMAP_MAX: no mapping of its own for a large array
        library.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD: nothing goes back


def least_seconds(
    functions: Mapping[str, Callable[[], Any]], budget: float = 20.0
) -> dict[str, float]:
    """Time functions by turns and return the least processor seconds of each.

    The first call of each, which compiles, is not counted.

    Args:
        functions: What is timed, by name.
        budget: Seconds to spend in all.
    """
    import jax  # not above, so that `pin` can come first

    def turn(function: Callable[[], Any], calls: int) -> float:
        start = time.process_time()
        for _ in range(calls):
            jax.block_until_ready(function())
        return (time.process_time() - start) / calls

    for function in functions.values():
        turn(function, 1)
    calls = {name: 1 + int(_TURN / turn(function, 1)) for name, function in functions.items()}
    seconds = dict.fromkeys(functions, float("inf"))
    end = time.monotonic() + budget
    for rounds in range(_MOST):
        if rounds >= _FEWEST and time.monotonic() > end:
            break
        for name, function in functions.items():
            seconds[name] = min(seconds[name], turn(function, calls[name]))
    return seconds


def core_seconds(
    program: str, cores: tuple[int, ...], rounds: int = 6, turns: int = 12
) -> dict[int, float] | None:
    """Return the least elapsed seconds of `run()`, which the program defines, by number of cores.

    In fresh interpreters, by turns, that leave the one core of this process; None where there are not
    so many.
    """
    if not hasattr(os, "sched_setaffinity") or (os.cpu_count() or 1) < max(cores):
        return None
    seconds = dict.fromkeys(cores, float("inf"))
    for _ in range(rounds):
        for count in cores:
            code = f"""
import os, time
os.sched_setaffinity(0, range({count}))
{program}
run()
least = float("inf")
for _ in range({turns}):
    start = time.perf_counter()
    run()
    least = min(least, time.perf_counter() - start)
print(least)
"""
            command = [sys.executable, "-c", code]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            seconds[count] = min(seconds[count], float(done.stdout))
    return seconds


def import_seconds(modules: tuple[str, ...], turns: int = 3) -> dict[str, float]:
    """Time `import module` in fresh interpreters, by turns; the least of each.

    One import more goes first, uncounted, to write byte code and fill the page cache.
    """
    seconds = dict.fromkeys(modules, float("inf"))
    for turn in range(turns + 1):
        for module in modules:
            code = f"import time; t = time.process_time(); import {module}; "
            code += "print(time.process_time() - t)"
            out = subprocess.run(
                [sys.executable, "-c", code], check=True, capture_output=True, text=True
            )
            if turn > 0:
                seconds[module] = min(seconds[module], float(out.stdout))
    return seconds
