"""Data that commands read, and tables that they write."""

import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import typer

from sojourn._files import write_file
from sojourn.results import Fit, check_replaceable, columns_of, load
from sojourn.runs import Run, open_run
from sojourn.sampling import series_of
from sojourn.series import Series, as_series, open_series

if TYPE_CHECKING:
    import pandas
    import xarray


# Tables that can be written.
_SUFFIXES = (".csv", ".tsv", ".parquet", ".json", ".jsonl")

# Options of data that have other defaults than None.
_UNCHANGED = {"every": 1}


def read(paths: Sequence[str], **options: Any) -> Series:
    """Open files and addresses as series; a directory of a run stands for its data."""
    if len(paths) == 1 and is_run(paths[0]):
        given = [n for n, value in options.items() if (value or None) != _UNCHANGED.get(n)]
        if given:
            name = given[0].replace("columns", "column")
            raise ValueError(
                f"{paths[0]} is a run, whose data are taken as they are: leave out --{name}, or give "
                "the files"
            )
        return series_of(open_run(paths[0]), None)
    return open_series(paths[0] if len(paths) == 1 else list(paths), **options)


def is_run(path: str) -> bool:
    """Return whether a path is the directory of a run."""
    return (Path(path) / "config.json").is_file()


class FileUnits(NamedTuple):
    """How the rows of a run differ from those of its files.

    Attributes:
        log: Whether they are logarithms.
        standard: Mean and standard deviation that were then taken out of each column, if any.
    """

    log: bool
    standard: tuple[np.ndarray, np.ndarray] | None

    def restore(self, values: np.ndarray, column: Any = slice(None)) -> np.ndarray:
        """Return values as they stand in files; the last axis is that of these columns."""
        if self.standard is not None:
            mean, deviation = self.standard
            values = values * deviation[column] + mean[column]
        return np.exp(values) if self.log else values


def units_of(fit: Fit) -> FileUnits:
    """Return the units of a fit."""
    return FileUnits(bool(fit.treatment.get("log")), fit.units)


def read_for(run: Run, paths: Sequence[str], options: Mapping[str, Any]) -> Series:
    """Open files as the data of a run were opened, but for options that are given.

    Columns are standardised with the means and deviations of the run's data. An empty text stands for
    no sequence or variable where the run had one.
    """
    if len(paths) == 1 and is_run(paths[0]):
        return read(paths, **options)
    about = run.config.get("data") or {}
    asked = about.get("description") or {}
    merged = {n: asked[n] for n in ("variable", "sequence", "columns") if n in asked}
    merged |= run.treatment
    merged |= {name: value or None for name, value in options.items() if value not in (None, [])}
    sequence = merged.get("sequence")
    try:
        series = _opened(run, paths, merged)
    except ValueError as error:
        if options.get("sequence") or f"no column {sequence!r}" not in str(error):
            raise
        raise ValueError(
            f"{error}; the data of {run.path} had it to tell series apart: give sequence='' where there "
            "is but one"
        ) from None
    return series if run.units is None else series.standardized(*run.units)


def _opened(run: Run, paths: Sequence[str], options: dict[str, Any]) -> Series:
    series = read(paths, **options)
    return as_series(series, run.model.emission_dim, tuple(run.config["columns"]))


def fit_and_data(
    run: Path,
    paths: Sequence[str] | None,
    columns: list[str] | None = None,
    sequence: str | None = None,
    variable: str | None = None,
    *,
    out: Path | None = None,
) -> tuple[Fit, Series]:
    """Return a run's fit, and data given or its own, which a table must not be written over."""
    check_out(out)
    fit, opened = load(run), open_run(run)
    given = {"columns": columns, "sequence": sequence, "variable": variable}
    series = read_for(opened, paths, given) if paths else series_of(opened, None)
    if out is not None:
        check_replaceable(out, series.describe())
    return fit, fit.as_series(series)


def write_table(table: "pandas.DataFrame", out: Path | None) -> None:
    """Write a table in the format that the name says, or print it as CSV."""
    if out is None:
        print(table.to_csv(index=False), end="")
        return
    writers = {
        ".csv": lambda file: table.to_csv(file, index=False),
        ".tsv": lambda file: table.to_csv(file, index=False, sep="\t"),
        ".parquet": lambda file: table.to_parquet(file, index=False),
        ".json": lambda file: table.to_json(file, orient="records", double_precision=15),
        ".jsonl": lambda file: table.to_json(
            file, orient="records", lines=True, double_precision=15
        ),
    }
    check_out(out)
    write_file(out, lambda file: _through_memory(writers[out.suffix.lower()], file))
    typer.echo(f"{len(table):,} rows in {out}", err=True)


def _through_memory(write: Any, file: Any) -> None:
    """Let pandas write to memory: some writers close the file that they are given."""
    buffer = io.BytesIO()
    buffer.close, close = lambda: None, buffer.close  # type: ignore[method-assign]
    write(buffer)
    file.write(buffer.getvalue())
    close()


def check_out(out: Path | None) -> None:
    """Raise before any work if a table cannot be written there."""
    if out is None:
        return
    if out.suffix.lower() not in _SUFFIXES:
        raise ValueError(f"cannot write {out}: expected a name that ends in {', '.join(_SUFFIXES)}")
    if not out.parent.is_dir():
        raise ValueError(f"cannot write {out}: the folder {out.parent} does not exist")


def write_states(make: Callable[[Path | None], "xarray.Dataset"], out: Path | None) -> None:
    """Write smoothed or decoded states: series, t, state, p_0, …, x_0, sd_0, …

    Parquet is written as the states are made; `make` does that if it is given a path.
    """
    import pandas

    if out is not None and out.suffix.lower() == ".parquet":
        make(out)
        typer.echo(f"states in {out}", err=True)
        return
    write_table(pandas.DataFrame(_columns(make(None))), out)


def write_paths(paths: "xarray.Dataset", out: Path | None) -> None:
    """Write paths of states one after the other: path, series, t, state, x_0, …"""
    import pandas

    tables = [
        pandas.DataFrame({"path": i, **_columns(paths.isel(path=i))})
        for i in range(paths.sizes["path"])
    ]
    write_table(pandas.concat(tables, ignore_index=True), out)


def _columns(states: "xarray.Dataset") -> dict[str, np.ndarray]:
    return columns_of({str(name): values.to_numpy() for name, values in states.variables.items()})


def say(result: dict[str, Any], *, as_json: bool) -> None:
    """Print results, by name, for people or for programs."""
    if as_json:
        print(json.dumps(_plain(result), allow_nan=False))
        return
    width = max(len(name) for name in result)
    for name, value in result.items():
        print(
            f"{name:<{width}}  {value:.6g}"
            if isinstance(value, float)
            else f"{name:<{width}}  {value}"
        )


def records(table: "pandas.DataFrame") -> list[dict[str, Any]]:
    """Return a table as what JSON can hold, missing numbers as None."""
    text = table.reset_index().to_json(orient="records", double_precision=15)
    return json.loads(str(text))


def _plain(value: Any) -> Any:
    """Return what JSON can hold: numbers that are not finite as None."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, dict):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int) else str(value)
