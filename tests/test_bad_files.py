"""Files and names that cannot be used raise at once, in one line that says what to do."""

import importlib
import re
import shutil

import numpy as np
import pandas as pd
import polars as pl
import pytest
import xarray as xr

import sojourn as sj
from sojourn.series import tables

ROWS = np.random.default_rng(0).normal(size=(200, 2))
FRAME = pd.DataFrame(ROWS, columns=["speed", "height"])


def raises(error, fragment, path, **options):
    """Check that opening raises this error, with this piece of text, in one line."""
    with pytest.raises(error, match=re.escape(fragment)) as caught:
        sj.open_series(path, **options)
    assert caught.type is error
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name", ["x.npy", "x.npz", "x.zarr", "x.h5", "x.nc", "x.parquet", "x.csv", "x.edf", "x"]
)
def test_missing_file(tmp_path, name):
    raises(FileNotFoundError, f"{name} does not exist; check the path", tmp_path / name)


def test_missing_url():
    pytest.importorskip("fsspec")
    raises(FileNotFoundError, "memory://nowhere.npy does not exist", "memory://nowhere.npy")


@pytest.mark.parametrize("name", ["x.npy", "x.npz", "x.h5", "x.nc", "x.parquet", "x.csv", "x.edf"])
@pytest.mark.parametrize("content", [b"", b"\x00\xffnonsense\x00" * 40], ids=["empty", "nonsense"])
def test_empty_files_and_files_of_another_kind(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    fragment = "cannot be read as" if content else f"{name} is empty"
    raises(ValueError, fragment, tmp_path / name)


def test_unknown_formats(tmp_path):
    (tmp_path / "x.xlsx").write_bytes(b"PK")
    raises(ValueError, "has '.xlsx', which is none of the formats .npy", tmp_path / "x.xlsx")
    (tmp_path / "x.parqet").write_bytes(b"PAR1")
    raises(ValueError, "did you mean '.parquet'", tmp_path / "x.parqet")
    raises(ValueError, "is a directory without a Zarr store or Parquet files", tmp_path)


def _half(path):
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def test_files_cut_short(tmp_path):
    np.save(tmp_path / "x.npy", ROWS)
    np.savez(tmp_path / "x.npz", ROWS)
    FRAME.to_parquet(tmp_path / "x.parquet")
    FRAME.to_xarray().to_netcdf(tmp_path / "x.nc", engine="h5netcdf")
    for name, kind in [
        ("x.npy", "a .npy array"),
        ("x.npz", "an .npz archive"),
        ("x.parquet", "Parquet"),
        ("x.nc", "NetCDF"),
    ]:
        _half(tmp_path / name)
        raises(ValueError, f"cannot be read as {kind}; it may be cut short", tmp_path / name)


def test_damage_behind_a_good_header(tmp_path):
    import zarr

    FRAME.to_parquet(tmp_path / "x.parquet", compression="zstd")
    data = bytearray((tmp_path / "x.parquet").read_bytes())
    data[4:1200] = bytes(1196)
    (tmp_path / "x.parquet").write_bytes(data)
    raises(ValueError, "cannot be read as Parquet", tmp_path / "x.parquet")
    path = tmp_path / "x.zarr"
    zarr.create_array(path, data=ROWS, chunks=(50, 2))
    _half(path / "c" / "2" / "0")
    raises(ValueError, "cannot be read as a Zarr store", path)
    (path / "zarr.json").write_text("{")
    raises(ValueError, "cannot be read as a Zarr store", path)
    shutil.rmtree(path)
    path.mkdir()
    raises(ValueError, "cannot be read as a Zarr store", path)


@pytest.mark.parametrize(
    ("text", "error", "fragment"),
    [
        ("a,b\n1,2\n3\n4,5\n", ValueError, "has 1 fields in line 3, others have 2"),
        ("a,b\n1,2\n3,4,5\n", ValueError, "has 3 fields in line 3, others have 2"),
        ("a,b\n1,2\n3,x\n", TypeError, "column 'b' holds text, 'x' in line 3"),
        ("a,b\n1,true\n2,3\n", TypeError, "column 'b' holds text, 'true'"),
        ("t,b\n2020-01-01,2\n2020-01-02,3\n", TypeError, "column 't' holds a date, '2020-01-01'"),
        ("a,b\n", ValueError, "has no rows; expected at least two"),
        ("a,b\n1,2\n", ValueError, "data has one row; expected at least two"),
        ("\n", ValueError, "is empty; expected a line of names"),
        ("a,b,a\n1,2,3\n4,5,6\n", ValueError, "column names must differ; got 'a' twice"),
        ("a,b\n1,2\n3,inf\n", ValueError, "infinite value in row 1, column 'b'"),
        ("a,b\n1,\n3,\n", ValueError, "column 'b' is all NaN; drop it"),
        (
            ",a,b\n0,1,2\n2,3,4\n",
            ValueError,
            "the first column has no name and does not count rows from 0; choose others with "
            "columns= ('a', 'b'), or give it a name",
        ),
        (
            ",a\n2020-01-01,1\n2020-01-02,2\n",
            TypeError,
            "the first column has no name and holds a date, '2020-01-01' in line 2; choose others",
        ),
        (",a\nu,1\nv,2\n", TypeError, "has no name and holds text, 'u' in line 2; choose others"),
    ],
    ids=[
        *(
            "short line",
            "long line",
            "mixed types",
            "words",
            "dates",
            "no rows",
            "one row",
            "blank",
        ),
        *("one name twice", "infinity", "all NaN"),
        *("rows counted otherwise", "rows by date", "rows by name"),
    ],
)
def test_bad_csv(tmp_path, monkeypatch, text, error, fragment):
    path = tmp_path / "x.csv"
    path.write_text(text)
    raises(error, fragment, path)
    # The same from a file that is converted, which leaves nothing behind.
    monkeypatch.setattr(tables, "_SMALL_CSV", 0)
    monkeypatch.setattr(tables.warnings, "warn", lambda *args, **kwargs: None)
    raises(error, fragment, path)
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]


def test_text_and_dates_in_parquet(tmp_path):
    path = tmp_path / "x.parquet"
    FRAME.assign(who="u", when=pd.Timestamp(0)).to_parquet(path)
    raises(TypeError, "column 'who' holds", path)
    raises(TypeError, "column 'when' holds dates", path, columns=["speed", "when"])
    assert sj.open_series(path, columns=["speed"]).columns == ("speed",)


@pytest.mark.parametrize("name", ["x.csv", "x.parquet", "frame", "x.npz", "x.nc"])
def test_unknown_names_have_near_ones(tmp_path, name):
    path = tmp_path / name
    if name == "x.csv":
        FRAME.to_csv(path, index=False)
    elif name == "x.parquet":
        FRAME.to_parquet(path)
    elif name == "x.npz":
        np.savez(path, speed=ROWS)
        raises(ValueError, "there is no array 'sped'; did you mean 'speed'?", path, variable="sped")
        return
    elif name == "x.nc":
        FRAME.to_xarray().to_netcdf(path, engine="h5netcdf")
        raises(ValueError, "there is no array 'sped'; did you mean", path, columns=["sped"])
        raises(ValueError, "holds several arrays; choose one with variable=", path)
        return
    else:
        path = FRAME
    raises(ValueError, "there is no column 'sped'; did you mean 'speed'?", path, columns=["sped"])
    raises(ValueError, "there is no column 'heigth'; did you", path, sequence="heigth")
    raises(ValueError, "there is no column 'zzz'; there are ['speed',", path, columns=["zzz"])


@pytest.mark.parametrize("kind", ["npy", "zarr", "h5"])
def test_arrays_of_other_types(tmp_path, kind):
    import h5py
    import zarr

    path = tmp_path / f"x.{kind}"
    values = np.array([[1 + 2j, 2], [3, 4]])
    if kind == "npy":
        np.save(path, values)
    elif kind == "zarr":
        zarr.save_array(path, values)
    else:
        with h5py.File(path, "w") as file:
            file["x"] = values
    raises(TypeError, "has type complex128; expected real numbers", path)


def test_infinities_deep_in_a_file_are_found(tmp_path):
    values = np.zeros((2, 150, 2), "f4")
    values[:, ::2] = 1
    values[1, 30, 1] = -np.inf
    np.save(tmp_path / "x.npy", values)
    raises(ValueError, "series 1 has an infinite value in row 30, column 'y1'", tmp_path / "x.npy")


@pytest.mark.parametrize(
    ("data", "options", "error", "fragment"),
    [
        (
            FRAME,
            {"log": True},
            ValueError,
            "no finite logarithm in row 0, column 'height'; log needs",
        ),
        (FRAME.assign(c=1), {"standardize": True}, ValueError, "'c' is constant and cannot be"),
        (FRAME, {"every": 0}, ValueError, "every must be at least 1"),
        (FRAME, {"every": 150}, None, ""),
        (FRAME, {"every": 200}, ValueError, "data has one row"),
        (FRAME, {"columns": "speed"}, TypeError, "columns must be a list of names"),
        (FRAME, {"columns": []}, ValueError, "at least one column"),
        (FRAME, {"columns": ["speed", "speed"]}, ValueError, "got 'speed' twice"),
        (FRAME, {"missing": "x"}, TypeError, "missing must be a number"),
        (ROWS, {"sequence": "who"}, TypeError, "data must be a frame; got ndarray"),
        (ROWS, {"columns": ["speed"]}, ValueError, "there is no column 'speed'"),
        (
            FRAME.assign(who=[1, 2] * 100),
            {"sequence": "who"},
            ValueError,
            "rows of series 1 are not together; sort the data by 'who'",
        ),
        (
            FRAME.assign(who=[1.0] * 199 + [np.nan]),
            {"sequence": "who"},
            ValueError,
            "column 'who' has missing values",
        ),
        (FRAME.assign(when=pd.Timestamp(0)), {}, TypeError, "dates are no values"),
        (pl.DataFrame({"a": ["x", "y"]}), {}, TypeError, "column 'a' has type String"),
        (xr.Dataset({"a": ("t", [1.0]), "b": ("u", [1.0, 2])}), {}, ValueError, "variable 'b' has"),
        (xr.Dataset({"a": ("t", ["x", "y"])}), {}, TypeError, "column 'a' has type"),
    ],
)
def test_options_that_do_not_fit(data, options, error, fragment):
    if error is None:
        assert sj.open_series(data, **options).num_rows == 2
    else:
        raises(error, fragment, data, **options)


@pytest.mark.parametrize(
    ("fraction", "by", "fragment"),
    [
        (0.0, "time", "between 0 and 1"),
        (0.999, "time", "fewer than two rows"),
        (0.5, "series", "leaves none on one side"),
        (0.5, "day", "by must be"),
    ],
)
def test_splits_that_leave_nothing(fraction, by, fragment):
    with pytest.raises(ValueError, match=fragment):
        sj.as_series(FRAME).train_test(fraction, by)


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [
        ("x.h5", "h5py", "hdf5"),
        ("x.edf", "pyedflib", "edf"),
        ("memory://x.npy", "fsspec", "remote"),
    ],
)
def test_packages_that_are_not_installed(tmp_path, monkeypatch, name, package, extra):
    real = importlib.import_module

    def without(module, *args):
        if module == package:
            raise ImportError
        return real(module, *args)

    monkeypatch.setattr(importlib, "import_module", without)
    path = name
    if "://" not in name:
        path = tmp_path / name
        path.write_bytes(b"something")
    raises(ImportError, f"needs the package {package}: pip install 'sojourn[{extra}]'", path)
