"""A run directory: what was asked, what was chosen, and what each chain has drawn.

    run/
      config.json            model, sampler, settings, data, versions
      tuned.json, tuned.npz  what was chosen before sampling
      draws.zarr             draws and statistics, in chunks
      chain-0.npz            how many draws of the chain count, and all that its future depends on
      lock                   the process that writes, if one does

Every file is written under a temporary name and renamed. Draws are on the disk before the file of their
chain says that they count, so at any instant what counts is there, with a state to go on from: nothing
is lost, nothing comes twice. JSON and arrays only: nothing that is loaded can execute code.
"""

import contextlib
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sojourn._files import (
    RunError,
    cannot_write,
    damaged,
    fill,
    flatten,
    lock,
    read_arrays,
    read_json,
    remove,
    write_arrays,
    write_json,
)
from sojourn.models.base import Model
from sojourn.runs.draw_store import RESUME, Arrays, DrawStore
from sojourn.runs.records import decode

# Version of the layout above; raised when older code could misread it.
FORMAT = 2

# Groups of the store of draws, by the names that ArviZ gives them.
POSTERIOR, STATISTICS = "posterior", "sample_stats"


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
        buffer: Buffer of the windows.
        buffer_error: Its error when last measured.
    """

    coords: dict[str, Any]
    memory: dict[str, Any]
    warmed: Any = 0
    step: Any = 0
    epsilon: Any = np.nan
    halvings: Any = 0
    lp: Any = np.nan
    buffer: Any = 0
    buffer_error: Any = np.nan


@dataclass(frozen=True)
class ChainFiles:
    """What is kept of one chain.

    Attributes:
        path: The file that says where the chain is.
        store: The draws of all chains.
        index: Which chain.
    """

    path: Path
    store: DrawStore
    index: int

    @property
    def num_draws(self) -> int:
        """Draws that count; the store may hold more that were not acknowledged."""
        return int(self._kept()["drawn"]) if self.path.exists() else 0

    def checkpoint(self) -> Checkpoint | None:
        """Return where the chain is, None if it has not begun."""
        if not self.path.exists():
            return None
        found = fill("state", Checkpoint({}, {}), self._kept())
        counts = {n: int(getattr(found, n)) for n in ("warmed", "step", "halvings", "buffer")}
        values = {n: float(getattr(found, n)) for n in ("epsilon", "lp", "buffer_error")}
        return found._replace(**counts, **values)

    def warm(self, checkpoint: Checkpoint) -> None:
        """Keep where the chain is in warm-up."""
        self._keep(0, checkpoint)

    def append(self, draws: Arrays, statistics: Arrays, checkpoint: Checkpoint | None) -> None:
        """Keep the next draws, and where the chain is after them; None if it will not go on."""
        count = len(next(iter(draws.values())))
        if count == 0:
            return
        first = self.num_draws
        parts = {f"{POSTERIOR}/{n}": v for n, v in draws.items()}
        parts |= {f"{STATISTICS}/{n}": v for n, v in statistics.items()}
        self.store.write(self.index, first, parts)
        self._keep(first + count, checkpoint)

    def read(self, thin: int = 1) -> tuple[Arrays, Arrays]:
        """Return every `thin`-th draw and its statistics."""
        count = self.num_draws
        draws = self.store.read(self.index, count, POSTERIOR, thin)
        if not draws or not all(np.isfinite(values).all() for values in draws.values()):
            what = f"{self.store.path} lacks draws of chain {self.index}"
            raise damaged(what, f"delete {self.path} and {RESUME}")
        return draws, self.store.read(self.index, count, STATISTICS, thin)

    def _keep(self, drawn: int, checkpoint: Checkpoint | None) -> None:
        state = {} if checkpoint is None else flatten("state", checkpoint)
        write_arrays(self.path, {"drawn": np.asarray(drawn), **state})

    def _kept(self) -> Arrays:
        again = f"delete it and {RESUME}"
        found = read_arrays(self.path, again)
        if "drawn" not in found:
            raise damaged(f"{self.path} does not say how much was drawn", again)
        return found


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
        model = decode(self.config["model"], "model")
        if not isinstance(model, Model):
            raise damaged(f"{self.path / 'config.json'} names no model")
        return model

    @property
    def chains(self) -> list[ChainFiles]:
        count = self.config["num_chains"]
        return [ChainFiles(self.path / f"chain-{i}.npz", self.store, i) for i in range(count)]

    @property
    def store(self) -> DrawStore:
        """The draws of all chains."""
        return DrawStore(self.path / "draws.zarr")

    def make_room(self, statistics: Sequence[str]) -> None:
        """Make room for the draws that are asked for, each with these statistics."""
        model = self.model
        shapes = {f"{POSTERIOR}/{n}": s for n, s in model.param_shapes.items()}
        dims = {f"{POSTERIOR}/{n}": d for n, d in model.param_dims.items()}
        none = {f"{STATISTICS}/{n}": () for n in statistics}
        for left in self.path.glob(".*.part"):  # by a process that was killed
            if left.is_file():
                left.unlink()
        # Whatever is asked for, what was drawn stays.
        most = max(self.config["num_samples"], *(chain.num_draws for chain in self.chains))
        self.store.make_room(self.config["num_chains"], most, shapes | none, dims | none)

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
    def treatment(self) -> dict[str, Any]:
        """What was done to the data when they were opened: `missing`, `log`, `every`."""
        about = self.config.get("data") or {}
        found = about.get("treatment", about.get("description") or {})  # where earlier runs have it
        return {name: found[name] for name in ("missing", "log", "every") if name in found}

    @property
    def units(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Mean and standard deviation that were taken out of each column, if any."""
        units = (self.config.get("data") or {}).get("units")
        return None if units is None else (np.asarray(units[0]), np.asarray(units[1]))

    @property
    def is_tuned(self) -> bool:
        return (self.path / "tuned.json").exists()

    @property
    def is_saved(self) -> bool:
        """Whether it was saved from memory, with draws and nothing to go on from."""
        return "init" not in self.config

    @property
    def is_cut_short(self) -> bool:
        """Whether it was to be saved from memory and was not to the end."""
        return self.is_saved and not self.is_tuned

    @property
    def is_empty(self) -> bool:
        """Whether it ended before anything was chosen or drawn."""
        return not self.is_tuned and not any(chain.path.exists() for chain in self.chains)

    def write_tuned(self, facts: dict[str, Any], arrays: dict[str, Any]) -> None:
        """Keep what was chosen; `tuned.json` is written last and says that all is there."""
        write_arrays(self.path / "tuned.npz", arrays)
        write_json(self.path / "tuned.json", facts)

    def read_tuned(self) -> tuple[dict[str, Any], Arrays]:
        facts = read_json(self.path / "tuned.json")
        if not isinstance(facts, dict) or not isinstance(facts.get("choices"), dict):
            raise damaged(f"{self.path / 'tuned.json'} lacks 'choices'")
        return facts, read_arrays(self.path / "tuned.npz")


@contextlib.contextmanager
def create_run(path: Any, config: dict[str, Any]) -> Iterator[Run]:
    """Make a run directory and keep other processes from writing to it.

    A run that ended before anything was chosen gives way, and so does one that was not saved whole.

    Raises:
        RunError: It cannot be written, or already holds a run or something else.
    """
    path = Path(path).expanduser()
    if path.exists() and not path.is_dir():
        raise RunError(f"{path} is a file; choose a directory for the run")
    try:
        path.mkdir(parents=True, exist_ok=True)
        held = sorted(p.name for p in path.iterdir())
    except OSError as error:
        raise cannot_write(path, error) from None
    # What a process leaves behind that dies while it writes the configuration.
    left = {name for name in held if fnmatch(name, ".config.json.*.part")}
    other = [name for name in held if name not in left | {"lock"}]
    if other and "config.json" not in other:
        raise RunError(
            f"{path} holds other files ({other[0]}) and no run; choose an empty directory or a new one"
        )
    config = {"format": FORMAT, "versions": versions(), **config}
    with lock(path / "lock"):
        if (path / "config.json").exists():
            _give_way(path)
        write_json(path / "config.json", config)
        yield Run(path, config)


def open_run(path: Any) -> Run:
    """Open a run directory.

    Raises:
        RunError: There is none, or it is damaged, foreign or newer than this version.
    """
    path = Path(path).expanduser()
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
        raise damaged(f"{path / 'config.json'} lacks {absent[0]!r}")
    if not isinstance(config.get("data"), dict | None):
        raise damaged(f"{path / 'config.json'} does not describe its data")
    counts = [config[name] for name in ("num_samples", "num_chains")]
    if not all(isinstance(count, int) and count > 0 for count in counts):
        raise damaged(f"{path / 'config.json'} has no sensible numbers of draws")
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


def _give_way(path: Path) -> None:
    """Remove what is left of a run that holds nothing; raise if it does, or cannot be read."""
    try:
        run = open_run(path)
        gives_way = run.is_empty or run.is_cut_short
        onward = "" if run.is_saved else "continue it with sojourn.resume, or "
    except RunError:  # damaged, or of something else
        gives_way, onward = False, ""
    if not gives_way:
        raise RunError(f"{path} already holds {_described(path)}; {onward}choose another directory")
    try:
        for pattern in ("draws.zarr", "chain-*.npz", "tuned.npz"):
            for left in path.glob(pattern):
                remove(left)
    except OSError as error:
        raise cannot_write(path, error) from None


def _described(path: Path) -> str:
    """Say what a directory holds, without failing if it is damaged."""
    try:
        run = open_run(path)
        model, asked = run.config["model"]["class"], run.config["num_samples"]
        return f"a run ({model}, {run.num_draws} of {asked} draws per chain)"
    except (RunError, KeyError, TypeError):
        return "a run that cannot be read"
