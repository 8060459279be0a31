"""Kernel Stein discrepancy, mutual information and errors against their definitions."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import dirichlet
from sklearn.metrics import normalized_mutual_info_score

import sojourn as sj
from oracles import finite_differences
from sojourn.results import stein
from sojourn.results.metrics import running_mse


def brute_force(x, b, beta=0.5, c=1.0, unbiased=False):
    """Sum the Stein kernel over all pairs, its derivatives by the chain rule, column by column."""
    N, d = x.shape
    total = np.zeros(d)
    for i in range(N):
        for j in range(N):
            if unbiased and i == j:
                continue
            r = x[i] - x[j]
            base = c**2 + r @ r
            k = base**-beta
            first = -2 * beta * r * base ** (-beta - 1)  # ∂k/∂x_i; that by x_j is its negative
            mixed = 2 * beta * base ** (-beta - 1) - 4 * beta * (beta + 1) * r**2 * base ** (
                -beta - 2
            )
            total += b[i] * b[j] * k + b[j] * first - b[i] * first + mixed
    return total / (N * (N - 1) if unbiased else N**2)


@pytest.mark.parametrize("unbiased", [False, True])
def test_ksd_is_the_double_sum(rng, monkeypatch, unbiased):
    monkeypatch.setattr(stein, "_PAIRS", 70)  # several blocks, the last one short
    x, b = 3 + rng.normal(size=(25, 3)), rng.normal(size=(25, 3))
    for beta, scale in ((0.5, 1.0), (0.3, 2.0)):
        found = sj.ksd(x, b, beta=beta, scale=scale, unbiased=unbiased)
        np.testing.assert_allclose(
            found.squares, brute_force(x, b, beta, scale, unbiased), rtol=1e-10
        )
    assert found.total == found.columns.sum()


def test_stein_identity(rng):
    """E k₀(X, X') = 0 for X, X' from the density: the unbiased squares average to zero."""
    root = np.array([[1.0, 0.0], [0.7, 0.5]])
    precision = np.linalg.inv(root @ root.T)

    def squares(shift):
        x = rng.normal(size=(100, 2)) @ root.T
        return sj.ksd(x + shift, -(x + shift) @ precision, unbiased=True).squares

    exact = np.array([squares(0.0) for _ in range(300)])
    error = exact.std(0) / np.sqrt(len(exact))
    assert np.all(np.abs(exact.mean(0)) < 4 * error)
    shifted = np.array([squares(np.array([0.3, 0.0])) for _ in range(50)])
    assert np.all(shifted.mean(0) > 20 * error)


def test_ksd_refuses_what_it_cannot_use():
    with pytest.raises(ValueError, match="one shape"):
        sj.ksd(np.zeros((3, 2)), np.zeros((3, 1)))
    with pytest.raises(ValueError, match="at least two draws"):
        sj.ksd(np.zeros((1, 2)), np.zeros((1, 2)))
    with pytest.raises(ValueError, match="finite"):
        sj.ksd(np.full((2, 2), np.nan), np.zeros((2, 2)))


def test_nmi_is_that_of_scikit_learn(rng):
    a, b = rng.integers(0, 3, size=200), rng.integers(0, 4, size=200)
    b[:100] = a[:100]
    expected = normalized_mutual_info_score(a, b, average_method="geometric")
    np.testing.assert_allclose(sj.nmi(a, b), expected, rtol=1e-10)
    np.testing.assert_allclose(sj.nmi(a, (a + 1) % 3), 1)
    assert sj.nmi(np.zeros(5, int), np.arange(5)) == 0
    lagged = np.concatenate([[-1, -1], a])
    np.testing.assert_allclose(sj.nmi(lagged, np.concatenate([[0, 1], b])), expected, rtol=1e-10)
    with pytest.raises(TypeError, match="array of integers"):
        sj.nmi([0.5], [1])


def test_rmse_adds_up_dimensions():
    x = np.array([[1.0, 2.0], [np.nan, 0.0], [0.0, 0.0]])
    np.testing.assert_allclose(sj.rmse(x, np.zeros((3, 2))), np.sqrt((1 + 4 + 0) / 2))


def test_running_averages_are_matched_to_the_truth(rng):
    truth = {
        "means": np.array([[0.0], [5.0], [9.0]]),
        "transition_matrix": np.array([[0.8, 0.2, 0.0], [0.1, 0.6, 0.3], [0.3, 0.3, 0.4]]),
    }
    dims = {"means": ("state", "column"), "transition_matrix": ("state", "to_state")}
    noise = 0.1 * rng.normal(size=(2, 40, 3, 1))
    draws = {
        "means": truth["means"] + noise,
        "transition_matrix": np.tile(truth["transition_matrix"], (2, 40, 1, 1)),
    }
    turn = [1, 2, 0]
    mixed = {"means": draws["means"].copy(), "transition_matrix": draws["transition_matrix"].copy()}
    mixed["means"][1] = draws["means"][1][:, turn]
    mixed["transition_matrix"][1] = draws["transition_matrix"][1][:, turn][:, :, turn]
    found = running_mse(mixed, truth, dims)
    for chain in range(2):
        for s in (1, 7, 40):
            expected = np.square(noise[chain, :s].mean(0)).mean()
            np.testing.assert_allclose(found["means"][chain, s - 1], expected, rtol=1e-9)
    np.testing.assert_allclose(found["transition_matrix"], 0, atol=1e-20)
    with pytest.raises(ValueError, match="true means must have shape"):
        running_mse(mixed, {"means": np.zeros(3)}, dims)


def test_states_are_matched_by_what_tells_them_apart(rng):
    """By means many sds apart, though near each other, not by chances to stay within their noise."""
    stay = np.array([0.01, 0.01, 0.0, 0.01])
    truth = {
        "means": np.array([[-50.0], [-65.0], [-100.0], [1000.0]]),
        "transition_matrix": np.eye(4) * stay + (1 - np.eye(4)) * (1 - stay[:, None]) / 3,
    }
    dims = {"means": ("state", "column"), "transition_matrix": ("state", "to_state")}
    off = np.diag([-0.01, 0.04, 0.05, 0.02])
    draws = {
        "means": truth["means"] + 0.3 * rng.normal(size=(1, 400, 4, 1)),
        "transition_matrix": truth["transition_matrix"]
        + off
        + 0.03 * rng.normal(size=(1, 400, 4, 4)),
    }
    assert running_mse(draws, truth, dims)["means"][0, -1] < 0.01


MODEL = sj.GaussianHMM(num_states=2, emission_dim=1)
PARAMS = {
    "transition_matrix": np.array([[0.9, 0.1], [0.2, 0.8]]),
    "means": np.array([[-1.5], [1.5]]),
    "covariances": np.array([[[0.5]], [[1.0]]]),
}


def test_scores_of_free_coordinates_are_those_of_the_posterior():
    """Finite differences of log p(y | Π) + log Dirichlet + log |∂Π/∂ξ| in log-ratios ξ."""
    y = MODEL.simulate(PARAMS, 60, seed=0)[1]
    coords = MODEL.to_coords(PARAMS)
    likelihood, prior = sj.gradient(MODEL, coords, y), MODEL.prior_gradient(coords)
    free, scores = MODEL.free(coords, {n: likelihood[n] + prior[n] for n in coords})

    def log_density(at):
        odds = np.concatenate([np.exp(at["xi"]), np.ones((2, 1))], axis=1)
        Pi = odds / odds.sum(1, keepdims=True)
        density = sum(dirichlet([1.0, 1.0]).logpdf(row) for row in Pi)
        return (
            sj.log_likelihood(MODEL, {**PARAMS, "transition_matrix": Pi}, y)
            + density
            + np.log(Pi).sum()  # the Jacobian of log-ratios is the product of a row
        )

    expected = finite_differences(log_density, {"xi": np.asarray(free["transition_matrix"])})
    np.testing.assert_allclose(scores["transition_matrix"], expected["xi"], rtol=1e-5)


def test_fit_has_the_metrics():
    states, y = MODEL.simulate(PARAMS, 300, seed=1)
    fit = sj.sample(MODEL, y, sj.Gibbs(), num_samples=150, num_chains=1, seed=0, progress=False)
    found = fit.ksd(y, num_draws=60)
    assert list(found.index) == [*(b for block in fit.model.blocks for b in block.names), "total"]
    np.testing.assert_allclose(found["total"], found.iloc[:-1].sum())
    # Draws from the posterior come close to it; the same draws are far from that of other data.
    other = fit.ksd(MODEL.simulate(PARAMS, 300, seed=9)[1] + 0.5, num_draws=60)
    assert found["total"] < other["total"] / 2
    noisy = fit.ksd(y, num_draws=20, windows=sj.Windows(100, buffer=20))
    assert isinstance(noisy, pd.Series) and noisy["total"] > found["total"]
    assert fit.nmi(y, states["z"]) > 0.4
    with pytest.raises(ValueError, match="no continuous states"):
        fit.rmse(y, np.zeros(300), num_draws=1)
    errors = fit.mse(PARAMS)
    assert errors["means"].dims == ("chain", "draw")
    final = fit.posterior["means"].mean(("chain", "draw")).to_numpy()
    final = final[np.argsort(final[:, 0])]
    np.testing.assert_allclose(errors["means"][0, -1], np.square(final - PARAMS["means"]).mean())


def test_pairs_add_up_to_the_discrepancy(rng):
    x, b = rng.normal(size=(2, 30, 4))
    h = stein.of_pairs(x, b)
    found = sj.ksd(x, b, scale=2.0)
    np.testing.assert_allclose(h.sum(), 30**2 * found.squares.sum(), rtol=1e-10)
    unbiased = sj.ksd(x, b, scale=2.0, unbiased=True)
    np.testing.assert_allclose(h.sum() - np.trace(h), 30 * 29 * unbiased.squares.sum(), rtol=1e-10)
