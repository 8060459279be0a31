"""Diagnostics are honest: silent on a sound run, loud on a forced one."""

import dataclasses
import warnings

import numpy as np
import pandas
import pytest
import xarray

import sojourn as sj
from sojourn.results import diagnose
from sojourn.results.diagnostics import readable, summarize
from sojourn.synthetic import alternating_rotations

SETTINGS = {"num_chains": 2, "progress": False, "seed": 0}


def diagnosed(fit, data=None):
    """Return the table and all that was warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        table = fit.diagnostics(data)
    return table, [str(w.message) for w in caught]


@pytest.fixture(scope="module")
def switching():
    model, params = alternating_rotations()
    return model, model.simulate(params, 1500, seed=1)[1]


def test_a_sound_run_passes(switching):
    model, y = switching
    fit = sj.sample(model, y, num_samples=1000, **SETTINGS)
    assert fit.choices["metric"] == "observed"
    table, warned = diagnosed(fit)
    assert table["ok"].all()
    assert not warned
    assert table.loc["ess", "value"] == pytest.approx(fit.summary()["ess"].min())
    assert all(isinstance(line, str) and line for line in table["says"])


@pytest.mark.parametrize("sampler", [sj.Gibbs(), None])
def test_draws_of_another_law_are_noticed_given_the_data(switching, sampler):
    model, y = switching
    fit = sj.sample(model, y, sampler, num_samples=1000, num_warmup=100, **SETTINGS)
    assert abs(fit.diagnostics(y).loc["ksd", "value"]) < 4
    assert np.isnan(fit.diagnostics().loc["ksd", "value"])
    mean = fit.posterior.mean(("chain", "draw"))
    narrow = dataclasses.replace(fit, posterior=(fit.posterior - mean) / 2 + mean)
    table, warned = diagnosed(narrow, y)
    assert table.loc["ksd", "value"] > 10
    assert any("Stein discrepancy" in line for line in warned)


def test_correlated_columns_do_not_hide_a_shift():
    """Means with a correlation of 0.98, moved together by two sds."""
    rng = np.random.default_rng(0)
    y = rng.normal(size=(1000, 1)) + 0.15 * rng.normal(size=(1000, 4))
    fit = sj.sample(sj.GaussianHMM(1, 4), y, num_samples=500, **SETTINGS)
    assert abs(diagnosed(fit, y)[0].loc["ksd", "value"]) < 4
    moved = fit.posterior.assign(means=fit.posterior["means"] + 2 * fit.posterior["means"].std())
    table, _ = diagnosed(dataclasses.replace(fit, posterior=moved), y)
    assert table.loc["ksd", "value"] > 5
    one = fit.posterior.isel(chain=[0], draw=[0])
    assert np.isnan(diagnosed(dataclasses.replace(fit, posterior=one), y)[0].loc["ksd", "value"])


def test_windows_without_buffers_are_noticed(switching):
    model, y = switching
    windows = sj.Windows(length=10, buffer=0, batch=32)
    fit = sj.sample(model, y, windows=windows, num_samples=20, num_warmup=20, **SETTINGS)
    table, warned = diagnosed(fit)
    assert not table.loc["buffer_error", "ok"]
    looks = fit.sample_stats.copy(deep=True)
    looks["buffer_error"][0, 0] = np.nan  # a look that failed does not hide the others
    checks = {check.name: check for check in diagnose(fit.posterior, looks, fit.choices)}
    assert not checks["buffer_error"].ok
    assert any("longer buffer" in line for line in warned)


def test_a_step_far_too_large_is_noticed(switching):
    model, y = switching
    usual = sj.sample(model, y, num_samples=5, num_warmup=5, **SETTINGS).choices["step_size"]
    for factor in (2, 30):
        sampler = sj.SGRLD(step_size=factor * usual)
        fit = sj.sample(model, y, sampler, num_samples=20, num_warmup=20, **SETTINGS)
        table, warned = diagnosed(fit)
        assert not table.loc["discretisation", "ok"]
        assert any("lower step_size" in line for line in warned)


def test_entries_that_are_fixed_do_not_silence_the_rest():
    """One state: its transition matrix is the number one, in every draw."""
    y = np.random.default_rng(0).normal(size=(200, 1))
    fit = sj.sample(sj.GaussianHMM(1, 1), y, sj.Gibbs(), num_samples=50, num_warmup=5, **SETTINGS)
    table, warned = diagnosed(fit)
    assert np.isfinite(table.loc["ess", "value"])
    assert any("effective" in line for line in warned)


@pytest.mark.parametrize("sampler", [sj.SGHMC(), sj.SGNHT()], ids=["SGHMC", "SGNHT"])
def test_samplers_with_momentum_agree_with_langevin(switching, sampler):
    """Means within 0.2 sds and sds within 15%, from windows, of SGRLD on all rows."""
    model, y = switching
    windows = sj.Windows(length=100, buffer=10, batch=16)
    usual = sj.sample(model, y, num_samples=1000, **SETTINGS)
    fit = sj.sample(model, y, sampler, windows=windows, num_samples=600, thin=4, **SETTINGS)
    for name, values in usual.posterior.items():
        sd = values.std(("chain", "draw"))
        shift = abs(fit.posterior[name].mean(("chain", "draw")) - values.mean(("chain", "draw")))
        assert float((shift / sd).max()) < 0.2
        ratio = fit.posterior[name].std(("chain", "draw")) / sd
        assert float(abs(ratio - 1).max()) < 0.15


def test_entries_held_fixed_have_no_say():
    """Brought to the user's units they vary in their last bit."""
    rng = np.random.default_rng(0)
    draws = rng.normal(size=(4, 200, 2))
    draws[..., 1] = 1 + np.where(draws[..., 1] > 0, 2.2e-16, 0)
    posterior = xarray.Dataset({"C": (("chain", "draw", "row"), draws)}, {"row": ["a", "b"]})
    table = summarize(posterior)
    assert table.loc["C[b]", "sd"] == 0
    checks = {check.name: check for check in diagnose(posterior, xarray.Dataset(), {})}
    assert checks["ess"].value == table.loc["C[a]", "ess"] > 100
    assert np.isfinite(checks["r_hat"].value)


@pytest.mark.parametrize(("gap", "modes"), [(0.5, False), (500.0, True), (np.inf, True)])
def test_starts_that_disagree_are_told(gap, modes):
    draws = xarray.Dataset({"a": (("chain", "draw"), np.zeros((2, 4)))})
    checks = {c.name: c for c in diagnose(draws, xarray.Dataset(), {"start_gap": gap})}
    assert ("several modes" in checks["start_gap"].say()) is modes
    assert checks["start_gap"].ok


def test_what_could_not_be_measured_says_why():
    draws = xarray.Dataset({"a": (("chain", "draw"), np.zeros((2, 4)))})
    choices = {"buffer_bias": 0.0, "buffer_bias_error": 3.0}
    found = diagnose(draws, xarray.Dataset(), choices, lambda _: np.nan)
    checks = {c.name: c.say() for c in found}
    assert "one of 6 could not be seen" in checks["buffer_bias"]
    assert "too few effective draws" in checks["ksd"]


def test_summaries_have_the_digits_of_their_sds():
    """Means far from zero, small ones, and entries that are fixed."""
    columns = ["mean", "sd", "eti_3%", "eti_97%", "ess"]
    values = [
        [100494.04, 5.375, 100484.0, 100504.2, 1432.4],
        [1e-7, 1e-9, 0, 0, 10],
        [1, 0, 1, 1, np.nan],
    ]
    found = readable(pandas.DataFrame(values, columns=columns))
    assert found.iloc[0].to_list() == ["100494.0", "5.375", "100484.0", "100504.2", "1432"]
    assert found.iloc[1, 0] == "1e-07"
    assert found.iloc[2].to_list() == ["1", "0", "1", "1", "–"]
