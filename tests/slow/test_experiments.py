"""Every experiment at small scale: the files it writes, and the claim it is there to show."""

import json
import os

import pandas as pd
import pytest

from sojourn.experiments import list_experiments, run_experiment

REAL = {"ion-channel", "seizure", "weather"}
needs_data = pytest.mark.skipif(
    "SOJOURN_DATA" not in os.environ, reason="SOJOURN_DATA does not say where the real series are"
)


@pytest.fixture
def run(tmp_path):
    """Run an experiment; returns a function that reads one of its tables by the name of a row."""

    def call(name):
        run_experiment(name, out=tmp_path, quiet=True)
        about = json.loads((tmp_path / "about.json").read_text())
        assert about["experiment"] == name
        assert about["seconds"] > 0
        for figure in tmp_path.glob("*.png"):
            assert figure.stat().st_size > 5_000
        assert list(tmp_path.glob("*.png"))
        return lambda table: pd.read_csv(tmp_path / f"{table}.csv", index_col=0)

    return call


def test_gradient_errors_decay_geometrically_with_the_buffer(run):
    rates = run("gradient-error")("rates")
    assert list(rates.index) == ["ARHMM", "LGSSM", "HMM", "SLDS"]
    assert (rates["error_with_buffer"] < 0.1 * rates["error_without_buffer"]).all()
    measured, theory = rates["measured_rate"], rates["theoretical_rate"]
    assert measured["LGSSM"] == pytest.approx(theory["LGSSM"], rel=0.1)
    # Errors of discrete chains vary so much between windows that few of them make the mean, which falls
    # more slowly than the typical one, but no more slowly than the chain mixes without data.
    assert theory["ARHMM"] < measured["ARHMM"] < 0.8
    assert (rates["power_of_length"] + 1).abs().max() < 0.35


def test_integrating_x_out_steadies_the_gradient(run):
    errors = run("slds-estimators")("root_mean_square_errors")
    for name in ("A", "Q", "R"):
        assert errors.loc["z", name] < 0.5 * min(errors.loc["xz", name], errors.loc["x", name])
    assert errors.loc["x", "transition_matrix"] < errors.loc["z", "transition_matrix"]


def test_arhmm_needs_buffers(run):
    read = run("arhmm")
    metrics, ksd = read("metrics_T10000"), read("ksd_T10000")
    assert (
        ksd.loc["SGRLD buffer", "transition_matrix"]
        < ksd.loc["SGRLD no buffer", "transition_matrix"]
    )
    assert metrics.loc["default", "score"] > metrics.loc["SGRLD buffer", "score"] - 0.01


def test_lgssm_default_is_closest_to_the_posterior(run):
    # What a buffer is worth shows in runs longer than these: errors of gradients are tested above.
    read = run("lgssm")
    metrics, ksd = read("metrics_T10000"), read("ksd_T10000")
    assert ksd["total"].idxmin() == "default"
    assert metrics.loc["default", "score"] > metrics["score"].max() - 0.01


def test_reversed_cycles_are_found(run):
    metrics = run("hmm")("metrics_T10000")
    assert metrics.loc["default", "nmi"] > 0.95
    assert metrics.loc["default", "score"] >= metrics["score"].max() - 0.01


def test_switching_models_are_sampled(run):
    metrics = run("slds")("metrics_T10000")
    assert metrics.loc["default", "score"] > metrics["score"].max() - 0.05
    assert metrics.loc["default", "mse_A"] < 0.01


@needs_data
def test_ion_channel(run):
    read = run("ion-channel")
    metrics = read("metrics_down-sampled")
    assert metrics.loc["default", "score"] > metrics.loc["Gibbs", "score"] - 0.01
    assert read("labelled")["accuracy"].min() > 0.8


@needs_data
def test_seizure(run):
    metrics = run("seizure")("metrics_arhmm")
    assert metrics.loc["Gibbs", "score"] > metrics.loc["Subset Gibbs", "score"]


@needs_data
def test_weather(run):
    metrics = run("weather")("metrics_daily")
    assert metrics.loc["SGRLD buffer", "score"] > metrics.loc["Gibbs", "score"] - 0.2


@pytest.mark.parametrize("name", sorted(REAL))
def test_missing_data_are_asked_for(name, tmp_path, monkeypatch):
    monkeypatch.delenv("SOJOURN_DATA", raising=False)
    with pytest.raises(ValueError, match="--data-dir or SOJOURN_DATA"):
        run_experiment(name, out=tmp_path, quiet=True)
    with pytest.raises(ValueError, match="does not have it"):
        run_experiment(name, data_dir=tmp_path, out=tmp_path, quiet=True)


def test_all_experiments_are_run_here():
    tested = {"gradient-error", "slds-estimators", "arhmm", "lgssm", "hmm", "slds", *REAL}
    assert set(list_experiments()) == tested
