"""Files of named columns: Parquet, read by row groups, and CSV, converted once.

A CSV file has no random access. Small ones are read into memory; larger ones are written, block by
block, to an .npy file beside them that is used from then on, until the CSV file changes.
"""

import csv
import hashlib
import json
import os
import re
import sys
import threading
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.parquet

from sojourn._files import replacing, write_json
from sojourn.series.convert import run_lengths
from sojourn.series.formats import Names, Place, need, readable
from sojourn.series.series import check_known, check_unique, default_names
from sojourn.series.sources import ArraySource, Source, overlapping

# Bytes of decoded row groups that are kept.
_CACHE_BYTES = 2**27

# Files of a directory that are open at once.
_OPEN_FILES = 16

# Bytes up to which a CSV file is read into memory.
_SMALL_CSV = 2**24

# From this many columns on, a first line 0, 1, … is one of names, whatever follows.
_MANY_NAMES = 3

# A line of integers.
_INTEGERS = re.compile(r"[\s\d,;+-]+")

# What pandas calls an index without a name among the columns of a Parquet file.
_INDEX = re.compile(r"__index_level_\d+__")


class Table(NamedTuple):
    """Columns of values, and the lengths of the series in them, with names if they have any."""

    source: Source
    lengths: tuple[int, ...]
    names: tuple[str, ...] | None = None


def open_parquet(place: Place, columns: Names, sequence: str | None) -> Table:
    """Open a file, or the files of a directory in the order of their names.

    In a directory, `sequence` may be the key of parts named key=value.
    """
    paths = _parquet_files(place)
    with readable(place, "Parquet"):
        about = [_metadata(place, path) for path in paths]
    schema = about[0].schema.to_arrow_schema()
    for path, one in zip(paths, about, strict=True):
        names = one.schema.to_arrow_schema().names
        if names != schema.names:
            raise ValueError(
                f"{path} has the columns {names}, {paths[0]} has {schema.names}; all files must have "
                "the same"
            )
    check_unique(schema.names)
    keys = [dict(re.findall(r"([^/\\=]+)=([^/\\]+)[/\\]", path)) for path in paths]
    by_part = sequence is not None and all(sequence in key for key in keys)
    if sequence is not None and not by_part:
        check_known("column", [sequence], schema.names)
    values = [n for n in schema.names if n != sequence and not _INDEX.fullmatch(n)]
    chosen = values if columns is None else list(columns)
    check_known("column", chosen, schema.names)
    for name in chosen:
        _check_type(place, name, schema.field(name).type, schema.names)
    if not chosen:
        raise ValueError(f"{place.text} has no columns of values")
    source = _Parquet(place, paths, about, chosen)
    if sequence is None:
        return Table(source, (source.num_rows,))
    if by_part:
        ids: Iterator[Any] = (
            np.full(one.num_rows, key[sequence]) for one, key in zip(about, keys, strict=True)
        )
    else:
        ids = (
            batch.column(0).to_numpy(zero_copy_only=False)
            for i in range(len(paths))
            for batch in source.file(i).iter_batches(columns=[sequence])
        )
    with readable(place, "Parquet"):
        blocks = [block for block in ids if len(block)]
    return Table(source, *run_lengths(blocks, sequence))


def _metadata(place: Place, path: str) -> Any:
    """Read what a file says of its columns and row groups."""
    file = pyarrow.parquet.ParquetFile(_source_of(place, path))
    try:
        return file.metadata
    finally:
        file.close(force=True)


class _Parquet(Source):
    """Row groups of Parquet files; the ones read last are kept, decoded, and few files open."""

    def __init__(
        self, place: Place, paths: list[str], metadata: list[Any], columns: list[str]
    ) -> None:
        self._place, self._paths, self._metadata = place, paths, metadata
        self.columns = tuple(columns)
        self._groups = [(f, g) for f, one in enumerate(metadata) for g in range(one.num_row_groups)]
        sizes = [metadata[f].row_group(g).num_rows for f, g in self._groups]
        self._sizes, self._ends = sizes, np.cumsum(sizes)
        self.num_rows, self.chunk = sum(sizes), max([1, *sizes])
        self._kept: OrderedDict[int, np.ndarray] = OrderedDict()
        self._open: OrderedDict[int, Any] = OrderedDict()
        self._lock = threading.Lock()

    def rows(self, start: int, stop: int) -> np.ndarray:
        found = []
        with self._lock, readable(self._place, "Parquet"):
            for i in overlapping(self._ends, start, stop):
                before = int(self._ends[i]) - self._sizes[i]
                found.append(self._group(i)[max(start - before, 0) : max(stop - before, 0)])
        return np.concatenate(found)

    def _group(self, i: int) -> np.ndarray:
        if i not in self._kept:
            file, group = self._groups[i]
            table = self.file(file).read_row_group(group, columns=list(self.columns))
            self._kept[i] = _to_rows(table, self.columns)
            limit = max(1, _CACHE_BYTES // max(self._kept[i].nbytes, 1))
            while len(self._kept) > limit:
                self._kept.popitem(last=False)
        self._kept.move_to_end(i)
        return self._kept[i]

    def file(self, i: int) -> Any:
        """Return a file, opened; those used longest ago are closed."""
        if i not in self._open:
            if len(self._open) >= _OPEN_FILES:
                self._open.popitem(last=False)[1].close(force=True)
            where = _source_of(self._place, self._paths[i])
            self._open[i] = pyarrow.parquet.ParquetFile(where, metadata=self._metadata[i])
        self._open.move_to_end(i)
        return self._open[i]


class _Layout(NamedTuple):
    """Names of the columns of a CSV file, what separates them, whether the first line names them."""

    names: list[str]
    separator: str
    has_header: bool


def open_csv(place: Place, columns: Names, sequence: str | None) -> Table:
    """Open text with a column separator; the first line names the columns unless it holds numbers.

    Names may be 0, 1, …, as pandas writes those that nobody chose. Row numbers that pandas writes, in a
    first column without a name, are left out.
    """
    layout = _layout(place)
    names = layout.names
    check_unique(names)
    if sequence is not None:
        check_known("column", [sequence], names)
    numbered = columns is None and names[0] == "" != sequence and len(names) > 1
    every = names[1:] if numbered else names
    chosen = [n for n in every if n != sequence] if columns is None else list(columns)
    check_known("column", chosen, names)
    parts = _csv_blocks(place, layout, chosen, sequence, numbered=numbered)
    size = place.size()
    if size is not None and size <= _SMALL_CSV:
        blocks, ids = zip(*parts, strict=True)
        source = ArraySource(np.concatenate(blocks), tuple(chosen))
        return Table(source, *_lengths(source, ids, sequence))
    # Columns that were chosen were converted without a look at the numbers of rows.
    cache = _cache_of(place, [*chosen, sequence or "", *["rows are numbered"] * numbered])
    note = cache.with_suffix(".json")
    stamp = _stamp(place)
    with_note = _read_note(note) if cache.exists() else {}
    if with_note.get("stamp") != stamp or "names" not in with_note:
        names_of_series: list[Any] = []
        write_npy(cache, _collect(parts, names_of_series), len(chosen))
        source = ArraySource(np.load(cache, mmap_mode="r"), tuple(chosen))
        lengths, called = _lengths(source, names_of_series, sequence)
        with_note = {"stamp": stamp, "lengths": lengths, "names": called}
        write_json(note, with_note)
        _note(f"{place.text} was converted once to {cache}")
    source = ArraySource(np.load(cache, mmap_mode="r"), tuple(chosen))
    called = with_note["names"]
    return Table(source, tuple(with_note["lengths"]), None if called is None else tuple(called))


def _note(message: str) -> None:
    """Warn, at the line that called the library."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("sojourn."):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, UserWarning, stacklevel=level)


def _read_note(path: Path) -> dict[str, Any]:
    """Return what stands beside a converted file; nothing where it cannot be read."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return {}


def write_npy(path: Path, blocks: Iterator[np.ndarray], dim: int) -> None:
    """Write blocks of rows (n, D) to one .npy file of doubles; it appears when it is complete."""
    with replacing(path) as temporary, temporary.open("wb") as file:
        count = 0
        # Headers have room for any number of rows: the first is overwritten when it is known.
        _write_header(file, (0, dim))
        for block in blocks:
            file.write(np.ascontiguousarray(block, dtype="<f8").tobytes())
            count += len(block)
        file.seek(0)
        _write_header(file, (count, dim))


def _write_header(file: Any, shape: tuple[int, int]) -> None:
    header = {"descr": "<f8", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)


def _parquet_files(place: Place) -> list[str]:
    if place.is_local:
        if not place.path.is_dir():
            return [str(place.path)]
        found = [str(path) for path in sorted(place.path.rglob("*.parquet"))]
    else:
        filesystem, path = need("fsspec", "remote").core.url_to_fs(place.text)
        if not filesystem.isdir(path):
            return [path]
        found = sorted(name for name in filesystem.find(path) if name.endswith(".parquet"))
    if not found:
        raise ValueError(f"{place.text} holds no .parquet files")
    return found


def _source_of(place: Place, path: str) -> Any:
    if place.is_local:
        return path
    return need("fsspec", "remote").core.url_to_fs(place.text)[0].open(path, "rb")


def _others(name: str, names: Sequence[str], *, is_date: bool) -> str:
    """Say how to leave out a column, or what else it may be for."""
    rest = ", ".join(repr(other) for other in names if other != name)
    others = f"choose others with columns= ({rest})"
    return others if is_date else f"{others}, or sequence={name!r} if it tells series apart"


def _check_type(place: Place, name: str, kind: Any, names: Sequence[str]) -> None:
    types = pyarrow.types
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        return
    if types.is_decimal(kind) or types.is_null(kind):
        return
    is_date = types.is_temporal(kind)
    what = "dates, which are no values" if is_date else f"{kind}, not numbers"
    advice = _others(name, names, is_date=is_date)
    raise TypeError(f"{place.text}: column {name!r} holds {what}; {advice}")


def _to_rows(table: Any, columns: Sequence[str]) -> np.ndarray:
    as_floats = [table.column(name).cast(pyarrow.float64()) for name in columns]
    return np.column_stack([np.asarray(c.to_numpy(), np.float64) for c in as_floats])


def _layout(place: Place) -> _Layout:
    """Read the first line and, where that could be names or a row, the second."""
    with place.open() as file:
        line, following = file.readline(2**20), file.readline(2**20)
    if not line.strip():
        raise ValueError(f"{place.text} is empty; expected a line of names and rows of numbers")
    try:
        text = line.decode("utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError:
        raise ValueError(f"{place.text} cannot be read as CSV: it is not text in UTF-8") from None
    separator = "\t" if place.suffix == ".tsv" else max(",;\t", key=text.count)
    fields = [field.strip() for field in next(csv.reader([text], delimiter=separator))]
    # A few small integers in a row may as well be a row of such.
    ambiguous = len(fields) < _MANY_NAMES and _INTEGERS.fullmatch(
        following.decode("utf-8", "replace")
    )
    if fields == _counted(len(fields)) and not ambiguous:
        _note(
            f"{place.text}: the first line, {text[:40]}, is taken for the names of its columns, as "
            "pandas writes them; put a line of names above it if it is a row"
        )
    elif fields != ["", *_counted(len(fields) - 1)] and all(map(_is_number, fields)):
        return _Layout(list(default_names(len(fields))), separator, False)
    return _Layout(fields, separator, True)


def _counted(count: int) -> list[str]:
    """Return the names of columns that pandas writes where nobody named them."""
    return [str(i) for i in range(count)]


def _is_number(field: str) -> bool:
    """Return whether the reader takes a field for a number or a missing one."""
    try:
        float("nan" if field in pyarrow.csv.ConvertOptions().null_values else field)
    except ValueError:
        return False
    return True


def _csv_blocks(
    place: Place, layout: _Layout, chosen: list[str], sequence: str | None, *, numbered: bool
) -> Iterator[tuple[np.ndarray, Any]]:
    """Read values and names of series block by block.

    If rows are `numbered`, the first column has to say so.
    """
    names, separator, has_header = layout
    types: dict[str, Any] = {name: pyarrow.float64() for name in chosen}
    if numbered:
        types[names[0]] = pyarrow.float64()
    if sequence is not None:
        types[sequence] = pyarrow.string()
    with place.open() as file:
        try:
            reader = pyarrow.csv.open_csv(
                file,
                # One thread: messages then know the number of a row.
                pyarrow.csv.ReadOptions(
                    use_threads=False, column_names=names, skip_rows=int(has_header)
                ),
                pyarrow.csv.ParseOptions(delimiter=separator),
                pyarrow.csv.ConvertOptions(column_types=types, include_columns=list(types)),
            )
            count = 0
            for batch in reader:
                numbers = np.arange(count, count + len(batch))
                count += len(batch)
                if numbered and not np.array_equal(batch.column(names[0]), numbers):
                    raise ValueError(_nameless(place, names, "does not count rows from 0"))
                ids = None if sequence is None else np.asarray(batch.column(sequence))
                yield _to_rows(pyarrow.table(batch), chosen), ids
        except pyarrow.ArrowInvalid as error:
            raise _explained(place, names, str(error)) from None
    if count == 0:
        raise ValueError(f"{place.text} has no rows; expected at least two")
    if numbered:
        _note(f"{place.text}: the first column, without a name, holds row numbers and is left out")


def _nameless(place: Place, names: list[str], what: str) -> str:
    """Say what is wrong with a first column that has no name."""
    rest = ", ".join(map(repr, names[1:]))
    return (
        f"{place.text}: the first column has no name and {what}; choose others with columns= "
        f"({rest}), or give it a name"
    )


def _explained(place: Place, names: list[str], text: str) -> Exception:
    """Return what is wrong with a CSV file, in words of rows and columns."""
    line = re.search(r"Row #(\d+)", text)
    where = f" in line {line[1]}" if line else ""
    ragged = re.search(r"Expected (\d+) columns, got (\d+)", text)
    if ragged:
        return ValueError(
            f"{place.text} has {ragged[2]} fields{where}, others have {ragged[1]}; mend the file"
        )
    value = re.search(r"column #(\d+).*invalid value '(.*?)'", text)
    if value:
        name = names[int(value[1])]
        is_date = re.fullmatch(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}.*", value[2]) is not None
        what = f"holds {'a date' if is_date else 'text'}, {value[2][:40]!r}{where}"
        if name == names[0] == "":
            return TypeError(_nameless(place, names, what))
        advice = _others(name, names, is_date=is_date)
        return TypeError(f"{place.text}: column {name!r} {what}; expected numbers: {advice}")
    if "Empty CSV" in text:
        return ValueError(f"{place.text} has no rows; expected at least two")
    return ValueError(f"{place.text} cannot be read as CSV ({' '.join(text.split())[:120]})")


def _collect(parts: Iterator[tuple[np.ndarray, Any]], ids: list[Any]) -> Iterator[np.ndarray]:
    for block, names in parts:
        ids.append(names)
        yield block


def _lengths(
    source: Source, ids: Sequence[Any], sequence: str | None
) -> tuple[tuple[int, ...], tuple[str, ...] | None]:
    return ((source.num_rows,), None) if sequence is None else run_lengths(ids, sequence)


def _stamp(place: Place) -> list[int | str]:
    if place.is_local:
        status = place.path.stat()
        return [status.st_size, status.st_mtime_ns]
    filesystem, path = need("fsspec", "remote").core.url_to_fs(place.text)
    return [str(filesystem.ukey(path))]


def _cache_of(place: Place, what: list[str]) -> Path:
    """Return where a converted file lies: beside it, or else in the user's cache."""
    beside = place.is_local and os.access(place.path.parent, os.W_OK)
    where = str(place.path.resolve()) if place.is_local else place.text
    key = hashlib.sha256(json.dumps(["" if beside else where, *what]).encode())
    name = f"{Path(place.text).name}.{key.hexdigest()[:8]}.npy"
    if beside:
        return place.path.parent / name
    home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "sojourn"
    home.mkdir(parents=True, exist_ok=True)
    return home / name
