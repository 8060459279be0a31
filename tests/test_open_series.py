"""Every format gives the same rows, lazily; options, splits, fingerprints and reopening."""

import json
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
import xarray as xr

import sojourn as sj
from sojourn.series import formats, reopen, sources, tables
from sojourn.series import series as series_module
from sojourn.series.sources import ArraySource, ColumnSource, Joined, Mapped, Pieces, Source

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(300, 2)).round(3)
ROWS[17] = np.nan
ROWS[40, 1] = np.nan
NAMED = pd.DataFrame(ROWS, columns=["a", "b"])
IDS = np.repeat(["u", "v"], [100, 200])


def _npz(path):
    np.savez(path, first=ROWS[:100], second=ROWS[100:])


def _zarr(path):
    import zarr

    zarr.save_array(path, ROWS)


def _zarr_columns(path):
    import zarr

    group = zarr.open_group(path, mode="w")
    for name in NAMED:
        group.create_array(name, data=NAMED[name].to_numpy(), chunks=(64,))


def _hdf5(path):
    import h5py

    with h5py.File(path, "w") as file:
        file.create_dataset("deep/rows", data=ROWS, chunks=(50, 2))
        file.create_dataset("other", data=np.arange(3))


def _netcdf(path):
    xr.Dataset({name: ("time", NAMED[name]) for name in NAMED}).to_netcdf(path, engine="h5netcdf")


def _old_netcdf(path):
    xr.Dataset({"rows": (("time", "column"), ROWS)}).to_netcdf(path, engine="scipy")


def _parquet(path):
    NAMED.assign(who=IDS).to_parquet(path, row_group_size=70)


def _partitioned(path):
    for which in ("u", "v"):
        part = path / f"who={which}"
        part.mkdir(parents=True)
        NAMED[which == IDS].to_parquet(part / "part.parquet", row_group_size=70)


def _csv(path):
    NAMED.assign(who=IDS).to_csv(path, index=False)


FORMATS = {
    "npy": ("x.npy", lambda path: np.save(path, ROWS), {}, (300,)),
    "npz": ("x.npz", _npz, {}, (100, 200)),
    "npz, one": ("x.npz", lambda path: np.savez(path, y=ROWS, z=ROWS[:3]), {"variable": "y"}, None),
    "zarr": ("x.zarr", _zarr, {}, (300,)),
    "zarr columns": ("x.zarr", _zarr_columns, {"columns": ["a", "b"]}, (300,)),
    "hdf5": ("x.h5", _hdf5, {"variable": "deep/rows"}, (300,)),
    "netcdf": ("x.nc", _netcdf, {"columns": ["a", "b"]}, (300,)),
    "netcdf 3": ("x.nc", _old_netcdf, {}, (300,)),
    "parquet": ("x.parquet", _parquet, {"columns": ["a", "b"]}, (300,)),
    "parquet, series": ("x.parquet", _parquet, {"sequence": "who"}, (100, 200)),
    "partitioned": ("x", _partitioned, {"sequence": "who"}, (100, 200)),
    "csv": ("x.csv", _csv, {"columns": ["a", "b"]}, (300,)),
    "csv, series": ("x.csv", _csv, {"sequence": "who"}, (100, 200)),
    "tsv, no names": (
        "x.tsv",
        lambda p: NAMED.to_csv(p, sep="\t", header=False, index=False),
        {},
        (300,),
    ),
}


@pytest.mark.parametrize(("name", "write", "options", "lengths"), FORMATS.values(), ids=FORMATS)
def test_every_format_gives_the_same_rows(tmp_path, name, write, options, lengths):
    path = tmp_path / name
    write(path)
    series = sj.open_series(path, **options)
    assert isinstance(series.values, Source)
    assert series.lengths == (lengths or (300,))
    assert series.missing == "entries"
    np.testing.assert_array_equal(series.rows(0, 300), ROWS)
    np.testing.assert_array_equal(series.rows(90, 160), ROWS[90:160])
    origin = np.array([100, 3, 280, 101, 3])
    expected = np.stack([ROWS[o : o + 20] for o in origin])
    np.testing.assert_array_equal(series.windows(origin, 20), expected)
    assert all(type(length) is int for length in series.lengths)
    # By way of text, as a run keeps it.
    again = reopen(json.loads(json.dumps(series.describe())))
    assert again.fingerprint == series.fingerprint
    assert again.describe() == series.describe()


def test_a_series_can_be_changed_further(tmp_path):
    np.save(tmp_path / "x.npy", np.exp(ROWS))
    series = sj.open_series(sj.open_series(tmp_path / "x.npy"), log=True, every=2)
    assert isinstance(series.values, Source)
    np.testing.assert_array_equal(series.rows(0, 150), np.log(np.exp(ROWS))[::2])
    assert series.describe() is None  # the file alone does not tell


def test_what_was_done_before_is_remembered():
    raw = np.exp(ROWS)
    logs = sj.open_series(sj.open_series(raw, log=True), standardize=True)
    assert logs.treatment == {"missing": None, "log": True, "every": 1}
    np.testing.assert_allclose(logs.restore(logs.rows(0, 300)), ROWS, rtol=1e-12, atol=1e-12)
    train, _ = logs.train_test(0.5)
    twice = sj.open_series(sj.open_series(train, standardize=True, every=2), every=3)
    assert twice.treatment == {"missing": None, "log": True, "every": 6}
    np.testing.assert_allclose(twice.restore(twice.rows(0, 25)), ROWS[:150:6], atol=1e-12)
    for data in (logs, sj.open_series(raw, log=True)):
        with pytest.raises(ValueError, match="give all options to one open_series"):
            sj.open_series(data, log=True)
        with pytest.raises(ValueError, match="missing= is for numbers as they stand"):
            sj.open_series(data, missing=0)
    with pytest.raises(ValueError, match="missing=-1 comes after missing=0"):
        sj.open_series(sj.open_series(raw, missing=0), missing=-1)


def test_zero_may_stand_for_missing(tmp_path):
    np.save(tmp_path / "x.npy", np.array([0, 1, 2, 0]))
    series = sj.open_series(tmp_path / "x.npy", missing=0)
    np.testing.assert_array_equal(series.rows(0, 4)[:, 0], [np.nan, 1, 2, np.nan])
    assert series.missing == "rows"
    assert reopen(series.describe()).fingerprint == series.fingerprint


def test_standardisation_by_given_numbers_is_reopened(tmp_path):
    np.save(tmp_path / "x.npy", ROWS)
    series = sj.open_series(tmp_path / "x.npy").standardized(np.ones(2), np.full(2, 3.0))
    again = reopen(json.loads(json.dumps(series.describe())))
    np.testing.assert_array_equal(again.rows(0, 300), (ROWS - 1) / 3)
    with pytest.raises(ValueError, match="knows its lengths already"):
        sj.open_series(series, sequence="a")


def test_zarr_without_tensorstore(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "_tensorstore", lambda array, place: None)
    _zarr(tmp_path / "x.zarr")
    series = sj.open_series(tmp_path / "x.zarr")
    origin = np.array([100, 3, 280, 101, 3])
    expected = np.stack([ROWS[o : o + 20] for o in origin])
    np.testing.assert_array_equal(series.windows(origin, 20), expected)
    np.testing.assert_array_equal(series.rows(50, 90), ROWS[50:90])


def test_a_url_is_read_by_ranges(tmp_path):
    fsspec = pytest.importorskip("fsspec")
    for name, write in [("x.npy", lambda p: np.save(p, ROWS)), ("x.parquet", _parquet)]:
        write(tmp_path / name)
        with fsspec.open(f"memory://{name}", "wb") as file:
            file.write((tmp_path / name).read_bytes())
        series = sj.open_series(f"memory://{name}", columns=None if name == "x.npy" else ["a", "b"])
        np.testing.assert_array_equal(series.rows(30, 250), ROWS[30:250])
        assert series.describe()["path"] == f"memory://{name}"


def test_a_small_csv_file_at_an_address_is_read_into_memory(tmp_path, monkeypatch):
    fsspec = pytest.importorskip("fsspec")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with fsspec.open("memory://small.csv", "w") as file:
        NAMED.to_csv(file, index=False)
    series = sj.open_series("memory://small.csv")  # warnings are errors: nothing is converted
    np.testing.assert_array_equal(series.rows(0, 300), ROWS)
    assert list(tmp_path.iterdir()) == []


def test_edf(tmp_path):
    pyedflib = pytest.importorskip("pyedflib")
    signals = [np.sin(np.arange(400) / k) for k in (3, 5)]
    heads = pyedflib.highlevel.make_signal_headers(
        ["left", "right"], sample_frequency=100, physical_min=-1.5, physical_max=1.5
    )
    pyedflib.highlevel.write_edf(str(tmp_path / "x.edf"), signals, heads)
    series = sj.open_series(tmp_path / "x.edf")
    assert series.columns == ("left", "right")
    # A step of 16 bits over the range 3.
    np.testing.assert_allclose(series.rows(0, 400), np.column_stack(signals), atol=3 / 2**16)


@pytest.mark.parametrize(
    ("data", "options", "columns", "lengths"),
    [
        (pl.DataFrame({"a": [1, 2, 3], "b": [0.5, None, 2]}), {}, ("a", "b"), (3,)),
        (
            pl.DataFrame({"who": ["x", "x", "y", "y"], "b": [1.0, 2, 3, 4]}),
            {"sequence": "who"},
            ("b",),
            (2, 2),
        ),
        (
            pd.DataFrame({"who": [1, 1, 2, 2, 2], "b": range(5), "when": "x"}),
            {"sequence": "who", "columns": ["b"]},
            ("b",),
            (2, 3),
        ),
        (xr.Dataset({"a": ("t", [1, 2]), "b": ("t", [3.0, 4.0])}), {}, ("a", "b"), (2,)),
        (
            xr.Dataset({"a": ("t", [1, 2]), "b": ("u", [3.0])}),
            {"variable": "a"},
            ("a",),
            (2,),
        ),
        (pd.Series([1.0, 2.0], name="speed"), {}, ("speed",), (2,)),
        (pl.Series("speed", [1.0, 2.0]), {}, ("speed",), (2,)),
        (pd.Series([1.0, 2.0]), {}, ("y0",), (2,)),
        (np.arange(6).reshape(3, 2), {"columns": ["y1"]}, ("y1",), (3,)),
    ],
    ids=[
        *("polars", "polars, series", "pandas, series", "Dataset", "variable"),
        *("Series", "polars Series", "Series without a name", "array"),
    ],
)
def test_frames(data, options, columns, lengths):
    series = sj.open_series(data, **options)
    assert series.columns == columns
    assert series.lengths == lengths
    assert series.describe() is None
    for i, name in enumerate(columns):
        own = data
        if isinstance(data, np.ndarray):
            own = data[:, 1]
        elif getattr(data, "ndim", 2) != 1 and not isinstance(data, pl.Series):
            own = data[options.get("variable", name)]
        np.testing.assert_array_equal(series.rows(0, sum(lengths))[:, i], np.asarray(own, float))


def test_names_of_xarrays(tmp_path):
    labelled = xr.DataArray(ROWS, dims=("time", "what"), coords={"what": ["a", "b"]}, name="x")
    labelled.to_netcdf(tmp_path / "x.nc", engine="h5netcdf")
    with xr.open_dataarray(tmp_path / "x.nc", engine="h5netcdf") as lazy:
        for data in (labelled, lazy):
            series = sj.open_series(data, columns=["b"])
            assert series.columns == ("b",)
            np.testing.assert_array_equal(series.rows(0, 300)[:, 0], ROWS[:, 1])
            assert sj.as_series(data).columns == ("a", "b")
            assert sj.as_series([data[:100], data[100:]]).lengths == (100, 200)
        assert isinstance(sj.as_series(lazy).values, Source)
    assert isinstance(sj.as_series(labelled).values, np.ndarray)
    grid = xr.DataArray(
        ROWS.reshape(3, 100, 2), dims=("who", "time", "what"), coords=labelled.coords
    )
    grid.to_netcdf(tmp_path / "grid.nc", engine="h5netcdf")
    with xr.open_dataarray(tmp_path / "grid.nc", engine="h5netcdf") as lazy:
        for data in (grid, lazy):
            series = sj.as_series(data)
            assert (series.columns, series.lengths) == (("a", "b"), (100, 100, 100))
            np.testing.assert_array_equal(series.rows(0, 300), ROWS)


def _time_last(path, kind):
    """Write ROWS with their columns first and dimensions that have names; returns the variable."""
    import h5py
    import zarr

    labelled = xr.DataArray(ROWS.T, dims=("what", "time"), coords={"what": ["a", "b"]}, name="x")
    if kind == "nc":
        labelled.to_netcdf(path, engine="h5netcdf")
    elif kind == "labels.h5":
        with h5py.File(path, "w") as file:
            file["x"] = ROWS.T
            for axis, name in enumerate(labelled.dims):
                file["x"].dims[axis].label = name
    elif kind == "scales.h5":
        labelled.to_netcdf(path, engine="h5netcdf")
        with h5py.File(path) as file:
            assert file["x"].shape == (2, 300)
    elif kind == "zarr":
        group = zarr.open_group(path, mode="w")
        group.create_array("x", data=ROWS.T, chunks=(1, 64), dimension_names=labelled.dims)
    else:
        group = zarr.open_group(path, mode="w", zarr_format=2)
        array = group.create_array("x", data=ROWS.T, chunks=(1, 64))
        array.attrs["_ARRAY_DIMENSIONS"] = list(labelled.dims)
    return "x"


@pytest.mark.parametrize("kind", ["nc", "labels.h5", "scales.h5", "zarr", "v2.zarr"])
def test_rows_are_over_time_wherever_it_stands(tmp_path, monkeypatch, kind):
    path = tmp_path / f"x.{kind}"
    variable = _time_last(path, kind)
    asked = []
    read = ArraySource.rows
    monkeypatch.setattr(
        ArraySource, "rows", lambda self, *span: asked.append(span) or read(self, *span)
    )
    monkeypatch.setattr(sources, "_BLOCK_BYTES", 2**10)
    series = sj.open_series(path, variable=variable)
    assert len(asked) > 3  # in blocks
    assert series.lengths == (300,)
    np.testing.assert_array_equal(series.rows(0, 300), ROWS)
    origin = np.array([100, 3, 280, 101, 3])
    expected = np.stack([ROWS[o : o + 20] for o in origin])
    np.testing.assert_array_equal(series.windows(origin, 20), expected)
    if kind == "nc":
        assert series.columns == ("a", "b")
        with xr.open_dataset(path, engine="h5netcdf") as data:
            assert sj.as_series(data["x"]).fingerprint == series.fingerprint
            assert sj.as_series(data["x"].load()).fingerprint == series.fingerprint


def test_several_series_over_time(tmp_path):
    grid = xr.DataArray(
        ROWS.reshape(3, 100, 2).transpose(1, 2, 0), dims=("time", "what", "who"), name="x"
    ).transpose("who", "what", "time")
    grid.to_netcdf(tmp_path / "x.nc", engine="h5netcdf")
    for data in (tmp_path / "x.nc", grid):
        series = sj.as_series(data)
        assert series.lengths == (100, 100, 100)
        np.testing.assert_array_equal(series.rows(50, 250), ROWS[50:250])


def test_columns_of_a_frame_may_be_several_series():
    series = sj.as_series([NAMED["a"], NAMED["b"]])
    assert (series.columns, series.lengths) == (("y0",), (300, 300))
    assert sj.as_series([NAMED["b"], NAMED["b"][:9]]).columns == ("b",)


def test_few_files_of_a_directory_are_open(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "_OPEN_FILES", 2)
    for i in range(10):
        NAMED[30 * i : 30 * i + 30].assign(who=i).to_parquet(tmp_path / f"{i}.parquet")
    handles = Path("/proc/self/fd")
    series = sj.open_series(tmp_path, sequence="who")
    assert series.lengths == (30,) * 10
    np.testing.assert_array_equal(series.rows(0, 300), ROWS)
    np.testing.assert_array_equal(series.rows(20, 70), ROWS[20:70])
    if handles.exists():
        opened = [str(handle.resolve()) for handle in handles.iterdir()]
        assert sum(name.startswith(str(tmp_path)) for name in opened) == 2


def test_names_of_series(tmp_path, monkeypatch):
    _csv(tmp_path / "x.csv")
    _parquet(tmp_path / "x.parquet")
    frame = NAMED.assign(who=IDS)
    opened = [sj.open_series(x, sequence="who") for x in (frame, tmp_path / "x.csv")]
    opened.append(sj.open_series(tmp_path / "x.parquet", sequence="who"))
    monkeypatch.setattr(tables, "_SMALL_CSV", 0)
    with pytest.warns(UserWarning, match="converted once"):
        opened.append(sj.open_series(tmp_path / "x.csv", sequence="who"))
    opened.append(sj.open_series(tmp_path / "x.csv", sequence="who"))
    for series in opened:
        assert series.names == ("u", "v")
        assert series.train_test(0.5)[1].names == ("u", "v")
        assert series.train_test(0.5, by="series")[1].names == ("v",)
    both = [tmp_path / "x.csv", tmp_path / "x.csv"]
    assert sj.open_series(both, sequence="who").names is None
    assert sj.as_series(ROWS).names is None


def test_memory_maps_are_not_copied(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(40, dtype="i2").reshape(2, 10, 2))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    for data in (mapped, [mapped[0], mapped[1]]):
        series = sj.as_series(data)
        assert isinstance(series.values, Joined)
        assert series.lengths == (10, 10)
        np.testing.assert_array_equal(series.rows(8, 12), mapped.reshape(20, 2)[8:12])
        assert series.rows(8, 12).dtype == np.float64


def _written_by_pandas(path, frame=NAMED, **options):
    frame.to_csv(path, **options)
    return path


@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize("names", [["a", "b"], [0, 1]])
def test_csv_files_as_pandas_writes_them(tmp_path, monkeypatch, names, index, small):
    if not small:
        monkeypatch.setattr(tables, "_SMALL_CSV", 0)
    path = _written_by_pandas(tmp_path / "x.csv", NAMED.set_axis(names, axis=1), index=index)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        series = sj.open_series(path)
    assert series.columns == tuple(map(str, names))
    np.testing.assert_array_equal(series.rows(0, 300), ROWS)
    notes = {str(w.message) for w in told if "converted once" not in str(w.message)}
    assert all(w.filename == __file__ for w in told)
    left_out = {n for n in notes if "holds row numbers and is left out" in n}
    assert len(left_out) == index
    taken = {n for n in notes if "is taken for the names of its columns" in n}
    assert len(taken) == (names == [0, 1] and not index)
    assert notes == left_out | taken


def test_a_csv_file_without_names_may_begin_with_missing_values(tmp_path):
    for missing in ("NA", "nan", "NaN", "null", "", "#N/A"):
        (tmp_path / "x.csv").write_text(f"{missing},1.5\n2,3\n4,5\n")
        series = sj.open_series(tmp_path / "x.csv")
        assert series.columns == ("y0", "y1")
        np.testing.assert_array_equal(series.rows(0, 3), [[np.nan, 1.5], [2, 3], [4, 5]])


@pytest.mark.parametrize("text", ["0\n1\n0\n3\n", "0,1\n1,0\n"])
def test_small_integers_are_a_row_where_integers_follow(tmp_path, text):
    (tmp_path / "x.csv").write_text(text)
    assert sj.open_series(tmp_path / "x.csv").num_rows == len(text.split())


def test_the_index_of_a_frame_in_a_parquet_file_is_no_column(tmp_path):
    NAMED.iloc[[5, 1, 7]].to_parquet(tmp_path / "x.parquet")
    series = sj.open_series(tmp_path / "x.parquet")
    assert series.columns == ("a", "b")
    np.testing.assert_array_equal(series.rows(0, 3), ROWS[[5, 1, 7]])


def test_row_numbers_are_no_values_but_may_be_asked_for(tmp_path):
    path = _written_by_pandas(tmp_path / "x.csv")
    assert sj.open_series(path, columns=["b"]).columns == ("b",)
    np.testing.assert_array_equal(
        sj.open_series(path, columns=["", "a"]).rows(0, 300)[:, 0], np.arange(300)
    )
    two = _written_by_pandas(tmp_path / "y.csv", NAMED.assign(who=IDS))
    with pytest.warns(UserWarning, match="left out"):
        series = sj.open_series(two, sequence="who")
    assert (series.columns, series.lengths) == (("a", "b"), (100, 200))


def test_several_paths_are_several_series(tmp_path):
    np.save(tmp_path / "x.npy", ROWS[:100])
    np.save(tmp_path / "y.npy", ROWS[100:])
    series = sj.as_series([tmp_path / "x.npy", tmp_path / "y.npy"])
    assert series.lengths == (100, 200)
    np.testing.assert_array_equal(series.rows(0, 300), ROWS)
    assert reopen(series.describe()).fingerprint == series.fingerprint


def test_three_dimensions_are_several_series(tmp_path):
    import h5py

    grid = ROWS.reshape(3, 100, 2)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"] = grid
    series = sj.open_series(tmp_path / "x.h5")
    assert series.lengths == (100, 100, 100)
    np.testing.assert_array_equal(series.rows(50, 250), ROWS[50:250])


@pytest.fixture
def positive(tmp_path):
    """A file of positive numbers with −1 for missing, in two series of 31 and 20 rows."""
    values = RNG.integers(1, 50, (51, 2))
    values[[6, 34], 0] = -1
    path = tmp_path / "x.csv"
    frame = pd.DataFrame(values, columns=["a", "b"]).assign(who=np.repeat([1, 2], [31, 20]))
    frame.to_csv(path, index=False)
    return path, np.where(values == -1, np.nan, values)


def test_options_apply_in_order(positive):
    path, values = positive
    series = sj.open_series(
        path, sequence="who", columns=["b", "a"], missing=-1, log=True, standardize=True, every=3
    )
    kept = np.log(np.concatenate([values[:31:3], values[31::3]])[:, ::-1])
    assert series.columns == ("b", "a")
    assert series.lengths == (11, 7)
    assert series.missing == "entries"
    expected = (kept - np.nanmean(kept, 0)) / np.nanstd(kept, 0)
    np.testing.assert_allclose(series.rows(0, 18), expected, rtol=1e-12)
    np.testing.assert_allclose(series.restore(series.rows(0, 18)), kept, rtol=1e-12)
    window = series.windows(np.array([2, 11]), 5)
    np.testing.assert_allclose(window, [expected[2:7], expected[11:16]], rtol=1e-12)
    assert reopen(series.describe()).fingerprint == series.fingerprint
    in_memory = sj.open_series(
        pd.read_csv(path),
        sequence="who",
        columns=["b", "a"],
        missing=-1,
        log=True,
        standardize=True,
        every=3,
    )
    assert in_memory.fingerprint == series.fingerprint


@pytest.mark.parametrize("lazy", [True, False])
def test_train_and_test(positive, lazy):
    path, values = positive
    series = sj.open_series(path, sequence="who", missing=-1)
    if not lazy:
        series = sj.as_series([values[:31], values[31:]])
    train, test = series.train_test(0.8)
    assert (train.lengths, test.lengths) == ((25, 16), (6, 4))
    np.testing.assert_array_equal(test.rows(0, 10), np.concatenate([values[25:31], values[47:]]))
    np.testing.assert_array_equal(train.rows(24, 26), values[[24, 31]])
    train, test = series.train_test(0.5, by="series")
    assert (train.lengths, test.lengths) == ((31,), (20,))
    np.testing.assert_array_equal(test.rows(0, 20), values[31:])
    if lazy:
        chosen = test.select(["b"])
        again = reopen(json.loads(json.dumps(chosen.describe())))
        assert again.fingerprint == chosen.fingerprint != test.fingerprint


def test_large_csv_files_are_converted_once(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "_SMALL_CSV", 0)
    path = tmp_path / "x.csv"
    _csv(path)
    with pytest.warns(UserWarning, match=r"x\.csv was converted once to .*npy") as warned:
        series = sj.open_series(path, sequence="who")
    assert warned[0].filename == __file__
    np.testing.assert_array_equal(series.rows(0, 300), ROWS)
    again = sj.open_series(path, sequence="who")  # warnings are errors: nothing is converted
    assert (again.lengths, again.fingerprint) == ((100, 200), series.fingerprint)
    NAMED[:50].assign(who="w").to_csv(path, index=False)
    with pytest.warns(UserWarning, match="converted once"):
        assert sj.open_series(path, sequence="who").lengths == (50,)
    left = {p.suffix for p in tmp_path.iterdir()}
    assert left == {".csv", ".npy", ".json"}  # no temporary file stays


def test_fingerprints_tell_data_apart():
    series = sj.as_series(NAMED)
    assert series.fingerprint == sj.as_series(NAMED.copy()).fingerprint
    others = [
        NAMED.rename(columns={"a": "c"}),
        NAMED[:-1],
        NAMED + 1e-9,
        [NAMED[:100], NAMED[100:]],
    ]
    found = {sj.as_series(other).fingerprint for other in others} | {series.fingerprint}
    assert len(found) == 5


class _Picked:
    """An array that gives rows in one request."""

    shape, dtype, chunks = ROWS.shape, ROWS.dtype, (64, 2)

    def __getitem__(self, where):
        return ROWS[where]

    def pick(self, index):
        return ROWS[index]


def _wrapped(name):
    whole = ArraySource(ROWS, ("a", "b"))
    return {
        "array": (whole, ROWS),
        "picked": (ArraySource(_Picked(), ("a", "b")), ROWS),
        "columns": (ColumnSource({"a": ROWS[:, 0], "b": ROWS[:, 1]}), ROWS),
        "joined": (Joined([ArraySource(ROWS[:7], ("a", "b")), whole]), np.vstack([ROWS[:7], ROWS])),
        "mapped": (
            Mapped(whole, (1,), units=(np.array([1.0]), np.array([2.0]))),
            (ROWS[:, 1:] - 1) / 2,
        ),
        "pieces": (
            Pieces(whole, (2, 200), (40, 30), 3),
            np.vstack([ROWS[2:122:3], ROWS[200:290:3]]),
        ),
    }[name]


@pytest.mark.parametrize("name", ["array", "picked", "columns", "joined", "mapped", "pieces"])
def test_sources_agree_with_plain_indexing(name, monkeypatch):
    source, rows = _wrapped(name)
    assert source.num_rows == len(rows)
    monkeypatch.setattr(sources, "_BLOCK_BYTES", 200)
    parts = list(source.blocks())
    assert len(parts) > 3
    np.testing.assert_array_equal(np.concatenate([part for _, part in parts]), rows)
    np.testing.assert_array_equal([first for first, _ in parts][1], len(parts[0][1]))
    origin = np.array([33, 0, 1, 1, 8])
    np.testing.assert_array_equal(source.windows(origin, 6), rows[origin[:, None] + np.arange(6)])
    for start in (0, 7, 40, len(rows)):
        assert source.rows(start, start).shape == (0, rows.shape[1])
    late = source.windows(np.array([len(rows) - 2]), 4)[0]
    np.testing.assert_array_equal(late[:2], rows[-2:])
    if name != "pieces":
        assert np.isnan(late[2:]).all()


def test_windows_are_joined_up_to_a_limit(monkeypatch):
    """Requests of neighbours are one, but none is larger than the limit."""
    asked = []

    class Watched(ColumnSource):
        def rows(self, start, stop):
            asked.append((start, stop))
            return super().rows(start, stop)

    source = Watched({"a": ROWS[:, 0], "b": ROWS[:, 1]})
    source.chunk = 10
    origin = np.array([90, 0, 3, 12, 25, 30, 31])
    for limit, spans in (
        (1000, [(0, 35), (90, 94)]),
        (20, [(0, 16), (25, 35), (90, 94)]),
        (2, [(0, 7), (12, 16), (25, 35), (90, 94)]),
    ):
        asked.clear()
        monkeypatch.setattr(sources, "_REQUEST_BYTES", 8 * 2 * limit)
        found = source.windows(origin, 4)
        np.testing.assert_array_equal(found, ROWS[origin[:, None] + np.arange(4)])
        assert asked == spans
    assert source.windows(np.zeros(0, int), 4).shape == (0, 4, 2)


def test_location_and_scale_do_not_depend_on_where_rows_are(tmp_path, monkeypatch):
    monkeypatch.setattr(series_module, "_SCALE_ROWS", 50)
    monkeypatch.setattr(sources, "_BLOCK_BYTES", 500)
    np.save(tmp_path / "x.npy", ROWS)
    found = sj.open_series(tmp_path / "x.npy").location_scale()
    np.testing.assert_array_equal(found, sj.as_series(ROWS).location_scale())


@pytest.mark.parametrize("gap", [None, np.nan, pd.NA, pd.NaT])
def test_rows_without_a_series_are_refused(gap):
    frame = NAMED.assign(who=pd.Series([gap, *["b"] * (len(NAMED) - 1)], dtype=object))
    with pytest.raises(ValueError, match="column 'who' has missing values"):
        sj.open_series(frame, sequence="who")
