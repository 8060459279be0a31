"""Steps per second from a series on disk against one in memory, and the memory that takes.

Makes the series if it is not there: rows of an ARHMM, in single precision, repeated to the length asked
for. Both sides take turns, with as many chains at once as there are cores. Memory is what the process
holds beside pages of mapped files.

    python benchmarks/streaming.py --rows 1e9 --folder /where/there/is/room
"""

import argparse
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import sojourn as sj
from sojourn._cores import num_cores
from sojourn._precision import double
from sojourn.gradients import windowed
from sojourn.sampling.chains import _advance
from sojourn.series.series import Series
from sojourn.synthetic import alternating_rotations
from sojourn.tuning.modes import place

RESIDENT_ROWS = 1_000_000
BLOCK = 2**20  # rows of a shard of Zarr
CHUNK = 2**12  # rows of a chunk of Zarr, all of which are read for a window
WINDOWS = sj.Windows(length=200, buffer=16, batch=16)

# Speed, as a share of that in memory, and bytes that are asked for.
TARGETS = {"npy": 0.5, "zarr": 0.25}
TARGET_MEMORY = 1.5e9


def main() -> None:
    """Print one line for each format."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=float, default=1e8)
    parser.add_argument("--folder", type=Path, default=Path("results/streaming"))
    parser.add_argument("--formats", nargs="+", default=["npy", "zarr"], choices=list(TARGETS))
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--fit", action="store_true", help="a whole sj.sample as well")
    chosen = parser.parse_args()
    model, params = alternating_rotations()
    block = model.simulate(params, BLOCK, seed=1)[1].astype("f4")
    memory = Memory()
    resident = _steps(model, params, sj.as_series(block[:RESIDENT_ROWS]), chosen.steps)
    for kind in chosen.formats:
        path = _make(chosen.folder, kind, block, int(chosen.rows))
        began = time.perf_counter()
        series = sj.open_series(path)
        opened = time.perf_counter() - began
        streamed = _steps(model, params, series, chosen.steps, streams=True)
        ours, theirs = _rates(streamed, resident, chosen.steps)
        share, peak = ours / theirs, memory.peak
        met = share >= TARGETS[kind] and peak <= TARGET_MEMORY
        print(
            f"{kind}, {chosen.rows:.0e} rows: {ours:,.0f} steps/s, {RESIDENT_ROWS:.0e} in memory "
            f"{theirs:,.0f}: {share:.2f} (target {TARGETS[kind]}), peak memory {peak / 1e9:.2f} GB "
            f"(target 1.5), opened in {opened:.1f} s: {'met' if met else 'missed'}",
            flush=True,
        )
        if chosen.fit:
            began = time.perf_counter()
            sj.sample(model, series, num_samples=200, num_chains=2, progress=False)
            seconds = time.perf_counter() - began
            print(f"{kind}: sj.sample {seconds:.0f} s, peak memory {memory.peak / 1e9:.2f} GB")


class Memory:
    """The most memory that was seen in use, mapped files aside."""

    def __init__(self) -> None:
        self.peak = 0
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            text = Path("/proc/self/status").read_text()
            (line,) = (line for line in text.splitlines() if line.startswith("RssAnon"))
            self.peak = max(self.peak, 1024 * int(line.split()[1]))
            time.sleep(0.02)


def _make(folder: Path, kind: str, block: np.ndarray, rows: int) -> Path:
    """Write the series, block by block."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / (f"{rows}.npy" if kind == "npy" else f"{rows}-{CHUNK}.zarr")
    if path.exists():
        return path
    begun = path.with_name(f"begun-{path.name}")
    shutil.rmtree(begun, ignore_errors=True)
    shape = (rows, block.shape[1])
    needed = int(1.1 * rows * block[0].nbytes)
    if shutil.disk_usage(folder).free < needed:
        raise SystemExit(f"{folder} needs {needed / 1e9:.0f} GB; choose --folder or fewer --rows")
    if kind == "npy":
        store: Any = np.lib.format.open_memmap(begun, "w+", "f4", shape)
    else:
        import zarr

        store = zarr.create_array(
            begun,
            shape=shape,
            dtype="f4",
            chunks=(CHUNK, 2),
            shards=(BLOCK, 2),
            compressors=None,  # noise is not made smaller, and takes longer to read
        )
    for start in range(0, rows, BLOCK):
        stop = min(start + BLOCK, rows)
        store[start:stop] = block[: stop - start]
    return begun.rename(path)


def _steps(
    model: Any, params: Any, series: Series, steps: int, *, streams: bool = False
) -> Callable[[int], None]:
    """Return a function that takes steps of one chain."""
    with jax.enable_x64(True):
        start = model.scaled_to(series)
        coords = start.to_coords(params)
        inner, own = start.enter(series)
        if streams and not own.streams:
            raise SystemExit("the series fits into memory: ask for more rows")
        first = sj.as_series(own.rows(0, 20_000))
        metric = place(inner, first, coords).metric
        estimator, source = windowed(inner, own, WINDOWS)
        sampler = sj.SGRLD(step_size=1e-6)
        state = sampler.start(jax.random.key(0), coords, metric)

    @double
    def take(chain: int) -> None:
        key = jax.random.key(chain)
        numbers = (jnp.asarray(x) for x in (0, 1e-6, 1, steps, 0.0))
        result = _advance(
            source,
            metric,
            key,
            state,
            *numbers,
            estimator=estimator,
            sampler=sampler,
            decay=None,
            capacity=1,
        )
        jax.block_until_ready(result)

    take(0)
    return take


def _rates(*sides: Callable[[int], None] | int) -> Iterator[float]:
    """Return the best rate of each side, in steps per second of all chains."""
    *takes, steps = sides
    best = [0.0] * len(takes)
    cores = num_cores()
    with ThreadPoolExecutor(cores) as pool:
        for _ in range(5):
            for i, take in enumerate(takes):
                began = time.perf_counter()
                list(pool.map(take, range(cores)))  # type: ignore[arg-type]
                best[i] = max(best[i], cores * steps / (time.perf_counter() - began))
    return iter(best)


if __name__ == "__main__":
    main()
