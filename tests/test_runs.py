"""Runs: stopped anywhere, damaged anyhow, resumed to the same bits."""

import dataclasses
import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import xarray

import sojourn as sj
from cases import CASES
from sojourn import _files
from sojourn._progress import Progress
from sojourn.results import diagnose, largest_block
from sojourn.runs import runs
from sojourn.runs.records import decode, encode
from sojourn.sampling import chains, traces
from sojourn.synthetic import reversed_cycles
from sojourn.tuning import steps, tuning
from sojourn.tuning.buffers import TOLERANCE

MODEL = sj.GaussianHMM(num_states=2, emission_dim=1)
TRUTH = {
    "transition_matrix": np.array([[0.9, 0.1], [0.2, 0.8]]),
    "means": np.array([[0.0], [3.0]]),
    "covariances": np.ones((2, 1, 1)),
}
Y = MODEL.simulate(TRUTH, 200, seed=0)[1]
SETTINGS = {
    "windows": sj.Windows(20, 5, 4),
    "control_variate": True,
    "num_warmup": 4,
    "thin": 2,
    "num_chains": 2,
    "progress": False,
}


def run(out: Path, num_samples: int = 24) -> sj.Fit:
    return sj.sample(MODEL, Y, num_samples=num_samples, out=out, **SETTINGS)


def same(one: sj.Fit, other: sj.Fit) -> bool:
    return one.posterior.identical(other.posterior) and one.sample_stats.identical(
        other.sample_stats
    )


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(chains, "_CHUNK_DRAWS", (5, 7))


@pytest.fixture(scope="module")
def unbroken() -> sj.Fit:
    return sj.sample(MODEL, Y, num_samples=24, **SETTINGS)


@pytest.fixture
def finished(tmp_path) -> Path:
    run(tmp_path / "run", 6)
    return tmp_path / "run"


def test_a_run_extended_is_the_run_that_was_longer(tmp_path, unbroken):
    short = run(tmp_path / "run", 9)
    assert short.posterior.sizes["draw"] == 9
    longer = sj.resume(tmp_path / "run", Y, num_samples=24, progress=False)
    assert same(longer, unbroken)
    loaded = sj.load(tmp_path / "run")
    assert same(loaded, unbroken)
    assert loaded.choices == unbroken.choices
    assert loaded.model == unbroken.model
    every_third = sj.load(tmp_path / "run", thin=3).posterior["means"].to_numpy()
    np.testing.assert_array_equal(every_third, unbroken.posterior["means"].to_numpy()[:, ::3])
    assert same(sj.resume(tmp_path / "run", Y, progress=False), unbroken)


@pytest.mark.parametrize(
    ("sampler", "windows"),
    [(sj.Gibbs(), "auto"), (sj.SGRLD(sj.Decay(0.05)), sj.Windows.full())],
    ids=["Gibbs", "RLD"],
)
def test_other_samplers_resume(tmp_path, sampler, windows):
    check_resume(tmp_path / "run", MODEL, sampler, windows)


def check_resume(out: Path, model, sampler, windows="auto") -> None:
    settings = SETTINGS | {"windows": windows, "control_variate": "auto"}
    whole = sj.sample(model, Y, sampler, num_samples=13, **settings)
    sj.sample(model, Y, sampler, num_samples=6, out=out, **settings)
    assert same(sj.resume(out, Y, 13, progress=False), whole)


def test_a_buffer_too_short_where_chains_are_grows_and_is_resumed(tmp_path, monkeypatch):
    monkeypatch.setattr(chains, "_WATCH_EVERY", 5)
    monkeypatch.setattr(tuning, "choose", lambda *_: (1, 0.0))
    y = MODEL.simulate(TRUTH, 5000, seed=1)[1]
    settings = SETTINGS | {"windows": "auto"}
    whole = sj.sample(MODEL, y, sj.SGRLD(0.05), num_samples=8, **settings)
    assert whole.choices["buffer"] == 1
    assert (whole.sample_stats["buffer"] > 1).all()
    assert (whole.sample_stats["buffer_error"] <= TOLERANCE).all()
    for stop in (3, 5):  # between two looks at the buffer, and at one
        out = tmp_path / f"run{stop}"
        sj.sample(MODEL, y, sj.SGRLD(0.05), num_samples=stop, out=out, **settings)
        assert same(sj.resume(out, y, 8, progress=False), whole)
    loaded = sj.load(out)
    checks = diagnose(loaded.posterior, loaded.sample_stats, loaded.choices)
    (measured,) = (check.value for check in checks if check.name == "buffer_error")
    assert measured == whole.sample_stats["buffer_error"].max()


def test_slopes_of_a_control_variate_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(steps, "_PAID_BACK", 1e12)
    monkeypatch.setattr(steps, "_MIN_BATCH", 1)
    y = MODEL.simulate(TRUTH, 5000, seed=1)[1]
    whole = sj.sample(MODEL, y, num_samples=8, **SETTINGS)
    sj.sample(MODEL, y, num_samples=3, out=tmp_path / "run", **SETTINGS)
    with np.load(tmp_path / "run" / "tuned.npz") as kept:
        assert any(name.startswith("control/slopes/") for name in kept)
    assert same(sj.resume(tmp_path / "run", y, 8, progress=False), whole)


def test_chances_of_windows_are_kept(tmp_path):
    """States that are clear but for few rows: windows are drawn by what they tell."""
    model, params = reversed_cycles()
    y = model.simulate(params, 20_000, seed=1)[1]
    settings = {"num_chains": 2, "init": params, "progress": False}
    whole = sj.sample(model, y, num_samples=8, **settings)
    assert whole.choices["chances"] == "by influence"
    sj.sample(model, y, num_samples=3, out=tmp_path / "run", **settings)
    assert same(sj.resume(tmp_path / "run", y, 8, progress=False), whole)


class Crash(BaseException):
    """The end of the process, as far as files can tell."""


def dying(monkeypatch, after: int, error: BaseException) -> list[int]:
    """Let the process die, or the disk be full, from the n-th call to the disk on."""
    calls = [0]

    def wrap(function):
        def called(*args):
            calls[0] += 1
            if calls[0] > after:
                raise error
            return function(*args)

        return called

    for name in ("fsync", "replace"):
        monkeypatch.setattr(_files.os, name, wrap(getattr(os, name)))
    return calls


@pytest.mark.parametrize("after", [0, 3, 8, 11, 16, 42, *range(66, 200, 13), 240, 300])
def test_death_at_any_write_loses_nothing(tmp_path, monkeypatch, unbroken, after):
    """The first nine calls write what was chosen, those from the 66th on draws."""
    with monkeypatch.context() as patch:
        calls = dying(patch, after, Crash())
        with pytest.raises(Crash):
            run(tmp_path / "run")
        assert calls[0] > after
    if (tmp_path / "run" / "config.json").exists():
        kept = runs.open_run(tmp_path / "run").num_draws
        if kept:
            part = sj.load(tmp_path / "run").posterior
            assert part.identical(unbroken.posterior.isel(draw=slice(kept)))
        fit = sj.resume(tmp_path / "run", Y, progress=False)
    else:
        fit = run(tmp_path / "run")
    assert same(fit, unbroken)


def test_a_full_disk_says_so_and_loses_nothing(tmp_path, monkeypatch, unbroken):
    with monkeypatch.context() as patch:
        dying(patch, 120, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        with pytest.raises(sj.RunError, match=r"No space left.*draws per chain are kept.*resume"):
            run(tmp_path / "run")
    assert not list((tmp_path / "run").rglob("*.part"))
    assert same(sj.resume(tmp_path / "run", Y, progress=False), unbroken)


def test_an_interrupt_keeps_what_was_drawn(tmp_path, monkeypatch, unbroken):
    advance, calls = Progress.advance, []

    def interrupt(self, steps, log_posterior=None):
        calls.append(steps)
        if len(calls) == 13:
            raise KeyboardInterrupt
        advance(self, steps, log_posterior)

    monkeypatch.setattr(traces, "num_cores", lambda: 2)
    with monkeypatch.context() as patch:
        patch.setattr(Progress, "advance", interrupt)
        with pytest.raises(sj.Interrupted, match=r"kept in .*continue with sojourn.resume") as e:
            run(tmp_path / "run")
    kept = e.value.fit.posterior
    same_chains = unbroken.posterior.sel(chain=kept["chain"])
    assert kept.identical(same_chains.isel(draw=slice(kept.sizes["draw"])))
    assert same(sj.resume(tmp_path / "run", Y, progress=False), unbroken)


def test_an_interrupt_keeps_finished_chains_where_others_have_not_begun(monkeypatch, unbroken):
    advance, taken = Progress.advance, []

    def interrupt(self, steps, log_posterior=None):
        taken.append(steps)
        if sum(taken) > SETTINGS["num_warmup"] + 24 * SETTINGS["thin"]:
            raise KeyboardInterrupt
        advance(self, steps, log_posterior)

    monkeypatch.setattr(traces, "num_cores", lambda: 1)
    monkeypatch.setattr(Progress, "advance", interrupt)
    with pytest.raises(sj.Interrupted, match="24 draws of chain 0 are kept") as e:
        sj.sample(MODEL, Y, num_samples=24, **SETTINGS)
    assert e.value.fit.posterior.equals(unbroken.posterior.isel(chain=[0]))


def test_chains_that_make_most_draws_are_kept():
    assert largest_block([24, 24]) == [0, 1]
    assert largest_block([5, 800, 0, 800]) == [1, 3]
    assert largest_block([20, 24]) == [0, 1]
    assert largest_block([1, 2]) == [0, 1]
    assert largest_block([0, 0]) == []


PROGRAM = """
import sys
import numpy as np
import sojourn as sj
from sojourn.sampling import chains
chains._CHUNK_DRAWS = (5, 7)
out, y = sys.argv[1], np.load(sys.argv[2])
try:
    fit = sj.resume(out, y, progress=False)
except sj.RunError as error:
    assert "does not exist" in str(error) or "no config.json" in str(error), error
    truth = {"transition_matrix": np.array([[0.9, 0.1], [0.2, 0.8]]),
             "means": np.array([[0.0], [3.0]]), "covariances": np.ones((2, 1, 1))}
    sj.sample(sj.GaussianHMM(2, 1), y, sj.Gibbs(), num_warmup=4, num_chains=2, num_samples=1500,
              init=truth, progress=False, out=out)
"""


def _drawn(path: Path) -> int:
    """Return how many draws of the first chain count."""
    state = path / "chain-0.npz"
    return int(np.load(state)["drawn"]) if state.exists() else 0


def kill_until_done(folder: Path, signals: list[int]) -> None:
    """Start and kill a run at random moments after it has begun to draw, then let it end."""
    np.save(folder / "y.npy", Y)
    command = [sys.executable, "-c", PROGRAM, str(folder / "run"), str(folder / "y.npy")]
    drawn = 0
    for number in signals:
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        end = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < end:
            if _drawn(folder / "run") > drawn:
                break
            time.sleep(0.01)
        time.sleep(random.uniform(0, 0.4))
        process.send_signal(number)
        _, err = process.communicate()
        if number == signal.SIGINT and process.returncode != 0:
            assert " are kept in " in err, err
        drawn = _drawn(folder / "run")
        assert drawn > 0, err
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    settings = {"num_warmup": 4, "num_chains": 2, "num_samples": 1500, "progress": False}
    unbroken = sj.sample(MODEL, Y, sj.Gibbs(), init=TRUTH, **settings)
    assert same(sj.load(folder / "run"), unbroken)


def test_killed_processes_lose_nothing(tmp_path):
    kill_until_done(tmp_path, [signal.SIGKILL, signal.SIGINT])


def test_a_second_process_is_told(finished):
    opened = runs.open_run(finished)
    with opened.locked(), pytest.raises(sj.RunError, match=rf"in use by process {os.getpid()} on"):
        sj.resume(finished, Y, progress=False)
    # The name of a process that is gone does not keep others out.
    (finished / "lock").write_text("process 4194999 on elsewhere\n")
    sj.resume(finished, Y, progress=False)


def test_saved_fits_are_loaded_but_not_resumed(tmp_path, unbroken):
    unbroken.save(tmp_path / "saved")
    loaded = sj.load(tmp_path / "saved")
    assert same(loaded, unbroken)
    assert loaded.choices == unbroken.choices
    with pytest.raises(sj.RunError, match="saved from memory"):
        sj.resume(tmp_path / "saved", Y)
    with pytest.raises(sj.RunError, match="already holds a run"):
        unbroken.save(tmp_path / "saved")


def test_saving_that_was_cut_short_is_done_again(tmp_path, monkeypatch, unbroken):
    calls = dying(monkeypatch, 10**9, Crash())
    unbroken.save(tmp_path / "whole")
    total, cut = calls[0], 0
    fewer = dataclasses.replace(
        unbroken,
        posterior=unbroken.posterior.isel(draw=slice(3)),
        sample_stats=unbroken.sample_stats.isel(draw=slice(3)),
    )
    for after in [*range(0, total, 17), total - 4]:
        path = tmp_path / f"saved{after}"
        with monkeypatch.context() as patch:
            dying(patch, after, Crash())
            with pytest.raises(Crash):
                unbroken.save(path)
        if (path / "config.json").exists():
            cut += 1
            fails("saving was cut short; save again", lambda p=path: sj.load(p))
            fails("saving was cut short; save again", lambda p=path: sj.resume(p, Y))
            with monkeypatch.context() as patch:
                dying(patch, after, Crash())
                with pytest.raises(Crash):  # what is saved next may be something else
                    fewer.save(path)
        unbroken.save(path)
        assert same(sj.load(path), unbroken)
        assert {p.name for p in path.iterdir()} == {p.name for p in (tmp_path / "whole").iterdir()}
    assert cut > 3


def test_a_run_takes_the_place_of_a_fit_that_was_not_saved_whole(tmp_path, monkeypatch, unbroken):
    with monkeypatch.context() as patch:
        dying(patch, 80, Crash())
        with pytest.raises(Crash):
            unbroken.save(tmp_path / "run")
    assert (tmp_path / "run" / "draws.zarr").exists()
    how = {"num_samples": 3, "num_warmup": 2, "num_chains": 1, "progress": False}
    fit = sj.sample(sj.GaussianHMM(3, 1), Y, sj.Gibbs(), out=tmp_path / "run", **how)
    assert same(sj.load(tmp_path / "run"), fit)


def test_saved_fits_know_which_draws_they_are(finished, tmp_path):
    (finished / "chain-0.npz").unlink()
    thinned = sj.load(finished, thin=3)
    assert thinned.posterior["chain"].to_numpy().tolist() == [1]
    assert thinned.posterior["draw"].to_numpy().tolist() == [0, 3]
    assert thinned.sample_stats["draw"].to_numpy().tolist() == [0, 3]
    thinned.save(tmp_path / "saved")
    assert same(sj.load(tmp_path / "saved"), thinned)


def test_saved_fits_know_how_rows_were_treated(tmp_path):
    rows = sj.open_series(np.exp(Y), log=True, every=2, standardize=True)
    fit = sj.sample(MODEL, rows, sj.Gibbs(), num_samples=3, num_chains=1, progress=False)
    assert fit.treatment == rows.treatment
    fit.save(tmp_path / "saved")
    again = sj.load(tmp_path / "saved")
    assert again.treatment == {"missing": None, "log": True, "every": 2}
    np.testing.assert_array_equal(again.units, rows.units)
    # Numbers as they stand in a file are treated as those of the fit were, and others are refused.
    right = fit.score(rows, 2)
    np.testing.assert_allclose(again.score(np.exp(Y), 2), right, rtol=1e-9)
    opened = sj.open_series(np.exp(Y), log=True, every=2)
    np.testing.assert_allclose(again.score(opened, 2), right, rtol=1e-9)
    for other in (opened.standardized(np.ones(1), np.ones(1)), sj.as_series(np.exp(Y))):
        with pytest.raises(ValueError, match="not in the units of the fit's"):
            again.score(other, 2)


def test_a_start_that_failed_leaves_room_for_another(tmp_path):
    few = np.tile([1.0, 2.0, 3.0], 50)
    settings = {"num_samples": 3, "num_warmup": 2, "num_chains": 1, "progress": False}
    with pytest.raises(ValueError, match="3 distinct complete rows"):
        sj.sample(sj.GaussianHMM(5, 1), few, sj.Gibbs(), out=tmp_path / "run", **settings)
    sj.sample(sj.GaussianHMM(3, 1), Y, sj.Gibbs(), out=tmp_path / "run", **settings)
    assert sj.load(tmp_path / "run").model.num_states == 3


def test_a_run_that_another_process_extends_meanwhile(finished, monkeypatch, unbroken):
    locked = runs.Run.locked

    def after_another(self):
        monkeypatch.setattr(runs.Run, "locked", locked)
        sj.resume(finished, Y, 24, progress=False)
        return locked(self)

    monkeypatch.setattr(runs.Run, "locked", after_another)
    assert same(sj.resume(finished, Y, progress=False), unbroken)
    assert same(sj.load(finished), unbroken)


def test_home_is_found(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    settings = {"num_samples": 3, "num_warmup": 2, "num_chains": 1, "progress": False}
    fit = sj.sample(MODEL, Y, sj.Gibbs(), out="~/run", **settings)
    fit.report("~/report.html")
    fit.smooth(Y, out="~/states.zarr")
    assert same(sj.load("~/run"), fit)
    found = {p.name for p in tmp_path.iterdir()}
    assert {"run", "report.html", "states.zarr"} <= found
    assert "~" not in found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_models_survive_as_json(case):
    model = case.model.scaled_to(case.data)
    assert decode(json.loads(json.dumps(encode(model)))) == model
    assert decode(json.loads(json.dumps(encode(case.model)))) == case.model


def test_given_starts_and_schedules_survive(tmp_path):
    settings = SETTINGS | {"num_warmup": 0}
    sampler = sj.SGRLD(sj.Decay(0.03, 50.0))
    out = tmp_path / "run"
    whole = sj.sample(MODEL, Y, sampler, num_samples=8, init=TRUTH, **settings)
    sj.sample(MODEL, Y, sampler, num_samples=3, init=TRUTH, out=out, **settings)
    assert same(sj.resume(out, Y, 8, progress=False), whole)


def fails(fragment: str, call) -> None:
    with pytest.raises(sj.RunError) as caught:
        call()
    message = str(caught.value)
    assert fragment in message, message
    assert "\n" not in message
    assert "is damaged" not in message or "; restore it from a copy, or " in message, message


def change(path: Path, **entries) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


DAMAGE = {
    "no such folder": (lambda p: p.rename(p.with_name("gone")), "does not exist"),
    "no config": (lambda p: (p / "config.json").unlink(), "is not a run: it has no config.json"),
    "no json": (lambda p: (p / "config.json").write_text("{"), "config.json cannot be read"),
    "binary": (lambda p: (p / "config.json").write_bytes(b"\xff\xfe\x00"), "cannot be read"),
    "foreign": (lambda p: (p / "config.json").write_text("[1]"), "is not a run of sojourn"),
    "foreign too": (lambda p: (p / "config.json").write_text('{"a": 1}'), "not a run of sojourn"),
    "newer": (lambda p: change(p / "config.json", format=99), "newer than this one; upgrade"),
    "lacking": (lambda p: (p / "config.json").write_text('{"format": 1}'), "lacks 'model'"),
    "another model": (
        lambda p: change(p / "config.json", model={"class": "Other", "fields": {}}),
        "the run names the model Other, which is not known here; import what defines it",
    ),
    "another field": (
        lambda p: change(p / "config.json", model={"class": "GaussianHMM", "fields": {"depth": 1}}),
        "with 'depth': it is of another GaussianHMM",
    ),
    "no model": (lambda p: change(p / "config.json", model=3), "names no model"),
    "no data": (lambda p: change(p / "config.json", data=[5]), "does not describe its data"),
    "no chains": (lambda p: change(p / "config.json", num_chains="4"), "no sensible numbers"),
    "no choices": (lambda p: (p / "tuned.json").write_text("{}"), "lacks 'choices'"),
    "no states": (lambda p: [d.unlink() for d in p.glob("chain-*.npz")], "has no draws yet"),
    "no draws": (lambda p: shutil.rmtree(p / "draws.zarr"), "lacks draws"),
    "a hole": (lambda p: _chunk(p, 0).unlink(), "lacks draws"),
    "cut": (lambda p: _chunk(p, 1).write_bytes(b"PK"), "cannot be read"),
    "flipped": (lambda p: flip(_chunk(p, 0)), "cannot be read"),
    "another array": (
        lambda p: change(_chunk(p, 0).parents[4] / "zarr.json", codecs=[{"name": "pickle"}]),
        "was not written by sojourn",
    ),
    "no array": (lambda p: (_chunk(p, 0).parents[4] / "zarr.json").write_text("{"), "be read"),
    "a cut state": (lambda p: (p / "chain-0.npz").write_bytes(b"PK"), "cannot be read"),
    "a foreign state": (lambda p: np.savez(p / "chain-0.npz", x=1), "does not say how much"),
    "code": (
        lambda p: np.savez(p / "chain-0.npz", drawn=np.array([print], dtype=object)),
        "cannot be read",
    ),
}


def _chunk(path: Path, chain: int) -> Path:
    """Return the file of the first draws of the means."""
    return path / "draws.zarr" / "posterior" / "means" / "c" / str(chain) / "0" / "0" / "0"


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 0xFF
    path.write_bytes(content)


@pytest.mark.parametrize(("damage", "fragment"), DAMAGE.values(), ids=DAMAGE)
def test_damaged_foreign_and_newer_runs(finished, damage, fragment):
    damage(finished)
    fails(fragment, lambda: sj.load(finished))


def test_a_lost_state_is_drawn_again(finished, unbroken):
    (finished / "chain-0.npz").unlink()
    left = sj.load(finished).posterior
    assert list(left["chain"]) == [1]
    assert left.sizes["draw"] == 6
    assert same(sj.resume(finished, Y, 24, progress=False), unbroken)


@pytest.mark.parametrize(
    ("damage", "advice", "deleted"),
    [
        ("a cut state", "delete it and call sojourn.resume to draw this chain", ["chain-0.npz"]),
        ("a foreign state", "delete it and call sojourn.resume to draw", ["chain-0.npz"]),
        ("a hole", "delete {0} and call sojourn.resume to draw this chain again", ["chain-0.npz"]),
        (
            "flipped",
            "delete it and {1} and call sojourn.resume to draw this chain again",
            ["draws.zarr/posterior/means/c/0", "chain-0.npz"],
        ),
        (
            "no array",
            "delete {0} and the files chain-*.npz and call sojourn.resume to draw all chains again",
            ["draws.zarr", "chain-0.npz", "chain-1.npz"],
        ),
        (
            "another array",
            "delete {0} and the files chain-*.npz and call sojourn.resume to draw all chains again",
            ["draws.zarr", "chain-0.npz", "chain-1.npz"],
        ),
    ],
)
def test_what_to_delete_so_that_a_damaged_run_goes_on(finished, unbroken, damage, advice, deleted):
    DAMAGE[damage][0](finished)
    paths = [finished / name for name in deleted]
    fails(f"; restore it from a copy, or {advice.format(*paths)}", lambda: sj.load(finished))
    for path in paths:
        _files.remove(path)
    assert same(sj.resume(finished, Y, 24, progress=False), unbroken)


def test_a_run_is_not_cut_below_its_longest_chain(tmp_path, unbroken):
    run(tmp_path / "run", 12)
    (tmp_path / "run" / "chain-1.npz").unlink()
    fails("has 12 draws per chain", lambda: sj.resume(tmp_path / "run", Y, 8))
    assert same(sj.resume(tmp_path / "run", Y, 24, progress=False), unbroken)


@pytest.mark.parametrize("name", ["sampler", "windows", "buffer", "reference"])
def test_a_run_that_forgot_its_tuning(finished, name):
    facts = json.loads((finished / "tuned.json").read_text())
    del facts[name]
    (finished / "tuned.json").write_text(json.dumps(facts))
    fails(f"tuned.json lacks '{name}'", lambda: sj.resume(finished, Y, 24))


@pytest.mark.parametrize("name", ["tuned.json", "tuned.npz"])
def test_a_run_whose_tuning_cannot_be_read(finished, name):
    (finished / name).write_bytes(b"PK")
    fails(f"{name} cannot be read", lambda: sj.resume(finished, Y, 24))


def test_other_tools_read_the_draws(finished):
    store = finished / "draws.zarr"
    drawn = xarray.open_zarr(store, group="posterior", consolidated=False)
    fit = sj.load(finished)
    for name, values in fit.posterior.items():
        assert drawn[name].dims == values.dims
        np.testing.assert_array_equal(np.sort(drawn[name]), np.sort(values))
    statistics = xarray.open_zarr(store, group="sample_stats", consolidated=False)
    np.testing.assert_array_equal(statistics["lp"], fit.sample_stats["lp"])


def test_other_versions_are_told(finished):
    versions = json.loads((finished / "config.json").read_text())["versions"]
    change(finished / "config.json", versions=versions | {"jax": "0.0.1"})
    with pytest.warns(UserWarning, match=r"was begun with jax 0\.0\.1, now") as told:
        sj.resume(finished, Y, progress=False)
    assert told[0].filename == __file__


def test_a_place_without_locks_is_told(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    fails("cannot be locked (No locks available)", lambda: run(tmp_path / "run"))


def test_data_of_a_run(finished):
    fails("were in memory: give them again", lambda: sj.resume(finished))
    fails("the data are not those of", lambda: sj.resume(finished, Y[:-1]))
    for row in (0, 7, 199):
        other = Y.copy()
        other[row] += 1e-9
        fails("the data are not those of", lambda y=other: sj.resume(finished, y))
    with pytest.raises(ValueError, match="expects emission_dim=1"):
        sj.resume(finished, np.hstack([Y, Y]))
    fails("has 6 draws per chain", lambda: sj.resume(finished, Y, 3))


def test_a_sampler_that_cannot_be_read_back(tmp_path):
    class Own(sj.SGLD):
        pass

    with pytest.raises(TypeError, match="cannot keep a Own; leave out `out`"):
        sj.sample(MODEL, Y, Own(), num_samples=3, out=tmp_path / "run", **SETTINGS)
    assert not (tmp_path / "run").exists()


def test_directories_that_cannot_be_used(finished, tmp_path):
    fails("already holds a run (GaussianHMM, 6 of 6 draws per chain)", lambda: run(finished))
    (tmp_path / "file").write_text("")
    fails("is a file", lambda: run(tmp_path / "file"))
    fails("cannot write", lambda: run(tmp_path / "file" / "run"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("")
    fails("holds other files (thesis.txt) and no run", lambda: run(tmp_path / "other"))
    with pytest.raises(ValueError, match="expected parameters"):
        sj.sample(MODEL, Y, init={}, out=tmp_path / "never", **SETTINGS)
    assert not (tmp_path / "never").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
def test_a_read_only_directory(tmp_path):
    tmp_path.chmod(0o500)
    fails("mend the permissions", lambda: run(tmp_path / "run"))
