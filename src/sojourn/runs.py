"""A run directory: what was asked, what was chosen, and what each chain has drawn.

    run/
      config.json                        model, sampler, settings, data, versions
      tuned.json, tuned.npz              what was chosen before sampling
      chain-0/warmup.npz                 where the chain was in warm-up
      chain-0/draws-<from>-<to>.npz      draws and statistics
      chain-0/state-<to>.npz             where the chain was after them
      lock                               the process that writes, if one does

Every file is written under a temporary name and renamed, and none is changed later but `config.json`,
when a run is extended. The state after a piece of draws is there before the piece itself, so at any
instant the pieces that are there have a state to go on from: nothing is lost, nothing comes twice.
JSON and arrays only: nothing that is loaded can execute code.
"""

import contextlib
import platform
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sojourn.models.base import Model
from sojourn.records import decode
from sojourn.storage import (
    RunError,
    cannot_write,
    fill,
    flatten,
    lock,
    read_arrays,
    read_json,
    write_arrays,
    write_json,
)

# Version of the layout above; raised when older code could misread it.
FORMAT = 1

_PIECE = re.compile(r"draws-(\d+)-(\d+)\.npz")

Arrays = dict[str, np.ndarray]


class Checkpoint(NamedTuple):
    """Where a chain is: all that its future depends on besides the seed and what was tuned.

    Attributes:
        coords: Coordinates of the parameters.
        memory: What the dynamics carry besides.
        warmed: Pieces of warm-up that are done.
        step: Next step; the random streams are functions of it.
        epsilon: Step size.
        halvings: How often it was halved.
        lp: Last estimate of the log-posterior.
    """

    coords: dict[str, Any]
    memory: dict[str, Any]
    warmed: Any = 0
    step: Any = 0
    epsilon: Any = np.nan
    halvings: Any = 0
    lp: Any = np.nan


@dataclass(frozen=True)
class ChainFiles:
    """The files of one chain."""

    path: Path

    @property
    def num_draws(self) -> int:
        pieces = self._pieces()
        return pieces[-1][1] if pieces else 0

    def checkpoint(self) -> Checkpoint | None:
        """Return where the chain is, None if it has not begun."""
        drawn = self.num_draws
        path = self._state(drawn) if drawn else self.path / "warmup.npz"
        if not drawn and not path.exists():
            return None
        found = fill("state", Checkpoint({}, {}, 0, 0, 0, 0, 0), read_arrays(path))
        counts = {n: int(getattr(found, n)) for n in ("warmed", "step", "halvings")}
        return found._replace(epsilon=float(found.epsilon), lp=float(found.lp), **counts)

    def warm(self, checkpoint: Checkpoint) -> None:
        """Keep where the chain is in warm-up."""
        self._make()
        write_arrays(self.path / "warmup.npz", flatten("state", checkpoint))

    def append(self, draws: Arrays, statistics: Arrays, checkpoint: Checkpoint | None) -> None:
        """Keep the next draws, and where the chain is after them; None if it will not go on."""
        count = len(next(iter(draws.values())))
        if count == 0:
            return
        self._make()
        first = self.num_draws
        if checkpoint is not None:
            write_arrays(self._state(first + count), flatten("state", checkpoint))
        parts = flatten("draws", draws) | flatten("statistics", statistics)
        write_arrays(self.path / f"draws-{first:010d}-{first + count:010d}.npz", parts)
        if first:
            with contextlib.suppress(OSError):
                self._state(first).unlink()

    def read(self, thin: int = 1) -> tuple[Arrays, Arrays]:
        """Return every `thin`-th draw and its statistics."""
        draws: list[Arrays] = []
        statistics: list[Arrays] = []
        for first, stop, path in self._pieces():
            arrays = read_arrays(path)
            picked = slice(-first % thin, stop - first, thin)
            for kind, into in (("draws", draws), ("statistics", statistics)):
                piece = fill(kind, {}, arrays)
                if any(len(values) != stop - first for values in piece.values()):
                    raise RunError(f"{path} holds other draws than its name says: it is damaged")
                into.append({name: values[picked] for name, values in piece.items()})
        return join(draws), join(statistics)

    def _pieces(self) -> list[tuple[int, int, Path]]:
        """Return first draw, end and path of each piece, in order."""
        found = []
        if self.path.is_dir():
            for path in self.path.iterdir():
                match = _PIECE.fullmatch(path.name)
                if match:
                    found.append((int(match[1]), int(match[2]), path))
        found.sort()
        end = 0
        for first, stop, _ in found:
            if first != end or stop <= first:
                raise RunError(f"{self.path} lacks draws {end} to {first - 1}: the run is damaged")
            end = stop
        return found

    def _state(self, drawn: int) -> Path:
        return self.path / f"state-{drawn:010d}.npz"

    def _make(self) -> None:
        try:
            self.path.mkdir(exist_ok=True)
        except OSError as error:
            raise cannot_write(self.path, error) from None


@dataclass(frozen=True)
class Run:
    """A run directory that was opened or created.

    Attributes:
        path: The directory.
        config: What `config.json` holds.
    """

    path: Path
    config: dict[str, Any]

    @property
    def model(self) -> Model:
        """The model, with its units."""
        return decode(self.config["model"])

    @property
    def chains(self) -> list[ChainFiles]:
        return [ChainFiles(self.path / f"chain-{i}") for i in range(self.config["num_chains"])]

    @property
    def num_draws(self) -> int:
        """Draws that every chain has."""
        return min(chain.num_draws for chain in self.chains)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from writing."""
        with lock(self.path / "lock"):
            yield

    def extend(self, num_samples: int) -> "Run":
        """Ask for more draws."""
        config = {**self.config, "num_samples": num_samples}
        write_json(self.path / "config.json", config)
        return Run(self.path, config)

    @property
    def is_tuned(self) -> bool:
        return (self.path / "tuned.json").exists()

    def write_tuned(self, facts: dict[str, Any], arrays: dict[str, Any]) -> None:
        """Keep what was chosen; `tuned.json` is written last and says that all is there."""
        write_arrays(self.path / "tuned.npz", arrays)
        write_json(self.path / "tuned.json", facts)

    def read_tuned(self) -> tuple[dict[str, Any], Arrays]:
        return read_json(self.path / "tuned.json"), read_arrays(self.path / "tuned.npz")


def create_run(path: Any, config: dict[str, Any]) -> Run:
    """Make a run directory.

    Raises:
        RunError: It cannot be written, or already holds a run or something else.
    """
    path = Path(path)
    if path.exists() and not path.is_dir():
        raise RunError(f"{path} is a file; choose a directory for the run")
    try:
        path.mkdir(parents=True, exist_ok=True)
        held = sorted(p.name for p in path.iterdir())
    except OSError as error:
        raise cannot_write(path, error) from None
    other = [name for name in held if name not in ("lock", ".config.json.part")]
    if other and "config.json" not in other:
        raise RunError(
            f"{path} holds other files ({other[0]}) and no run; choose an empty directory or a new one"
        )
    config = {"format": FORMAT, "versions": versions(), **config}
    with lock(path / "lock"):
        if (path / "config.json").exists():
            raise RunError(
                f"{path} already holds {_described(path)}; continue it with sojourn.resume, or "
                "choose another directory"
            )
        write_json(path / "config.json", config)
    return Run(path, config)


def open_run(path: Any) -> Run:
    """Open a run directory.

    Raises:
        RunError: There is none, or it is damaged, foreign or newer than this version.
    """
    path = Path(path)
    if not path.exists():
        raise RunError(f"{path} does not exist; expected the directory of a run")
    if not (path / "config.json").is_file():
        raise RunError(f"{path} is not a run: it has no config.json; pass what was given as `out`")
    config = read_json(path / "config.json")
    if not isinstance(config, dict) or not isinstance(config.get("format"), int):
        raise RunError(f"{path} is not a run of sojourn: its config.json is of something else")
    if config["format"] > FORMAT:
        by = config.get("versions", {}).get("sojourn", "a newer version")
        raise RunError(f"{path} was written by sojourn {by}, newer than this one; upgrade sojourn")
    needed = ("model", "columns", "num_samples", "num_chains", "seed")
    absent = [name for name in needed if name not in config]
    if absent:
        raise RunError(f"{path / 'config.json'} lacks {absent[0]!r}: the run is damaged")
    return Run(path, config)


def versions() -> dict[str, str]:
    """Return the versions that the bits of a draw may depend on."""
    import jax

    from sojourn import __version__

    return {
        "sojourn": __version__,
        "jax": jax.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }


def _described(path: Path) -> str:
    """Say what a directory holds, without failing if it is damaged."""
    try:
        run = open_run(path)
        model, asked = run.config["model"]["class"], run.config["num_samples"]
        return f"a run ({model}, {run.num_draws} of {asked} draws per chain)"
    except (RunError, KeyError, TypeError):
        return "a run that cannot be read"


def join(parts: Sequence[Arrays]) -> Arrays:
    """Return pieces of draws as one."""
    names = parts[0] if parts else ()
    return {name: np.concatenate([part[name] for part in parts]) for name in names}
