"""One or several series of rows, in memory or read when needed."""

import functools
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from sojourn._validation import shown
from sojourn.batch import Missing
from sojourn.series.sources import ArraySource, Mapped, Pieces, Source, scaled

# Rows looked at to find the location and scale of the columns.
_SCALE_ROWS = 100_000

# Bytes, in double precision, up to which a fingerprint is made from all rows; from a sample of rows of
# longer data.
_FINGERPRINT_BYTES = 2**27
_FINGERPRINT_ROWS = 4096

# Bytes, in double precision, up to which rows that are read from elsewhere are kept in memory for work.
RESIDENT_BYTES = 2**28


@dataclass(frozen=True, eq=False)
class Series:
    """Independent series of the same columns, stored one after the other.

    The constructor checks what costs no pass over the values; `as_series` and `open_series` check these
    too.

    Attributes:
        values: Rows of all series, shape (N, D), missing entries NaN; or the source that they are read
            from.
        lengths: Number of rows of each series.
        columns: Names of the columns.
        missing: "none", "rows" if rows are either complete or wholly missing, "entries" otherwise.
        units: Location and scale that were taken out of each column, for `restore`.
        opened: What `open_series` was asked for, None if the data were in memory.
        treatment: What `open_series` did to values, in memory or not: `missing`, `log`, `every`.
        names: Names of the series, where a column of the data tells them apart.
    """

    values: np.ndarray | Source
    lengths: tuple[int, ...]
    columns: tuple[str, ...]
    missing: Missing
    units: tuple[np.ndarray, np.ndarray] | None = None
    opened: Mapping[str, Any] | None = field(default=None, repr=False)
    treatment: Mapping[str, Any] = field(default_factory=dict, repr=False)
    names: tuple[str, ...] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        values = self.values
        if not isinstance(values, Source) and (
            not isinstance(values, np.ndarray) or values.ndim != 2 or values.dtype != np.float64
        ):
            raise TypeError(
                "values must be a float64 array of shape (N, D); as_series(data) makes a Series "
                "of anything else"
            )
        check_tuple("lengths", self.lengths, int)
        check_tuple("columns", self.columns, str)
        if min(self.lengths, default=0) < 1 or sum(self.lengths) != self.num_rows:
            raise ValueError(
                f"lengths must be positive and sum to the {self.num_rows} rows of values; got "
                f"{shown(self.lengths)}"
            )
        if len(self.columns) != self.dim:
            raise ValueError(
                f"columns must name the {self.dim} columns of values; got {shown(self.columns)}"
            )
        check_unique(self.columns)
        if self.names is not None:
            check_tuple("names", self.names, str)
            if len(self.names) != len(self.lengths):
                raise ValueError(
                    f"names must name the {len(self.lengths)} series; got {shown(self.names)}"
                )
        if self.missing not in get_args(Missing):
            raise ValueError(
                f"missing must be 'none', 'rows' or 'entries'; got {shown(self.missing)}"
            )

    @property
    def num_rows(self) -> int:
        return self.values.num_rows if isinstance(self.values, Source) else len(self.values)

    @property
    def dim(self) -> int:
        values = self.values
        return len(values.columns) if isinstance(values, Source) else values.shape[1]

    @property
    def streams(self) -> bool:
        """Whether rows are read as they are needed, being too many to keep in memory."""
        size = 8 * self.num_rows * self.dim
        return isinstance(self.values, Source) and size > RESIDENT_BYTES

    @property
    def source(self) -> Source:
        """The rows as a source, in memory or not."""
        if isinstance(self.values, Source):
            return self.values
        return ArraySource(self.values, self.columns)

    @property
    def labels(self) -> np.ndarray:
        """What tables and datasets call the series: their names, or numbers."""
        if self.names is None:
            return np.arange(len(self.lengths))
        return np.asarray(self.names, dtype=object)

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Return rows `start` to `stop` among those of all series."""
        if isinstance(self.values, Source):
            return self.values.rows(start, stop)
        return self.values[start:stop]

    def to_numpy(self) -> np.ndarray:
        """Return all rows, reading those that are not in memory."""
        return self.rows(0, self.num_rows)

    def windows(self, origin: np.ndarray, length: int) -> np.ndarray:
        """Return the `length` rows from each origin on, (W, length, D); any numbers behind a series."""
        return self.source.windows(np.asarray(origin), length)

    def split(self) -> list[np.ndarray]:
        """Return the rows of each series, in memory."""
        return np.split(self.rows(0, self.num_rows), np.cumsum(self.lengths)[:-1])

    def resident(self) -> Array:
        """Return all rows in memory, columns first, shape (D, N); one copy for all who ask."""
        precision = str(jnp.result_type(float))
        if precision not in self._resident:
            rows = _aligned((self.dim, self.num_rows))
            rows[:] = self.rows(0, self.num_rows).T
            self._resident[precision] = jax.device_put(rows)
        return self._resident[precision]

    @functools.cached_property
    def _resident(self) -> dict[str, Array]:
        return {}

    def select(self, columns: Sequence[str]) -> "Series":
        """Return these columns, in this order."""
        check_known("column", columns, self.columns)
        if tuple(columns) == self.columns:
            return self
        pick = tuple(self.columns.index(name) for name in columns)
        values: Any = self.values
        if isinstance(values, Source):
            values = Mapped(values, pick)
        else:
            values = np.ascontiguousarray(values[:, list(pick)])
        units = self.units and (self.units[0][list(pick)], self.units[1][list(pick)])
        return replace(
            self,
            values=values,
            columns=tuple(columns),
            units=units,
            opened=_also(self.opened, {"select": list(columns)}),
        )

    def in_units(self, location: np.ndarray, scale: np.ndarray) -> "Series":
        """Return (y − location) / scale for work: in memory unless the rows are too many."""
        values: Any = self.values
        if self.streams:
            return replace(self, values=Mapped(values, units=(location, scale)))
        return replace(self, values=scaled(self.rows(0, self.num_rows), location, scale))

    def standardized(self, mean: np.ndarray, deviation: np.ndarray) -> "Series":
        """Return (y − mean) / deviation of each column, when it is read; `restore` undoes it."""
        units = (mean, deviation)
        step = {"standardized": [np.asarray(part).tolist() for part in units]}
        return replace(
            self,
            values=Mapped(self.source, units=units),
            units=(
                self.restore(mean),
                deviation if self.units is None else self.units[1] * deviation,
            ),
            opened=_also(self.opened, step),
        )

    def restore(self, values: np.ndarray) -> np.ndarray:
        """Return values (…, D) as they were before any standardisation."""
        return values if self.units is None else values * self.units[1] + self.units[0]

    def train_test(
        self, fraction: float, by: Literal["time", "series"] = "time"
    ) -> tuple["Series", "Series"]:
        """Return the first rows of each series and the others, or the first series and the others.

        Args:
            fraction: Share of rows, or of series, that go into the first part.
            by: "time" cuts each series, "series" the list of series.
        """
        if by not in ("time", "series"):
            raise ValueError(f"by must be 'time' or 'series'; got {shown(by)}")
        if not 0 < fraction < 1:
            raise ValueError(f"fraction must lie between 0 and 1; got {shown(fraction)}")
        first, second = self._part(fraction, by, 0), self._part(fraction, by, 1)
        return first, second

    def _part(self, fraction: float, by: str, which: int) -> "Series":
        lengths = np.asarray(self.lengths)
        starts = np.cumsum(lengths) - lengths
        names = self.names
        if by == "time":
            cut = np.round(fraction * lengths).astype(np.int64)
            if min(cut.min(), (lengths - cut).min()) < 2:
                raise ValueError(
                    f"fraction={fraction} leaves fewer than two rows of a series of "
                    f"{lengths.min()}; choose another, or by='series'"
                )
            starts, lengths = (starts, cut) if which == 0 else (starts + cut, lengths - cut)
        else:
            count = round(fraction * len(lengths))
            if not 0 < count < len(lengths):
                raise ValueError(
                    f"fraction={fraction} of {len(lengths)} series leaves none on one side; "
                    "choose another, or by='time'"
                )
            part = slice(count) if which == 0 else slice(count, None)
            starts, lengths = starts[part], lengths[part]
            names = names and names[part]
        pieces = Pieces(self.source, starts, lengths)
        values = pieces if isinstance(self.values, Source) else pieces.rows(0, pieces.num_rows)
        return replace(
            self,
            values=values,
            lengths=tuple(map(int, lengths)),
            names=names,
            opened=_also(self.opened, {"part": [fraction, by, which]}),
        )

    def describe(self) -> dict[str, Any] | None:
        """Return what `reopen` needs to open this series again, None if it was in memory."""
        return None if self.opened is None else {**self.opened}

    @functools.cached_property
    def fingerprint(self) -> str:
        """A short text that other data are unlikely to have.

        Made of names, lengths and rows (of large data, a sample) in double precision, so that data have
        the same one in memory, in a file, and in a file of another format.
        """
        digest = hashlib.sha256(repr((self.columns, self.lengths)).encode())
        if 8 * self.num_rows * self.dim <= _FINGERPRINT_BYTES:
            blocks = (rows for _, rows in self.source.blocks())
        else:
            picked = np.linspace(0, self.num_rows - 1, _FINGERPRINT_ROWS).astype(np.int64)
            blocks = iter([self.windows(picked, 1)])
        for rows in blocks:
            # One bit pattern for every NaN, one for both zeros.
            rows = np.where(np.isnan(rows), np.nan, rows + 0.0)
            digest.update(np.ascontiguousarray(rows, dtype="<f8").tobytes())
        return digest.hexdigest()[:16]

    def location_scale(self) -> tuple[np.ndarray, np.ndarray]:
        """Return a robust location and scale of each column, from a sample of rows.

        The median and the interquartile range over that of a standard normal; the standard
        deviation where that range is less than a twentieth of it, as when most values are equal. Mean
        and standard deviation of all rows where the sample has fewer than two values.
        """
        return self._location_scale

    @functools.cached_property
    def _location_scale(self) -> tuple[np.ndarray, np.ndarray]:
        rows = self._every(max(1, self.num_rows // _SCALE_ROWS))
        rare = np.isfinite(rows).sum(0) < 2
        if rare.any():
            rows = np.where(rare, 0.0, rows)  # moments of all rows take their place below
        low, location, high = np.nanquantile(rows, [0.25, 0.5, 0.75], axis=0)
        scale = (high - low) / 1.3489795  # 2 Φ⁻¹(3/4)
        # The deviation of equal values may be a rounding above zero.
        varies = np.nanmin(rows, axis=0) < np.nanmax(rows, axis=0)
        with np.errstate(over="ignore"):
            deviation = np.where(varies, np.nanstd(rows, axis=0), 0.0)
        if not np.isfinite(deviation).all():
            name = self.columns[int(np.argmin(np.isfinite(deviation)))]
            raise ValueError(f"squares of column {name!r} overflow; divide it by its scale")
        # A narrow centre under wide tails or rare far states must not make the scale absurdly small.
        scale = np.where(scale > 0.05 * deviation, scale, deviation)
        if np.all(scale > 0):
            return location, scale
        overview = scan(self)
        if np.any(overview.constant):
            name = self.columns[int(np.argmax(overview.constant))]
            raise ValueError(f"column {name!r} is constant; drop it or add what makes it vary")
        location = np.where(rare, overview.mean, location)
        return location, np.where(scale == 0, overview.deviation, scale)

    def _every(self, step: int) -> np.ndarray:
        """Return every `step`-th row."""
        if not isinstance(self.values, Source):
            return self.values[::step]
        parts = [rows[-start % step :: step].copy() for start, rows in self.values.blocks()]
        return np.concatenate(parts)


def _aligned(shape: tuple[int, ...]) -> np.ndarray:
    """Return an array without values that the device can use where it lies, not copied again."""
    size, line = 8 * math.prod(shape), 64
    memory = np.empty(size + line, np.uint8)
    start = -memory.ctypes.data % line
    return memory[start : start + size].view(np.float64).reshape(shape)


class Overview(NamedTuple):
    """What one pass over a series tells of each column: moments, and which values are missing."""

    mean: np.ndarray
    deviation: np.ndarray
    constant: np.ndarray
    missing: Missing


def scan(series: Series) -> Overview:
    """Pass over all rows once, in bounded memory.

    Raises:
        ValueError: There is an infinite value, or a column without any.
    """
    low, high = np.full(series.dim, np.inf), np.full(series.dim, -np.inf)
    count, mean, squares = np.zeros((3, series.dim))
    whole = partial = False
    for first, rows in series.source.blocks():
        y = rows.T.copy()  # long rows are reduced much faster than short ones
        seen = np.full(series.dim, y.shape[1])
        total = y.sum(1)
        if not np.isfinite(total).all():
            _check_infinite(series, rows, first)
            missing = np.isnan(y)
            gone = missing.all(0)
            whole |= bool(gone.any())
            partial |= not np.array_equal(gone, missing.any(0))
            seen -= missing.sum(1)
            center = np.where(missing, 0.0, y).sum(1) / np.where(seen > 0, seen, np.nan)
            y = np.where(missing, center[:, None], y)
        else:
            center = total / seen
        # Of a column without a value here all of this is NaN, and does not count.
        low, high = np.fmin(low, y.min(1)), np.fmax(high, y.max(1))
        y -= center[:, None]
        total = np.maximum(count + seen, 1)
        spread = np.einsum("ij,ij->i", y, y) + np.square(center - mean) * count * seen / total
        squares += np.where(seen > 0, spread, 0.0)
        mean += np.where(seen > 0, (center - mean) * seen / total, 0.0)
        count += seen
    if not count.all():
        name = series.columns[int(np.argmin(count))]
        raise ValueError(f"column {name!r} is all NaN; drop it")
    kind: Missing = "entries" if partial else "rows" if whole else "none"
    return Overview(mean, np.sqrt(squares / count), low == high, kind)


def _check_infinite(series: Series, rows: np.ndarray, first: int) -> None:
    infinite = np.argwhere(np.isinf(rows))
    if len(infinite) == 0:
        return
    row, column = infinite[0] + [first, 0]
    ends = np.cumsum(series.lengths)
    which = int(np.searchsorted(ends, row, side="right"))
    where = f"series {which}" if len(ends) > 1 else "data"
    row -= ends[which] - series.lengths[which]
    raise ValueError(
        f"{where} has an infinite value in row {row}, column {series.columns[column]!r}; "
        "replace it by NaN to treat it as missing"
    )


def default_names(dim: int) -> tuple[str, ...]:
    """Return the names of columns that came without."""
    return tuple(f"y{d}" for d in range(dim))


def check_tuple(name: str, value: Any, kind: type) -> None:
    """Raise unless `value` is a tuple of this kind."""
    if not isinstance(value, tuple) or not all(isinstance(v, kind) for v in value):
        raise TypeError(f"{name} must be a tuple of {kind.__name__}; got {shown(value)}")


def check_unique(columns: Sequence[str]) -> None:
    """Raise if two columns have one name."""
    twice = sorted({name for name in columns if columns.count(name) > 1})
    if twice:
        raise ValueError(f"column names must differ; got {', '.join(map(repr, twice))} twice")


def check_known(what: str, names: Sequence[str], known: Sequence[str]) -> None:
    """Raise if a name is not among the known ones; says which are near."""
    for name in names:
        if name not in known:
            raise ValueError(f"there is no {what} {name!r}; {suggestion(name, known)}")


def suggestion(name: str, known: Sequence[str]) -> str:
    """Return words that name what is near to a name, or what there is."""
    import difflib

    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    if near:
        return f"did you mean {' or '.join(map(repr, near))}?"
    return f"there are {shown(list(known))}"


def _also(opened: Mapping[str, Any] | None, step: dict[str, Any]) -> dict[str, Any] | None:
    """Return a description with one more thing done after opening."""
    return None if opened is None else {**opened, "then": [*opened.get("then", []), step]}
