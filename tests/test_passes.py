"""Full passes on tiles equal a textbook pass, row by row, on models of every kind."""

import time

import jax
import numpy as np
import pytest

import sojourn as sj
from oracles import law_before, regime_log_densities, textbook_pass
from sojourn.batch import Edges
from sojourn.gibbs import Sweep
from sojourn.passes import passes
from sojourn.passes import tiles as tiling


def random_hmm(rng, K, stay=None):
    Pi = rng.dirichlet(np.ones(K), size=K)
    if stay is not None:
        Pi = stay * np.eye(K) + (1 - stay) * Pi
    root = rng.normal(size=(K, 2, 2)) * 0.3 + np.eye(2)
    return {
        "transition_matrix": Pi,
        "means": 1.5 * rng.normal(size=(K, 2)),
        "covariances": root @ np.swapaxes(root, -1, -2),
    }


KINDS = {
    "mixing": {"K": 3, "stay": None},
    "sticky": {"K": 3, "stay": 0.999},
    "nearly absorbing": {"K": 2, "stay": 1 - 1e-9},
    "one state": {"K": 1, "stay": None},
}


@pytest.mark.parametrize("kind", KINDS)
def test_tiled_passes_equal_the_textbook(rng, kind):
    """Two long series and a short one, rows missing at a seam and entries elsewhere."""
    setting = KINDS[kind]
    model = sj.GaussianHMM(num_states=setting["K"], emission_dim=2)
    params = random_hmm(rng, **setting)
    data = [model.simulate(params, T, seed=T)[1] for T in (3000, 1500, 7)]
    data[0][60:70] = np.nan
    data[0][500, 0] = data[1][10, 1] = np.nan
    Pi = params["transition_matrix"]
    initial = law_before(model, params)
    oracle = [textbook_pass(Pi, initial, regime_log_densities(model, params, y)) for y in data]
    total = sj.log_likelihood(model, params, data)
    np.testing.assert_allclose(total, sum(o[0] for o in oracle), rtol=1e-11)
    decoded = sj.decode(model, params, data)
    marginals = np.concatenate([o[1] for o in oracle])
    np.testing.assert_allclose(decoded["probability"], marginals, atol=1e-9)
    np.testing.assert_array_equal(decoded["state"], np.concatenate([o[2] for o in oracle]))
    assert decoded.attrs["discrepancy"] <= 1e-9
    by_row = sj.decode(model, params, data, method="marginal")
    np.testing.assert_array_equal(by_row["state"], marginals.argmax(1))
    np.testing.assert_array_equal(decoded["t"], np.concatenate([np.arange(len(y)) for y in data]))


def test_deterministic_cycle():
    """A chain that never forgets its phase is passed whole, not tiled."""
    model = sj.GaussianHMM(num_states=3, emission_dim=1)
    params = {
        "transition_matrix": np.eye(3)[[1, 2, 0]],
        "means": np.array([[0.0], [0.3], [0.6]]),
        "covariances": np.full((3, 1, 1), 4.0),
    }
    _, y = model.simulate(params, 2500, seed=1)
    log_f = regime_log_densities(model, params, y)
    oracle = textbook_pass(params["transition_matrix"], law_before(model, params), log_f)
    np.testing.assert_allclose(sj.log_likelihood(model, params, y), oracle[0], rtol=1e-11)
    np.testing.assert_allclose(sj.smooth(model, params, y)["probability"], oracle[1], atol=1e-8)


def test_arhmm_rows_that_only_serve_as_lags_are_left_blank(rng):
    model = sj.ARHMM(num_states=2, emission_dim=1, num_lags=2)
    params = {
        "transition_matrix": np.array([[0.9, 0.1], [0.2, 0.8]]),
        "A": np.array([[[0.5, 0.2]], [[-0.5, 0.1]]]),
        "Q": np.array([[[1.0]], [[0.3]]]),
    }
    data = [model.simulate(params, T, seed=T)[1] for T in (50, 20)]
    decoded = sj.decode(model, params, data)
    lags = decoded["t"].to_numpy() < 2
    assert (decoded["state"].to_numpy()[lags] == -1).all()
    assert np.isnan(decoded["probability"].to_numpy()[lags]).all()
    oracle = [
        textbook_pass(
            params["transition_matrix"],
            law_before(model, params),
            regime_log_densities(model, params, y),
        )
        for y in data
    ]
    np.testing.assert_allclose(
        decoded["probability"].to_numpy()[~lags], np.concatenate([o[1] for o in oracle]), atol=1e-10
    )


def test_tiled_gradient_equals_that_of_one_window(rng, monkeypatch):
    model = sj.GaussianHMM(num_states=3, emission_dim=2)
    params = random_hmm(rng, 3)
    _, y = model.simulate(params, 3000, seed=0)
    coords = model.to_coords(params)
    tiled = sj.gradient(model, coords, y)
    monkeypatch.setattr(passes, "_SHORT", 10_000)
    whole = sj.gradient(model, coords, y)
    for name in coords:
        np.testing.assert_allclose(tiled[name], whole[name], rtol=1e-9, atol=1e-8)


@pytest.mark.parametrize("stay", [None, 0.995])
def test_sampled_paths_cross_seams_exactly(rng, monkeypatch, x64, stay):
    """Tiled paths are, state by state, the path that one window draws from the same numbers."""
    model = sj.GaussianHMM(num_states=3, emission_dim=2)
    params = random_hmm(rng, 3, stay)
    series = sj.as_series([model.simulate(params, T, seed=T)[1] for T in (2500, 1200)])
    coords = model.to_coords(params)
    key = jax.random.key(4)
    statistics, tiled = Sweep(model, series).states(key, coords)
    monkeypatch.setattr(passes, "_SHORT", 10_000)
    expected, whole = Sweep(model, series).states(key, coords)
    np.testing.assert_array_equal(tiled, whole)
    np.testing.assert_array_equal(
        statistics["transition_matrix"].counts, expected["transition_matrix"].counts
    )
    np.testing.assert_allclose(statistics["means"].yy, expected["means"].yy, rtol=1e-10)
    assert statistics["transition_matrix"].counts.sum() == 3700


def test_average_of_sampled_states_is_the_marginal(rng, x64):
    model = sj.GaussianHMM(num_states=2, emission_dim=1)
    params = {
        "transition_matrix": np.array([[0.8, 0.2], [0.3, 0.7]]),
        "means": np.array([[0.0], [1.0]]),
        "covariances": np.ones((2, 1, 1)),
    }
    _, y = model.simulate(params, 30, seed=2)
    y[5:8] = np.nan
    sweep = Sweep(model, sj.as_series(y))
    coords = model.to_coords(params)
    drawn = np.stack([sweep.states(jax.random.key(i), coords)[1] for i in range(2000)])
    marginal = sj.smooth(model, params, y)["probability"].to_numpy()[:, 1]
    error = np.sqrt(marginal * (1 - marginal) / 2000)
    assert np.max(np.abs(drawn.mean(0) - marginal) / error) < 4.5


def test_missing_rows_at_every_seam(rng):
    """What crosses a seam is then known from further away; buffers see to it."""
    model = sj.GaussianHMM(num_states=3, emission_dim=2)
    params = random_hmm(rng, 3, 0.9)
    y = model.simulate(params, 3000, seed=9)[1]
    tiles = tiling.make_tiles(model, sj.as_series(y), model.first_buffer({}))
    assert tiles.count > 10
    for seam in tiles.drawn.start[1:]:
        y[seam - 3 : seam + 3] = np.nan
    log_f = regime_log_densities(model, params, y)
    oracle = textbook_pass(params["transition_matrix"], law_before(model, params), log_f)
    decoded = sj.decode(model, params, y)
    np.testing.assert_allclose(decoded["probability"], oracle[1], atol=1e-9)
    np.testing.assert_array_equal(decoded["state"], oracle[2])
    np.testing.assert_allclose(sj.log_likelihood(model, params, y), oracle[0], rtol=1e-11)


def test_viterbi_is_exact_where_survivors_meet_late(rng):
    """Rows that hardly tell the states apart: best paths stay apart for hundreds of rows."""
    model = sj.GaussianHMM(num_states=3, emission_dim=2)
    lengths = []
    for trial in range(4):
        params = random_hmm(rng, 3, 0.99)
        params["means"] *= 0.2
        params["covariances"][:] = np.eye(2)
        y = model.simulate(params, 3000, seed=trial)[1]
        log_f = regime_log_densities(model, params, y)
        oracle = textbook_pass(params["transition_matrix"], law_before(model, params), log_f)
        found, gap = passes.best_states(model, model.to_coords(params), sj.as_series(y))
        np.testing.assert_array_equal(found, oracle[2])
        assert gap <= passes.PATH_TOLERANCE
        lengths.append(np.diff(np.flatnonzero(np.diff(oracle[2]))).max(initial=0))
    assert max(lengths) > 64  # longer than the first buffers


def test_rows_that_speak_against_zeros_do_not_pass_them(rng):
    """Hundreds of rows as of a state that was left for good."""
    model = sj.GaussianHMM(num_states=2, emission_dim=1)
    params = {
        "transition_matrix": np.array([[0.9, 0.1], [0.0, 1.0]]),
        "means": np.array([[0.0], [4.0]]),
        "covariances": np.ones((2, 1, 1)),
    }
    y = np.concatenate([rng.normal(size=5), 4 + rng.normal(size=40), rng.normal(size=400)])[:, None]
    log_f = regime_log_densities(model, params, y)
    oracle = textbook_pass(params["transition_matrix"], law_before(model, params), log_f)
    np.testing.assert_allclose(sj.log_likelihood(model, params, y), oracle[0], rtol=1e-11)
    decoded = sj.decode(model, params, y)
    np.testing.assert_allclose(decoded["probability"], oracle[1], atol=1e-9)
    np.testing.assert_array_equal(decoded["state"], oracle[2])


@pytest.mark.parametrize("kind", ["hmm", "lgssm"])
def test_sampled_states_of_short_series_have_the_smoothed_law(kind, x64):
    """Series that are padded beside a longer one: their states, and none to do with each other."""
    if kind == "hmm":
        model = sj.GaussianHMM(num_states=2, emission_dim=1)
        params = {
            "transition_matrix": np.array([[0.9, 0.1], [0.2, 0.8]]),
            "means": np.array([[0.0], [1.0]]),
            "covariances": np.ones((2, 1, 1)),
        }
    else:
        model = sj.LGSSM(state_dim=1, emission_dim=1)
        params = {"A": np.array([[0.9]]), "Q": np.array([[1.0]]), "R": np.array([[1.0]])}
    lengths = (60, 4, 4, 3)
    data = [model.simulate(params, T, seed=i)[1] for i, T in enumerate(lengths)]
    sweep, coords = Sweep(model, sj.as_series(data)), model.to_coords(params)
    keys = jax.random.split(jax.random.key(1), 3000)
    drawn = np.stack([np.ravel(sweep.states(key, coords)[1]) for key in keys])
    law = sj.smooth(model, params, data)
    if kind == "hmm":
        mean = law["probability"].to_numpy()[:, 1]
        variance = mean * (1 - mean)
    else:
        mean, variance = law["x"].to_numpy()[:, 0], law["covariance"].to_numpy()[:, 0, 0]
    centred = (drawn - mean) / np.sqrt(variance)
    # Five standard errors; those of squares are at most 0.1 for the two states.
    assert np.abs(centred.mean(0)).max() < 5 / np.sqrt(len(keys))
    if kind == "lgssm":
        assert np.abs(np.square(centred).mean(0) - 1).max() < 5 * np.sqrt(2 / len(keys))
    which = np.repeat(np.arange(len(lengths)), lengths)
    across = (centred.T @ centred / len(keys))[which[:, None] != which]
    assert np.abs(across).max() < 5.5 / np.sqrt(len(keys))


def test_a_pass_that_fails_ends_there(rng, monkeypatch):
    """An error in one group is told at once, not behind all others."""
    model = sj.GaussianHMM(num_states=2, emission_dim=2)
    params = random_hmm(rng, 2)
    series = sj.as_series(model.simulate(params, 20_000, seed=1)[1])
    monkeypatch.setattr(tiling, "_GROUP", 8)
    calls = []

    def kernel(batch, *args):
        calls.append(args)
        if len(calls) == 3:
            raise OSError("gone")
        time.sleep(0.05)
        nothing = np.zeros((2, batch.weight.shape[1]))
        return nothing, Edges(*[nothing] * 4)

    with pytest.raises(OSError, match="gone"):
        passes.run(model.scaled_to(series), series, kernel, buffer=32)
    assert len(calls) < 8
