"""One or several series of rows, validated once at the edge."""

from dataclasses import dataclass, replace
from typing import Any, get_args

import jax.numpy as jnp
import numpy as np
from jax import Array

from sojourn._validation import shown
from sojourn.batch import Missing

# Rows looked at to find the location and scale of the columns.
_SCALE_ROWS = 100_000


@dataclass(frozen=True, eq=False)
class Series:
    """Independent series of the same columns, stored one after the other.

    The constructor checks what costs no pass over the values; `as_series` checks these too.

    Attributes:
        values: Rows of all series, shape (N, D), missing entries NaN.
        lengths: Number of rows of each series.
        columns: Names of the columns.
        missing: "none", "rows" if rows are either complete or wholly missing, "entries" otherwise.
    """

    values: np.ndarray
    lengths: tuple[int, ...]
    columns: tuple[str, ...]
    missing: Missing

    def __post_init__(self) -> None:
        values = self.values
        if not isinstance(values, np.ndarray) or values.ndim != 2 or values.dtype != np.float64:
            raise TypeError(
                "values must be a float64 array of shape (N, D); as_series(data) makes a Series "
                "of anything else"
            )
        _check_tuple("lengths", self.lengths, int)
        _check_tuple("columns", self.columns, str)
        if min(self.lengths, default=0) < 1 or sum(self.lengths) != len(values):
            raise ValueError(
                f"lengths must be positive and sum to the {len(values)} rows of values; got "
                f"{shown(self.lengths)}"
            )
        if len(self.columns) != values.shape[1]:
            raise ValueError(
                f"columns must name the {values.shape[1]} columns of values; got "
                f"{shown(self.columns)}"
            )
        _check_unique(self.columns)
        if self.missing not in get_args(Missing):
            raise ValueError(
                f"missing must be 'none', 'rows' or 'entries'; got {shown(self.missing)}"
            )

    @property
    def num_rows(self) -> int:
        return self.values.shape[0]

    @property
    def dim(self) -> int:
        return self.values.shape[1]

    def split(self) -> list[np.ndarray]:
        """Return the rows of each series."""
        return np.split(self.values, np.cumsum(self.lengths)[:-1])

    def resident(self) -> Array:
        """Return all rows in memory, columns first, shape (D, N)."""
        return jnp.asarray(np.ascontiguousarray(self.values.T))

    def location_scale(self) -> tuple[np.ndarray, np.ndarray]:
        """Return a robust location and scale of each column, from a sample of rows.

        The median and the interquartile range over that of a standard normal; the standard
        deviation where that range is less than a twentieth of it, as when most values are equal.
        """
        step = max(1, self.num_rows // _SCALE_ROWS)
        rows = self.values[::step]
        if np.any(np.isfinite(rows).sum(0) < 2):
            rows = self.values
        low, location, high = np.nanquantile(rows, [0.25, 0.5, 0.75], axis=0)
        scale = (high - low) / 1.3489795  # 2 Φ⁻¹(3/4)
        # The deviation of equal values may be a rounding above zero.
        varies = np.nanmin(rows, axis=0) < np.nanmax(rows, axis=0)
        deviation = np.where(varies, np.nanstd(rows, axis=0), 0.0)
        # A narrow centre under wide tails or rare far states must not make the scale absurdly small.
        scale = np.where(scale > 0.05 * deviation, scale, deviation)
        if np.all(scale > 0):
            return location, scale
        constant = np.nanmin(self.values, axis=0) == np.nanmax(self.values, axis=0)
        if np.any(constant):
            name = self.columns[int(np.argmax(constant))]
            raise ValueError(f"column {name!r} is constant; drop it or add what makes it vary")
        return location, np.where(scale == 0, np.nanstd(self.values, axis=0), scale)


def as_series(data: Any, dim: int | None = None, columns: tuple[str, ...] | None = None) -> Series:
    """Turn what users have into a `Series`.

    Args:
        data: An array (T,) or (T, D), one series; an array (N, T, D) or a list of (T_i, D) arrays,
            several; a pandas DataFrame or Series, an xarray DataArray, or a `Series`.
        dim: Number of columns that the model expects.
        columns: Names of the columns, in the order that is expected. Data with names are matched by
            them; data without, and data for names that nobody chose (y0, y1, …), by position.

    Raises:
        TypeError: The values are not real numbers.
        ValueError: There are too few rows, the wrong number of columns or wrong names, infinities,
            or a column without a single value.
    """
    if isinstance(data, Series):
        if columns is not None and data.columns != _default_names(data.dim):
            values, names = _match(data.values, data.columns, columns)
            data = replace(data, values=values, columns=names)
        _check_dim(data, dim)
        return data
    if isinstance(data, list | tuple) and any(
        isinstance(x, list | tuple) or np.ndim(x) for x in data
    ):
        unframed = [_unframe(x, columns) for x in data]
        found = list(dict.fromkeys(own for _, own in unframed if own is not None))
        if len(found) > 1:
            raise ValueError(f"all series must have the same columns; got {found[0]}, {found[1]}")
        names = found[0] if found else None
        arrays = [_as_float(x) for x, _ in unframed]
        if all(x.ndim == 1 for x in arrays) and dim not in (None, 1):
            raise ValueError(
                "a list of one-dimensional arrays is several series of one column; this model "
                f"has emission_dim={dim}: pass a list of (T_i, {dim}) arrays, or one array"
            )
        parts = [_as_rows(x) for x in arrays]
    else:
        data, names = _unframe(data, columns)
        values = _as_float(data)
        parts = [_as_rows(x) for x in values] if values.ndim == 3 else [_as_rows(values)]
    return _assemble(parts, names, dim)


def _assemble(parts: list[np.ndarray], columns: tuple[str, ...] | None, dim: int | None) -> Series:
    if len(parts) == 0:
        raise ValueError("data is empty; expected at least two rows")
    widths = {part.shape[1] for part in parts}
    if len(widths) > 1:
        raise ValueError(f"all series must have the same columns; got widths {sorted(widths)}")
    for i, part in enumerate(parts):
        if len(part) < 2:
            which = f"series {i}" if len(parts) > 1 else "data"
            rows = "one row" if len(part) else "no rows"
            raise ValueError(f"{which} has {rows}; expected at least two")
    values = np.ascontiguousarray(np.concatenate(parts)) if len(parts) > 1 else parts[0]
    if columns is None:
        columns = _default_names(values.shape[1])
    infinite = np.isinf(values)
    if infinite.any():
        row, column = np.argwhere(infinite)[0]
        ends = np.cumsum([len(part) for part in parts])
        which = int(np.searchsorted(ends, row, side="right"))
        source = f"series {which}" if len(parts) > 1 else "data"
        row -= ends[which] - len(parts[which])
        raise ValueError(
            f"{source} has an infinite value in row {row}, column {columns[column]!r}; "
            "replace it by NaN to treat it as missing"
        )
    missing = np.isnan(values)
    kind: Missing = "none"
    if missing.any():
        empty = missing.all(0)
        if empty.any():
            raise ValueError(f"column {columns[int(np.argmax(empty))]!r} is all NaN; drop it")
        whole = missing.all(1)
        kind = "rows" if np.array_equal(whole, missing.any(1)) else "entries"
    series = Series(values, tuple(len(part) for part in parts), columns, kind)
    _check_dim(series, dim)
    return series


def _check_dim(series: Series, dim: int | None) -> None:
    if dim is not None and series.dim != dim:
        raise ValueError(
            f"data has {series.dim} column{'s' * (series.dim != 1)}; the model expects "
            f"emission_dim={dim}"
        )


def _default_names(dim: int) -> tuple[str, ...]:
    """Return the names of columns that came without."""
    return tuple(f"y{d}" for d in range(dim))


def _check_tuple(name: str, value: Any, kind: type) -> None:
    if not isinstance(value, tuple) or not all(isinstance(v, kind) for v in value):
        raise TypeError(f"{name} must be a tuple of {kind.__name__}; got {shown(value)}")


def _check_unique(columns: tuple[str, ...]) -> None:
    twice = sorted({name for name in columns if columns.count(name) > 1})
    if twice:
        raise ValueError(f"column names must differ; got {', '.join(map(repr, twice))} twice")


def _match(
    values: np.ndarray, names: tuple[str, ...], expected: tuple[str, ...]
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return values and names in the expected order."""
    if names == expected:
        return values, names
    unknown = [name for name in names if name not in expected]
    absent = [name for name in expected if name not in names]
    if not unknown and not absent:
        return np.ascontiguousarray(values[:, [names.index(name) for name in expected]]), expected
    if expected == _default_names(len(expected)):
        return values, names
    raise ValueError(
        "the columns of the data are not those of the fit: "
        + "; ".join(
            f"{what} {', '.join(map(repr, which))}"
            for what, which in (("unknown", unknown), ("missing", absent))
            if which
        )
        + "; rename or select them, or pass an array to match them by position"
    )


def _unframe(data: Any, expected: tuple[str, ...] | None) -> tuple[Any, tuple[str, ...] | None]:
    """Return the values of a data frame and the names of its columns; other data as they are."""
    if not (hasattr(data, "columns") and hasattr(data, "to_numpy")):
        return data, None
    columns = tuple(str(c) for c in data.columns)
    _check_unique(columns)
    for name, dtype in zip(columns, data.dtypes, strict=True):
        kind = getattr(dtype, "kind", "O")
        if kind not in "iufb":
            raise TypeError(
                f"column {name!r} has type {dtype}; expected numbers: convert it or drop it"
            )
    values = data.to_numpy(dtype=np.float64, na_value=np.nan)
    return (values, columns) if expected is None else _match(values, columns, expected)


def _as_rows(values: np.ndarray) -> np.ndarray:
    if values.ndim == 1:
        values = values[:, None]
    if values.ndim != 2:
        raise ValueError(
            f"a series must have shape (T,) or (T, D); got {values.ndim} dimensions {values.shape}"
        )
    if values.shape[1] == 0:
        raise ValueError("data has no columns")
    return values


def _as_float(values: Any) -> np.ndarray:
    if isinstance(values, str | bytes):
        raise TypeError(f"expected numbers, got the text {values!r}; read the file first")
    if isinstance(values, dict):
        raise TypeError("expected an array of numbers, got a dict; pass its values as columns")
    if isinstance(values, np.ma.MaskedArray) and values.dtype.kind in "iufb":
        values = np.ma.filled(values.astype(np.float64), np.nan)
    try:
        array = np.asarray(values)
    except ValueError:
        raise ValueError(
            "rows of a series have unequal lengths; pass a list of (T_i, D) arrays, with NaN where "
            "a value is missing"
        ) from None
    if array.dtype == object:
        if array.ndim == 0:
            raise TypeError(f"expected an array of numbers; got {type(values).__name__}")
        try:
            numbers = [_number(v) for v in array.flat]
        except (TypeError, ValueError, OverflowError):
            raise TypeError(
                "data holds objects that are not numbers; expected an array of numbers, or a list "
                "of arrays for several series"
            ) from None
        array = np.asarray(numbers, dtype=np.float64).reshape(array.shape)
    if array.dtype.kind not in "iufb":
        raise TypeError(
            f"data has type {array.dtype}; expected real numbers: convert it or leave it out"
        )
    return np.ascontiguousarray(array, dtype=np.float64)


def _number(value: Any) -> float:
    if value is None:
        return np.nan
    if isinstance(value, str | bytes | complex):
        raise TypeError
    return float(value)
