"""Files of arrays: one function per format that opens it as sources, one for each series.

A function takes a `Place`, the name of the array wanted and the columns wanted, and returns sources.
Formats whose packages are not always there say which extra installs them.
"""

import contextlib
import importlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sojourn.series.convert import check_numbers, from_array, over_time
from sojourn.series.series import check_known, check_unique, suggestion
from sojourn.series.sources import ColumnSource, Source

Names = Sequence[str] | None


@dataclass(frozen=True)
class Place:
    """A path on disk, or the address of a file elsewhere."""

    text: str

    @property
    def is_local(self) -> bool:
        return "://" not in self.text

    @property
    def path(self) -> Path:
        return Path(self.text).expanduser()

    @property
    def suffix(self) -> str:
        return Path(self.text.rstrip("/").split("?")[0]).suffix.lower()

    def open(self) -> Any:
        """Return a binary file that can be sought."""
        if self.is_local:
            return self.path.open("rb")
        return need("fsspec", "remote").open(self.text, "rb").open()

    def exists(self) -> bool:
        if self.is_local:
            return self.path.exists()
        filesystem, path = need("fsspec", "remote").core.url_to_fs(self.text)
        return bool(filesystem.exists(path))

    def size(self) -> int | None:
        """Return the bytes of a file, None where its server does not say."""
        if self.is_local:
            return self.path.stat().st_size
        filesystem, path = need("fsspec", "remote").core.url_to_fs(self.text)
        return filesystem.size(path)


def need(module: str, extra: str) -> Any:
    """Import a package that not every installation has."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise ImportError(
            f"this needs the package {module.split('.')[0]}: pip install 'sojourn[{extra}]'"
        ) from None


@contextlib.contextmanager
def readable(place: Place, what: str) -> Iterator[None]:
    """Turn whatever a package says of a broken file into one line."""
    try:
        yield
    except (ImportError, MemoryError, KeyboardInterrupt):
        raise
    except Exception as error:
        if isinstance(error, PermissionError | IsADirectoryError):
            raise
        why = " ".join(str(error).split()) or type(error).__name__
        why = why if len(why) <= 120 else f"{why[:117]}..."
        raise ValueError(
            f"{place.text} cannot be read as {what}; it may be cut short or of another format "
            f"({why})"
        ) from None


def open_npy(place: Place, variable: str | None, columns: Names) -> list[Source]:
    """Open one array: mapped into memory, or read by ranges of bytes from elsewhere."""
    _no_names(place, variable)
    with readable(place, "a .npy array"):
        array = np.load(place.path, mmap_mode="r") if place.is_local else _RemoteArray(place)
    return from_array(array, place.text)


def open_npz(place: Place, variable: str | None, columns: Names) -> list[Source]:
    """Open the arrays of an archive, each of them one series unless one is chosen; kept in memory."""
    with readable(place, "an .npz archive"), place.open() as file, np.load(file) as archive:
        names = list(archive) if variable is None else [variable]
        check_known("array", names, list(archive))
        arrays = {name: archive[name] for name in names}
    if len(arrays) == 0:
        raise ValueError(f"{place.text} holds no arrays")
    return [
        source for name, a in arrays.items() for source in from_array(a, f"{place.text}: {name}")
    ]


def open_zarr(place: Place, variable: str | None, columns: Names) -> list[Source]:
    """Open an array or a group of arrays."""
    import zarr

    with readable(place, "a Zarr store"):
        node: Any = zarr.open(place.text if not place.is_local else str(place.path), mode="r")
        is_group = hasattr(node, "keys")
        arrays = dict(node.arrays()) if is_group else {"": node}
    every = {
        name: over_time(_ZarrArray(array, place), _zarr_dims(array))
        for name, array in arrays.items()
    }
    if is_group:
        return _from_group(every, place, variable, columns)
    _no_names(place, variable)
    return from_array(every[""], place.text)


def open_hdf5(place: Place, variable: str | None, columns: Names) -> list[Source]:
    """Open the datasets of a file."""
    h5py = need("h5py", "hdf5")
    every: dict[str, Any] = {}

    def keep(name: str, node: Any) -> None:
        if isinstance(node, h5py.Dataset):
            every[name] = over_time(node, _hdf5_dims(node))

    with readable(place, "HDF5"):
        file = h5py.File(str(place.path) if place.is_local else place.open(), "r")
        file.visititems(keep)
    return _from_group(every, place, variable, columns)


def open_netcdf(place: Place, variable: str | None, columns: Names) -> list[Source]:
    """Open the variables of a file, scaled and with missing values as its attributes say."""
    import xarray

    with readable(place, "NetCDF"):
        file = str(place.path) if place.is_local else place.open()
        try:
            data = xarray.open_dataset(file, decode_times=False)
        except ValueError as error:
            if "engine" not in str(error):
                raise
            need("h5netcdf", "hdf5")
            raise
    every = {str(name): over_time(data[name], data[name].dims) for name in data.data_vars}
    return _from_group(every, place, variable, columns)


def open_edf(place: Place, variable: str | None, columns: Names) -> list[Source]:
    """Open the signals of a recording that have one sampling rate."""
    pyedflib = need("pyedflib", "edf")
    if variable is not None:
        raise ValueError("an EDF recording has signals, no arrays: choose them with columns=")
    if not place.is_local:
        raise ValueError(f"{place.text}: EDF recordings are read from disk; download it first")
    with readable(place, "EDF"):
        reader = pyedflib.EdfReader(str(place.path))
    labels = reader.getSignalLabels()
    lock = threading.Lock()
    every = {label.strip(): _Signal(reader, i, lock) for i, label in enumerate(labels)}
    check_unique([label.strip() for label in labels])
    return _from_group(every, place, None, list(every) if columns is None else columns)


def _from_group(
    arrays: dict[str, Any], place: Place, variable: str | None, columns: Names
) -> list[Source]:
    """Return the array that was chosen, or one-dimensional ones as columns."""
    if variable is not None:
        check_known("array", [variable], list(arrays))
        return from_array(arrays[variable], f"{place.text}: {variable}")
    if columns is None:
        if len(arrays) == 1:
            ((name, array),) = arrays.items()
            return from_array(array, f"{place.text}: {name}")
        if not arrays:
            raise ValueError(f"{place.text} holds no arrays")
        raise ValueError(
            f"{place.text} holds several arrays; choose one with variable=, or one-dimensional ones "
            f"with columns=, among {', '.join(map(repr, list(arrays)[:8]))}"
        )
    if len(arrays) == 1 and not set(columns) & set(arrays):
        ((name, array),) = arrays.items()
        return from_array(array, f"{place.text}: {name}")
    check_known("array", columns, list(arrays))
    chosen = {name: arrays[name] for name in columns}
    lengths = {tuple(array.shape) for array in chosen.values()}
    if len(lengths) > 1 or len(next(iter(lengths))) != 1:
        raise ValueError(
            f"{place.text}: columns must be one-dimensional and of one length; got shapes "
            f"{', '.join(f'{name} {tuple(array.shape)}' for name, array in chosen.items())}"
        )
    for name, array in chosen.items():
        check_numbers(name, array.dtype)
    return [ColumnSource(chosen)]


def _zarr_dims(array: Any) -> Sequence[Any]:
    """Return the names of an array's dimensions, which the second version of Zarr left to xarray."""
    names = getattr(array.metadata, "dimension_names", None)
    return names or array.attrs.get("_ARRAY_DIMENSIONS", ())


def _hdf5_dims(dataset: Any) -> Sequence[Any]:
    """Return the names of a dataset's dimensions: labels, or the scales that NetCDF attaches."""
    return [
        dim.label or next((scale.name.split("/")[-1] for scale in dim.values()), None)
        for dim in dataset.dims
    ]


def _no_names(place: Place, variable: str | None) -> None:
    """Raise if something is looked for by name in a file that has no names."""
    if variable is not None:
        raise ValueError(f"{place.text} holds one array, without a name: leave variable out")


class _RemoteArray:
    """An .npy file elsewhere, read by ranges of bytes."""

    def __init__(self, place: Place) -> None:
        self._file, self._lock = place.open(), threading.Lock()
        version = np.lib.format.read_magic(self._file)
        read = np.lib.format.read_array_header_1_0
        read = read if version == (1, 0) else np.lib.format.read_array_header_2_0
        self.shape, fortran, self.dtype = read(self._file)
        if fortran and len(self.shape) > 1:
            raise ValueError("columns come first; save it in C order")
        self._start = self._file.tell()

    def __getitem__(self, where: Any) -> np.ndarray:
        index, part = where if isinstance(where, tuple) else (None, where)
        shape = self.shape if index is None else self.shape[1:]
        width = int(np.prod(shape[1:])) * self.dtype.itemsize
        first = part.start + (0 if index is None else index * shape[0])
        with self._lock:
            self._file.seek(self._start + first * width)
            data = self._file.read((part.stop - part.start) * width)
        return np.frombuffer(data, self.dtype).reshape(-1, *shape[1:])


class _ZarrArray:
    """A Zarr array, read by TensorStore where that is installed: it takes a fraction of the time."""

    def __init__(self, array: Any, place: Place) -> None:
        self.shape, self.dtype, self.chunks = array.shape, array.dtype, array.chunks
        self._place = place
        self._store = _tensorstore(array, place) or array

    def __getitem__(self, where: Any) -> np.ndarray:
        with readable(self._place, "a Zarr store"):
            return np.asarray(self._store[where])

    def pick(self, index: np.ndarray) -> np.ndarray:
        """Return these rows in one request, each chunk read once."""
        with readable(self._place, "a Zarr store"):
            return np.asarray(self._store.oindex[index])


def _tensorstore(array: Any, place: Place) -> Any:
    """Return the array opened by TensorStore, None where that cannot be."""
    if not place.is_local:
        return None
    try:
        import tensorstore
    except ImportError:
        return None
    driver = "zarr3" if array.metadata.zarr_format == 3 else "zarr"
    path = str(place.path / array.path if array.path else place.path)
    where = {"driver": driver, "kvstore": {"driver": "file", "path": f"{path}/"}}
    try:
        return tensorstore.open(where, read=True, open=True).result()
    except ValueError:  # a codec that it does not have
        return None


class _Signal:
    """One signal of an EDF recording."""

    chunks = (4096,)

    def __init__(self, reader: Any, index: int, lock: threading.Lock) -> None:
        self._reader, self._index, self._lock = reader, index, lock
        self.shape, self.dtype = (int(reader.getNSamples()[index]),), np.dtype(float)

    def __getitem__(self, part: slice) -> np.ndarray:
        with self._lock:
            return self._reader.readSignal(self._index, part.start, part.stop - part.start)


Opener = Callable[[Place, str | None, Names], list[Source]]

OPENERS: dict[str, Opener] = {
    ".npy": open_npy,
    ".npz": open_npz,
    ".zarr": open_zarr,
    ".h5": open_hdf5,
    ".hdf5": open_hdf5,
    ".nc": open_netcdf,
    ".nc4": open_netcdf,
    ".cdf": open_netcdf,
    ".edf": open_edf,
    ".bdf": open_edf,
}


# Files of columns, by what opens them in `tables`.
TABLES = {
    ".parquet": "open_parquet",
    ".pq": "open_parquet",
    ".csv": "open_csv",
    ".tsv": "open_csv",
}


def check_suffix(place: Place) -> str:
    """Return the end of a file's name; raise if it is none of a known format."""
    known = [*OPENERS, *TABLES]
    if place.suffix not in known:
        raise ValueError(
            f"{place.text} has {place.suffix or 'no ending'!r}, which is none of the formats "
            f"{', '.join(known)}; {suggestion(place.suffix, known)}"
        )
    return place.suffix
