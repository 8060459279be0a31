"""Predictive scores against laws of rows ahead, computed the long way."""

import itertools

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

import sojourn as sj
from cases import CASES, LGSSM_PARAMS
from oracles import law_before, linear_law, regime_log_densities
from sojourn.models import arhmm


def log_joint_gaussian(model, params, y):
    """Return log p of the entries of y that are not NaN."""
    return linear_law(model, params, y).log_likelihood


def cut(y, t, horizon):
    """Return rows 0 … t, then missing rows, then row t + horizon; and the same without that row."""
    rows = y[: t + horizon + 1].copy()
    rows[t + 1 : t + horizon] = np.nan
    without = rows.copy()
    without[-1] = np.nan
    return rows, without


@pytest.mark.parametrize("horizon", [1, 3])
@pytest.mark.parametrize("name", ["hmm", "lgssm", "wide_lgssm", "free_lgssm"])
def test_predictive_score_integrates_the_rows_between(name, horizon):
    """log p(y_{t+h} | y_≤t) = log p(y_≤t, y_{t+h}) − log p(y_≤t), the rows between missing."""
    case = next(case for case in CASES if case.name == name)
    ours = sj.predictive_score(case.model, case.params, case.data, horizon)
    expected = 0.0
    for y in case.data:
        for t in range(len(y) - horizon):
            with_row, without = cut(y, t, horizon)
            scores = (
                [
                    sj.log_likelihood(case.model, case.params, rows)
                    if name == "hmm"
                    else log_joint_gaussian(case.model, case.params, rows)
                    for rows in (with_row, without)
                ]
                if np.isfinite(with_row).any(1).sum() > 1
                else [0.0, 0.0]
            )
            expected += scores[0] - scores[1]
    np.testing.assert_allclose(ours, expected, rtol=1e-9)


def test_one_row_ahead_is_the_likelihood_after_the_first_row():
    model = sj.GaussianHMM(num_states=2, emission_dim=1)
    params = {
        "transition_matrix": np.array([[0.95, 0.05], [0.1, 0.9]]),
        "means": np.array([[0.0], [2.0]]),
        "covariances": np.ones((2, 1, 1)),
    }
    y = model.simulate(params, 3000, seed=0)[1]
    first = logsumexp(
        regime_log_densities(model, params, y[:1])[0],
        b=law_before(model, params) @ params["transition_matrix"],
    )
    total = sj.log_likelihood(model, params, y)
    np.testing.assert_allclose(sj.predictive_score(model, params, y, 1), total - first, rtol=1e-10)


def test_tiled_predictions_equal_whole_ones():
    """Seams at long horizons: many windows against the closed form, row by row."""
    model = sj.GaussianHMM(num_states=2, emission_dim=1)
    params = {
        "transition_matrix": np.array([[0.97, 0.03], [0.05, 0.95]]),
        "means": np.array([[0.0], [1.5]]),
        "covariances": np.ones((2, 1, 1)),
    }
    y = model.simulate(params, 2000, seed=0)[1]
    log_f = regime_log_densities(model, params, y)
    Pi, horizon, expected = params["transition_matrix"], 10, 0.0
    law = law_before(model, params)
    ahead = np.linalg.matrix_power(Pi, horizon)
    for t in range(len(y) - horizon):
        joint = (law @ Pi) * np.exp(log_f[t])
        law = joint / joint.sum()
        expected += np.log((law @ ahead) @ np.exp(log_f[t + horizon]))
    np.testing.assert_allclose(sj.predictive_score(model, params, y, horizon), expected, rtol=1e-10)


def switching_density(params, y, seen):
    """Return log p of the rows marked as seen of a two-state SLDS, by all paths of z."""
    T, total = len(y), []
    for path in itertools.product(range(2), repeat=T + 1):
        log_p = np.log(0.5)
        for before, now in itertools.pairwise(path):
            log_p += np.log(params["transition_matrix"][before, now])
        A, Q = params["A"][list(path[1:]), 0, 0], params["Q"][list(path[1:]), 0, 0]
        rows = np.where(seen[:, None], y, np.nan)
        variance, covariance = 10.0, np.zeros((T, T))
        for t in range(T):
            variance = A[t] ** 2 * variance + Q[t]
            covariance[t, t] = variance
        for t in range(T):
            for s in range(t):
                covariance[t, s] = covariance[s, t] = covariance[s, s] * np.prod(A[s + 1 : t + 1])
        o = ~np.isnan(rows[:, 0])
        law = multivariate_normal(
            np.zeros(o.sum()), (covariance + params["R"] * np.eye(T))[o][:, o]
        )
        total.append(log_p + law.logpdf(rows[o, 0]))
    return logsumexp(total)


def test_predictive_score_of_a_switching_model():
    model = sj.SLDS(num_states=2, state_dim=1, emission_dim=1)
    params = {
        "transition_matrix": np.array([[0.8, 0.2], [0.3, 0.7]]),
        "A": np.array([[[0.9]], [[-0.5]]]),
        "Q": np.array([[[0.3]], [[1.0]]]),
        "R": np.array([[0.2]]),
    }
    y = model.simulate(params, 6, seed=1)[1]
    horizon, expected = 2, 0.0
    for t in range(len(y) - horizon):
        seen = np.arange(len(y)) <= t
        with_row = seen | (np.arange(len(y)) == t + horizon)
        expected += switching_density(params, y, with_row) - switching_density(params, y, seen)
    ours = sj.predictive_score(model, params, y, horizon, num_particles=20_000)
    np.testing.assert_allclose(ours, expected, atol=0.02)


def test_predictive_score_of_one_regime_is_the_linear_models():
    params = {"transition_matrix": np.ones((1, 1)), "R": LGSSM_PARAMS["R"]}
    params |= {name: LGSSM_PARAMS[name][None] for name in ("A", "Q")}
    linear = sj.LGSSM(2, 2)
    y = linear.simulate(LGSSM_PARAMS, 40, seed=1)[1]
    y[5] = np.nan
    ours = sj.predictive_score(sj.SLDS(1, 2, 2), params, y, 3, num_particles=2)
    np.testing.assert_allclose(ours, sj.predictive_score(linear, LGSSM_PARAMS, y, 3), rtol=1e-9)


def autoregressive_density(params, law, lags, row, horizon):
    """Sum over the states from the last known row on; rows given states by the companion form."""
    Pi, A, Q = (np.asarray(params[name]) for name in ("transition_matrix", "A", "Q"))
    K, D, q = A.shape
    total = []
    for path in itertools.product(range(K), repeat=horizon + 1):
        mean, spread, log_p = lags, np.zeros((q, q)), np.log(law[path[0]])
        for before, k in itertools.pairwise(path):
            F = np.concatenate([A[k], np.eye(q - D, q)])
            mean, spread = F @ mean, F @ spread @ F.T
            spread[:D, :D] += Q[k]
            log_p += np.log(Pi[before, k])
        total.append(log_p + multivariate_normal(mean[:D], spread[:D, :D]).logpdf(row))
    return logsumexp(total)


@pytest.mark.parametrize("num_states", [1, 2])
def test_predictive_score_of_an_autoregression(monkeypatch, rng, num_states):
    """Rows ahead given the last lags, states summed out; not predicted where a lag is missing."""
    monkeypatch.setattr(arhmm, "_PATHS", 50_000)
    K, D, p, horizon = num_states, 2, 2, 3
    model = sj.ARHMM(num_states=K, emission_dim=D, num_lags=p)
    params = {
        "transition_matrix": rng.dirichlet(np.ones(K), K),
        "A": 0.3 * rng.normal(size=(K, D, D * p)),
        "Q": np.stack([np.eye(D) * (k + 0.5) + 0.1 for k in range(K)]),
    }
    y = model.simulate(params, 30, seed=1)[1]
    y[15, 1] = np.nan
    log_f = regime_log_densities(model, params, y)
    law, expected = law_before(model, params), 0.0
    for t in range(p, len(y) - horizon):
        law = law @ params["transition_matrix"] * np.exp(log_f[t - p])
        law /= law.sum()
        lags = y[t - p + 1 : t + 1][::-1].ravel()
        if np.isfinite(lags).all() and np.isfinite(y[t + horizon]).all():
            expected += autoregressive_density(params, law, lags, y[t + horizon], horizon)
    ours = sj.predictive_score(model, params, y, horizon)
    # One state leaves nothing to draw.
    np.testing.assert_allclose(ours, expected, atol=1e-9 if K == 1 else 0.02)


def test_horizons_that_make_no_sense_are_refused():
    model = sj.GaussianHMM(num_states=1, emission_dim=1)
    params = {"transition_matrix": [[1.0]], "means": [[0.0]], "covariances": [[[1.0]]]}
    with pytest.raises(ValueError, match="horizon=5 leaves no row to predict; use less than 5"):
        sj.predictive_score(model, params, np.arange(5.0), 5)
