"""`open_series` and `as_series`: whatever users have becomes a `Series`."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sojourn._validation import check_size, shown
from sojourn.series.convert import check_lengths, from_memory, is_dataset, is_frame, match_columns
from sojourn.series.formats import OPENERS, TABLES, Place, check_suffix
from sojourn.series.series import Series, check_known, check_unique, scan
from sojourn.series.sources import Joined, Mapped, Pieces, Source


def open_series(
    data: Any,
    variable: str | None = None,
    sequence: str | None = None,
    *,
    columns: Sequence[str] | None = None,
    missing: float | None = None,
    log: bool = False,
    every: int = 1,
    standardize: bool = False,
) -> Series:
    """Open a file or an address as a series, or take data in memory; rows are read when needed.

    All rows are looked at once, block by block, for infinite and missing values. What is done to them
    is done when they are read, in the order of the arguments.

    Args:
        data: A path or an fsspec address of .npy, .npz, .zarr, .h5, .nc, .parquet (also a directory),
            .csv, .tsv or .edf; a list of these, one series each; or data as in `as_series`.
        variable: Which array, of a file that holds several.
        sequence: Column that tells series apart; rows of one series stand together.
        columns: Names of the columns of values, in the order wanted; all if not given. Arrays without
            names have the columns y0, y1, …
        missing: A number that stands for a missing value, beside NaN.
        log: Whether to take logarithms.
        every: Keep every so many-th row of each series.
        standardize: Whether to subtract the mean of each column and divide by its standard deviation;
            `Series.restore` undoes it.

    Raises:
        FileNotFoundError: There is no such file.
        ImportError: The format needs a package that is not installed.
        TypeError: Columns hold dates or text.
        ValueError: The file cannot be read, names are unknown, or values are infinite.
    """
    check_size("every", every)
    columns = _checked_names(columns)
    if missing is not None:
        if not isinstance(missing, int | float | np.number):
            raise TypeError(f"missing must be a number; got {shown(missing)}")
        missing = float(missing)
    treatment = {"missing": missing, "log": bool(log), "every": int(every)}
    paths = _paths(data)
    if paths is None:
        series = _in_memory(data, variable, sequence, columns)
        if missing is None and not log and every == 1 and not standardize:
            return series
        treatment = _in_all(series, treatment)
        changed = _changed(series, missing, log, every, standardize)
        changed = replace(changed, opened=None, treatment=treatment)
        if isinstance(series.values, Source):
            return changed
        return replace(changed, values=changed.rows(0, changed.num_rows))
    source, lengths, names = _open_all(paths, variable, sequence, columns)
    opened = {
        "path": [_absolute(p) for p in paths] if len(paths) > 1 else _absolute(paths[0]),
        "variable": variable,
        "sequence": sequence,
        "columns": columns,
        **treatment,
        "standardize": bool(standardize),
    }
    # What is missing is known after the pass over all rows.
    series = Series(
        source,
        lengths,
        source.columns,
        "entries",
        opened=opened,
        treatment=treatment,
        names=names,
    )
    return _changed(series, missing, log, every, standardize)


def reopen(description: Mapping[str, Any]) -> Series:
    """Open again what `Series.describe` described."""
    options = dict(description)
    steps = options.pop("then", [])
    series = open_series(options.pop("path"), **options)
    for step in steps:
        if "select" in step:
            series = series.select(step["select"])
        elif "standardized" in step:
            series = series.standardized(*map(np.asarray, step["standardized"]))
        else:
            fraction, by, which = step["part"]
            series = series.train_test(fraction, by)[which]
    return series


def as_series(data: Any, dim: int | None = None, columns: tuple[str, ...] | None = None) -> Series:
    """Turn what users have into a `Series`.

    Args:
        data: An array (T,) or (T, D), one series; an array (N, T, D) or a list of (T_i, D) arrays,
            several; a pandas or Polars DataFrame, a pandas Series, an xarray DataArray or Dataset; a
            memory map; a path or address as in `open_series`, or a list of them; or a `Series`.
        dim: Number of columns that the model expects.
        columns: Names of the columns, in the order that is expected. Data with names are matched by
            them; data without, and data for names that nobody chose (y0, y1, …), by position.

    Raises:
        TypeError: The values are not real numbers.
        ValueError: There are too few rows, the wrong number of columns or wrong names, infinities,
            or a column without a single value.
    """
    if isinstance(data, Series):
        series = data
    elif _paths(data) is not None:
        series = open_series(data)
    else:
        series = from_memory(data, dim, expected=columns)
    if columns is not None:
        series = match_columns(series, columns)
    if dim is not None and series.dim != dim:
        raise ValueError(
            f"data has {series.dim} column{'s' * (series.dim != 1)}; the model expects "
            f"emission_dim={dim}"
        )
    return series


def _checked_names(columns: Sequence[str] | None) -> list[str] | None:
    if columns is None:
        return None
    if isinstance(columns, str):
        raise TypeError(f"columns must be a list of names; got {columns!r}")
    names = [str(name) for name in columns]
    check_unique(names)
    if not names:
        raise ValueError("columns must name at least one column; got []")
    return names


def _in_all(series: Series, treatment: dict[str, Any]) -> dict[str, Any]:
    """Return what is done to the values of a series in all, if this is done next.

    Raises:
        ValueError: It cannot be told as one treatment: logarithms of logarithms, two marks.
    """
    before = {"missing": None, "log": False, "every": 1, **series.treatment}
    asked = [
        n for n in ("missing", "log") if treatment[n] is not None and treatment[n] is not False
    ]
    if asked and (series.units is not None or before["log"]):
        done = "logarithms" if series.units is None else "standardized"
        raise ValueError(
            f"{asked[0]}= is for numbers as they stand in the data, and these are {done} already; give "
            "all options to one open_series"
        )
    marks = [before["missing"], treatment["missing"]]
    if None not in marks and marks[0] != marks[1]:
        raise ValueError(
            f"missing={marks[1]:g} comes after missing={marks[0]:g}; replace one of them by NaN first"
        )
    return {
        "missing": marks[0] if marks[1] is None else marks[1],
        "log": before["log"] or treatment["log"],
        "every": before["every"] * treatment["every"],
    }


def _changed(
    series: Series, missing: float | None, log: bool, every: int, standardize: bool
) -> Series:
    """Return the series with values changed when they are read, after one pass over all of them."""
    source, lengths = series.source, series.lengths
    if missing is not None or log:
        source = Mapped(source, sentinel=missing, log=log)
    if every > 1:
        starts = np.cumsum(lengths) - lengths
        lengths = tuple(-(-length // every) for length in lengths)
        check_lengths(lengths)
        source = Pieces(source, starts, lengths, every)
    series = replace(series, values=source, lengths=lengths)
    overview = _scanned(series, log)
    series = replace(series, missing=overview.missing)
    if not standardize:
        return series
    if np.any(overview.constant):
        name = series.columns[int(np.argmax(overview.constant))]
        raise ValueError(f"column {name!r} is constant and cannot be standardized; drop it")
    scaled = series.standardized(overview.mean, overview.deviation)
    return replace(scaled, opened=series.opened)  # which says `standardize` already


def _paths(data: Any) -> list[str] | None:
    """Return paths and addresses as text, None if data are something else."""
    if isinstance(data, str | os.PathLike):
        return [os.fspath(data)]
    if isinstance(data, list | tuple) and data:
        if all(isinstance(item, os.PathLike) for item in data):
            return [os.fspath(item) for item in data]
        if all(isinstance(item, str) for item in data):
            return list(data)
    return None


def _in_memory(
    data: Any, variable: str | None, sequence: str | None, columns: list[str] | None
) -> Series:
    """Return data in memory as a series."""
    if variable is not None:
        try:
            known = [str(name) for name in data]
        except TypeError:
            known = []
        check_known("variable", [variable], known)
        data = data[variable]
    if isinstance(data, Series):
        if sequence is not None:
            raise ValueError("sequence needs a table: this Series knows its lengths already")
        return data if columns is None else data.select(columns)
    framed = is_frame(data) or is_dataset(data)
    series = from_memory(data, columns=columns if framed else None, sequence=sequence)
    return series if columns is None else series.select(columns)


def _open_all(
    paths: list[str], variable: str | None, sequence: str | None, columns: list[str] | None
) -> tuple[Source, tuple[int, ...], tuple[str, ...] | None]:
    """Open files, one series each or more; returns rows, lengths and names."""
    found = [_open(Place(path), variable, sequence, columns) for path in paths]
    sources = [source for source, _, _ in found]
    for path, source in zip(paths, sources, strict=True):
        if source.columns != sources[0].columns:
            raise ValueError(
                f"all series must have the same columns; {paths[0]} has {sources[0].columns}, "
                f"{path} has {source.columns}"
            )
    lengths = tuple(length for _, each, _ in found for length in each)
    check_lengths(lengths)
    names = tuple(name for _, _, each in found for name in each or ())
    if len(set(names)) < len(lengths):  # files without names, or with one name for two series
        names = None
    return (Joined(sources) if len(sources) > 1 else sources[0]), lengths, names


def _open(
    place: Place, variable: str | None, sequence: str | None, columns: list[str] | None
) -> tuple[Source, tuple[int, ...], tuple[str, ...] | None]:
    if not place.exists():
        raise FileNotFoundError(f"{place.text} does not exist; check the path")
    kind = _kind_of_directory(place) or check_suffix(place)
    if place.is_local and place.path.is_file() and place.path.stat().st_size == 0:
        raise ValueError(f"{place.text} is empty; check what wrote it")
    if kind in TABLES:
        if variable is not None:
            raise ValueError(f"{place.text} is a table: choose columns=, not variable=")
        from sojourn.series import tables  # imports what takes long to import

        return getattr(tables, TABLES[kind])(place, columns, sequence)
    if sequence is not None:
        raise ValueError(f"{place.text} holds arrays, no column {sequence!r}: leave sequence out")
    sources = OPENERS[kind](place, variable, columns)
    widths = sorted({len(source.columns) for source in sources})
    if len(widths) > 1:
        raise ValueError(f"all series must have the same columns; got widths {widths}")
    source = Joined(sources) if len(sources) > 1 else sources[0]
    check_unique(source.columns)
    if columns is not None and tuple(columns) != source.columns:
        check_known("column", columns, source.columns)
        source = Mapped(source, tuple(source.columns.index(name) for name in columns))
    return source, tuple(part.num_rows for part in sources), None


def _kind_of_directory(place: Place) -> str | None:
    """Return the ending of what a directory holds; None for a file."""
    if not place.is_local or not place.path.is_dir():
        return None
    if any((place.path / name).exists() for name in ("zarr.json", ".zarray", ".zgroup")):
        return ".zarr"
    if place.suffix in OPENERS:
        return place.suffix
    if any(place.path.rglob("*.parquet")):
        return ".parquet"
    raise ValueError(f"{place.text} is a directory without a Zarr store or Parquet files")


def _absolute(path: str) -> str:
    return path if "://" in path else str(Path(path).expanduser().resolve())


def _scanned(series: Series, log: bool) -> Any:
    try:
        return scan(series)
    except ValueError as error:
        if log and "infinite" in str(error):
            where = str(error).split(";")[0].replace("an infinite value", "no finite logarithm")
            raise ValueError(
                f"{where}; log needs positive numbers: mark others by missing="
            ) from None
        raise
