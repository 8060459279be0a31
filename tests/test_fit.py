"""`Fit`: shapes, alignment, tables, plots."""

import dataclasses
import logging

import numpy as np
import pandas as pd
import polars as pl
import pytest

import sojourn as sj
from cases import LGSSM_PARAMS
from sojourn.plots import plot_trace
from sojourn.results.align import align_chains
from sojourn.results.diagnostics import summarize
from sojourn.results.fit import make_fit


@pytest.fixture(scope="module")
def fitted():
    model = sj.ARHMM(num_states=2, emission_dim=2)
    params = {
        "transition_matrix": np.array([[0.95, 0.05], [0.1, 0.9]]),
        "A": np.array([[[0.8, 0.1], [0.0, 0.7]], [[-0.5, 0.0], [0.2, 0.3]]]),
        "Q": np.stack([0.5 * np.eye(2), np.eye(2)]),
    }
    states, y = model.simulate(params, 800, seed=3)
    fit = sj.sample(model, y, num_samples=100, num_chains=2, num_warmup=100, progress=False)
    return fit, params, states["z"], y


def test_posterior_has_named_dims_and_coords(fitted):
    fit, _, _, _ = fitted
    assert fit.posterior["A"].dims == ("chain", "draw", "state", "column", "lag_column")
    assert fit.posterior.sizes["chain"] == 2
    assert list(fit.posterior["lag_column"].to_numpy()) == ["y0[-1]", "y1[-1]"]
    assert fit.sample_stats["lp"].shape == (2, 100)


def test_summary_and_arviz(fitted):
    fit, params, _, _ = fitted
    table = fit.summary()
    assert {"mean", "sd", "r_hat", "ess", "mcse"} <= set(table.columns)
    assert len(table) == sum(np.size(v) for v in params.values())
    tree = fit.to_arviz()
    np.testing.assert_array_equal(tree.posterior["A"], fit.posterior["A"])
    with pytest.raises(ValueError, match="prob must lie between 0 and 1"):
        fit.summary(prob=94)


def test_score_averages_likelihoods(fitted):
    fit, _, _, y = fitted
    values = [sj.log_likelihood(fit.model, p, y) for p in fit.draws(5)]
    expected = np.log(np.mean(np.exp(np.asarray(values) - max(values)))) + max(values)
    np.testing.assert_allclose(fit.score(y, num_draws=5), expected)


def test_decoding_recovers_the_states(fitted):
    fit, _, z, y = fitted
    for method in ("viterbi", "marginal"):
        decoded = fit.decode(y, method=method, num_draws=10)
        states = decoded["state"].to_numpy()
        assert states[0] == -1
        agreement = np.mean(states[1:] == z[1:])
        assert max(agreement, 1 - agreement) > 0.85
        total = decoded["probability"].sum("label").to_numpy()[1:]
        np.testing.assert_allclose(total, 1)


def test_chains_are_aligned_to_one_labelling(rng):
    """A chain with its states exchanged is turned back, transition matrix included."""
    dims = {"means": ("state", "column"), "transition_matrix": ("state", "to_state")}
    means = np.array([[0.0], [5.0], [9.0]]) + 0.1 * rng.normal(size=(2, 50, 3, 1))
    Pi = np.broadcast_to(
        np.array([[0.8, 0.2, 0.0], [0.1, 0.6, 0.3], [0.3, 0.3, 0.4]]), (2, 50, 3, 3)
    ).copy()
    order = [2, 0, 1]
    mixed = {"means": means.copy(), "transition_matrix": Pi.copy()}
    mixed["means"][1] = means[1][:, order]
    mixed["transition_matrix"][1] = Pi[1][:, order][:, :, order]
    aligned = align_chains(mixed, dims)
    np.testing.assert_array_equal(aligned["means"], means)
    np.testing.assert_array_equal(aligned["transition_matrix"], Pi)


@pytest.mark.parametrize("seed", range(10))
def test_single_draws_are_aligned_by_what_tells_states_apart(seed):
    """Not by entries that differ between states by noise alone, of whatever size."""
    rng = np.random.default_rng(seed)
    dims = {"means": ("state", "column"), "covariances": ("state", "column", "column_2")}
    means = np.array([0.0, 3.0, 6.0])[:, None] + 0.1 * rng.normal(size=(2, 1, 3, 1))
    covariances = 1 + 0.1 * rng.normal(size=(2, 1, 3, 1, 1))
    mixed = {"means": means.copy(), "covariances": covariances}
    mixed["means"][1] = means[1][:, [2, 0, 1]]
    np.testing.assert_array_equal(align_chains(mixed, dims)["means"], means)


def test_plots_draw(fitted, tmp_path):
    fit, _, _, y = fitted
    fit.plot_trace().savefig(tmp_path / "trace.png")
    figure = fit.plot_trace("Q")
    titles = [axis.get_title(loc="left") for axis in figure.axes[::2]]
    entries = [name for name in fit.summary().index if name.startswith("Q[")]
    assert titles == [name for name in entries if not name.endswith("y1, y0]")]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["chain 0", "chain 1"]
    figure = fit.plot_segmentation(y, start=100, stop=300)
    figure.savefig(tmp_path / "segments.png")
    assert figure.axes[0].get_ylabel() == "y0"
    with pytest.raises(ValueError, match="no parameter 'B'"):
        fit.plot_trace(["B"])
    with pytest.raises(ValueError, match="start < stop"):
        fit.plot_segmentation(y, start=900)


def test_traces_of_large_parameters_show_the_first_entries(fitted):
    fit, _, _, _ = fitted
    wide = fit.posterior[["A"]].isel(lag_column=[0] * 7)
    wide = wide + np.arange(7)  # an entry that repeats another would be left out
    figure = plot_trace(wide)
    assert len(figure.axes) == 2 * 12
    assert figure.get_suptitle() == "A: first 12 of 28 entries"


def test_segmentation_shows_the_rows_and_the_series_asked_for(fitted):
    fit, _, _, y = fitted
    figure = fit.plot_segmentation(y)
    assert figure.get_suptitle() == "rows 0 to 499 of 800"
    np.testing.assert_array_equal(figure.axes[0].lines[0].get_ydata(), y[:500, 0])
    figure = fit.plot_segmentation([y[:90], y[:70]], 20, 60, series=1)
    assert figure.get_suptitle() == "rows 20 to 59 of 70 of series 1"
    np.testing.assert_array_equal(figure.axes[1].lines[0].get_ydata(), y[20:60, 1])
    with pytest.raises(ValueError, match="series must be below 2"):
        fit.plot_segmentation([y[:90], y[:70]], series=2)


def test_segmentation_of_what_was_not_seen(fitted):
    fit, _, _, y = fitted
    gone = y.copy()
    gone[100:200, 1] = np.nan
    figure = fit.plot_segmentation(gone, 110, 190)
    assert figure.axes[1].get_ylim() == (-0.05, 1.05)
    np.testing.assert_array_equal(figure.axes[0].lines[0].get_ydata(), y[110:190, 0])


def test_segmentation_needs_discrete_states():
    model = sj.LGSSM(state_dim=1, emission_dim=1)
    draws = {name: np.ones((2, 1, 1)) for name in ("A", "Q", "R")}
    fit = make_fit(model, ("y0",), {0: (draws, {})}, choices={"sampler": "by hand"}, seed=0)
    with pytest.raises(ValueError, match="LGSSM has no discrete states"):
        fit.plot_segmentation(np.arange(9.0))


def test_continuous_states_are_plotted_with_their_spread():
    model = sj.LGSSM(state_dim=2, emission_dim=2)
    draws = {name: np.stack([value] * 2) for name, value in LGSSM_PARAMS.items()}
    fit = make_fit(model, ("y0", "y1"), {0: (draws, {})}, choices={"sampler": "by hand"}, seed=0)
    frame = pd.DataFrame(model.simulate(LGSSM_PARAMS, 300, seed=1)[1], columns=["y0", "y1"])
    named = sj.open_series(frame.assign(who=["a"] * 100 + ["b"] * 200), sequence="who")
    figure = fit.plot_states(named, 20, 90, series="b")
    found = sj.smooth(model, LGSSM_PARAMS, frame.to_numpy()[100:]).isel(time=slice(20, 90))
    assert len(figure.axes) == 2 and "rows 20 to 89 of 200 of series b" in figure.get_suptitle()
    for index, axis in enumerate(figure.axes):
        mean = found["x"][:, index].to_numpy()
        np.testing.assert_allclose(axis.lines[0].get_ydata(), mean, atol=1e-6)
        band = axis.collections[0].get_paths()[0].vertices[:, 1]
        sd = np.sqrt(found["covariance"][:, index, index].to_numpy())
        np.testing.assert_allclose(band.max(), (mean + 2 * sd).max(), atol=1e-6)
    with pytest.raises(ValueError, match="there is no series 'c'; there are"):
        fit.plot_states(named, series="c")


def test_continuous_states_are_needed_to_plot_them(fitted):
    fit, _, _, y = fitted
    with pytest.raises(ValueError, match="ARHMM has no continuous states"):
        fit.plot_states(y)


def test_traces_leave_out_what_does_not_vary():
    """Fixed entries of C, and the upper half of Q and R, tell nothing."""
    model = sj.LGSSM(state_dim=1, emission_dim=2)
    rng = np.random.default_rng(0)
    scale, C = rng.random(30) + 1, np.ones((30, 2, 1))
    C[:, 1, 0] = rng.normal(size=30)
    draws = {
        "A": rng.normal(size=(30, 1, 1)),
        "Q": scale[:, None, None],
        "C": C,
        "R": np.array([[2.0, 1.0], [1.0, 3.0]]) * np.stack([scale] * 4, 1).reshape(30, 2, 2),
    }
    draws["R"][:, 1, 1] += 1 + rng.random(30)
    fit = make_fit(model, ("a", "b"), {0: (draws, {})}, choices={"sampler": "by hand"}, seed=0)
    titles = [axis.get_title(loc="left") for axis in fit.plot_trace().axes]
    assert [title for title in titles if title.startswith(("C", "R"))] == [
        *("C[b, 0]", "R[a, a]", "R[a, b]", "R[b, b]")
    ]


def test_columns_are_matched_by_name(fitted):
    """A data frame with its columns in another order gives the same answers; strangers are named."""
    named, _, _, y = fitted
    fit = dataclasses.replace(named, columns=("left", "right"))
    frame = pd.DataFrame(y[:200], columns=["left", "right"])
    turned = frame[["right", "left"]]
    expected = named.score(y[:200], num_draws=2)
    series = sj.as_series(turned)
    for data in (frame, turned, series, y[:200], sj.as_series(y[:200]), [turned]):
        assert fit.score(data, num_draws=2) == expected
    for data in (turned, [turned, frame]):
        decoded = fit.decode(data, num_draws=2)
        again = fit.decode([y[:200]] * (len(data) if isinstance(data, list) else 1), num_draws=2)
        assert decoded.equals(again)
    figure = fit.plot_segmentation(turned)
    np.testing.assert_array_equal(figure.axes[0].lines[0].get_ydata(), y[:200, 0])
    # A fit to an array has no names to match.
    assert named.score(turned[["left", "right"]], num_draws=2) == expected
    for call in (fit.score, fit.smooth, fit.decode, fit.plot_segmentation):
        with pytest.raises(ValueError, match="unknown 'up'; missing 'right'; rename or select"):
            call(turned.rename(columns={"right": "up"}))
        with pytest.raises(ValueError, match="unknown 'up', 'down', 'more'; missing 'left'"):
            call(turned.rename(columns={"left": "down", "right": "up"}).assign(more=1.0))


def test_other_columns_of_a_frame_are_left_out(fitted):
    """What a frame has beside the columns of the fit, dates and text too, is not looked at."""
    named, _, _, y = fitted
    fit = dataclasses.replace(named, columns=("left", "right"))
    expected = named.score(y[:200], num_draws=2)
    frame = pd.DataFrame(y[:200], columns=["left", "right"])[["right", "left"]]
    wider = frame.assign(day=pd.date_range("2020", periods=200), note="x", more=1.0)
    numbers = sj.as_series(frame.assign(more=1.0))
    for data in (wider, [wider], numbers, pl.from_pandas(wider), wider.to_xarray()):
        assert fit.score(data, num_draws=2) == expected
    # An array has no names to choose by.
    with pytest.raises(ValueError, match="data has 3 columns; the model expects emission_dim=2"):
        named.score(np.column_stack([y, y[:, 0]]))


def test_fit_keeps_the_names_of_the_columns():
    data = pd.DataFrame(np.random.default_rng(0).normal(size=(60, 2)), columns=["a", "b"])
    model = sj.GaussianHMM(num_states=1, emission_dim=2)
    settings = {"num_samples": 5, "num_chains": 1, "num_warmup": 0, "progress": False}
    fit = sj.sample(model, data, sj.SGRLD(), **settings)
    assert fit.columns == tuple(fit.posterior["column"].to_numpy()) == ("a", "b")
    assert repr(fit) == "Fit(GaussianHMM, SGRLD, 1 chain of 5 draws)"


def test_discrepancy_is_the_largest_over_draws(fitted):
    fit, _, _, y = fitted
    gaps = [sj.smooth(fit.model, p, y).attrs["discrepancy"] for p in fit.draws(3)]
    assert fit.smooth(y, num_draws=3).attrs["discrepancy"] == max(gaps)
    assert fit.decode(y, method="marginal", num_draws=3).attrs["discrepancy"] == max(gaps)
    assert fit.decode(y, num_draws=3).attrs["discrepancy"] >= max(gaps)


def test_path_of_a_fit_is_that_of_its_mean(fitted):
    fit, _, _, y = fitted
    path = fit.decode(y, num_draws=1)["state"]
    np.testing.assert_array_equal(path, sj.decode(fit.model, fit.mean, y)["state"])


def test_summary_of_one_chain_is_silent(fitted, caplog, capsys):
    # What ArviZ says when it is first imported is not ours; warnings about the draws would be.
    with caplog.at_level(logging.WARNING):
        table = summarize(fitted[0].posterior.isel(chain=[0]))
    assert table["r_hat"].isna().all()
    assert (table["ess"] > 0).all()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert capsys.readouterr() == ("", "")


def test_frames_with_plain_names_are_matched_by_them(rng):
    frame = pd.DataFrame({"y0": rng.normal(size=60), "y1": 100 + 5 * rng.normal(size=60)})
    settings = {"num_samples": 10, "num_chains": 1, "num_warmup": 5, "progress": False}
    fit = sj.sample(sj.GaussianHMM(1, 2), frame, sj.Gibbs(), **settings)
    assert fit.score(frame[["y1", "y0"]]) == pytest.approx(fit.score(frame))
