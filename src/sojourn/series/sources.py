"""Where rows are read from when they are not in memory, and what is done to them on the way.

A `Source` gives rows by number, in double precision; nothing else of a format reaches the rest of the
library. Sources wrap sources: columns, marks of missing values, logarithms and units (`Mapped`), parts
and strides (`Pieces`), several after each other (`Joined`). All are lazy.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

Integers = Sequence[int] | np.ndarray

# Up to this many columns, one at a time is faster: broadcasting loops over the last axis.
_FEW = 16

# Bytes of a block of rows in a pass over a source.
_BLOCK_BYTES = 2**25

# Bytes of rows that windows are joined to in one request.
_REQUEST_BYTES = 2**27


class Source(ABC):
    """Rows that are read when asked for.

    Attributes:
        columns: Names of the columns.
        num_rows: Number of rows.
        chunk: Rows that the format reads at once; requests closer than this are joined.
    """

    columns: tuple[str, ...]
    num_rows: int
    chunk: int = 1

    @abstractmethod
    def rows(self, start: int, stop: int) -> np.ndarray:
        """Return rows `start` to `stop`, shape (stop − start, D), as doubles."""

    def windows(self, origin: np.ndarray, length: int) -> np.ndarray:
        """Return the `length` rows from each origin on, shape (W, length, D).

        Rows behind the last are NaN. Windows that lie closer than a chunk are read in one request, up to
        a limit of bytes.
        """
        found = np.empty((len(origin), length, len(self.columns)))
        order = np.argsort(origin, kind="stable")
        limit = max(self.chunk, _REQUEST_BYTES // (8 * len(self.columns)))
        for group in np.split(order, _cuts(origin[order], length, self.chunk, limit)):
            if len(group) == 0:
                continue
            first, last = int(origin[group[0]]), int(origin[group[-1]]) + length
            block = self.rows(first, min(last, self.num_rows))
            if last > self.num_rows:
                block = np.pad(block, ((0, last - self.num_rows), (0, 0)), constant_values=np.nan)
            for i in group:
                begin = int(origin[i]) - first
                found[i] = block[begin : begin + length]
        return found

    def blocks(self) -> Iterator[tuple[int, np.ndarray]]:
        """Pass over all rows in blocks of bounded size: the number of the first row, and the rows."""
        size = max(1, _BLOCK_BYTES // (8 * len(self.columns)))
        size = max(self.chunk, size // self.chunk * self.chunk)
        for start in range(0, self.num_rows, size):
            yield start, self.rows(start, min(start + size, self.num_rows))


class ArraySource(Source):
    """An array on disk or elsewhere: anything with `shape`, `dtype` and slices.

    Args:
        array: The array, (T,) or (T, D); (N, T, D) with an `index`. If it has a method `pick`, windows
            are read by it in one request.
        columns: Names of the columns.
        index: Which of the N series.
    """

    def __init__(self, array: Any, columns: tuple[str, ...], index: int | None = None) -> None:
        self.array, self.columns, self._index = array, columns, index
        axis = 0 if index is None else 1
        self.num_rows = int(array.shape[axis])
        chunks = getattr(array, "chunks", None)
        # Dask's chunks are tuples of sizes along each axis.
        self.chunk = int(np.max(chunks[axis])) if chunks else 1

    def rows(self, start: int, stop: int) -> np.ndarray:
        part = (
            self.array[start:stop] if self._index is None else self.array[self._index, start:stop]
        )
        found = np.asarray(part, dtype=np.float64)
        return found.reshape(stop - start, len(self.columns))

    def windows(self, origin: np.ndarray, length: int) -> np.ndarray:
        if hasattr(self.array, "pick") and self._index is None:
            return self._pick(origin, length)
        if not isinstance(self.array, np.ndarray) or length > self.num_rows:
            return super().windows(origin, length)
        view = np.lib.stride_tricks.sliding_window_view(self.array, length, axis=0)
        first = np.minimum(origin, self.num_rows - length)
        found = view[first].astype(np.float64).reshape(len(origin), -1, length).swapaxes(1, 2)
        for i in np.flatnonzero(first < origin):
            late = int(origin[i] - first[i])
            found[i, : length - late] = found[i, late:].copy()
            found[i, length - late :] = np.nan
        return found

    def _pick(self, origin: np.ndarray, length: int) -> np.ndarray:
        """Read all windows in one request, in the order of the file."""
        order = np.argsort(origin, kind="stable")
        index = np.minimum(origin[order, None] + np.arange(length), self.num_rows - 1)
        found = np.empty((*index.shape, len(self.columns)))
        found[order] = self.array.pick(index.ravel()).reshape(found.shape)
        for i in np.flatnonzero(origin + length > self.num_rows):
            found[i, max(0, self.num_rows - int(origin[i])) :] = np.nan
        return found


class ColumnSource(Source):
    """One array for each column.

    Args:
        arrays: One-dimensional arrays of one length, by the names of the columns.
    """

    def __init__(self, arrays: dict[str, Any]) -> None:
        self._parts = [ArraySource(array, (name,)) for name, array in arrays.items()]
        self.columns = tuple(arrays)
        self.num_rows = self._parts[0].num_rows
        self.chunk = max(part.chunk for part in self._parts)

    def rows(self, start: int, stop: int) -> np.ndarray:
        return np.concatenate([part.rows(start, stop) for part in self._parts], axis=1)


class Joined(Source):
    """Several sources of the same columns, one after the other; windows do not cross their ends."""

    def __init__(self, parts: Sequence[Source]) -> None:
        self._parts, self.columns = parts, parts[0].columns
        self._ends = np.cumsum([part.num_rows for part in parts])
        self.num_rows = int(self._ends[-1])
        self.chunk = max(part.chunk for part in parts)

    def rows(self, start: int, stop: int) -> np.ndarray:
        if stop <= start:
            return np.empty((0, len(self.columns)))
        found = []
        for i in overlapping(self._ends, start, stop):
            part = self._parts[i]
            before = int(self._ends[i]) - part.num_rows
            found.append(part.rows(max(start - before, 0), min(stop - before, part.num_rows)))
        return np.concatenate(found) if len(found) > 1 else found[0]

    def windows(self, origin: np.ndarray, length: int) -> np.ndarray:
        """As `Source.windows`, but rows behind the end of a window's own part are NaN."""
        which = np.searchsorted(self._ends, origin, side="right")
        found = np.empty((len(origin), length, len(self.columns)))
        for i in np.unique(which):
            part, own = self._parts[i], which == i
            found[own] = part.windows(origin[own] - (self._ends[i] - part.num_rows), length)
        return found


class Mapped(Source):
    """A source whose values are changed one by one, in the order of the arguments.

    Args:
        inner: The source.
        pick: Numbers of the columns that stay; None for all.
        sentinel: Value that stands for missing.
        log: Whether to take logarithms; numbers that have none become −∞, which is an error later.
        units: Location and scale of each column: (y − location) / scale.
    """

    def __init__(
        self,
        inner: Source,
        pick: tuple[int, ...] | None = None,
        *,
        sentinel: float | None = None,
        log: bool = False,
        units: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> None:
        self._inner, self._pick, self._sentinel, self._log = inner, pick, sentinel, log
        self._units = units
        every = inner.columns
        self.columns = every if pick is None else tuple(every[i] for i in pick)
        self.num_rows, self.chunk = inner.num_rows, inner.chunk

    def rows(self, start: int, stop: int) -> np.ndarray:
        return self._map(self._inner.rows(start, stop))

    def windows(self, origin: np.ndarray, length: int) -> np.ndarray:
        return self._map(self._inner.windows(origin, length))

    def _map(self, values: np.ndarray) -> np.ndarray:
        if self._pick is not None:
            values = values[..., list(self._pick)]
        if self._sentinel is not None:
            values = np.where(values == self._sentinel, np.nan, values)
        if self._log:
            with np.errstate(divide="ignore", invalid="ignore"):
                values = np.where(values < 0, -np.inf, np.log(values))
        if self._units is not None:
            values = scaled(values, *self._units)
        return values


class Pieces(Source):
    """Stretches of a source, one after the other, each of them taken every `step` rows.

    Args:
        inner: The source.
        starts: First row of each stretch.
        lengths: Rows kept of each.
        step: Rows of the source from one row to the next.
    """

    def __init__(self, inner: Source, starts: Integers, lengths: Integers, step: int = 1) -> None:
        self._inner, self._step = inner, step
        self._starts, self._lengths = np.asarray(starts), np.asarray(lengths)
        self._ends = np.cumsum(lengths)
        self.columns, self.num_rows = inner.columns, int(self._ends[-1])
        self.chunk = max(1, inner.chunk // step)

    def rows(self, start: int, stop: int) -> np.ndarray:
        if stop <= start:
            return np.empty((0, len(self.columns)))
        found = []
        for i in overlapping(self._ends, start, stop):
            before = int(self._ends[i] - self._lengths[i])
            first, last = max(start - before, 0), min(stop - before, int(self._lengths[i]))
            begin, step = int(self._starts[i]), self._step
            rows = self._inner.rows(begin + first * step, begin + (last - 1) * step + 1)
            found.append(rows[::step])
        return np.concatenate(found) if len(found) > 1 else found[0]

    def windows(self, origin: np.ndarray, length: int) -> np.ndarray:
        """As `Source.windows`, but rows behind the end of a window's own stretch are any numbers."""
        which = np.searchsorted(self._ends, origin, side="right")
        inside = origin - (self._ends[which] - self._lengths[which])
        first = self._starts[which] + inside * self._step
        return self._inner.windows(first, (length - 1) * self._step + 1)[:, :: self._step]


def _cuts(origin: np.ndarray, length: int, chunk: int, limit: int) -> list[int]:
    """Return where to cut windows, sorted by origin, into groups that are read in one request.

    Within a group, windows are less than a chunk apart; its rows are not more than the limit unless it
    is one window, or several of one origin.
    """
    apart = np.flatnonzero(np.diff(origin) >= length + chunk) + 1
    found, first = [], 0
    while first < len(origin):
        reach = int(np.searchsorted(origin, origin[first] + max(limit - length, 0), side="right"))
        following = apart[np.searchsorted(apart, first, side="right") :][:1]
        first = min([reach, *map(int, following)])
        found.append(first)
    return found[:-1]


def scaled(values: np.ndarray, location: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Return (y − location) / scale of values (..., D)."""
    if values.shape[-1] > _FEW:
        return (values - location) / scale
    found = np.empty(values.shape)
    for d in range(values.shape[-1]):
        np.subtract(values[..., d], location[d], out=found[..., d])
        found[..., d] /= scale[d]
    return found


def overlapping(ends: np.ndarray, start: int, stop: int) -> range:
    """Return which of the parts that end at `ends` hold some of the rows `start` to `stop`."""
    first, last = np.searchsorted(ends, [start, stop - 1], side="right")
    return range(first, last + 1)
