"""Rows to come and rows missing, against laws computed the long way."""

import itertools

import jax
import numpy as np
import pytest
from scipy import stats

import sojourn as sj
from cases import LGSSM_PARAMS
from oracles import (
    dense_gaussian,
    enumerate_paths,
    enumerate_slds,
    law_before,
    linear_law,
    regime_log_densities,
    textbook_pass,
)
from sojourn.results import states
from sojourn.results.fit import make_fit
from sojourn.results.forecasts import _tails
from sojourn.series.sources import ArraySource

HMM = sj.GaussianHMM(num_states=2, emission_dim=2)
HMM_PARAMS = {
    "transition_matrix": np.array([[0.9, 0.1], [0.3, 0.7]]),
    "means": np.array([[0.0, 1.0], [3.0, -1.0]]),
    "covariances": np.array([[[1.0, 0.5], [0.5, 0.8]], [[0.5, -0.2], [-0.2, 0.6]]]),
}
LINEAR = sj.LGSSM(state_dim=2, emission_dim=3)
LINEAR_PARAMS = LGSSM_PARAMS | {
    "C": np.array([[1.0, 0.0], [0.0, 1.0], [0.7, -0.4]]),
    "R": np.array([[0.4, 0.1, 0.0], [0.1, 0.5, -0.1], [0.0, -0.1, 0.3]]),
}
SWITCHING = sj.SLDS(num_states=2, state_dim=1, emission_dim=1)
SWITCHING_PARAMS = {
    "transition_matrix": np.array([[0.8, 0.2], [0.3, 0.7]]),
    "A": np.array([[[0.9]], [[-0.5]]]),
    "Q": np.array([[[0.3]], [[1.0]]]),
    "R": np.array([[0.2]]),
    "C": np.ones((1, 1)),
}


def near(draws, mean, variance, sds=4.5):
    """Whether averages and variances of draws (N, …) are within their Monte Carlo error."""
    N = len(draws)
    np.testing.assert_array_less(np.abs(draws.mean(0) - mean) / np.sqrt(variance / N), sds)
    # A fourth moment of 4 σ⁴ covers mixtures with tails a little heavier than a Gaussian's.
    np.testing.assert_array_less(np.abs(draws.var(0) / variance - 1) / np.sqrt(4 / N), sds)


def test_forecast_of_a_linear_model_is_the_dense_gaussian():
    data = [LINEAR.simulate(LINEAR_PARAMS, T, seed=T)[1] for T in (30, 7)]
    data[0][-1, 0] = np.nan
    N, h = 4000, 3
    found = sj.forecast(LINEAR, LINEAR_PARAMS, data, h, num_draws=N, seed=1)
    assert found["y"].dims == ("draw", "series", "ahead", "column")
    for i, y in enumerate(data):
        law = linear_law(LINEAR, LINEAR_PARAMS, np.concatenate([y, np.full((h, 3), np.nan)]))
        C, R = LINEAR_PARAMS["C"], LINEAR_PARAMS["R"]
        mean = law.mean[-h:]
        own = np.stack([law.covariance[t, :, t] for t in range(-h, 0)])
        near(found["x"].to_numpy()[:, i], mean, np.einsum("haa->ha", own))
        near(
            found["y"].to_numpy()[:, i],
            mean @ C.T,
            np.einsum("ma,hab,mb->hm", C, own, C) + np.diag(R),
        )
        joint = found["x"].to_numpy()[:, i].reshape(N, -1)
        dense = law.covariance[-h:, :, -h:].reshape(2 * h, 2 * h)
        np.testing.assert_allclose(
            np.cov(joint.T), dense, atol=6 * np.abs(dense).max() / np.sqrt(N)
        )


def test_forecast_of_a_chain_is_by_matrix_powers():
    """A series much longer than the rows that are read of it."""
    y = HMM.simulate(HMM_PARAMS, 3000, seed=2)[1]
    Pi = HMM_PARAMS["transition_matrix"]
    _, marginals, _ = textbook_pass(
        Pi,
        law_before(HMM, HMM_PARAMS),
        regime_log_densities(HMM, HMM_PARAMS, y),
    )
    N = 4000
    found = sj.forecast(HMM, HMM_PARAMS, y, 4, num_draws=N, seed=2)
    z = found["state"].to_numpy()[:, 0]
    for h in range(4):
        p = marginals[-1] @ np.linalg.matrix_power(Pi, h + 1)
        assert abs((z[:, h] == 1).mean() - p[1]) < 4.5 * np.sqrt(p[0] * p[1] / N)
        mean = p @ HMM_PARAMS["means"]
        around = HMM_PARAMS["means"] - mean
        variance = p @ (np.einsum("kdd->kd", HMM_PARAMS["covariances"]) + around**2)
        near(found["y"].to_numpy()[:, 0, h], mean, variance)
    pairs = Pi[z[:, 0], 1].mean(), (z[:, 1] == 1).mean()
    assert abs(pairs[0] - pairs[1]) < 4.5 * 0.5 / np.sqrt(N)


def test_tails_are_as_long_as_forgetting_takes():
    y = HMM.simulate(HMM_PARAMS, 3000, seed=2)[1]
    short = _tails(HMM, HMM.to_coords(HMM_PARAMS), sj.as_series(y))[0]
    slow = sj.LGSSM(1, 1)
    params = {"A": [[0.9999]], "Q": [[1e-6]], "R": [[1.0]]}
    rows = slow.simulate({n: np.array(v) for n, v in params.items()}, 500, seed=0)[1]
    long = _tails(slow, slow.to_coords(params), sj.as_series(rows))[0]
    assert len(short) == 256 and len(long) == 500


def test_a_long_gap_at_the_end_is_looked_beyond():
    """Tails without a row in them agree with each other, and say nothing."""
    Pi = np.array([[1 - 1e-4, 1e-4], [1e-4, 1 - 1e-4]])
    params = {
        "transition_matrix": Pi,
        "means": np.array([[-5.0], [5.0]]),
        "covariances": np.ones((2, 1, 1)),
    }
    y = 5 + np.random.default_rng(0).normal(size=(800, 1))
    y[-300:] = np.nan
    ahead = sj.forecast(sj.GaussianHMM(2, 1), params, y, 1, num_draws=2000)
    expected = np.linalg.matrix_power(Pi, 301)[1, 1]
    error = np.sqrt(expected * (1 - expected) / 2000)
    assert abs(ahead["state"].to_numpy().mean() - expected) < 4 * error


def test_switching_models_look_beyond_gaps():
    """With one regime an SLDS is linear: unchecked buffers must reach over a gap as checked ones do."""
    A = 0.999
    params = {"A": np.array([[A]]), "Q": np.array([[1 - A**2]]), "R": np.array([[0.01]])}
    switching = {"transition_matrix": np.ones((1, 1)), "R": params["R"]}
    switching |= {name: params[name][None] for name in "AQ"}
    linear = sj.LGSSM(1, 1)
    y = linear.simulate(params, 900, seed=1)[1]
    y[300:600] = np.nan
    ours = sj.impute(sj.SLDS(1, 1, 1), switching, y)["mean"].to_numpy()
    np.testing.assert_allclose(ours, sj.impute(linear, params, y)["mean"], atol=1e-6)


def test_forecasts_read_the_ends_and_copy_a_few_at_a_time(tmp_path, monkeypatch):
    """Rows far from the end are never read, and any number of draws is drawn in bounded batches."""
    y = HMM.simulate(HMM_PARAMS, 3000, seed=2)[1]
    np.save(tmp_path / "y.npy", y)
    series, first, sizes = sj.open_series(tmp_path / "y.npy"), [], []
    rows, drawn = ArraySource.rows, states.draw_states
    monkeypatch.setattr(ArraySource, "rows", lambda self, a, b: first.append(a) or rows(self, a, b))
    monkeypatch.setattr(
        states, "draw_states", lambda m, c, s, k: sizes.append(s.num_rows) or drawn(m, c, s, k)
    )
    monkeypatch.setattr(states, "_COPIED_ROWS", 600)
    found = sj.forecast(HMM, HMM_PARAMS, series, 2, num_draws=5)["y"]
    assert min(first) == 3000 - 256
    assert sizes == [2 * 258] * 3
    assert found.shape == (5, 1, 2, 2) and len(np.unique(found[:, 0, 0, 0])) == 5


def test_forecast_of_an_autoregression_follows_its_lags():
    model = sj.ARHMM(num_states=1, emission_dim=1, num_lags=2)
    a, q = np.array([0.5, -0.3]), 0.4
    params = {"transition_matrix": [[1.0]], "A": a.reshape(1, 1, 2), "Q": [[[q]]]}
    y = np.array([0.3, 1.0, 2.0, -1.0])
    found = sj.forecast(model, params, y, 2, num_draws=4000)["y"].to_numpy()[:, 0, :, 0]
    first = a @ [y[3], y[2]]
    second = a @ [first, y[3]]
    near(found, np.array([first, second]), np.array([q, q * (1 + a[0] ** 2)]))
    with pytest.raises(ValueError, match="depend on its last 2 rows"):
        sj.forecast(model, params, np.array([0.0, 1.0, np.nan, 2.0]), 1)


def test_forecast_of_a_switching_model_is_that_of_all_paths():
    y = SWITCHING.simulate(SWITCHING_PARAMS, 4, seed=3)[1]
    law = enumerate_slds(
        SWITCHING_PARAMS,
        (np.full(2, 0.5), 10 * np.eye(1)),
        np.concatenate([y, np.full((2, 1), np.nan)]),
    )
    N = 2000
    found = sj.forecast(SWITCHING, SWITCHING_PARAMS, y, 2, num_draws=N)
    p = law.marginals[-2:, 1]
    assert np.all(np.abs((found["state"] == 1).mean("draw")[0] - p) < 4.5 * 0.5 / np.sqrt(N))
    variance = law.second[-2:, 0, 0] - law.mean[-2:, 0] ** 2
    near(found["x"].to_numpy()[:, 0, :, 0], law.mean[-2:, 0], variance)


def test_imputed_moments_of_a_linear_model_are_dense():
    y = LINEAR.simulate(LINEAR_PARAMS, 8, seed=4)[1]
    y[3] = np.nan
    y[5, 1] = y[0, [0, 2]] = np.nan
    C, R = LINEAR_PARAMS["C"], LINEAR_PARAMS["R"]
    found = sj.impute(LINEAR, LINEAR_PARAMS, y, num_draws=1500, seed=0)
    # Rows as states: x' = (x, y) with y_t = C x_t + noise, seen without error.
    lift = np.concatenate([np.eye(2), C])
    A = lift @ LINEAR_PARAMS["A"] @ np.eye(2, 5)
    Q = lift @ LINEAR_PARAMS["Q"] @ lift.T
    Q[2:, 2:] += R
    start = np.zeros((5, 5))
    start[:2, :2] = 10 * np.eye(2)
    law = dense_gaussian(A, Q, np.eye(3, 5, 2), 1e-10 * np.eye(3), (np.zeros(5), start), y)
    hidden = np.isnan(y)
    mean = law.mean[1:, 2:]
    variance = np.stack([np.diag(law.covariance[t, 2:, t, 2:]) for t in range(1, 9)])
    np.testing.assert_allclose(found["mean"].to_numpy()[hidden], mean[hidden], rtol=1e-6)
    np.testing.assert_allclose(found["sd"].to_numpy()[hidden] ** 2, variance[hidden], rtol=1e-6)
    np.testing.assert_array_equal(found["mean"].to_numpy()[~hidden], y[~hidden])
    assert not found["sd"].to_numpy()[~hidden].any()
    near(found["draw"].to_numpy(), mean[hidden], variance[hidden])
    rows, columns = np.nonzero(hidden)
    np.testing.assert_array_equal(found["entry_time"], rows)
    assert list(found["entry_column"].to_numpy()) == [f"y{c}" for c in columns]
    # Two missing entries of one row move together.
    pair = [int(np.flatnonzero((rows == 0) & (columns == c))[0]) for c in (0, 2)]
    joint = np.cov(found["draw"].to_numpy()[:, pair].T)[0, 1]
    expected = law.covariance[1, 2, 1, 4]
    assert abs(joint - expected) < 6 * np.sqrt(variance[0, 0] * variance[0, 2] / 1500)


def test_imputed_moments_of_a_chain_are_those_of_all_paths():
    y = HMM.simulate(HMM_PARAMS, 6, seed=5)[1]
    y[2] = np.nan
    y[4, 0] = np.nan
    paths = enumerate_paths(
        HMM_PARAMS["transition_matrix"],
        law_before(HMM, HMM_PARAMS),
        regime_log_densities(HMM, HMM_PARAMS, y),
    )
    found = sj.impute(HMM, HMM_PARAMS, y)
    m, S = HMM_PARAMS["means"], HMM_PARAMS["covariances"]
    for t, d in ((2, 0), (2, 1), (4, 0)):
        p = paths.marginals[t]
        mean, variance = m[:, d], S[:, d, d]
        if t == 4:
            slope = S[:, 0, 1] / S[:, 1, 1]
            mean = mean + slope * (y[4, 1] - m[:, 1])
            variance = variance - slope * S[:, 0, 1]
        total = p @ mean
        np.testing.assert_allclose(found["mean"][t, d], total, rtol=1e-10)
        expected = p @ (variance + mean**2) - total**2
        np.testing.assert_allclose(found["sd"][t, d] ** 2, expected, rtol=1e-9)


def test_imputed_moments_of_an_autoregression_are_those_of_all_paths():
    """Two lags, two columns: gaps that touch, a gap at the end; every path and a dense Gaussian."""
    model = sj.ARHMM(num_states=2, emission_dim=2, num_lags=2)
    params = {
        "transition_matrix": np.array([[0.8, 0.2], [0.4, 0.6]]),
        "A": np.array([[[0.6, 0.2, -0.3, 0.1], [0.0, 0.5, 0.2, 0.0]], -0.4 * np.eye(2, 4)]),
        "Q": np.array([[[0.5, 0.2], [0.2, 0.4]], [[2.0, -0.3], [-0.3, 1.0]]]),
    }
    y = model.simulate(params, 8, seed=3)[1]
    hidden = np.zeros(y.shape, bool)
    hidden[3], hidden[4, 0], hidden[6, 1], hidden[7] = True, True, True, True
    mean, variance = _all_autoregressions(model, params, y, hidden)
    found = sj.impute(model, params, np.where(hidden, np.nan, y), num_draws=3000, seed=0)
    sd = np.sqrt(variance)
    # Sweeps are not independent; 3,000 are worth a fifth of that.
    assert np.all(np.abs(found["mean"].to_numpy()[hidden] - mean) < 4.5 * sd / np.sqrt(600))
    np.testing.assert_allclose(found["sd"].to_numpy()[hidden], sd, rtol=0.1)
    np.testing.assert_allclose(found["draw"].std("sample"), sd, rtol=0.1)
    np.testing.assert_array_equal(found["mean"].to_numpy()[~hidden], y[~hidden])


def _all_autoregressions(model, params, y, hidden):
    """Return moments of hidden entries from all paths; rows are linear in the noise given a path."""
    T, D = y.shape
    p, K = model.num_lags, model.num_states
    size = (T - p) * D
    log_w, means, seconds = [], [], []
    for path in itertools.product(range(K), repeat=T - p):
        # Rows behind the first p as an affine map of standard noise.
        base, maps = list(y[:p]), [np.zeros((D, size)) for _ in range(p)]
        for t, k in enumerate(path):
            noise = np.zeros((D, size))
            noise[:, t * D : (t + 1) * D] = np.linalg.cholesky(params["Q"][k])
            lags = range(1, p + 1)
            A = np.split(params["A"][k], p, axis=1)
            base.append(sum(A[i - 1] @ base[-i] for i in lags))
            maps.append(noise + sum(A[i - 1] @ maps[-i] for i in lags))
        m, S = np.concatenate(base[p:]), np.concatenate(maps[p:])
        S, rows, h = S @ S.T, y[p:].ravel(), hidden[p:].ravel()
        gain = np.linalg.solve(S[np.ix_(~h, ~h)], S[np.ix_(~h, h)]).T
        own = m[h] + gain @ (rows[~h] - m[~h])
        left = np.diag(S[np.ix_(h, h)] - gain @ S[np.ix_(~h, h)])
        prior = law_before(model, params) @ params["transition_matrix"][:, path[0]]
        steps = [params["transition_matrix"][i, j] for i, j in itertools.pairwise(path)]
        density = stats.multivariate_normal(m[~h], S[np.ix_(~h, ~h)]).logpdf(rows[~h])
        log_w.append(np.log([prior, *steps]).sum() + density)
        means.append(own)
        seconds.append(left + own**2)
    w = np.exp(np.array(log_w) - np.max(log_w))
    w /= w.sum()
    mean = w @ np.array(means)
    return mean, w @ np.array(seconds) - mean**2


def test_sampled_paths_have_the_smoothed_law():
    y = LINEAR.simulate(LINEAR_PARAMS, 20, seed=6)[1]
    paths = sj.decode(LINEAR, LINEAR_PARAMS, y, method="sample", num_paths=400, seed=0)
    assert paths["x"].dims == ("path", "time", "dim")
    law = sj.smooth(LINEAR, LINEAR_PARAMS, y)
    variance = np.einsum("taa->ta", law["covariance"].to_numpy())
    near(paths["x"].to_numpy(), law["x"].to_numpy(), variance, sds=5)


def test_sampled_paths_of_a_switching_model():
    y = SWITCHING.simulate(SWITCHING_PARAMS, 5, seed=7)[1]
    law = enumerate_slds(SWITCHING_PARAMS, (np.full(2, 0.5), 10 * np.eye(1)), y)
    paths = sj.decode(SWITCHING, SWITCHING_PARAMS, y, method="sample", num_paths=150)
    error = np.sqrt(law.marginals.prod(1) / 150)
    assert np.all(np.abs((paths["state"] == 1).mean("path") - law.marginals[:, 1]) < 4.5 * error)
    assert paths["x"].shape == (150, 5, 1)


def test_a_fit_forecasts_imputes_and_draws_paths():
    y = HMM.simulate(HMM_PARAMS, 60, seed=8)[1]
    y[20, 1] = np.nan
    rng = np.random.default_rng(0)
    draws = {n: np.stack([np.array(v)] * 20) for n, v in HMM_PARAMS.items()}
    draws["means"] += 0.3 * rng.normal(size=(20, 2, 2))
    fit = make_fit(
        HMM, sj.as_series(y).columns, {0: (draws, {})}, choices={"sampler": "by hand"}, seed=0
    )
    ahead = fit.forecast(y, 3, num_draws=5, seed=1)
    assert dict(ahead.sizes) == {"draw": 5, "series": 1, "ahead": 3, "column": 2}
    filled = fit.impute(y, num_draws=5, with_draws=True)
    plain = fit.impute(y, num_draws=5)
    assert set(plain) == {"mean", "sd"}
    np.testing.assert_array_equal(plain["mean"], filled["mean"])
    parts = [sj.impute(fit.model, p, y) for p in fit.draws(5)]
    mean = np.mean([p["mean"][20, 1] for p in parts])
    second = np.mean([p["sd"][20, 1] ** 2 + p["mean"][20, 1] ** 2 for p in parts])
    np.testing.assert_allclose(filled["mean"][20, 1], mean)
    np.testing.assert_allclose(filled["sd"][20, 1] ** 2, second - mean**2)
    assert filled["draw"].shape == (5, 1)
    paths = fit.decode(y, method="sample", num_draws=5)
    assert paths["state"].shape == (5, 60)
    again = sj.decode(HMM, fit.draws(5)[2], y, method="sample", seed=2)
    np.testing.assert_array_equal(paths["state"][2], again["state"][0])


def test_what_cannot_be_forecast_or_imputed_is_refused():
    model = sj.ARHMM(num_states=1, emission_dim=1)
    params = {"transition_matrix": [[1.0]], "A": [[[0.5]]], "Q": [[[1.0]]]}
    with pytest.raises(ValueError, match="misses entries among its first 1 rows"):
        sj.impute(model, params, np.array([np.nan, 0.0, 1.0]))
    with pytest.raises(ValueError, match="horizon must be at least 1"):
        sj.forecast(model, params, np.arange(3.0), 0)
    assert not jax.config.jax_enable_x64


def test_neighbouring_seeds_have_nothing_in_common():
    y = HMM.simulate(HMM_PARAMS, 20, seed=0)[1]
    draws = {name: np.stack([value] * 4) for name, value in HMM_PARAMS.items()}
    fit = make_fit(HMM, ("y0", "y1"), {0: (draws, {})}, choices={"sampler": "by hand"}, seed=0)
    one, other = (fit.forecast(y, 2, num_draws=4, seed=s)["y"].to_numpy() for s in (0, 1))
    assert not np.isin(one, other).any()


def test_all_bits_of_a_seed_count():
    one, other = (HMM.simulate(HMM_PARAMS, 20, seed=s)[1] for s in (5, 2**32 + 5))
    assert not np.isin(one, other).any()
    one[3:] = np.nan
    paths = [
        sj.decode(HMM, HMM_PARAMS, one, "sample", num_paths=50, seed=s)["state"].to_numpy()
        for s in (5, 2**32 + 5)
    ]
    assert not np.array_equal(*paths)


def test_what_only_a_missing_column_tells_of_is_known_from_before():
    """A sticky state that one column tells of, which ends long before the series."""
    rng = np.random.default_rng(0)
    model = sj.GaussianHMM(2, 2)
    params = {
        "transition_matrix": np.array([[0.9995, 0.0005], [0.0005, 0.9995]]),
        "means": np.array([[0.0, -3.0], [0.0, 3.0]]),
        "covariances": np.stack([np.eye(2)] * 2),
    }
    y = np.column_stack([rng.normal(size=600), 3 + rng.normal(size=600)])
    y[300:, 1] = np.nan
    last = sj.smooth(model, params, y)["probability"].to_numpy()[-1]
    expected = (last @ params["transition_matrix"])[1]
    found = sj.forecast(model, params, y, 1, num_draws=4000)["state"].to_numpy()
    assert abs(found.mean() - expected) < 5 * np.sqrt(expected * (1 - expected) / 4000)


def test_forecasts_know_what_only_early_rows_tell():
    """Two states look alike; which of them it is was told long before the end."""
    means = np.array([[-12.0], [12.0], [0.0], [0.0]])
    Pi = [[0.9, 0, 0.1, 0], [0, 0.9, 0, 0.1], [1e-3, 0, 0.999, 0], [0, 1e-3, 0, 0.999]]
    params = {"transition_matrix": Pi, "means": means, "covariances": np.ones((4, 1, 1))}
    z = np.r_[np.full(50, 1), np.full(2000, 3)]
    y = means[z] + np.random.default_rng(1).normal(size=(len(z), 1))
    ahead = sj.forecast(sj.GaussianHMM(4, 1), params, y, 1, num_draws=500)
    assert (ahead["state"] == 3).mean() > 0.98
