"""The draws of all chains as one Zarr store, which other tools can read while a run goes on.

    draws.zarr/posterior/<parameter>       dims (chain, draw, …), states not aligned across chains
    draws.zarr/sample_stats/<statistic>    dims (chain, draw)

Chunks hold draws of one chain, with a checksum. A chunk is replaced whole, by a file that the disk has,
so that draws before those that are being written are safe; how many draws of a chain count is not said
here but by its checkpoint.
What is behind them is NaN, or was written by a process that did not come to say so.
"""

import asyncio
import contextlib
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sojourn._files import (
    brief,
    cannot_write,
    damaged,
    read_json,
    sync_directory,
    write_file,
)

Arrays = dict[str, np.ndarray]

# What brings back a chain whose file is deleted.
RESUME = "call sojourn.resume to draw this chain again"

# Draws of a chunk.
_CHUNK = 1000

# What chunks go through: nothing that could execute code, a checksum.
_CODECS = ["bytes", "crc32c"]


@dataclass(frozen=True)
class DrawStore:
    """A Zarr store of draws.

    Attributes:
        path: The directory of the store.
    """

    path: Path

    def make_room(
        self,
        num_chains: int,
        num_draws: int,
        shapes: Mapping[str, tuple[int, ...]],
        dims: Mapping[str, tuple[str, ...]],
    ) -> None:
        """Make arrays of this many draws, or longer ones of those that are there.

        Args:
            num_chains: Number of chains.
            num_draws: Draws of each.
            shapes: Shape of one draw of each array, by name such as `posterior/A`.
            dims: Names of its dimensions.
        """
        import zarr
        from zarr.codecs import Crc32cCodec

        with _writing(self.path):
            for left in self.path.rglob(".*.part"):  # by a process that was killed
                left.unlink()
            root = zarr.open_group(_durable(self.path), mode="a", zarr_format=3)
            for name, shape in shapes.items():
                whole = (num_chains, num_draws, *shape)
                if name in root:
                    self._array(name).resize(whole)
                    continue
                root.create_array(
                    name,
                    shape=whole,
                    chunks=(1, _CHUNK, *(max(size, 1) for size in shape)),
                    dtype="float64",
                    fill_value=np.nan,
                    filters=None,
                    compressors=Crc32cCodec(),
                    dimension_names=("chain", "draw", *dims[name]),
                )

    def write(self, chain: int, first: int, arrays: Arrays) -> None:
        """Write draws of a chain from the `first` on; they are on the disk when this returns."""
        with _writing(self.path):
            for name, values in arrays.items():
                self._array(name)[chain, first : first + len(values)] = values

    def read(self, chain: int, num_draws: int, group: str, thin: int = 1) -> Arrays:
        """Return every `thin`-th of the first draws of a chain, of all arrays of a group.

        Raises:
            RunError: The store is damaged.
        """
        again = f"{self.path.parent / f'chain-{chain}.npz'} and {RESUME}"
        names = sorted(path.parent.name for path in self.path.glob(f"{group}/*/zarr.json"))
        found = {}
        for name in names:
            path = self.path / group / name
            try:
                found[name] = np.asarray(
                    self._array(f"{group}/{name}")[chain, slice(0, num_draws, thin)]
                )
            except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
                what = f"{path / 'c' / str(chain)} cannot be read ({brief(error)})"
                raise damaged(what, f"delete it and {again}") from None
            if len(found[name]) != -(-num_draws // thin):
                raise damaged(f"{path} lacks draws", f"delete {again}")
        return found

    def _array(self, name: str) -> Any:
        """Open an array that is of the kind that `make_room` makes."""
        import zarr

        again = (
            f"delete {self.path} and the files chain-*.npz and call sojourn.resume to draw all chains "
            "again"
        )
        about = read_json(self.path / name / "zarr.json", again)
        codecs = [part.get("name") for part in about.get("codecs", [])]
        if about.get("data_type") != "float64" or codecs != _CODECS:
            raise damaged(f"{self.path / name} was not written by sojourn", again)
        return zarr.open_array(_durable(self.path / name), mode="r+", zarr_format=3)


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise cannot_write(path, error) from error


def _durable(path: Path) -> Any:
    """Return a store whose files are on the disk before they have their names."""
    return _durable_class()(path)


@functools.cache
def _durable_class() -> Any:
    from zarr.storage import LocalStore

    class DurableStore(LocalStore):
        async def set(self, key: str, value: Any) -> None:
            await asyncio.to_thread(_write, self.root, key, value.to_bytes())

    return DurableStore


def _write(root: Path, key: str, content: bytes) -> None:
    path = root / key
    fresh = [parent for parent in path.parents if not parent.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, lambda file: file.write(content))
    for parent in fresh:
        sync_directory(parent.parent)
