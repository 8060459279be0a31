"""What experiments share, and the command; the experiments themselves run in the slow suite."""

import json
from types import ModuleType

import numpy as np
import pandas as pd
import pytest

import sojourn as sj
from sojourn import experiments
from sojourn.experiments import _figures, _traces, gradient_error, list_experiments, run_experiment
from sojourn.experiments._session import markdown
from test_cli import FIT, MODEL, TRUTH, fails, run  # noqa: F401


def test_list_says_what_each_shows(run):  # noqa: F811
    code, out, _ = run("experiment", "--list")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == list(list_experiments())
    assert all(len(line) > 40 for line in out.splitlines())


def test_what_cannot_be_run_is_said_in_one_line(fails, tmp_path):  # noqa: F811
    fails("did you mean 'seizure'", "experiment", "siezure", "-o", tmp_path)
    fails("--list", "experiment")
    fails("positive number of minutes", "experiment", "arhmm", "--budget", "0", "-o", tmp_path)
    fails("--data-dir", "experiment", "weather", "-o", tmp_path)


def test_an_experiment_writes_settings_time_and_tables(tmp_path, monkeypatch):
    module = ModuleType("sojourn.experiments.hmm", "A table of one row.")

    def write(session):
        session.settings.update({"rows": np.int64(3)})
        session.table("table", pd.DataFrame({"name": ["a"], "value": [1 / 3], "none": [np.nan]}))

    monkeypatch.setattr(module, "run", write, raising=False)
    monkeypatch.setitem(__import__("sys").modules, "sojourn.experiments.hmm", module)
    folder = run_experiment("hmm", "paper", budget=2, out=tmp_path / "new", quiet=True)
    about = json.loads((folder / "about.json").read_text())
    assert (about["scale"], about["budget_seconds"]) == ("paper", 120)
    assert about["settings"] == {"rows": 3}
    assert about["versions"]["sojourn"] == sj.__version__
    assert (folder / "table.md").read_text().splitlines()[-1] == "| a | 0.3333 | – |"
    assert pd.read_csv(folder / "table.csv")["value"][0] == 1 / 3


def test_markdown_has_a_line_for_the_head():
    assert markdown(pd.DataFrame({"x": [1]})) == "| x |\n| --- |\n| 1 |\n"


@pytest.fixture(scope="module")
def comparison():
    session = experiments.Session("hmm", "small", 1.0, None, None, True, 0.0)  # type: ignore[arg-type]
    _, y = MODEL.simulate(TRUTH, 300, seed=0)
    gibbs, wild = (
        _traces.Method("Gibbs", sj.Gibbs()),
        _traces.Method("wild", sj.SGLD(1e12), sj.Windows.full()),
    )
    score = lambda model, params: {"score": sj.log_likelihood(model, params, y)}  # noqa: E731
    return _traces.compare(session, MODEL, [gibbs, wild], y, score, TRUTH, truth=TRUTH), y


def test_draws_carry_the_time_they_took(comparison):
    one = comparison[0].traces[0]
    num = one.fit.posterior.sizes["draw"]
    assert num >= 40  # two rounds
    assert one.seconds.shape == (num,)
    assert (np.diff(one.seconds) >= 0).all()
    assert one.seconds[0] > 0
    assert one.setup >= 0


def test_methods_that_diverge_are_said_to(comparison):
    table = comparison[0].table.set_index("method")
    assert table.loc["wild", "diverged"] == True  # noqa: E712
    assert table.loc["wild", "step_size"] == 1e12
    assert np.isfinite(table.loc["Gibbs", "score"])


def test_curves_hold_the_metrics_of_draws(comparison):
    found, y = comparison
    row = found.curves.iloc[-1]
    draw = found.traces[0].fit.posterior.isel(chain=int(row["chain"]), draw=int(row["draw"]))
    params = {str(n): np.asarray(v) for n, v in draw.items()}
    assert row["score"] == pytest.approx(sj.log_likelihood(MODEL, params, y))
    assert row["mse_means"] < 0.1


def test_tables_and_boxes_use_draws_after_burn_in(comparison):
    found, y = comparison
    kept = _traces.second_half(found.traces[0].fit).posterior["means"].to_numpy()
    assert kept.shape[1] == -(-found.traces[0].fit.posterior.sizes["draw"] // 2)
    quantiles = _figures.quantiles(found.traces).query("parameter == 'means' and entry == 0")
    assert quantiles[0.5].item() == pytest.approx(np.median(kept[..., 0, 0]))
    table = _figures.ksd_table(found.traces, y, None, 10)
    assert np.isfinite(table[["means", "total", "sd_total"]].to_numpy()).all()


def test_rounds_end_when_time_is_up():
    assert _traces._next([0, 20], [0.0, 5.0], 1.0) == 80
    assert _traces._next([0, 20], [0.0, 50.0], 1.0) == 40  # slow, if it is not set-up alone
    assert _traces._next([0, 20, 80], [0.0, 5.0, 5.6], 10.0) == 320  # a hundredth of a second each
    assert _traces._next([0, 20, 80], [0.0, 5.0, 5.6], 1.6) == 80 + 80
    assert _traces._next([0, 20, 80], [0.0, 5.0, 5.6], 0.8) == 0


def test_fitted_rates_are_those_of_the_errors():
    import xarray

    buffers = np.array([0, 1, 2, 4, 8])
    errors = xarray.DataArray(3 * 0.4**buffers, coords={"buffer": buffers}, dims="buffer")
    assert gradient_error._decay(errors) == pytest.approx(0.4)
    lengths = np.array([2, 8, 32])
    errors = xarray.DataArray(5 / lengths, coords={"length": lengths}, dims="length")
    assert gradient_error._power(errors) == pytest.approx(-1)
