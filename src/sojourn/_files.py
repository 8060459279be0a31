"""Files that are either whole or not there, arrays by name, and a lock on a directory."""

import contextlib
import errno
import glob
import json
import os
import shutil
import socket
import uuid
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

try:
    import fcntl
except ImportError:  # Windows has no such locks; a second process is then not noticed.
    fcntl = None


class RunError(RuntimeError):
    """A run directory cannot be used as asked; the message says what to do."""


class WriteError(RunError):
    """A file of a run could not be written; what was written before is kept."""


# What to do where nothing but a copy helps.
BEGIN_ANEW = "sample again in another directory"


def damaged(what: str, otherwise: str = BEGIN_ANEW) -> RunError:
    """Return an error that says what is wrong with a run, and what to do where there is no copy."""
    return RunError(f"{what}: the run is damaged; restore it from a copy, or {otherwise}")


def write_json(path: Path, content: Any) -> None:
    """Write JSON, whole or not at all."""
    write_text(path, json.dumps(content, indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write text, whole or not at all."""
    write_file(path, lambda file: file.write(text.encode()))


def write_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write arrays by name to an npz file, whole or not at all."""
    named: dict[str, Any] = {name: np.asarray(array) for name, array in arrays.items()}
    write_file(path, lambda file: np.savez(file, **named))


def read_json(path: Path, otherwise: str = BEGIN_ANEW) -> Any:
    """Read JSON; `otherwise` is what to do about damage where there is no copy.

    Raises:
        RunError: The file is not there or is not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise damaged(f"{path} is missing", otherwise) from None
    except (OSError, ValueError) as error:
        raise damaged(f"{path} cannot be read ({brief(error)})", otherwise) from None


def read_arrays(path: Path, otherwise: str = BEGIN_ANEW) -> dict[str, np.ndarray]:
    """Read all arrays of an npz file; nothing in it can execute code.

    Args:
        path: The file.
        otherwise: What to do about damage where there is no copy.

    Raises:
        RunError: The file is not there, or not what was written.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except FileNotFoundError:
        raise damaged(f"{path} is missing", otherwise) from None
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise damaged(f"{path} cannot be read ({brief(error)})", otherwise) from None


def flatten(name: str, tree: Any) -> dict[str, Any]:
    """Return the arrays of nested dicts and tuples under names such as `metric/pilots/A`."""
    parts = _parts(tree)
    if parts is None:
        return {name: tree}
    return {n: a for key, part in parts.items() for n, a in flatten(f"{name}/{key}", part).items()}


def fill(name: str, template: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """Return `template` with its arrays replaced by those of `flatten`.

    An empty dict or tuple takes all arrays under its name.
    """
    parts = _parts(template)
    if parts is None:
        if name not in arrays:
            raise damaged(f"{name} is not in the file, or is of another version")
        return arrays[name]
    filled = {key: fill(f"{name}/{key}", part, arrays) for key, part in parts.items()}
    if not parts:
        start = f"{name}/"
        filled = {n.removeprefix(start): a for n, a in arrays.items() if n.startswith(start)}
    if isinstance(template, dict):
        return filled
    return type(template)(*filled.values()) if parts else tuple(filled.values())


def _parts(tree: Any) -> dict[str, Any] | None:
    """Return what a dict or tuple holds, by name or by position."""
    if isinstance(tree, dict):
        return tree
    if not isinstance(tree, tuple):
        return None
    return tree._asdict() if hasattr(tree, "_asdict") else {str(i): x for i, x in enumerate(tree)}  # type: ignore


@contextlib.contextmanager
def lock(path: Path) -> Iterator[None]:
    """Hold a lock file that names this process; the system lets go of it when the process ends.

    Raises:
        RunError: Another process holds it, or there are no locks where it is.
    """
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise cannot_write(path, error) from None
    try:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.read(file, 200).decode(errors="replace").strip()
                raise RunError(
                    f"{path.parent} is in use by {holder or 'another process'}; wait until it has "
                    "ended, or stop it"
                ) from None
            except OSError as error:
                raise RunError(
                    f"{path.parent} cannot be locked ({error.strerror or error}); choose a "
                    "directory on a file system with locks"
                ) from None
        try:
            os.ftruncate(file, 0)
            os.write(file, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        except OSError as error:
            raise cannot_write(path, error) from None
        yield
    finally:
        os.close(file)


def cannot_write(path: Path, error: OSError) -> WriteError:
    """Return an error that says what to do about a file that cannot be written."""
    if not path.parent.exists():
        return WriteError(f"cannot write {path}: the folder {path.parent} does not exist; make it")
    return WriteError(
        f"cannot write {path}: {error.strerror or error}; make room or mend the permissions, or "
        "choose another directory"
    )


def write_file(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    """Write a file, whole or not at all."""
    try:
        with replacing(path) as temporary, temporary.open("wb") as file:
            write(file)
    except OSError as error:
        raise cannot_write(path, error) from error


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give another name for a file or directory while it is written, of this process alone.

    At the end the disk has what was written and it takes its own name; what had it before is gone. If
    anything goes wrong, it is removed and what was there stays. A process that dies just before a
    directory takes its name leaves the one before as `.name.*.old`, which the next write removes.

    Raises:
        WriteError: The disk is full.
    """
    unique = f".{path.name}.{uuid.uuid4().hex}"
    temporary, old = path.with_name(f"{unique}.part"), path.with_name(f"{unique}.old")
    try:
        yield temporary
        is_directory = temporary.is_dir()
        _sync_tree(temporary)
        if path.is_dir():  # a directory is not replaced by a rename unless it is empty
            os.replace(path, old)
        os.replace(temporary, path)
        sync_directory(path.parent)
    except BaseException as error:
        with contextlib.suppress(OSError):
            if old.exists() and not path.exists():
                os.replace(old, path)
            remove(temporary)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise cannot_write(path, error) from error
        raise
    left = path.parent.glob(f".{glob.escape(path.name)}.*.old") if is_directory else [old]
    for one in left:
        with contextlib.suppress(OSError):
            remove(one)


def remove(path: Path) -> None:
    """Remove a file or a directory, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _sync_tree(path: Path) -> None:
    """Let the disk have a file, or all that a directory holds."""
    if not path.is_dir():
        _sync(path, os.O_RDWR)
        return
    for folder, _, names in os.walk(path, topdown=False):
        for name in names:
            _sync(Path(folder) / name, os.O_RDWR)
        sync_directory(Path(folder))


def sync_directory(path: Path) -> None:
    """Let the disk have the names of a directory's files."""
    if fcntl is not None:
        _sync(path, os.O_RDONLY)


def _sync(path: Path, mode: int) -> None:
    descriptor = os.open(path, mode)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def brief(error: Exception) -> str:
    """Return the message of an error in one short line."""
    return " ".join(str(error).split())[:80]
