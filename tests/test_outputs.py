"""What is written as it is made equals what is returned."""

import numpy as np
import pandas as pd
import pytest
import xarray

import sojourn as sj
from cases import LGSSM_PARAMS
from sojourn.passes import passes, tiles
from sojourn.results import outputs
from sojourn.results.fit import make_fit

ARHMM = sj.ARHMM(num_states=2, emission_dim=1, num_lags=2)
PARAMS = {
    "transition_matrix": np.array([[0.95, 0.05], [0.1, 0.9]]),
    "A": np.array([[[0.5, 0.2]], [[-0.5, 0.1]]]),
    "Q": np.array([[[1.0]], [[0.3]]]),
}


@pytest.fixture(scope="module")
def recordings():
    data = [ARHMM.simulate(PARAMS, T, seed=T)[1] for T in (9000, 40, 5000)]
    data[0][300:305] = np.nan
    return data


def same(found, expected):
    for name in expected.data_vars:
        np.testing.assert_allclose(found[name], expected[name], atol=1e-12)
    for name in ("series", "t"):
        np.testing.assert_array_equal(found[name], expected[name])


def test_zarr_holds_the_dataset(recordings, tmp_path, monkeypatch):
    """Several groups, series that end within windows, lags left blank."""
    monkeypatch.setattr(tiles, "_GROUP", 8)
    expected = sj.decode(ARHMM, PARAMS, recordings)
    path = sj.decode(ARHMM, PARAMS, recordings, out=tmp_path / "states.zarr")
    found = xarray.open_zarr(path, chunks=None, consolidated=False)
    same(found, expected)
    assert found["probability"].dims == ("time", "label")
    assert 0 <= found.attrs["discrepancy"] < 1e-9


def test_a_bar_counts_the_rows_written(recordings, tmp_path, monkeypatch):
    seen = []

    class Bar(passes.count_rows(0, enabled=False).__class__):
        def update(self, n=1):
            seen.append(n)

    def make(total, *, enabled):
        assert enabled
        return Bar(total=total, disable=True)

    monkeypatch.setattr(passes, "count_rows", make)
    monkeypatch.setattr(tiles, "_GROUP", 8)
    sj.smooth(ARHMM, PARAMS, recordings, out=tmp_path / "states.zarr", progress=True)
    assert len(seen) > 1
    assert sum(seen) == sum(len(y) - 2 for y in recordings)


def test_parquet_has_a_row_for_each_row(recordings, tmp_path, monkeypatch):
    monkeypatch.setattr(tiles, "_GROUP", 8)
    expected = sj.decode(ARHMM, PARAMS, recordings, method="marginal")
    out = tmp_path / "new" / "states.parquet"
    table = pd.read_parquet(sj.decode(ARHMM, PARAMS, recordings, method="marginal", out=str(out)))
    assert list(table.columns) == ["series", "t", "state", "p_0", "p_1"]
    np.testing.assert_allclose(table[["p_0", "p_1"]], expected["probability"], atol=1e-12)
    lags = table["t"] < 2
    assert (table["state"][lags] == -1).all() and table["p_0"][lags].isna().all()
    np.testing.assert_array_equal(table["state"][~lags], expected["state"][~lags.to_numpy()])


def test_buffers_that_were_too_short_leave_no_trace(tmp_path, monkeypatch):
    """The first attempt writes most rows, then fails at a stretch without data."""
    model = sj.GaussianHMM(num_states=2, emission_dim=1)
    params = {
        "transition_matrix": np.array([[0.99, 0.01], [0.02, 0.98]]),
        "means": np.array([[-3.0], [3.0]]),
        "covariances": np.ones((2, 1, 1)),
    }
    y = model.simulate(params, 6000, seed=0)[1]
    y[4500:5500] = np.nan
    monkeypatch.setattr(tiles, "_GROUP", 8)
    started = []
    original = passes._stream_groups

    def watched(*args):
        started.append(args[2].buffer)
        return original(*args)

    monkeypatch.setattr(passes, "_stream_groups", watched)
    for name in ("a.zarr", "a.parquet"):
        started.clear()
        path = sj.smooth(model, params, y, out=tmp_path / name)
        assert len(started) > 1 and started[0] < started[-1]
        expected = sj.smooth(model, params, y)["probability"].to_numpy()
        if name == "a.zarr":
            found = xarray.open_zarr(path, chunks=None, consolidated=False)["probability"]
        else:
            found = pd.read_parquet(path)[["p_0", "p_1"]]
        np.testing.assert_allclose(found, expected, atol=1e-12)


def test_averages_over_draws_are_written(tmp_path):
    model = sj.LGSSM(state_dim=2, emission_dim=2)
    y = model.simulate(LGSSM_PARAMS, 700, seed=1)[1]
    draws = {name: np.stack([value] * 3) for name, value in LGSSM_PARAMS.items()}
    draws["A"] = draws["A"] * np.array([0.7, 1.0, 1.2])[:, None, None]
    fit = make_fit(model, ("y0", "y1"), {0: (draws, {})}, choices={"sampler": "by hand"}, seed=0)
    expected = fit.smooth(y, num_draws=3)
    path = fit.smooth(y, num_draws=3, out=tmp_path / "x.zarr")
    same(xarray.open_zarr(path, chunks=None, consolidated=False), expected)
    table = pd.read_parquet(fit.decode(y, num_draws=3, out=tmp_path / "x.parquet"))
    np.testing.assert_allclose(table["covariance_0_1"], expected["covariance"][:, 0, 1], atol=1e-12)
    np.testing.assert_allclose(table["sd_1"] ** 2, expected["covariance"][:, 1, 1], atol=1e-12)
    assert list(table) == ["series", "t", "x_0", "x_1", "sd_0", "sd_1", "covariance_0_1"]


@pytest.mark.parametrize("name", ["a.zarr", "a.parquet"])
def test_what_is_cut_short_leaves_what_was_there(tmp_path, monkeypatch, name):
    """A store has its name when it is whole."""
    model = sj.LGSSM(state_dim=2, emission_dim=2)
    y = model.simulate(LGSSM_PARAMS, 700, seed=1)[1]
    open_it = {
        "a.zarr": lambda path: xarray.open_zarr(path, chunks=None, consolidated=False).load(),
        "a.parquet": lambda path: pd.read_parquet(path).to_xarray(),
    }[name]
    before = open_it(sj.smooth(model, LGSSM_PARAMS, y, out=tmp_path / name))

    def fail(self, gap):
        raise KeyboardInterrupt

    kind = {"a.zarr": outputs.ZarrWriter, "a.parquet": outputs.ParquetWriter}[name]
    with monkeypatch.context() as patch:
        patch.setattr(kind, "note", fail)
        for target in (name, f"new-{name}"):
            with pytest.raises(KeyboardInterrupt):
                sj.smooth(model, LGSSM_PARAMS, 2 * y, out=tmp_path / target)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert open_it(tmp_path / name).identical(before)
    assert not open_it(sj.smooth(model, LGSSM_PARAMS, 2 * y, out=tmp_path / name)).equals(before)


def test_places_that_cannot_be_written_are_refused(tmp_path):
    y = np.zeros((9, 1)) + np.arange(9)[:, None]
    with pytest.raises(ValueError, match=r"must end in \.zarr or \.parquet"):
        sj.smooth(ARHMM, PARAMS, y, out=tmp_path / "states.csv")
    with pytest.raises(ValueError, match="leave out `out`"):
        sj.decode(ARHMM, PARAMS, y, method="sample", out=tmp_path / "states.zarr")


def test_nothing_else_is_replaced(tmp_path):
    model = sj.GaussianHMM(num_states=2, emission_dim=1)
    params = {
        "transition_matrix": np.full((2, 2), 0.5),
        "means": np.array([[0.0], [1.0]]),
        "covariances": np.ones((2, 1, 1)),
    }
    folder = tmp_path / "thesis.parquet"
    folder.mkdir()
    (folder / "chapter").write_text("one")
    with pytest.raises(ValueError, match="a directory of something else"):
        sj.smooth(model, params, np.arange(5.0), out=folder)
    (folder / "zarr.json").write_text("{")
    with pytest.raises(ValueError, match="a directory of something else"):
        sj.smooth(model, params, np.arange(5.0), out=folder)
    assert (folder / "chapter").exists()
    data = tmp_path / "data.parquet"
    pd.DataFrame({"a": np.arange(5.0)}).to_parquet(data)
    with pytest.raises(ValueError, match="holds the data"):
        sj.smooth(model, params, data, out=data)
    states = sj.smooth(model, params, data, out=tmp_path / "states.zarr")
    assert sj.smooth(model, params, data, out=states) == states


def test_names_of_series_stand_in_tables(tmp_path):
    model = sj.GaussianHMM(num_states=2, emission_dim=1)
    params = {
        "transition_matrix": np.full((2, 2), 0.5),
        "means": np.array([[0.0], [1.0]]),
        "covariances": np.ones((2, 1, 1)),
    }
    who = np.repeat(["dog1", "dog2"], [5, 4])
    frame = pd.DataFrame({"who": who, "a": np.arange(9.0)})
    frame.loc[7, "a"] = np.nan
    data = sj.open_series(frame, sequence="who")
    assert sj.smooth(model, params, data)["series"].to_numpy().tolist() == who.tolist()
    assert sj.impute(model, params, data)["series"].to_numpy().tolist() == who.tolist()
    ahead = sj.forecast(model, params, data, 2, num_draws=3)
    assert ahead["y"].sel(series="dog2").sizes == {"draw": 3, "ahead": 2, "column": 1}
    table = pd.read_parquet(sj.decode(model, params, data, out=tmp_path / "states.parquet"))
    assert table["series"].tolist() == who.tolist()
    store = sj.smooth(model, params, data, out=tmp_path / "states.zarr")
    states = xarray.open_zarr(store, chunks=None, consolidated=False)
    names = np.asarray(states.attrs["series_names"])
    assert names[states["series"].to_numpy()].tolist() == who.tolist()
