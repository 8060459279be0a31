"""What users have becomes a `Series`: rows, lengths, names, missing values, location and scale."""

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import sojourn as sj
from sojourn.series import series as series_module

ROWS = np.arange(12.0).reshape(6, 2)
NAN = np.nan


@pytest.mark.parametrize(
    ("data", "values", "lengths"),
    [
        pytest.param(ROWS[:, 0], ROWS[:, :1], (6,), id="(T,)"),
        pytest.param(ROWS[:, 0].tolist(), ROWS[:, :1], (6,), id="list of numbers"),
        pytest.param(ROWS, ROWS, (6,), id="(T, D)"),
        pytest.param(ROWS.T.copy().T, ROWS, (6,), id="columns first in memory"),
        pytest.param(ROWS.reshape(3, 2, 2), ROWS, (2, 2, 2), id="(N, T, D)"),
        pytest.param([ROWS[:4], ROWS[4:]], ROWS, (4, 2), id="list of unequal arrays"),
        pytest.param((ROWS[:2], ROWS[2:]), ROWS, (2, 4), id="tuple of unequal arrays"),
        pytest.param([ROWS], ROWS, (6,), id="list of one array"),
        pytest.param([ROWS[:4, 0], ROWS[4:, 0]], ROWS[:, :1], (4, 2), id="list of (T_i,)"),
        pytest.param([ROWS[:4].tolist(), ROWS[4:].tolist()], ROWS, (4, 2), id="nested lists"),
        pytest.param(pd.DataFrame(ROWS), ROWS, (6,), id="DataFrame"),
        pytest.param(pd.Series(ROWS[:, 0]), ROWS[:, :1], (6,), id="pandas Series"),
        pytest.param(xr.DataArray(ROWS), ROWS, (6,), id="DataArray"),
    ],
)
def test_layouts(data, values, lengths):
    series = sj.as_series(data)
    np.testing.assert_array_equal(series.values, values)
    assert series.lengths == lengths
    assert series.missing == "none"
    assert (series.num_rows, series.dim) == values.shape
    parts = series.split()
    assert tuple(map(len, parts)) == lengths
    np.testing.assert_array_equal(np.concatenate(parts), values)


@pytest.mark.parametrize("dtype", ["i1", "u2", "i8", "f2", "f4", ">f8", "g", "O", "?"])
def test_every_kind_of_number_becomes_a_contiguous_double(dtype):
    data = np.array([[0, 1], [1, 0], [1, 1]]).astype(dtype)
    series = sj.as_series(data)
    assert series.values.dtype == np.dtype("=f8")
    assert series.values.flags.c_contiguous
    np.testing.assert_array_equal(series.values, [[0, 1], [1, 0], [1, 1]])


def test_data_are_left_as_they_were():
    data = ROWS.astype("f4")
    before = data.copy()
    sj.as_series(data)
    np.testing.assert_array_equal(data, before)


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (ROWS, "none"),
        ([[1.0, 2.0], [NAN, NAN], [3.0, 4.0]], "rows"),
        ([[1.0, 2.0], [NAN, 3.0], [3.0, 4.0]], "entries"),
        ([[NAN, 2.0], [NAN, NAN], [3.0, 4.0]], "entries"),
        ([[1.0], [NAN], [2.0]], "rows"),
    ],
)
def test_missing_kind(data, kind):
    series = sj.as_series(np.asarray(data))
    assert series.missing == kind
    np.testing.assert_array_equal(series.values, data)


@pytest.mark.parametrize(
    "data",
    [
        np.array([[1.0, None], [2.0, 3.0]], dtype=object),
        np.ma.masked_array([[1, 9], [2, 3]], [[False, True], [False, False]]),
        pd.DataFrame({"a": [1, 2], "b": [None, 3]}, dtype="Int64"),
        [pd.DataFrame({"a": [1, 2], "b": [None, 3]}, dtype="Int64")],
    ],
    ids=["None", "mask", "NA", "NA in a list"],
)
def test_other_marks_of_missing_values_become_nan(data):
    series = sj.as_series(data)
    np.testing.assert_array_equal(series.values, [[1.0, NAN], [2.0, 3.0]])
    assert series.missing == "entries"


def test_a_series_stays_itself():
    series = sj.as_series([ROWS[:4], ROWS[4:]])
    assert sj.as_series(series, dim=2) is series


def test_names_of_columns():
    frame = pd.DataFrame(ROWS, columns=["speed", 3])
    assert sj.as_series(ROWS).columns == ("y0", "y1")
    assert sj.as_series(frame).columns == ("speed", "3")
    assert sj.as_series([frame, frame[:4]]).columns == ("speed", "3")


def test_location_and_scale_of_normal_columns():
    rng = np.random.default_rng(0)
    mean, sd = np.array([5.0, -2.0]), np.array([3.0, 0.1])
    location, scale = sj.as_series(rng.normal(mean, sd, (4000, 2))).location_scale()
    # The sd of the median is 1.25 σ / √T = 0.02 σ, that of the scale 1.17 σ / √T; four of them.
    np.testing.assert_allclose((location - mean) / sd, 0.0, atol=0.08)
    np.testing.assert_allclose(scale / sd, 1.0, atol=0.08)


@pytest.mark.parametrize("factor", [1e-12, 1e-3, 1e6, 1e12])
def test_location_and_scale_move_with_the_units(factor):
    rng = np.random.default_rng(1)
    columns = [rng.normal(size=500), rng.standard_cauchy(500), rng.random(500) < 0.1]
    data = np.column_stack(columns)
    data[::7, 0] = NAN
    location, scale = sj.as_series(data).location_scale()
    moved_location, moved_scale = sj.as_series(factor * (data + 2.0)).location_scale()
    np.testing.assert_allclose(moved_location, factor * (location + 2.0), rtol=1e-9)
    np.testing.assert_allclose(moved_scale, factor * scale, rtol=1e-9)


def test_outliers_and_missing_values_hardly_move_location_and_scale():
    rng = np.random.default_rng(2)
    clean = rng.normal(size=(5000, 1))
    spoilt = clean.copy()
    spoilt[::100] = 100.0  # the mean moves to 1, the standard deviation to 10
    spoilt[1::3] = NAN
    location, scale = sj.as_series(spoilt).location_scale()
    np.testing.assert_allclose(location, 0.0, atol=0.1)
    np.testing.assert_allclose(scale, 1.0, rtol=0.1)


@pytest.mark.parametrize("dispersion", [0.0, 1e-6])
def test_the_scale_of_a_narrow_centre_is_the_deviation(dispersion):
    """Mostly equal values, or nearly so, with rare far ones."""
    rng = np.random.default_rng(3)
    data = dispersion * rng.normal(size=1000)
    data[::10] = 1.0
    _, scale = sj.as_series(data).location_scale()
    np.testing.assert_allclose(scale, data.std())


def test_location_and_scale_come_from_a_sample_of_rows(monkeypatch):
    data = np.random.default_rng(4).normal(size=(10_000, 2))
    sample = sj.as_series(data[::100]).location_scale()
    monkeypatch.setattr(series_module, "_SCALE_ROWS", 100)
    np.testing.assert_array_equal(sj.as_series(data).location_scale(), sample)


def test_a_column_missing_in_the_sample_is_looked_for_in_all_rows(monkeypatch):
    data = np.random.default_rng(5).normal(size=(10_000, 2))
    data[::2, 1] = NAN  # the sample takes every hundredth row
    sample = sj.as_series(data[::100, :1]).location_scale()
    monkeypatch.setattr(series_module, "_SCALE_ROWS", 100)
    location, scale = sj.as_series(data).location_scale()
    np.testing.assert_allclose(location, [sample[0][0], np.nanmean(data[:, 1])])
    np.testing.assert_allclose(scale, [sample[1][0], np.nanstd(data[:, 1])])


def test_a_column_that_varies_only_outside_the_sample_has_a_scale(monkeypatch):
    monkeypatch.setattr(series_module, "_SCALE_ROWS", 10)
    data = np.zeros((100, 1))
    data[5] = 1.0
    _, scale = sj.as_series(data).location_scale()
    np.testing.assert_allclose(scale, data.std())


def test_time_of_a_data_array_may_stand_anywhere(rng):
    y = rng.normal(size=(30, 2))
    turned = sj.as_series(xr.DataArray(y.T, dims=("channel", "time")))
    np.testing.assert_array_equal(turned.to_numpy(), y)
    several = xr.DataArray(rng.normal(size=(2, 3, 30)), dims=("time", "trial", "channel"))
    assert sj.as_series(several).lengths == (2, 2, 2)


def test_values_whose_squares_overflow_are_told():
    y = 1e200 * np.random.default_rng(0).normal(size=(50, 2)) * [1e-200, 1]
    with pytest.raises(ValueError, match="squares of column 'y1' overflow"):
        sj.sample(sj.GaussianHMM(2, 2), y, num_samples=5, progress=False)
