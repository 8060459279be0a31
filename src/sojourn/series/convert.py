"""Data in memory: arrays, lists and frames become a `Series`."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sojourn.series.series import (
    Series,
    check_known,
    check_unique,
    default_names,
    scan,
)
from sojourn.series.sources import ArraySource, ColumnSource, Joined, Source


def from_memory(
    data: Any,
    dim: int | None = None,
    columns: Sequence[str] | None = None,
    sequence: str | None = None,
    expected: tuple[str, ...] | None = None,
) -> Series:
    """Turn arrays, lists of arrays and frames into a checked `Series`.

    Args:
        data: The data, as in `as_series`.
        dim: Number of columns that the model expects.
        columns: Columns of a frame that are values; all but `sequence` if not given.
        sequence: Column of a frame that tells series apart.
        expected: Columns that are taken of a frame which has all of them.
    """
    if sequence is not None and not is_frame(data):
        raise TypeError(
            f"sequence={sequence!r} names a column, so data must be a frame; got "
            f"{type(data).__name__}: pass a list of arrays for several series"
        )
    if isinstance(data, list | tuple) and any(_is_several(x) for x in data):
        unframed = [_unframe(x, columns or _among(x, expected), None) for x in data]
        found = list(dict.fromkeys(own for _, own, _ in unframed if own is not None))
        if not any(is_frame(x) or is_dataset(x) or getattr(x, "ndim", 1) > 1 for x in data):
            found = found if len(found) == 1 else []  # columns of one frame, as several series
        if len(found) > 1:
            raise ValueError(f"all series must have the same columns; got {found[0]}, {found[1]}")
        arrays = [_as_numbers(x) for x, _, _ in unframed]
        if all(not isinstance(x, Source) and x.ndim == 1 for x in arrays) and dim not in (None, 1):
            raise ValueError(
                "a list of one-dimensional arrays is several series of one column; this model "
                f"has emission_dim={dim}: pass a list of (T_i, {dim}) arrays, or one array"
            )
        return assemble([_as_rows(x) for x in arrays], found[0] if found else None)
    data, names, ids = _unframe(data, columns or _among(data, expected), sequence)
    values = _as_numbers(data)
    several = isinstance(values, list) or (isinstance(values, np.ndarray) and values.ndim == 3)
    parts = [_as_rows(x) for x in values] if several else [_as_rows(values)]
    series = assemble(parts, names)
    if ids is None:
        return series
    lengths, called = run_lengths([ids], str(sequence))
    return replace(series, lengths=lengths, names=called)


def assemble(parts: list[Any], columns: tuple[str, ...] | None) -> Series:
    """Put series of rows together and look at all of them once.

    Args:
        parts: Arrays (T_i, D) or sources.
        columns: Names of the columns.
    """
    if len(parts) == 0:
        raise ValueError("data is empty; expected at least two rows")
    widths = {_width(part) for part in parts}
    if len(widths) > 1:
        raise ValueError(f"all series must have the same columns; got widths {sorted(widths)}")
    if columns is None:
        columns = default_names(widths.pop())
    lengths = [part.num_rows if isinstance(part, Source) else len(part) for part in parts]
    check_lengths(lengths)
    if any(isinstance(part, np.memmap | Source) for part in parts):
        named = columns
        sources = [p if isinstance(p, Source) else ArraySource(p, named) for p in parts]
        values: Any = Joined(sources) if len(sources) > 1 else sources[0]
    else:
        values = np.ascontiguousarray(np.concatenate(parts)) if len(parts) > 1 else parts[0]
    return checked(Series(values, tuple(lengths), columns, "none"))


def checked(series: Series) -> Series:
    """Return the series with the kind of its missing values, after one pass over them."""
    with np.errstate(all="ignore"):
        # The sum of numbers of which one is not finite is not either; most data have none of these.
        complete = all(np.isfinite(rows.sum()) for _, rows in series.source.blocks())
    return series if complete else replace(series, missing=scan(series).missing)


def check_lengths(lengths: Sequence[int]) -> None:
    """Raise if a series has fewer than two rows."""
    for i, length in enumerate(lengths):
        if length < 2:
            which = f"series {i}" if len(lengths) > 1 else "data"
            rows = "one row" if length else "no rows"
            raise ValueError(f"{which} has {rows}; expected at least two")


def run_lengths(blocks: Any, name: str) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return lengths and names of the series that a column tells apart, read block by block.

    Raises:
        ValueError: A series comes back after another one began.
    """
    import pandas

    seen: list[Any] = []
    lengths: list[int] = []
    for ids in blocks:
        ids = np.asarray(ids)
        if pandas.isna(ids).any():
            raise ValueError(f"column {name!r} has missing values; expected the name of a series")
        starts = np.concatenate([[0], np.flatnonzero(ids[1:] != ids[:-1]) + 1])
        for start, length in zip(starts, np.diff([*starts, len(ids)]), strict=True):
            which = ids[start]
            if seen and seen[-1] == which:
                lengths[-1] += int(length)
            else:
                seen.append(which)
                lengths.append(int(length))
    if len(set(seen)) < len(seen):
        twice = next(which for i, which in enumerate(seen) if which in seen[:i])
        raise ValueError(
            f"the rows of series {twice!s} are not together; sort the data by {name!r} first"
        )
    check_lengths(lengths)
    return tuple(lengths), tuple(map(str, seen))


def match_columns(series: Series, expected: tuple[str, ...]) -> Series:
    """Return the columns of these names, in this order, or all where nobody named them."""
    names, unnamed = series.columns, default_names(series.dim)
    if set(names) == set(expected) or (names != unnamed and set(names) > set(expected)):
        return series.select(expected)
    if unnamed in (names, expected):
        return series
    unknown = [name for name in names if name not in expected]
    absent = [name for name in expected if name not in names]
    raise ValueError(
        "the columns of the data are not those of the fit: "
        + "; ".join(
            f"{what} {', '.join(map(repr, which))}"
            for what, which in (("unknown", unknown), ("missing", absent))
            if which
        )
        + "; rename or select them, or pass an array to match them by position"
    )


def check_numbers(name: str, dtype: Any) -> None:
    """Raise unless a column holds real numbers; dates have a word of their own."""
    kind = getattr(dtype, "kind", None)
    numeric = kind in tuple("iufb") if kind is not None else _polars_numeric(dtype)
    if numeric:
        return
    text = str(dtype).lower()
    if kind in ("M", "m") or text.startswith(("date", "time", "duration")):
        raise TypeError(
            f"column {name!r} has type {dtype}: dates are no values; drop it, or choose others with "
            "open_series(data, columns=[...])"
        )
    raise TypeError(
        f"column {name!r} has type {dtype}; expected numbers: convert it or drop it, or, "
        f"if it tells series apart, open_series(data, sequence={name!r})"
    )


def check_dtype(dtype: Any, what: str = "data") -> None:
    """Raise unless an array holds real numbers."""
    if dtype.kind not in "iufb":
        raise TypeError(
            f"{what} has type {dtype}; expected real numbers: convert it or leave it out"
        )


def from_array(array: Any, what: str) -> list[Source]:
    """Return the sources of an array (T,), (T, D) or (N, T, D), read when needed."""
    check_dtype(array.dtype, what)
    shape = array.shape
    if len(shape) not in (1, 2, 3) or 0 in shape[2:]:
        raise ValueError(f"{what} must have shape (T,), (T, D) or (N, T, D); got {tuple(shape)}")
    names = _coordinate_names(array) or default_names(1 if len(shape) == 1 else shape[-1])
    if len(names) == 0:
        raise ValueError(f"{what} has no columns")
    if len(shape) < 3:
        return [ArraySource(array, names)]
    if isinstance(array, np.ndarray):
        return [ArraySource(part, names) for part in array]
    return [ArraySource(array, names, index=i) for i in range(shape[0])]


def over_time(array: Any, dims: Sequence[Any]) -> Any:
    """Return an array with the dimension named "time" as that of its rows, read when needed.

    Args:
        array: An array of two or three dimensions; others are returned as they are.
        dims: Names of its dimensions, as far as they have any.
    """
    if "time" not in dims or not len(dims) == len(array.shape) in (2, 3):
        return array
    *others, columns = (axis for axis, name in enumerate(dims) if name != "time")
    order = (*others, list(dims).index("time"), columns)
    return array if order == tuple(range(len(dims))) else _Reordered(array, order, dims)


class _Reordered:
    """An array with its dimensions in another order: each request is turned, not the array."""

    def __init__(self, array: Any, order: Sequence[int], dims: Sequence[Any]) -> None:
        self._array, self._order = array, order
        self.shape = tuple(array.shape[axis] for axis in order)
        self.dtype, self.dims = array.dtype, tuple(dims[axis] for axis in order)
        self.coords = getattr(array, "coords", None)
        chunks = getattr(array, "chunks", None)
        self.chunks = tuple(chunks[axis] for axis in order) if chunks else None

    def __getitem__(self, where: Any) -> np.ndarray:
        asked = where if isinstance(where, tuple) else (where,)
        parts: list[Any] = [slice(None)] * len(self._order)
        for axis, part in zip(self._order, asked, strict=False):
            parts[axis] = part
        left = [axis for axis in self._order if isinstance(parts[axis], slice)]
        return np.asarray(self._array[tuple(parts)]).transpose(np.argsort(np.argsort(left)))


def _coordinate_names(array: Any) -> tuple[str, ...] | None:
    """Return the names that an xarray gives to its columns."""
    dims = getattr(array, "dims", None)
    if isinstance(dims, tuple) and len(dims) == 1 and getattr(array, "name", None):
        return (str(array.name),)
    coords = getattr(array, "coords", None)
    if coords is None or not dims or len(dims) < 2 or dims[-1] not in coords:
        return None
    names = np.asarray(coords[dims[-1]])
    return tuple(map(str, names)) if names.dtype.kind in "OUT" else None


def _width(part: Any) -> int:
    return len(part.columns) if isinstance(part, Source) else part.shape[1]


def _is_several(item: Any) -> bool:
    framed = is_frame(item) or is_dataset(item)
    return isinstance(item, list | tuple) or framed or bool(np.ndim(item))


def is_frame(data: Any) -> bool:
    """Return whether data are a frame of pandas or Polars."""
    return hasattr(data, "columns") and hasattr(data, "to_numpy")


def _among(data: Any, expected: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Return the expected names if a frame or dataset has them all."""
    if expected is None or not (is_frame(data) or is_dataset(data)):
        return None
    names = data.columns if is_frame(data) else data.data_vars
    return expected if set(map(str, names)) >= set(expected) else None


def is_dataset(data: Any) -> bool:
    """Return whether data are a Dataset of xarray."""
    return hasattr(data, "data_vars") and hasattr(data, "sizes")


def _polars_numeric(dtype: Any) -> bool:
    is_numeric = getattr(dtype, "is_numeric", None)
    return bool(is_numeric and is_numeric()) or str(dtype) == "Boolean"


def _unframe(
    data: Any, wanted: Sequence[str] | None, sequence: str | None
) -> tuple[Any, tuple[str, ...] | None, np.ndarray | None]:
    """Return the values of a frame, names of its columns, names of series; other data as they are."""
    if is_dataset(data):
        data = _from_dataset(data, wanted)
        return data, data.columns, None
    if hasattr(data, "dims") and hasattr(data, "coords"):
        return *_from_labelled(data), None
    if not is_frame(data):
        # A column of pandas or Polars has a name, or none.
        name = getattr(data, "name", None) if hasattr(data, "to_numpy") else None
        return data, None if name in (None, "") else (str(name),), None
    every = tuple(str(c) for c in data.columns)
    check_unique(every)
    ids = None
    if sequence is not None:
        check_known("column", [sequence], every)
        ids = np.asarray(data[data.columns[every.index(sequence)]])
    columns = tuple(c for c in every if c != sequence) if wanted is None else tuple(wanted)
    check_known("column", columns, every)
    if len(columns) == 0:
        raise ValueError("data has no columns")
    dtypes = dict(zip(every, data.dtypes, strict=True))
    for name in columns:
        check_numbers(name, dtypes[name])
    chosen = data[[data.columns[every.index(name)] for name in columns]]
    if hasattr(chosen, "iloc"):
        return chosen.to_numpy(dtype=np.float64, na_value=np.nan), columns, ids
    as_floats = [np.asarray(chosen[c].cast(float).to_numpy(), np.float64) for c in chosen.columns]
    return np.column_stack(as_floats), columns, ids


def _from_labelled(data: Any) -> tuple[Any, tuple[str, ...] | None]:
    """Return the values of a DataArray of xarray, as sources if they are not in memory, and names."""
    array = over_time(data, data.dims)
    if getattr(data.variable, "_in_memory", False):
        return np.asarray(array[:]) if data.ndim else data.to_numpy(), _coordinate_names(array)
    sources = from_array(array, "data")
    return sources if len(sources) > 1 else sources[0], sources[0].columns


def _from_dataset(data: Any, wanted: Sequence[str] | None) -> Source:
    """Return the variables of an xarray Dataset as columns, read when needed."""
    every = [str(name) for name in data.data_vars]
    names = every if wanted is None else list(wanted)
    check_known("variable", names, every)
    if not names:
        raise ValueError("data has no columns")
    for name in names:
        if data[name].ndim != 1 or data[name].shape != data[names[0]].shape:
            raise ValueError(
                f"variable {name!r} has shape {data[name].shape}; as columns, all must be "
                "one-dimensional and of one length: choose one with variable="
            )
        check_numbers(name, data[name].dtype)
    return ColumnSource({name: data[name] for name in names})


def _as_rows(values: Any) -> Any:
    if isinstance(values, Source):
        return values
    if values.ndim == 1:
        values = values[:, None]
    if values.ndim != 2:
        raise ValueError(
            f"a series must have shape (T,) or (T, D); got {values.ndim} dimensions {values.shape}"
        )
    if values.shape[1] == 0:
        raise ValueError("data has no columns")
    return values


def _as_numbers(values: Any) -> Any:
    """Return values as an array of doubles; memory maps and sources as they are."""
    if isinstance(values, Source) or _are_sources(values):
        return values
    if isinstance(values, np.memmap) and values.ndim:
        check_dtype(values.dtype)
        return values
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
    check_dtype(array.dtype)
    return np.ascontiguousarray(array, dtype=np.float64)


def _are_sources(values: Any) -> bool:
    return isinstance(values, list) and bool(values) and isinstance(values[0], Source)


def _number(value: Any) -> float:
    if value is None:
        return np.nan
    if isinstance(value, str | bytes | complex):
        raise TypeError
    return float(value)
