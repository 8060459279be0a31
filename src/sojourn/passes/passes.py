"""Full passes over a series: windows that tile it, run as a batch, checked at their seams.

Forgetting makes a full pass parallel: each window starts from the edge law a buffer before its first
row that counts, and by then its messages equal, to a tolerance, those of a pass from the start of
the series. Whether they do is measured: the message of a window at its last row is compared with
the one its neighbour computed there, and buffers grow until the largest difference is small. Where
forgetting is too slow, each series becomes one window and the pass is exact and sequential.

*Sampled paths.* Windows share the uniform number of each row, so two windows that agree on the state of
one row agree on all before it; a path drawn from beyond a seam is the neighbour's own path as soon
as both have met. Agreement is checked, state by state.

*Viterbi.* The score of a row is determined, up to a constant, by the score of an earlier row that all
survivors pass through. So once survivors have met within a buffer, normalised scores and pointers
are those of the whole series; and the traceback from a later row, once it has met the best path,
is the best path. Scores and states are compared at the seams.
"""

import itertools
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from sojourn._compile import compiled
from sojourn._cores import num_cores
from sojourn._precision import double
from sojourn._progress import count_rows
from sojourn.batch import Batch, Edges, Missing
from sojourn.models.base import Coords, Model
from sojourn.passes.tiles import (
    Tiles,
    counted_rows,
    effective_missing,
    gather_tiles,
    in_order,
    make_tiles,
    pads,
    read_tiles,
    seam,
)
from sojourn.series import Drawn, Series, gather, tile

# Series up to this many rows are one window each.
_SHORT = 128

# Largest difference of the scores of paths at a seam: sums of thousands of terms, compared to their own
# rounding, not to one's.
PATH_TOLERANCE = 1e-9


class Kernel(NamedTuple):
    """What a pass does to a group of windows, within one program with all that a group needs.

    Attributes:
        function: Called with `static`, `arrays`, a group of windows, where they lie, how many rows of
            each count, and the kind of missing values; returns results and messages at the seams.
        static: Its first arguments, which the program is compiled for.
        arrays: Its next arguments.
    """

    function: Callable[..., tuple[Any, Edges]]
    static: tuple[Any, ...]
    arrays: tuple[Any, ...]


# The same over windows that are at hand, in programs of its own.
HostKernel = Callable[[Batch, Drawn, int, Missing], tuple[Any, Edges]]


@double
def run(
    model: Model,
    series: Series,
    kernel: Kernel,
    *,
    buffer: int,
    values: Array | None = None,
    tolerance: float | None = None,
    by_row: bool = False,
) -> tuple[Any, Tiles, float]:
    """Apply `kernel` to tiles of the series with buffers that make neighbours agree.

    Args:
        model: The model.
        series: The series.
        kernel: What is done to a group of windows.
        buffer: First buffer to try, for example `first_buffer`'s.
        values: All rows in the model's units; read if not given, group by group if they are many.
        tolerance: Largest difference of messages at a seam; the model's own if not given.
        by_row: Whether the kernel's results are rows that count, windows first, to be joined in order.

    Returns:
        The kernel's results by group or, by row, one array of all rows; the tiles; the largest
        difference at a seam.
    """
    if values is None and not series.streams:
        values = series.resident()
    tolerance = model.seam_tolerance if tolerance is None else tolerance
    if max(series.lengths) - model.num_lags <= _SHORT:
        buffer = _SHORT
    while True:
        tiles = make_tiles(model, series, buffer)
        results, gap = _run_groups(model, series, tiles, values, kernel, tolerance, by_row)
        if results is not None:
            return (in_order(tiles, results) if by_row else results), tiles, gap
        buffer = _longer(buffer, gap, tolerance)


def first_buffer(model: Model, coords: Coords, series: Series) -> int:
    """Return the buffer to try first at `coords`."""
    # What crosses a gap comes from behind it; where seams are not compared, buffers reach there at once.
    gap = 0 if model.is_exact else _longest_gap(series)
    return model.first_buffer(coords) + gap


def _longest_gap(series: Series) -> int:
    """Return the most rows in a row that are missing, of rows in memory."""
    if series.missing == "none" or series.streams:
        return 0
    seen = np.flatnonzero(~np.isnan(series.rows(0, series.num_rows)).all(1))
    return int(np.diff(seen, prepend=-1, append=series.num_rows).max()) - 1


def _longer(buffer: int, gap: float, tolerance: float) -> int:
    """Return the power of two at which a gap that falls geometrically would be under the tolerance."""
    factor = np.log(tolerance) / np.log(gap) if 0 < gap < 0.5 else np.inf
    return buffer * 2 ** int(np.ceil(np.log2(np.clip(1.1 * factor, 2, 32))))


def _run_groups(
    model: Model,
    series: Series,
    tiles: Tiles,
    values: Array | None,
    kernel: Kernel,
    tolerance: float,
    by_row: bool,
) -> tuple[Any, float]:
    """Return results by group (by row: of all windows in one array), and the largest gap at a seam.

    Results are None where that is above the tolerance; the first group alone often tells.
    """
    count = tiles.count
    one, size = _group_runner(model, series, tiles, values, kernel)
    kept: Any = [None] * -(-count // size)

    def keep(first: int, result: Any) -> None:
        if by_row:  # at once, so that the memory of a group serves the next
            kept[first : first + size] = result[: count - first]
        else:
            kept[first // size] = result

    def run_and_keep(first: int) -> _Seams:
        result, seams = one(first)
        keep(first, result)
        return seams

    firsts = range(0, count, size)
    threads = min(num_cores(), len(firsts))
    with ThreadPoolExecutor(threads) as pool:
        # The first alone often tells; where it does not, the other cores have not waited.
        ahead = [pool.submit(one, first) for first in firsts[1:threads]]
        result, seams = one(0)
        if not seams.gap <= tolerance:
            return None, _known(seams.gap)
        if by_row:
            kept = np.empty((count, *result.shape[1:]), result.dtype)
        keep(0, result)
        later = pool.map(run_and_keep, firsts[threads:])
        every_seam = [seams]
        for first, future in zip(firsts[1:threads], ahead, strict=True):
            result, seams = future.result()
            keep(first, result)
            every_seam.append(seams)
        every_seam += later
    gap = _largest_gap(every_seam, tiles)
    return (kept if gap <= tolerance else None), gap


def _group_runner(
    model: Model, series: Series, tiles: Tiles, values: Array | None, kernel: Kernel | HostKernel
) -> tuple[Callable[[int], tuple[Any, "_Seams"]], int]:
    """Return a function that runs the group from a given window on, and how many windows a group has."""
    missing = effective_missing(model, series, tiles.rows)
    where = (tiles.group, tiles.rows, model.num_lags, pads(model, series, tiles.rows))
    every = tiles.drawn
    if values is not None and tiles.count > tiles.group:  # several calls read it
        every = jax.tree.map(jnp.asarray, every)

    @double
    def one(first: int) -> tuple[Any, _Seams]:
        if isinstance(kernel, Kernel) and values is not None:
            given = (kernel.arrays, values, every, first)
            found = _gather_and_apply(model, *kernel[:2], *given, where, tiles.core, missing)
        else:
            if values is None:
                batch, drawn = read_tiles(series, every, first, *where)
            else:
                batch, drawn = gather_tiles(values, every, first, *where)
            left = tiles.count - first
            if isinstance(kernel, Kernel):
                given = (kernel.arrays, batch, drawn, left)
                found = _apply(model, *kernel[:2], *given, tiles.core, missing)
            else:
                result, edges = kernel(batch, drawn, tiles.core, missing)
                found = result, _compare(edges, drawn.sequence, left)
        result, seams = jax.tree.map(np.asarray, found)
        return result, seams

    return one, tiles.group


@compiled(static_argnums=(0, 1, 2, 7, 8, 9))
def _gather_and_apply(
    model: Model,
    function: Callable[..., tuple[Any, Edges]],
    static: tuple[Any, ...],
    arrays: tuple[Any, ...],
    values: Array,
    every: Drawn,
    first: int,
    where: tuple[int, int, int, bool],
    core: int,
    missing: Missing,
) -> tuple[Any, "_Seams"]:
    batch, drawn = gather_tiles(values, every, first, *where)
    left = every.start.shape[0] - first
    return _apply(model, function, static, arrays, batch, drawn, left, core, missing)


@compiled(static_argnums=(0, 1, 2, 7, 8))
def _apply(
    model: Model,
    function: Callable[..., tuple[Any, Edges]],
    static: tuple[Any, ...],
    arrays: tuple[Any, ...],
    batch: Batch,
    drawn: Drawn,
    left: int,
    core: int,
    missing: Missing,
) -> tuple[Any, "_Seams"]:
    del model  # what the program's options are asked of
    result, edges = function(*static, *arrays, batch, drawn, core, missing)
    return result, _compare(edges, drawn.sequence, left)


class _Seams(NamedTuple):
    """What neighbours within a group differ by, and what the groups beside it are compared with.

    Attributes:
        gap: Largest difference within the group.
        forward: Forward messages of the first window where the one before ends, and of the last at its
            end, (2, …).
        backward: Backward quantities of the same.
    """

    gap: Any
    forward: Any
    backward: Any


@jax.jit
def _compare(edges: Edges, sequence: Array, left: int | Array) -> _Seams:
    """Compare neighbours within a group, of whose windows the first `left` are no copies."""
    before, at_end, own, ahead = edges
    size = sequence.shape[0]
    joined = (sequence[1:] == sequence[:-1]) & (jnp.arange(1, size) < left)

    def largest(after: Array, ahead_of: Array) -> Array:
        difference = jnp.where(joined, jnp.abs(after[:, :-1] - ahead_of[:, 1:]), 0.0)
        return difference.max(initial=0.0)

    gap = jnp.maximum(largest(at_end, before), largest(ahead, own))
    last = jnp.minimum(left, size) - 1
    forward = jnp.stack([before[:, 0], at_end[:, last]])
    return _Seams(gap, forward, jnp.stack([own[:, 0], ahead[:, last]]))


def _largest_gap(groups: list[_Seams], tiles: Tiles) -> float:
    """Return the largest difference between neighbours in the same series; infinity if one is none."""
    start = np.arange(1, len(groups)) * tiles.group
    joined = tiles.drawn.sequence[start] == tiles.drawn.sequence[start - 1]
    across = [
        np.abs(end[1] - begin[0]).max()
        for (left, right), same in zip(itertools.pairwise(groups), joined, strict=True)
        if same
        for end, begin in ((left.forward, right.forward), (left.backward, right.backward))
    ]
    return _known(np.max([group.gap for group in groups] + across))


def _known(gap: float) -> float:
    """Return a difference, infinity if it is not a number."""
    return float("inf") if np.isnan(gap) else float(gap)


class Sink(Protocol):
    """What takes rows in order of time as they are made."""

    def restart(self) -> None:
        """Forget all rows: a pass begins anew, with longer buffers."""

    def write(self, rows: dict[str, np.ndarray]) -> None:
        """Take the next rows, (N', …) by name."""


@double
def stream(
    model: Model,
    series: Series,
    kernel: HostKernel,
    sink: Sink,
    *,
    buffer: int,
    progress: bool = False,
) -> float:
    """Apply `kernel` to tiles as `run` does, handing rows to `sink` as they are made.

    No more than a few groups of windows are held. The kernel's results are rows that count by name,
    windows first. Returns the largest difference at a seam.
    """
    values = None if series.streams else series.resident()
    while True:
        tiles = make_tiles(model, series, buffer)
        sink.restart()
        with count_rows(model.num_rows(series), enabled=progress) as bar:
            gap = _stream_groups(model, series, tiles, values, kernel, sink, bar.update)
        if gap <= model.seam_tolerance:
            return gap
        buffer = _longer(buffer, gap, model.seam_tolerance)


def _stream_groups(
    model: Model,
    series: Series,
    tiles: Tiles,
    values: Array | None,
    kernel: HostKernel,
    sink: Sink,
    count: Callable[[int], object],
) -> float:
    """Hand rows to the sink, and their number to `count`; return the largest gap at a seam."""
    one, size = _group_runner(model, series, tiles, values, kernel)
    every_seam: list[_Seams] = []
    counted = tiles.drawn.stop - tiles.drawn.start

    def take(first: int, found: tuple[dict[str, np.ndarray], _Seams]) -> None:
        rows, seams = found
        every_seam.append(seams)
        kept = np.arange(tiles.core) < counted[first : first + size, None]
        sink.write({name: value[: len(kept)][kept] for name, value in rows.items()})
        count(int(kept.sum()))

    first_group = one(0)
    if not first_group[1].gap <= model.seam_tolerance:
        return _known(first_group[1].gap)
    take(0, first_group)
    threads = num_cores()
    with ThreadPoolExecutor(threads) as pool:
        ahead: deque[tuple[int, Future[Any]]] = deque()
        for first in range(size, tiles.count, size):
            ahead.append((first, pool.submit(one, first)))
            if len(ahead) > threads:
                done, future = ahead.popleft()
                take(done, future.result())
        for done, future in ahead:
            take(done, future.result())
    return _largest_gap(every_seam, tiles)


def _apply_method(
    model: Model,
    method: str,
    by_row: bool,
    coords: Coords,
    batch: Batch,
    drawn: Drawn,
    core: int,
    missing: Missing,
) -> tuple[Any, Edges]:
    """Apply a method of the model to a group of windows; by row, keep of (L, …, W) those that count."""
    result, edges = getattr(model, method)(coords, batch, seam(drawn), missing)
    return (counted_rows(result, drawn, core) if by_row else result), edges


@compiled(static_argnums=(0, 1, 5, 6))
def apply_to_rows(
    model: Model,
    method: str,
    coords: Coords,
    batch: Batch,
    drawn: Drawn,
    core: int,
    missing: Missing,
) -> tuple[Any, Edges]:
    """Apply a method of the model to a group of windows, and keep the rows that count."""
    return _apply_method(model, method, True, coords, batch, drawn, core, missing)


@double
def _run_method(
    model: Model,
    method: str,
    coords: Coords,
    series: Series,
    *,
    by_row: bool = False,
    tolerance: float | None = None,
) -> tuple[Any, Tiles, float]:
    """Run a method of the model over all rows."""
    kernel = Kernel(_apply_method, (model, method, by_row), (coords,))
    buffer = first_buffer(model, coords, series)
    return run(model, series, kernel, buffer=buffer, tolerance=tolerance, by_row=by_row)


def total_score(model: Model, coords: Coords, series: Series) -> tuple[float, float]:
    """Return the log-likelihood in the model's units, and the largest difference at a seam."""
    results, _, gap = _run_method(model, "window_scores", coords, series)
    return float(sum(r.sum() for r in results)), gap


@double
def estimated_score(
    model: Model,
    coords: Coords,
    series: Series,
    key: Array,
    num_particles: int,
    horizon: int | None = None,
) -> float:
    """Return an estimate of the log-likelihood, each series one window; or of predictions.

    Series of like lengths, within a factor of two, run together. All rows are kept in memory: particles
    pass over each series from its first row to its last.
    """
    values = series.resident()
    every, _ = tile(series.lengths, model.num_lags, max(series.lengths), 0)
    kind = model.missing_kind(series.missing)
    size = np.ceil(np.log2(np.asarray(every.length))).astype(int)
    total = 0.0
    for exponent in np.unique(size):
        which = np.flatnonzero(size == exponent)
        drawn = jax.tree.map(lambda field, w=which: jnp.asarray(field[w]), every)
        rows = int(every.length[which].max())
        if horizon is not None and rows <= horizon:
            continue
        pad = bool(every.length[which].min() < rows)
        batch = gather(values, drawn, rows, num_lags=model.num_lags, windows=None, pad=pad)
        missing: Missing = "rows" if pad and kind == "none" else kind
        scores = _estimate(
            model, jax.random.fold_in(key, exponent), coords, batch, missing, num_particles, horizon
        )
        total += float(scores.sum())
    return total


@compiled(static_argnums=(0, 4, 5, 6))
def _estimate(
    model: Model,
    key: Array,
    coords: Coords,
    batch: Batch,
    missing: Missing,
    num_particles: int,
    horizon: int | None,
) -> Array:
    return model.estimate_scores(key, coords, batch, missing, num_particles, horizon)


def total_prediction(
    model: Model, coords: Coords, series: Series, horizon: int
) -> tuple[float, float]:
    """Return Σ_t log p(y_t | rows up to t − horizon), and the largest difference at a seam."""

    kernel = Kernel(_predict, (model, horizon), (coords,))
    buffer = first_buffer(model, coords, series) + horizon
    results, _, gap = run(model, series, kernel, buffer=buffer)
    return float(sum(r.sum() for r in results)), gap


def _predict(
    model: Model,
    horizon: int,
    coords: Coords,
    batch: Batch,
    drawn: Drawn,
    core: int,
    missing: Missing,
) -> tuple[Array, Edges]:
    del core
    return model.window_predictions(coords, batch, seam(drawn), missing, horizon)


def state_marginals(model: Model, coords: Coords, series: Series) -> tuple[np.ndarray, float]:
    """Return the marginals of the states, (N', K), and the largest difference at a seam."""
    rows, _, gap = _run_method(model, "window_marginals", coords, series, by_row=True)
    return rows, gap


def best_states(model: Model, coords: Coords, series: Series) -> tuple[np.ndarray, float]:
    """Return the most probable path of each series, (N',), and the largest difference at a seam."""
    how = {"by_row": True, "tolerance": PATH_TOLERANCE}
    rows, _, gap = _run_method(model, "window_paths", coords, series, **how)
    return rows, gap


@double
def full_statistics(model: Model, coords: Coords, series: Series) -> tuple[dict[str, Any], Tiles]:
    """Return the expected statistics of all rows, and the tiles they were computed on."""
    results, tiles, _ = _run_method(model, "window_statistics", coords, series)
    return jax.tree.map(lambda *parts: jnp.asarray(np.sum(parts, axis=0)), *results), tiles
