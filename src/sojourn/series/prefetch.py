"""Reading ahead: one thread reads what comes next while the caller works on what came before."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def prefetched(
    read: Callable[[int, int], T], first: int, stop: int, size: int
) -> Iterator[tuple[int, int, T]]:
    """Call `read(begin, end)` for consecutive blocks of at most `size`, one block ahead.

    Yields:
        The bounds of each block and what was read.
    """
    bounds = [(begin, min(begin + size, stop)) for begin in range(first, stop, size)]
    with ThreadPoolExecutor(1) as pool:
        coming = [pool.submit(read, *pair) for pair in bounds[:1]]
        for n, (begin, end) in enumerate(bounds):
            block = coming.pop().result()
            coming += [pool.submit(read, *pair) for pair in bounds[n + 1 : n + 2]]
            yield begin, end, block
