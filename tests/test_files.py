"""Files and directories that are either whole or not there."""

import errno
import os

import numpy as np
import pandas as pd
import pytest

import sojourn as sj
from sojourn import _files
from sojourn._files import replacing


def write(path, text):
    """Write a directory with a file in a directory."""
    with replacing(path) as temporary:
        (temporary / "deep").mkdir(parents=True)
        (temporary / "deep" / "file").write_text(text)


def held(path):
    return (path / "deep" / "file").read_text()


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_disk_has_a_directory_before_it_has_its_name(tmp_path, monkeypatch):
    done, sync, replace = [], _files._sync, os.replace
    monkeypatch.setattr(_files, "_sync", lambda p, mode: done.append(p.name) or sync(p, mode))
    monkeypatch.setattr(
        _files.os, "replace", lambda a, b: done.append(f"to {b.name}") or replace(a, b)
    )
    write(tmp_path / "store", "one")
    part = done[2]
    assert part.startswith(".store.") and part.endswith(".part")
    assert done == ["file", "deep", part, "to store", tmp_path.name]
    done.clear()
    write(tmp_path / "store", "two")
    assert done[3].startswith("to .store.") and done[3].endswith(".old")
    assert done[4:] == ["to store", tmp_path.name]
    assert names(tmp_path) == ["store"]
    assert held(tmp_path / "store") == "two"


def test_a_directory_that_cannot_take_its_name_leaves_the_old_one(tmp_path, monkeypatch):
    write(tmp_path / "store", "one")
    replace = os.replace

    def refuse(source, target):
        if source.name.endswith(".part"):
            raise OSError(errno.EIO, "no")
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(_files.os, "replace", refuse)
        with pytest.raises(OSError, match="no"):
            write(tmp_path / "store", "two")
    assert names(tmp_path) == ["store"]
    assert held(tmp_path / "store") == "one"


def test_a_full_disk_says_what_to_do_and_leaves_what_was_there(tmp_path):
    path = tmp_path / "one"
    write(path, "old")
    says = pytest.raises(sj.RunError, match=r"one: No space left.*make room")
    with says, replacing(path) as temporary:
        temporary.write_text("new")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert held(path) == "old"
    assert names(tmp_path) == ["one"]


def test_death_between_two_names_leaves_both(tmp_path, monkeypatch):
    class Crash(BaseException):
        pass

    write(tmp_path / "store", "one")
    replace, calls = os.replace, []

    def die(source, target):
        calls.append(source)
        if len(calls) > 1:
            raise Crash
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(_files.os, "replace", die)
        patch.setattr(_files.shutil, "rmtree", die)
        with pytest.raises(Crash):
            write(tmp_path / "store", "two")
    old, new = sorted(tmp_path.iterdir(), key=lambda path: path.suffix)
    assert (old.suffix, new.suffix) == (".old", ".part")
    assert (held(old), held(new)) == ("one", "two")
    write(tmp_path / "store", "three")
    assert held(tmp_path / "store") == "three"
    assert not old.exists()


def test_what_a_crash_leaves_is_no_data_and_in_no_one_s_way(tmp_path):
    model = sj.GaussianHMM(num_states=2, emission_dim=1)
    how = {"num_samples": 3, "num_warmup": 2, "num_chains": 1, "progress": False}
    y = np.random.default_rng(0).normal(size=(50, 1))
    sj.sample(model, y, sj.Gibbs(), out=tmp_path, **how)
    for end in ("old", "part"):
        left = tmp_path / f".states.zarr.0123.{end}"
        left.mkdir()
        (left / "zarr.json").write_text("{}")
    assert sj.resume(tmp_path, y, 5, progress=False).posterior.sizes["draw"] == 5
    parts = tmp_path / "parts"
    parts.mkdir()
    pd.DataFrame({"a": y[:, 0]}).to_parquet(parts / "0.parquet")
    (parts / ".1.parquet.0123.part").write_bytes(b"PAR1")
    (parts / ".1.parquet.0123.old").mkdir()
    assert sj.open_series(parts).num_rows == 50
