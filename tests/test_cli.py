"""The command line: what it writes, and one line with exit code 2 for what cannot be done."""

import io
import json
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray
from scipy.special import logsumexp

import sojourn as sj
from sojourn import _progress, cli
from sojourn._progress import Progress
from sojourn.results.diagnostics import Check

COMMAND = [sys.executable, "-c", "from sojourn.cli import main; main()"]
MODEL = sj.GaussianHMM(num_states=2, emission_dim=2)
TRUTH = {
    "transition_matrix": np.array([[0.9, 0.1], [0.2, 0.8]]),
    "means": np.array([[0.0, 0.0], [3.0, 1.0]]),
    "covariances": np.stack([np.eye(2)] * 2),
}
FIT = ("--sampler", "gibbs", "--samples", "12", "--warmup", "5", "--chains", "2")


def spawn(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, cwd=cwd, check=False
    )


@pytest.fixture
def run(monkeypatch, capsys):
    """Run a command in this process; returns exit code, output and errors."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["sojourn", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "200")
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        return ended.value.code or 0, out, err

    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    return call


@pytest.fixture
def fails(run):
    """Check that a command ends with code 2 and one line that has this in it."""

    def call(fragment, *arguments):
        code, _, err = run(*arguments)
        assert code == 2, err
        assert err.count("\n") == 1, err
        assert err.startswith("sojourn: ")
        assert fragment in err, err

    return call


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with data and a run of them, made by the command."""
    path = tmp_path_factory.mktemp("cli")
    y = MODEL.simulate(TRUTH, 200, seed=0)[1]
    y[5, 1] = np.nan
    frame = pd.DataFrame(y, columns=["volts", "amps"])
    frame.to_csv(path / "data.csv", index=False)
    frame[::-1].to_csv(path / "other.csv", index=False)
    done = spawn("fit", "data.csv", "--model", "hmm", *FIT, "--out", "run", cwd=path)
    assert done.returncode == 0, done.stderr
    assert "means[1, amps]" in done.stdout
    assert "\r" not in done.stderr  # plain lines, in a log
    assert "34 of 34 steps (100%)" in done.stderr
    return path


def test_version_and_help(run):
    assert run("--version") == (0, f"sojourn {sj.__version__}\n", "")
    code, out, _ = run("--help")
    assert code == 0
    names = "fit resume score decode smooth forecast impute simulate report demo bench info"
    for name in names.split():
        assert name in out
        code, help_text, _ = run(name, "--help")
        assert code == 0
        assert "Usage" in help_text
    assert "Example: sojourn fit data.csv" in run("fit", "--help")[1]


def test_runs_of_the_command_are_those_of_the_library(run, folder, tmp_path):
    code, out, _ = run("resume", folder / "run", "--samples", "15", "--json")
    assert code == 0
    found = json.loads(out)
    fit = sj.sample(
        MODEL,
        pd.read_csv(folder / "data.csv"),
        sj.Gibbs(),
        num_samples=15,
        num_warmup=5,
        num_chains=2,
        progress=False,
    )
    checks = {check["figure"]: check for check in found["diagnostics"]}
    assert not checks["ess"]["ok"]  # thirty draws are few
    assert "raise --samples" in checks["ess"]["says"]
    means = [row["mean"] for row in found["summary"]]
    np.testing.assert_allclose(means, fit.summary()["mean"], rtol=1e-12)
    assert sj.load(folder / "run").posterior.identical(fit.posterior)


def test_score_decode_and_smooth(run, folder, tmp_path):
    fit, data = sj.load(folder / "run"), pd.read_csv(folder / "data.csv")
    code, out, _ = run("score", folder / "run", folder / "data.csv", "--json", "--draws", "3")
    assert code == 0
    assert json.loads(out)["log_likelihood"] == pytest.approx(fit.score(data, 3), rel=1e-12)
    assert json.loads(out) == json.loads(run("score", folder / "run", "--json", "--draws", "3")[1])
    file = tmp_path / "states.parquet"
    assert run("decode", folder / "run", "-o", file, "--draws", "3")[0] == 0
    table, decoded = pd.read_parquet(file), fit.decode(data, num_draws=3)
    assert list(table.columns) == ["series", "t", "state", "p_0", "p_1"]
    np.testing.assert_array_equal(table["state"], decoded["state"])
    np.testing.assert_allclose(table["p_1"], decoded["probability"][:, 1])
    code, out, _ = run("smooth", folder / "run", "--draws", "3")
    assert out.splitlines()[0] == "series,t,p_0,p_1"
    for command in ("score", "decode", "smooth"):
        assert run(command, folder / "run", "--draws", "3", "--quiet")[2] == ""
    assert len(out.splitlines()) == 201
    drawn = ("--method", "sample", "--draws", "3", "--seed", "5")
    code, out, _ = run("decode", folder / "run", *drawn)
    assert code == 0
    table = pd.read_csv(io.StringIO(out))
    assert list(table.columns) == ["path", "series", "t", "state"]
    paths = fit.decode(data, "sample", num_draws=3, seed=5)["state"]
    np.testing.assert_array_equal(table["state"].to_numpy().reshape(3, -1), paths)


def test_info_counts_the_draws_of_each_chain(run, folder, tmp_path):
    shutil.copytree(folder / "run", tmp_path / "run")
    (tmp_path / "run" / "chain-1.npz").unlink()  # as if it had not begun
    assert re.search(r"\d+ and 0 draws", run("info", tmp_path / "run")[1])


def test_simulate_report_and_info(run, folder, tmp_path):
    for name in ("rows.csv", "rows.tsv", "rows.json", "rows.jsonl"):
        file = tmp_path / name
        code, out, err = run("simulate", folder / "run", "--rows", "7", "--hidden", "-o", file)
        assert (code, out, err.splitlines()[-1]) == (0, "", f"7 rows in {file}")
        assert file.stat().st_size > 0
    table = pd.read_csv(tmp_path / "rows.csv")
    assert list(table.columns) == ["volts", "amps", "z"]
    records = json.loads((tmp_path / "rows.json").read_text())
    lines = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert records == lines
    np.testing.assert_allclose(pd.DataFrame(records), table, rtol=1e-12)
    assert len(table) == 7
    assert run("report", folder / "run")[0] == 0
    assert "200 rows in 1 series" in (folder / "run" / "report.html").read_text()
    said = run("info", folder / "run")[1]
    for words in ("GaussianHMM(num_states=", "largest_r_hat", "smallest_ess", "data.csv"):
        assert words in said
    about = json.loads(run("info", folder / "run", "--json")[1])
    assert (about["model"], about["rows"], about["columns"]) == (
        "GaussianHMM",
        200,
        ["volts", "amps"],
    )
    none = ("--sequence", "", "--variable", "")
    assert "volts, amps" in run("info", folder / "data.csv", *none)[1]
    assert "jax" in run("info")[1]


def test_forecast_and_impute_write_tables(run, folder, monkeypatch):
    """Tables of what the library returns, here with numbers that are known."""
    draws = np.arange(2 * 1 * 3 * 2, dtype=float).reshape(2, 1, 3, 2)
    dims = ("draw", "series", "ahead", "column")
    coords = {"series": [0], "ahead": [1, 2, 3], "column": ["volts", "amps"]}
    ahead = xarray.Dataset({"y": (dims, draws)}, coords=coords)
    monkeypatch.setattr(sj.Fit, "forecast", lambda *args, **named: ahead, raising=False)
    code, out, err = run("forecast", folder / "run", "--horizon", "3")
    assert code == 0, err
    lines = out.splitlines()
    assert lines[0] == "series,ahead,column,mean,sd,low,high"
    assert lines[4].startswith("0,2,amps,6.0,3.0,3.18,")
    about = {"series": ("time", [0, 0]), "t": ("time", [0, 1])}
    filled = xarray.Dataset(
        {n: (("time", "column"), np.eye(2) * k) for n, k in (("mean", 2.0), ("sd", 1.0))}, about
    )
    monkeypatch.setattr(sj.Fit, "impute", lambda *args, **named: filled, raising=False)
    code, out, err = run("impute", folder / "run")
    assert code == 0, err
    assert out.splitlines()[:2] == ["series,t,volts,amps,sd_volts,sd_amps", "0,0,2.0,0.0,1.0,0.0"]


def test_data_are_read_as_those_of_the_run(run, fails, folder, tmp_path):
    """Other files too, in the units of the run's own data; what is written is in those of the files."""
    raw = np.exp(pd.read_csv(folder / "data.csv").fillna(0.0))
    raw.iloc[6, 1] = -999.0
    raw.to_csv(tmp_path / "raw.csv", index=False)
    new = (10 * raw[:100]).replace(-9990.0, -999.0)
    new.to_csv(tmp_path / "new.csv", index=False)
    changes = ("--log", "--missing", "-999", "--every", "2", "--standardize")
    made, settings = tmp_path / "run", (*FIT, "--samples", "3", "--out", tmp_path / "run")
    assert run("fit", tmp_path / "raw.csv", "--model", "hmm", *changes, *settings)[0] == 0
    fit = sj.load(made)
    train = sj.open_series(tmp_path / "raw.csv", log=True, missing=-999, every=2, standardize=True)
    mean, deviation = train.units
    again = run("score", made, tmp_path / "raw.csv", "--json")[1]
    assert json.loads(again)["log_likelihood"] == pytest.approx(fit.score(train), rel=1e-12)
    assert run("resume", made, tmp_path / "raw.csv", "--samples", "3", "-q")[0] == 0

    in_memory = sj.open_series(raw, log=True, missing=-999, every=2, standardize=True)
    how = {"num_samples": 3, "num_warmup": 2, "num_chains": 1, "progress": False}
    own = sj.sample(fit.model, in_memory, sj.Gibbs(), out=tmp_path / "memory", **how)
    again = run("score", tmp_path / "memory", tmp_path / "raw.csv", "--json")[1]
    assert json.loads(again)["log_likelihood"] == pytest.approx(own.score(train), rel=1e-12)
    own.save(tmp_path / "copy")
    assert run("score", tmp_path / "copy", tmp_path / "raw.csv", "--json")[1] == again
    fails("give them again, after the run's name", "resume", tmp_path / "memory", "--samples", "9")

    rows = (np.log(10 * raw[:100:2].where(raw != -999)) - mean) / deviation
    out = run("score", made, tmp_path / "new.csv", "--json")[1]
    assert json.loads(out)["log_likelihood"] == pytest.approx(fit.score(new), rel=1e-10)
    scores = [sj.log_likelihood(fit.model, one, rows) for one in fit.draws(50)]
    mean_of_all = logsumexp(scores) - np.log(len(scores))
    assert fit.score(new) == pytest.approx(mean_of_all, rel=1e-10)
    table = pd.read_csv(
        io.StringIO(run("forecast", made, tmp_path / "new.csv", "--horizon", "2")[1])
    )
    ahead = np.exp(fit.forecast(new, 2)["y"] * deviation + mean)
    np.testing.assert_allclose(table["mean"], ahead.mean("draw").to_numpy().ravel(), rtol=1e-10)
    filled = pd.read_csv(io.StringIO(run("impute", made, tmp_path / "new.csv")[1]))
    seen = filled.drop(index=3)
    np.testing.assert_allclose(seen["amps"], 10 * raw["amps"][:100:2].drop(index=6), rtol=1e-10)
    drawn = fit.impute(new, with_draws=True)["draw"].to_numpy()[:, 0] * deviation[1] + mean[1]
    assert filled["amps"][3] == pytest.approx(np.exp(drawn).mean(), rel=1e-10)
    assert filled["sd_amps"][3] == pytest.approx(np.exp(drawn).std(), rel=1e-10)
    simulated = pd.read_csv(io.StringIO(run("simulate", made, "--rows", "9")[1]))
    expected = np.exp(fit.model.simulate(fit.mean, 9, seed=0)[1] * deviation + mean)
    np.testing.assert_allclose(simulated, expected, rtol=1e-10)
    fails("'animal'", "score", made, tmp_path / "new.csv", "--sequence", "animal")


def test_addresses_are_data(run, folder, tmp_path):
    address = (folder / "data.csv").as_uri()
    code, out, err = run("info", address, "--json")
    assert code == 0, err
    assert json.loads(out)["rows"] == 200
    none = ("--sequence", "", "--variable", "")
    code, _, err = run("fit", address, *none, *FIT, "--out", tmp_path / "run", "--quiet")
    assert code == 0, err
    from_file = run("score", folder / "run", folder / "data.csv", "--draws", "3")
    assert run("score", tmp_path / "run", address, "--draws", "3")[0] == 0
    assert run("score", folder / "run", address, "--draws", "3")[1] == from_file[1]


def test_data_are_not_written_over(fails, folder, tmp_path):
    data, content = folder / "data.csv", (folder / "data.csv").read_bytes()
    for command in ("decode", "smooth", "forecast", "impute"):
        fails("holds the data", command, folder / "run", data, "-o", data)
        fails("holds the data", command, folder / "run", data.as_uri(), "-o", data)
    for command in ("impute", "simulate", "report"):
        fails("holds the data", command, folder / "run", "-o", data)
    assert data.read_bytes() == content
    parts = tmp_path / "parts"
    parts.mkdir()
    pd.read_csv(data).to_parquet(parts / "0.parquet")
    fails("holds the data", "impute", folder / "run", parts, "-o", parts / "1.parquet")


def test_columns_with_the_names_of_a_table(fails, folder, tmp_path):
    frame = pd.read_csv(folder / "data.csv").bfill()
    how = {"num_samples": 3, "num_warmup": 2, "num_chains": 1, "progress": False}
    for names in (["t", "b"], ["a", "sd_a"], ["z", "b"]):
        frame.set_axis(names, axis=1).to_csv(tmp_path / f"{names[0]}.csv", index=False)
        made = tmp_path / names[0]
        sj.sample(MODEL, tmp_path / f"{names[0]}.csv", sj.Gibbs(), out=made, **how)
    fails("two columns 't'", "impute", tmp_path / "t")
    fails("two columns 'sd_a'", "impute", tmp_path / "a")
    fails("two columns 'z'", "simulate", tmp_path / "z", "--hidden")


def test_data_of_one_series_for_a_run_of_several(run, fails, folder, tmp_path):
    table = pd.read_csv(folder / "data.csv")
    table.assign(animal=np.arange(len(table)) // 40).to_csv(tmp_path / "many.csv", index=False)
    how = (
        "--states",
        "2",
        "--sampler",
        "gibbs",
        "--samples",
        "3",
        "--warmup",
        "2",
        "--chains",
        "1",
    )
    made = tmp_path / "run"
    named = ("--sequence", "animal")
    assert run("fit", tmp_path / "many.csv", *named, *how, "--out", made)[0] == 0
    fails("give --sequence '' where there is but one", "score", made, folder / "data.csv")
    assert run("score", made, folder / "data.csv", "--sequence", "")[0] == 0


def test_a_saved_fit_needs_data(run, fails, folder, tmp_path):
    sj.load(folder / "run").save(tmp_path / "saved")
    fails("saved from memory", "decode", tmp_path / "saved")
    (tmp_path / "saved").rename(tmp_path / "saved.v2")
    about = json.loads(run("info", tmp_path / "saved.v2", "--json")[1])
    assert (about["model"], about["sampler"]) == ("GaussianHMM", "Gibbs")
    assert run("score", tmp_path / "saved.v2", folder / "data.csv", "--draws", "3")[0] == 0
    (tmp_path / "saved.v2" / "tuned.json").unlink()
    about = json.loads(run("info", tmp_path / "saved.v2", "--json")[1])
    assert about["draws"] == "saving was cut short; save again"


def test_configuration_files(run, fails, folder, tmp_path):
    code, out, _ = run("fit", "--states", "3", "--print-config", "--column", 'a"b')
    assert code == 0
    assert "states = 3" in out
    assert 'column = ["a\\"b"]' in out
    config = tmp_path / "run.toml"
    config.write_text(
        f"data = ['{folder / 'data.csv'}']\nsampler = 'gibbs'\nwarmup = 5\nsamples = 3\nchains = 1\n"
        "column = ['amps', 'volts']\n"
    )
    again = run("fit", "--config", config, "--samples", "4", "--print-config")[1]
    assert "samples = 4" in again
    assert "chains = 1" in again
    assert 'column = ["amps", "volts"]' in again
    assert run("fit", "--config", config, "--samples", "4", "--out", tmp_path / "run")[0] == 0
    fit = sj.load(tmp_path / "run")
    assert dict(fit.posterior.sizes)["draw"] == 4
    assert fit.columns == ("amps", "volts")
    config.write_text("stats = 3\n")
    fails("there is no key 'stats' in", "fit", "--config", config)
    fails("did you mean 'states'", "fit", "--config", config)
    config.write_text("zzz = 3\n")
    fails("there are ['data', 'model'", "fit", "--config", config)
    config.write_text("states = \n")
    fails("is not TOML", "fit", "--config", config)
    config.write_text("[model]\nstates = 2\n")
    fails("is a table", "fit", "--config", config)
    config.write_text("states = 'many'\n")
    fails("--states", "fit", "--config", config)
    fails("does not exist; --print-config", "fit", "--config", tmp_path / "none.toml")


def test_what_cannot_be_done_is_one_line(fails, folder, tmp_path):
    data, made, new = folder / "data.csv", folder / "run", tmp_path / "new"
    fails("give a file of data", "fit", "--out", new)
    fails("give a new directory", "fit", data)
    fails("nope.csv", "fit", "nope.csv", "--out", new)
    fails("did you mean 'arhmm'", "fit", data, "--model", "armm", "--states", "3", "--out", new)
    other = ("fit", data, "--out", new, "--model")
    fails("--lags is for --model arhmm; leave it out", *other, "hmm", "--lags", "5")
    fails("--states is for --model hmm or arhmm or slds", *other, "LGSSM", "--states", "2")
    fails("--states 5000 is more than the", *other, "HMM", "--states", "5000")
    fails(
        "--sampler cannot be 'nuts'; there are ['sgrld'",
        "fit",
        data,
        "--sampler",
        "nuts",
        "--out",
        new,
    )
    fails("--thin must be auto or a number", "fit", data, "--thin", "x", "--out", new)
    fails("--length must be auto, full or a number", "fit", data, "--length", "x", "--out", new)
    fails("need the --length", "fit", data, "--buffer", "3", "--out", new)
    fails("gibbs has no step size", "fit", data, *FIT, "--step-size", "1", "--out", new)
    fails("'volt'", "fit", data, "--column", "volt", "--out", new)
    fails("already holds a run", "fit", data, *FIT, "--out", made)
    fails("init must be", "fit", data, "--init", "zero", "--out", new)
    for change in (("--standardize",), ("--log",), ("--every", "2"), ("--column", "amps")):
        fails(f"leave out {change[0]}", "fit", made, *change, "--out", new)
    fails("leave out --sequence", "score", made, made, "--sequence", "who")
    fails("No such command", "fitt")
    fails("--samples", "fit", data, "--samples", "-1", "--out", new)
    fails("No such option", "fit", data, "--sample", "1")
    for command in ("resume", "score", "decode", "smooth", "forecast", "impute", "report"):
        fails("does not exist", command, tmp_path / "none")
        fails("is not a run", command, tmp_path)
    fails("the data are not those of", "resume", made, folder / "other.csv")
    (folder / "renamed.csv").write_text("a,b\n1,2\n3,4\n")
    fails("unknown 'a', 'b'", "score", made, folder / "renamed.csv")
    fails("ends in .csv", "decode", made, "-o", tmp_path / "states.xls")
    fails("the folder", "decode", made, "-o", tmp_path / "no" / "states.csv")
    fails("method must be", "decode", made, "--method", "best")
    fails("the folder", "demo", "--out", "no/such/folder/demo.png")
    assert not new.exists()


@pytest.mark.parametrize(
    ("said", "in_shell"),
    [
        (
            "set a longer one, windows=Windows(200, buffer=512, batch=64), or Windows.full()",
            "set a longer one, --length 200 --buffer 512 --batch 64, or --length full",
        ),
        ("raise num_warmup and num_samples, or look", "raise --warmup and --samples, or look"),
        ("several modes in fit.plot_trace()", "several modes in the traces of sojourn report"),
        ("raise num_samples or thin", "raise --samples or --thin"),
        ("lower step_size or raise the batch", "lower --step-size or raise the --batch"),
        ("step_size=0.1 is much", "--step-size 0.1 is much"),
        (
            "Use a smaller step_size or a larger batch",
            "Use a smaller --step-size or a larger --batch",
        ),
        (
            "use a longer buffer or a control variate",
            "use a longer --buffer or --control-variate yes",
        ),
        ("use control_variate=False", "use --control-variate no"),
        ("leave control_variate='auto'", "leave --control-variate auto"),
        ("leave windows='auto'", "leave --length auto"),
        ("length=640 is longer than", "--length 640 is longer than"),
        ("num_states=5 needs 5", "--states 5 needs 5"),
        ("num_lags=3 needs", "--lags 3 needs"),
        ("state_dim=3 is more than", "--state-dim 3 is more than"),
        ("num_chains must be at least 1", "--chains must be at least 1"),
        ("init must be 'kmeans'", "--init must be 'kmeans'"),
        ("the model expects emission_dim=2", "the model expects 2"),
        ("pass what was given as `out`", "pass what was given as --out"),
        ("before that are kept in this error's `fit`. Use", "before that are kept in the run. Use"),
        ("continue with sojourn.resume('a/b')", "continue with sojourn resume a/b"),
        ("choose others with columns= ('a')", "choose others with --column ('a')"),
        # Names of files and columns stay as they are.
        ("column 'step_size' holds text", "column 'step_size' holds text"),
        ("/data/num_samples/thin.csv is empty", "/data/num_samples/thin.csv is empty"),
        ("--step-size must be auto", "--step-size must be auto"),
    ],
)
def test_messages_are_said_in_words_of_the_shell(run, monkeypatch, folder, said, in_shell):
    """Errors, warnings and diagnostics alike."""
    check = Check("r_hat", 2.0, 1.0, "R-hat", said)
    monkeypatch.setattr("sojourn.cli.fitting.diagnose", lambda *_: [check])
    fit = sj.load(folder / "run")

    def resume(*args, **named):
        warnings.warn(said, UserWarning, stacklevel=1)
        return fit

    monkeypatch.setattr("sojourn.cli.fitting.resume_run", resume)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        code, _, err = run("resume", folder / "run")
    assert code == 0
    assert err == f"sojourn: {in_shell}\nwarning: R-hat: 2, above 1; {in_shell}\n"

    def fail(*args, **named):
        raise ValueError(said)

    monkeypatch.setattr("sojourn.cli.fitting.resume_run", fail)
    assert run("resume", folder / "run") == (2, "", f"sojourn: {in_shell}\n")


def test_a_traceback_is_shown_to_who_asks(run, monkeypatch, folder):
    def fail(*args, **named):
        raise TypeError("a bug")

    monkeypatch.setattr("sojourn.cli.fitting.resume_run", fail)
    assert run("resume", folder / "run") == (2, "", "sojourn: a bug\n")
    monkeypatch.setenv("SOJOURN_TRACEBACK", "1")
    monkeypatch.setattr(sys, "argv", ["sojourn", "resume", str(folder / "run")])
    with pytest.raises(TypeError, match="a bug"):
        cli.main()


def test_failures_of_a_run_have_their_own_code(run, monkeypatch, folder):
    def stop(*args, **named):
        raise sj.Interrupted("stopped: 3 draws per chain are kept in run/", None)

    monkeypatch.setattr("sojourn.cli.fitting.resume_run", stop)
    code, _, err = run("resume", folder / "run")
    assert (code, err) == (1, "sojourn: stopped: 3 draws per chain are kept in run/\n")


def test_demo_runs_small(tmp_path):
    done = spawn("demo", "--rows", "20000", "--quiet", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "true values within 2 posterior sds" in done.stdout
    assert (tmp_path / "demo.png").stat().st_size > 10_000


def test_progress_in_a_log_is_plain_lines(capsys, monkeypatch):
    monkeypatch.setattr(_progress, "_LINE_SECONDS", -1.0)
    with Progress(enabled=True) as bar:
        bar.start(4)
        bar.advance(1, -12.5)
        bar.advance(3)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "sampling"
    assert lines[1].startswith("1 of 4 steps (25%), ")
    assert lines[1].endswith("log posterior -12.5")
    assert lines[2] == "4 of 4 steps (100%), 0 s left"
