"""Rows that stay on disk give the same numbers, to the last bit, as rows in memory."""

import threading

import jax
import numpy as np
import pytest

import sojourn as sj
from sojourn import gradients
from sojourn.dynamics import SGRLD
from sojourn.passes.passes import full_statistics, state_marginals
from sojourn.series import series as series_module
from sojourn.series.prefetch import prefetched
from sojourn.tuning import starts
from sojourn.tuning.modes import place

MODEL = sj.ARHMM(num_states=2, emission_dim=2, num_lags=1)
PARAMS = {
    "transition_matrix": np.array([[0.9, 0.1], [0.2, 0.8]]),
    "A": np.array([[[0.8, -0.4], [0.4, 0.8]], [[0.1, 0.0], [0.0, -0.5]]]),
    "Q": np.stack([0.2 * np.eye(2), 0.7 * np.eye(2)]),
}
WINDOWS = sj.Windows(length=20, buffer=6, batch=4)


@pytest.fixture(scope="module")
def recordings():
    """Three series, one shorter than a window, with missing rows, in single precision."""
    found = [MODEL.simulate(PARAMS, T, seed=T)[1].astype("f4") for T in (700, 25, 400)]
    found[0][50:60] = np.nan
    return found


@pytest.fixture(scope="module")
def paths(recordings, tmp_path_factory):
    import zarr

    folder = tmp_path_factory.mktemp("rows")
    for i, rows in enumerate(recordings):
        np.save(folder / f"{i}.npy", rows)
        zarr.create_array(folder / f"{i}.zarr", data=rows, chunks=(64, 2))
    return {kind: [folder / f"{i}.{kind}" for i in range(3)] for kind in ("npy", "zarr")}


@pytest.fixture
def streamed(paths, monkeypatch):
    """Return series that are never kept in memory."""
    monkeypatch.setattr(series_module, "RESIDENT_BYTES", 0)

    def resident(self):
        pytest.fail("all rows were read at once")

    opened = {kind: sj.open_series(of) for kind, of in paths.items()}
    monkeypatch.setattr(series_module.Series, "resident", resident)
    return opened


def same(one, other):
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def test_draws_are_identical_to_the_last_bit(recordings, paths, request):
    def draw(data):
        return sj.sample(
            MODEL,
            data,
            windows=WINDOWS,
            num_samples=30,
            num_chains=2,
            num_warmup=10,
            thin=3,
            control_variate=True,
            init=PARAMS,
            progress=False,
        )

    whole = draw(recordings)
    streamed = request.getfixturevalue("streamed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gradients, "_FETCH_STEPS", 7)  # blocks end within draws
        for series in streamed.values():
            assert series.streams
            found = draw(series)
            same(dict(whole.posterior), dict(found.posterior))
            same(dict(whole.sample_stats), dict(found.sample_stats))
            assert whole.choices == found.choices


def test_passes_are_identical_to_the_last_bit(recordings, streamed):
    resident = sj.as_series(recordings)
    coords = MODEL.to_coords(PARAMS)
    with pytest.MonkeyPatch.context() as patch, jax.enable_x64(True):
        patch.setattr(series_module.Series, "resident", _resident)
        expected, _ = full_statistics(MODEL, coords, resident)
        marginals, gap = state_marginals(MODEL, coords, resident)
    for series in streamed.values():
        with jax.enable_x64(True):
            found, tiles = full_statistics(MODEL, coords, series)
        assert tiles.count > 3
        jax.tree.map(np.testing.assert_array_equal, found, expected)
        rows, found_gap = state_marginals(MODEL, coords, series)
        np.testing.assert_array_equal(rows, marginals)
        assert found_gap == gap


_resident = series_module.Series.resident


@pytest.mark.usefixtures("x64")
def test_windows_of_tuning_are_those_in_memory(recordings, streamed, monkeypatch):
    from sojourn.tuning.whitening import window_gradients

    coords = MODEL.to_coords(PARAMS)
    key = jax.random.key(3)
    found = {}
    for name, series in {"memory": sj.as_series(recordings), **streamed}.items():
        with monkeypatch.context() as patch:
            if name == "memory":
                patch.setattr(series_module.Series, "resident", _resident)
            estimator, source = gradients.windowed(MODEL, series, WINDOWS)
            metric = place(MODEL, series, coords).metric
        found[name] = [
            np.asarray(window_gradients(estimator, SGRLD(), source, key, coords, metric, 3)),
            np.asarray(starts.log_posterior(estimator, source, key, coords)),
            *starts._em(estimator, source, key, coords, 40).values(),
        ]
    for name in streamed:
        for one, other in zip(found[name], found["memory"], strict=True):
            np.testing.assert_array_equal(one, other)


def test_starts_read_only_what_they_need(recordings, streamed):
    for series in streamed.values():
        same(MODEL.initialize(series), MODEL.initialize(recordings))
    linear = sj.LGSSM(state_dim=2, emission_dim=2)
    same(linear.initialize(streamed["npy"]), linear.initialize(recordings))


def test_the_thread_reads_one_block_ahead():
    reading, log = threading.Event(), []

    def read(begin, end):
        log.append((begin, end, threading.current_thread() is threading.main_thread()))
        reading.set()
        return end - begin

    found = []
    for begin, end, block in prefetched(read, 3, 10, 3):
        if end < 10:
            assert reading.wait(5)  # the next block is read while this one is worked on
            reading.clear()
        found.append((begin, end, block))
    assert found == [(3, 6, 3), (6, 9, 3), (9, 10, 1)]
    assert log == [(3, 6, False), (6, 9, False), (9, 10, False)]
    assert list(prefetched(read, 3, 3, 3)) == []


def test_errors_of_the_thread_reach_the_caller():
    def read(begin, end):
        if begin:
            raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        list(prefetched(read, 0, 4, 2))
