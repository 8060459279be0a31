"""Windows of equal length over one or several series, and the weights of their rows.

A window has rows that count and, on both sides, buffer rows that only carry information in. Near
an end of a series a window is moved inside, not cut; a series shorter than a window is padded with
missing rows. Legend: T_i rows of series i (after its lags), S rows that count, B buffer rows on each
side, W windows. `MATH.md` §2.1, §2.3.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from sojourn._validation import check_size
from sojourn.batch import Batch
from sojourn.series.series import Series

Scheme = Literal["uniform", "partition"]
Indices = Array | np.ndarray


@dataclass(frozen=True)
class Windows:
    """How a gradient sees the series.

    Args:
        length: Rows S that count in a window; None for the whole series.
        buffer: Rows B on each side that only carry information in; 0 is the naive estimator.
        batch: Windows drawn at each step.
        scheme: "uniform" draws among all starts, with weights 1 / Pr(t in S) row by row; "partition"
            draws among the blocks 1…S, S+1…2S, and so on.
    """

    length: int | None
    buffer: int = 0
    batch: int = 1
    scheme: Scheme = "uniform"

    def __post_init__(self) -> None:
        if self.length is not None:
            check_size("length", self.length)
        check_size("buffer", self.buffer, least=0)
        check_size("batch", self.batch)
        if self.scheme not in ("uniform", "partition"):
            raise ValueError(f"scheme must be 'uniform' or 'partition'; got {self.scheme!r}")

    @classmethod
    def full(cls) -> "Windows":
        """The whole series at every step: LD and RLD."""
        return cls(length=None)

    @property
    def is_full(self) -> bool:
        return self.length is None

    def check(self, series: Series, num_lags: int) -> None:
        """Raise if no series is as long as the rows that count."""
        longest = max(series.lengths) - num_lags
        if self.length is not None and self.length > longest:
            lags = f" after its {num_lags} lags" * (num_lags > 0)
            raise ValueError(
                f"length={self.length} is longer than the longest series ({longest} rows{lags}); "
                "use Windows.full() for the whole series"
            )


class Layout(NamedTuple):
    """Where each series lies among the rows, and how many windows there are up to its last."""

    offset: Array
    length: Array
    last_window: Array


class Chances(NamedTuple):
    """How likely each block of a partition is drawn, where some tell more than others.

    Rows of a block weigh one over how often it is expected in a batch, so that estimates stay unbiased.

    Attributes:
        each: Probability of each block, series by series.
        up_to: Sum of those of a block and all before.
    """

    each: Array
    up_to: Array

    @classmethod
    def of(cls, each: np.ndarray) -> "Chances":
        return cls(jnp.asarray(each), jnp.asarray(np.cumsum(each)))


class Drawn(NamedTuple):
    """Windows of a pass; arrays over windows.

    Attributes:
        sequence: Which series the window lies in.
        origin: Row, among all rows, of the first context row of the window.
        shift: Index in its series of the window's first row.
        start: Index in its series of the first row that counts.
        stop: Index behind the last row that counts.
        length: Rows of the series.
        scale: Number of windows or blocks there are, over the number drawn, or one over how often the
            block is expected among them: numerator of the weights.
    """

    sequence: Indices
    origin: Indices
    shift: Indices
    start: Indices
    stop: Indices
    length: Indices
    scale: Indices


def layout(series: Series, num_lags: int, windows: Windows) -> Layout:
    """Count the windows of each series: T_i − S_i + 1, or ⌈T_i / S_i⌉ blocks."""
    rows = np.asarray(series.lengths, dtype=np.int64)
    offset = np.concatenate([[0], np.cumsum(rows)[:-1]])
    length = rows - num_lags
    S = np.minimum(length if windows.length is None else windows.length, length)
    count = length - S + 1 if windows.scheme == "uniform" else -(-length // S)
    return Layout(jnp.asarray(offset), jnp.asarray(length), jnp.asarray(np.cumsum(count)))


def draw(
    key: Array, where: Layout, windows: Windows, rows: int, chances: Chances | None = None
) -> Drawn:
    """Draw windows, each equally likely among all windows of all series unless told otherwise.

    The rows that count depend on `key` alone, not on the buffer.

    Args:
        key: Random key.
        where: Layout of the series for these windows.
        windows: Length, buffer, batch and scheme.
        rows: Rows L of a window, buffers included.
        chances: How likely each block of a partition is drawn.
    """
    if chances is None:
        return place(pick(key, where, windows), where, windows, rows)
    assert windows.scheme == "partition"  # chances are those of blocks
    at = jax.random.uniform(key, (windows.batch,)) * chances.up_to[-1]
    # A number may be rounded up to the sum of all.
    picked = jnp.searchsorted(chances.up_to, at, side="right").clip(max=len(chances.each) - 1)
    drawn = place(picked, where, windows, rows)
    return drawn._replace(scale=1 / (windows.batch * chances.each[picked]))


def pick(key: Array, where: Layout, windows: Windows) -> Array:
    """Draw the numbers of `batch` windows among all windows, series by series."""
    dtype = where.last_window.dtype
    return jax.random.randint(key, (windows.batch,), 0, where.last_window[-1], dtype=dtype)


def place(picked: Array, where: Layout, windows: Windows, rows: int) -> Drawn:
    """Return the windows with these numbers, buffers on both sides, moved inside their series."""
    assert windows.length is not None
    total = where.last_window[-1]
    if where.length.shape[0] == 1:
        sequence = jnp.zeros_like(picked)
    else:
        sequence = jnp.searchsorted(where.last_window, picked, side="right")
    length = where.length[sequence]
    S = jnp.minimum(windows.length, length)
    before = jnp.where(sequence > 0, where.last_window[sequence - 1], 0)
    nth = picked - before
    start = nth if windows.scheme == "uniform" else nth * S
    stop = jnp.minimum(start + S, length)
    shift = _move_inside(start - windows.buffer, length, rows)
    return Drawn(
        sequence=sequence,
        origin=where.offset[sequence] + shift,
        shift=shift,
        start=start,
        stop=stop,
        length=length,
        scale=jnp.broadcast_to(total / windows.batch, picked.shape),
    )


def block_numbers(drawn: Drawn, where: Layout, windows: Windows) -> Indices:
    """Return the numbers that blocks of a partition have in the order of `tile`."""
    assert windows.scheme == "partition" and windows.length is not None
    before = jnp.where(drawn.sequence > 0, where.last_window[drawn.sequence - 1], 0)
    return before + drawn.start // jnp.minimum(windows.length, drawn.length)


def tile(lengths: tuple[int, ...], num_lags: int, core: int, buffer: int) -> tuple[Drawn, int]:
    """Cover every row of series of these lengths once: windows of `core` rows that count.

    Returns:
        The windows, series by series in order of time, and the rows L of each.
    """
    length = np.asarray(lengths, dtype=np.int64) - num_lags
    rows = int(min(core + 2 * buffer, length.max()))
    offset = np.concatenate([[0], np.cumsum(np.asarray(lengths, dtype=np.int64))[:-1]])
    starts = [np.arange(0, n, core, dtype=np.int64) for n in length]
    sequence = np.repeat(np.arange(len(length)), [len(s) for s in starts])
    start = np.concatenate(starts)
    n = length[sequence]
    shift = np.clip(start - buffer, 0, np.maximum(n - rows, 0))
    drawn = Drawn(
        sequence=sequence,
        origin=offset[sequence] + shift,
        shift=shift,
        start=start,
        stop=np.minimum(start + core, n),
        length=n,
        scale=np.ones(len(start)),
    )
    return drawn, rows


def window_rows(series: Series, num_lags: int, windows: Windows) -> int:
    """Rows of a window with its buffers: S + 2B, at most the longest series."""
    assert windows.length is not None
    return min(windows.length + 2 * windows.buffer, max(series.lengths) - num_lags)


def gather(
    values: Array,
    drawn: Drawn,
    rows: int,
    *,
    num_lags: int,
    windows: Windows | None,
    pad: bool,
) -> Batch:
    """Bring the rows of windows together, the windows last.

    Args:
        values: All rows, columns first, shape (D, N).
        drawn: The windows.
        rows: Rows L of a window.
        num_lags: Rows p of context before each window.
        windows: How they were drawn, for the weights; None for a tiling, where weights are one.
        pad: Whether some series are shorter than a window.
    """
    total = values.shape[1]
    steps = jnp.arange(rows + num_lags)[:, None]
    index = jnp.minimum(drawn.origin + steps, total - 1) if pad else drawn.origin + steps
    y = jnp.stack([column[index] for column in values], axis=1)
    return weigh(y, drawn, num_lags=num_lags, windows=windows, pad=pad)


def read(series: Series, origin: np.ndarray, rows: int) -> np.ndarray:
    """Read `rows` rows from each origin (..., W) on: the rows of `gather`, shape (..., rows, D, W)."""
    found = series.windows(origin.ravel(), rows)
    found = found.reshape(*origin.shape, rows, series.dim)
    return np.ascontiguousarray(np.moveaxis(found, -3, -1))


def weigh(y: Array, drawn: Drawn, *, num_lags: int, windows: Windows | None, pad: bool) -> Batch:
    """Return windows with the weights of their rows; arguments as in `gather`.

    Args:
        y: Rows of the windows, shape (L + p, D, W).
        drawn: The windows.
        num_lags: Rows p of context before each window.
        windows: How they were drawn; None for a tiling.
        pad: Whether some series are shorter than a window; rows behind these are then made missing.
    """
    # What is computed from rows must not depend, in its last bit, on where they came from.
    y = jax.lax.optimization_barrier(y)
    rows = y.shape[0] - num_lags
    steps = jnp.arange(rows + num_lags)[:, None]
    time = drawn.shift + jnp.arange(rows)[:, None]
    if pad:
        inside = drawn.shift + steps < drawn.length + num_lags
        y = jnp.where(inside[:, None], y, jnp.nan)
    counts = (time >= drawn.start) & (time < drawn.stop)
    if windows is None or windows.scheme == "partition":
        weight = jnp.where(counts, drawn.scale, 0.0)
    else:
        S = drawn.stop - drawn.start
        hits = jnp.minimum(
            jnp.minimum(time + 1, drawn.length - time), jnp.minimum(S, drawn.length - S + 1)
        )
        weight = jnp.where(counts, drawn.scale / jnp.maximum(hits, 1), 0.0)
    return Batch(y, weight, drawn.shift == 0)


def _move_inside(shift: Array, length: Array, rows: int) -> Array:
    return jnp.clip(shift, 0, jnp.maximum(length - rows, 0))
