"""One or several series of rows, validated once at the edge."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Missing = Literal["none", "rows", "entries"]

# Rows looked at to find the location and scale of the columns.
_SCALE_ROWS = 100_000


@dataclass(frozen=True, eq=False)
class Series:
    """Independent series of the same columns, stored one after the other.

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

    @property
    def num_rows(self) -> int:
        return self.values.shape[0]

    @property
    def dim(self) -> int:
        return self.values.shape[1]

    def split(self) -> list[np.ndarray]:
        """Return the rows of each series."""
        return np.split(self.values, np.cumsum(self.lengths)[:-1])

    def location_scale(self) -> tuple[np.ndarray, np.ndarray]:
        """Return a robust location and scale of each column, from a sample of rows.

        The median and the interquartile range over that of a standard normal; the standard
        deviation where more than half of the values are equal.
        """
        step = max(1, self.num_rows // _SCALE_ROWS)
        rows = self.values[::step]
        if np.any(np.isfinite(rows).sum(0) < 2):
            rows = self.values
        low, location, high = np.nanquantile(rows, [0.25, 0.5, 0.75], axis=0)
        scale = (high - low) / 1.3489795  # 2 Φ⁻¹(3/4)
        deviation = np.nanstd(rows, axis=0)
        # A narrow centre under wide tails or rare far states must not make the scale absurdly small.
        scale = np.where(scale > 0.05 * deviation, scale, deviation)
        constant = np.nanstd(self.values, axis=0) == 0 if np.any(scale == 0) else scale == 0
        if np.any(constant):
            name = self.columns[int(np.argmax(constant))]
            raise ValueError(f"column {name!r} is constant; drop it or add what makes it vary")
        return location, np.where(scale == 0, np.nanstd(self.values, axis=0), scale)


def as_series(data: Any, dim: int | None = None) -> Series:
    """Turn what users have into a `Series`.

    Args:
        data: An array (T,) or (T, D), one series; an array (N, T, D) or a list of (T_i, D) arrays,
            several; a pandas DataFrame or Series, an xarray DataArray, or a `Series`.
        dim: Number of columns that the model expects.

    Raises:
        TypeError: The values are not real numbers.
        ValueError: There are too few rows, the wrong number of columns, infinities, or a column
            without a single value.
    """
    if isinstance(data, Series):
        _check_columns(data, dim)
        return data
    columns: tuple[str, ...] | None = None
    if hasattr(data, "columns") and hasattr(data, "to_numpy"):  # a data frame
        columns = tuple(str(c) for c in data.columns)
        _check_frame(data, columns)
        data = data.to_numpy(dtype=np.float64, na_value=np.nan)
    if isinstance(data, list | tuple) and any(np.ndim(x) for x in data):
        if all(np.ndim(x) == 1 for x in data) and dim == 1:
            parts = [_as_rows(x) for x in data]
        elif all(np.ndim(x) == 1 for x in data):
            raise ValueError(
                "a list of one-dimensional arrays is several series of one column; this model "
                f"has emission_dim={dim}: pass a list of (T_i, {dim}) arrays, or one array"
            )
        else:
            parts = [_as_rows(x) for x in data]
    else:
        values = _as_float(data)
        if values.ndim == 3:
            parts = [_as_rows(x) for x in values]
        else:
            parts = [_as_rows(values)]
    return _assemble(parts, columns, dim)


def _assemble(parts: list[np.ndarray], columns: tuple[str, ...] | None, dim: int | None) -> Series:
    if len(parts) == 0:
        raise ValueError("data is empty; expected at least two rows")
    widths = {part.shape[1] for part in parts}
    if len(widths) > 1:
        raise ValueError(f"all series must have the same columns; got widths {sorted(widths)}")
    for i, part in enumerate(parts):
        if len(part) < 2:
            which = f"series {i}" if len(parts) > 1 else "data"
            raise ValueError(f"{which} has {len(part)} rows; expected at least two")
    values = np.ascontiguousarray(np.concatenate(parts)) if len(parts) > 1 else parts[0]
    if columns is None:
        columns = tuple(f"y{d}" for d in range(values.shape[1]))
    infinite = np.isinf(values)
    if infinite.any():
        row, column = np.argwhere(infinite)[0]
        raise ValueError(
            f"data has an infinite value in row {row}, column {columns[column]!r}; "
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
    _check_columns(series, dim)
    return series


def _check_columns(series: Series, dim: int | None) -> None:
    if dim is not None and series.dim != dim:
        raise ValueError(
            f"data has {series.dim} column{'s' * (series.dim != 1)}; the model expects "
            f"emission_dim={dim}"
        )


def _check_frame(frame: Any, columns: tuple[str, ...]) -> None:
    for name, dtype in zip(columns, frame.dtypes, strict=True):
        kind = getattr(dtype, "kind", "O")
        if kind not in "iufb":
            raise TypeError(f"column {name!r} has type {dtype}; expected numbers")


def _as_rows(values: Any) -> np.ndarray:
    values = _as_float(values)
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
    array = np.asarray(values)
    if array.dtype == object:
        try:
            array = np.asarray([[_number(v) for v in np.atleast_1d(row)] for row in array])
        except (TypeError, ValueError):
            raise TypeError("data holds objects that are not numbers") from None
    if array.dtype.kind not in "iufb":
        raise TypeError(f"data has type {array.dtype}; expected real numbers")
    return np.ascontiguousarray(array, dtype=np.float64)


def _number(value: Any) -> float:
    if value is None:
        return np.nan
    if isinstance(value, str | bytes | complex):
        raise TypeError
    return float(value)
