"""What is special about linear Gaussian models: passes, constraints, units, starts, sampled states."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import solve_discrete_lyapunov

import sojourn as sj
from cases import CASES, LGSSM_PARAMS
from oracles import dense_gaussian, finite_differences, textbook_kalman
from sojourn.gibbs import Sweep
from sojourn.models import subspace
from sojourn.synthetic import rotating_state

QUICK = {"progress": False, "num_chains": 2, "num_samples": 20, "num_warmup": 20}

KINDS = {
    "mixing": {"A": LGSSM_PARAMS["A"]},
    "near a unit root": {"A": np.array([[0.99995, 0.01], [0.0, 0.9]])},
    "unstable": {"A": np.array([[1.0005, 0.0], [0.1, 0.5]])},
    "tiny Q": {"A": LGSSM_PARAMS["A"], "Q": 1e-8 * np.eye(2)},
    "tiny R": {"A": LGSSM_PARAMS["A"], "R": 1e-8 * np.eye(2)},
}


@pytest.mark.parametrize("kind", KINDS)
def test_tiled_passes_equal_the_textbook(kind):
    """Two long series and a short one, rows missing at a seam and entries elsewhere."""
    model, params = sj.LGSSM(2, 2), LGSSM_PARAMS | KINDS[kind]
    data = [model.simulate(params, T, seed=T)[1] for T in (3000, 700, 7)]
    data[0][60:70] = np.nan
    data[0][500, 0] = data[1][10, 1] = np.nan
    initial = np.zeros(2), 10 * np.eye(2)
    arguments = (params["A"], params["Q"], np.eye(2), params["R"], initial)
    oracle = [textbook_kalman(*arguments, y) for y in data]
    np.testing.assert_allclose(
        sj.log_likelihood(model, params, data), sum(o[0] for o in oracle), rtol=1e-9
    )
    smoothed = sj.smooth(model, params, data)
    scale = np.concatenate([o[1] for o in oracle]).std(0)
    error = np.abs(smoothed["x"].to_numpy() - np.concatenate([o[1] for o in oracle])) / scale
    assert error.max() < 1e-6
    expected = np.concatenate([o[2] for o in oracle])
    np.testing.assert_allclose(smoothed["covariance"], expected, rtol=1e-5, atol=1e-12)
    assert smoothed.attrs["discrepancy"] < 1e-10


def test_complete_series_use_shared_covariances():
    model, params = rotating_state()
    y = model.simulate(params, 5000, seed=3)[1]
    initial = np.zeros(2), 10 * np.eye(2)
    arguments = (params["A"], params["Q"], np.eye(2), params["R"], initial)
    total, means, covariances = textbook_kalman(*arguments, y)
    np.testing.assert_allclose(sj.log_likelihood(model, params, y), total, rtol=1e-11)
    smoothed = sj.smooth(model, params, y)
    np.testing.assert_allclose(smoothed["x"], means, atol=1e-9)
    np.testing.assert_allclose(smoothed["covariance"], covariances, atol=1e-10)
    np.testing.assert_array_equal(sj.decode(model, params, y)["x"], smoothed["x"])


def test_agreement_with_statsmodels():
    """10⁴ rows with missing entries; three columns, two states."""
    statespace = pytest.importorskip("statsmodels.tsa.statespace.api")
    case = next(case for case in CASES if case.name == "wide_lgssm")
    model, params = sj.LGSSM(2, 3), case.params
    y = model.simulate(params, 10_000, seed=1)[1]
    rng = np.random.default_rng(0)
    y[rng.uniform(size=y.shape) < 0.1] = np.nan
    y[4000:4050] = np.nan
    peer = statespace.MLEModel(y, k_states=2, k_posdef=2)
    peer["transition"], peer["design"], peer["obs_cov"] = params["A"], params["C"], params["R"]
    peer["selection"], peer["state_cov"] = np.eye(2), params["Q"]
    # Its first state is ours after one transition.
    covariance = params["A"] @ (10 * np.eye(2)) @ params["A"].T + params["Q"]
    peer.initialize_known(np.zeros(2), covariance)
    peer.loglikelihood_burn = 0
    result = peer.ssm.smooth()
    np.testing.assert_allclose(sj.log_likelihood(model, params, y), result.llf, rtol=1e-9)
    smoothed = sj.smooth(model, params, y)
    np.testing.assert_allclose(smoothed["x"], result.smoothed_state.T, atol=1e-7)
    expected = np.moveaxis(result.smoothed_state_cov, -1, 0)
    np.testing.assert_allclose(smoothed["covariance"], expected, atol=1e-7)


@pytest.mark.parametrize("missing", [False, True])
def test_sampled_states_have_the_smoothed_law(missing):
    """States of Gibbs sweeps across seams, and the statistics they give."""
    model, params = rotating_state()
    y = model.simulate(params, 600, seed=3)[1]
    if missing:
        y[100, 0] = y[300] = np.nan
    series, coords = sj.as_series(y), model.to_coords(params)
    sweep = Sweep(model, series)
    num = 300
    drawn = np.stack([sweep.states(jax.random.key(i), coords)[1] for i in range(num)])
    smoothed = sj.smooth(model, params, y)
    sd = np.sqrt(np.diagonal(smoothed["covariance"].to_numpy(), axis1=1, axis2=2))
    z = (drawn.mean(0) - smoothed["x"].to_numpy()) / sd * np.sqrt(num)
    # Neighbours are alike, so fewer than 1200 independent comparisons.
    assert np.abs(z).max() < 5
    assert abs(np.square(z).mean() - 1) < 0.2
    assert abs(np.log(drawn.std(0) / sd)).mean() < 0.06
    lag = (drawn[:, 1:, 0] * drawn[:, :-1, 0]).mean(0) - drawn[:, 1:, 0].mean(0) * drawn[
        :, :-1, 0
    ].mean(0)
    exact = dense_gaussian(
        params["A"], params["Q"], np.eye(2), params["R"], (np.zeros(2), 10 * np.eye(2)), y[:60]
    )
    expected = [exact.covariance[t + 1, 0, t, 0] for t in range(1, 50)]
    np.testing.assert_allclose(np.mean(lag[:49]), np.mean(expected), atol=4e-3)


@pytest.mark.parametrize("factor", [1e-6, 1e6])
def test_answer_does_not_depend_on_units(factor):
    model, params = rotating_state()
    y = model.simulate(params, 300, seed=1)[1]
    fit = sj.sample(model, y, seed=2, **QUICK)
    scaled = sj.sample(model, y * factor, seed=2, **QUICK)
    for name, power in {"A": 0, "Q": 2, "R": 2}.items():
        expected = fit.posterior[name].to_numpy() * factor**power
        np.testing.assert_allclose(scaled.posterior[name], expected, rtol=1e-4)
    # The law of the first state is in the units of the data too.
    change = scaled.score(y * factor, num_draws=3) - fit.score(y, num_draws=3)
    np.testing.assert_allclose(change, -y.size * np.log(factor), rtol=1e-6)


def test_constant_C_is_no_parameter():
    model = sj.LGSSM(2, 2)
    y = model.simulate(LGSSM_PARAMS, 60, seed=1)[1]
    with_C = {**LGSSM_PARAMS, "C": np.eye(2)}
    assert set(model.to_coords(with_C)) == {"A", "Q", "R"}
    assert sj.log_likelihood(model, with_C, y) == sj.log_likelihood(model, LGSSM_PARAMS, y)
    np.testing.assert_array_equal(model.initialize(y)["C"], np.eye(2))
    fit = sj.sample(model, y, **QUICK)
    assert set(fit.posterior.data_vars) == {"A", "Q", "R"}
    np.testing.assert_array_equal(fit.to_arviz().constant_data["C"], np.eye(2))


def test_free_rows_of_C_are_drawn():
    case = next(case for case in CASES if case.name == "wide_lgssm")
    y = case.model.simulate(case.params, 400, seed=1)[1]
    y[50, 2] = np.nan
    for sampler in (sj.SGRLD(), sj.Gibbs()):
        fit = sj.sample(
            sj.LGSSM(2, 3),
            y,
            sampler,
            num_samples=150,
            num_warmup=100,
            num_chains=2,
            progress=False,
        )
        C = fit.posterior["C"].to_numpy()
        np.testing.assert_array_equal(C[:, :, :2], np.broadcast_to(np.eye(2), C[:, :, :2].shape))
        np.testing.assert_allclose(C[:, :, 2].mean((0, 1)), [0.7, -0.4], atol=0.25)


def test_subspace_start_of_more_series_than_it_reads(tmp_path, monkeypatch):
    y = np.random.default_rng(0).normal(size=(3, 40, 2))
    monkeypatch.setattr(subspace, "_ROWS", 40)
    for i, rows in enumerate(y):
        np.save(tmp_path / f"{i}.npy", rows)
    series = sj.open_series([tmp_path / f"{i}.npy" for i in range(3)])
    found = subspace.subspace_params(series, 2, None)
    expected = subspace.subspace_params(sj.as_series(y[0]), 2, None)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value)


def test_subspace_start_is_near_the_truth():
    model, params = rotating_state()
    y = model.simulate(params, 20_000, seed=4)[1]
    found = model.initialize(y)
    for name, value in params.items():
        np.testing.assert_allclose(found[name], value, atol=0.1)


@pytest.mark.parametrize("shape", [(3, 1), (1, 3), (4, 2)])
def test_starts_of_every_shape_are_valid(shape):
    n, m = shape
    rng = np.random.default_rng(0)
    y = rng.normal(size=(300, m)).cumsum(0) * 0.1 + rng.normal(size=(300, m))
    for matrix in ("identified", "free"):
        model = sj.LGSSM(n, m, emission_matrix=matrix)
        for method in ("kmeans", "prior"):
            params = model.initialize(y, method, seed=1)
            assert np.isfinite(sj.log_likelihood(model, params, y))


def test_fit_averages_covariances_with_the_spread_of_means():
    model, params = rotating_state()
    y = model.simulate(params, 200, seed=1)[1]
    fit = sj.sample(model, y, **QUICK)
    draws = fit.draws(10)
    each = [sj.smooth(fit.model, p, y) for p in draws]
    x = np.stack([e["x"] for e in each])
    expected = np.mean([e["covariance"] for e in each], axis=0)
    expected += np.einsum("dti,dtj->tij", x, x) / len(x) - np.einsum(
        "ti,tj->tij", x.mean(0), x.mean(0)
    )
    averaged = fit.smooth(y, num_draws=10)
    np.testing.assert_allclose(averaged["covariance"], expected, atol=1e-12)
    np.testing.assert_allclose(averaged["x"], x.mean(0), atol=1e-12)


def test_stationary_start_says_when_there_is_none():
    model = sj.LGSSM(2, 2, initial="stationary")
    unstable = {**LGSSM_PARAMS, "A": np.diag([1.02, 0.5])}
    y = np.random.default_rng(0).normal(size=(30, 2))
    with pytest.warns(UserWarning, match=r"spectral radius 1\.02 .* wide law"):
        assert np.isfinite(sj.log_likelihood(model, unstable, y))


def test_more_states_than_columns_are_sampled_by_gibbs():
    """No metric could be measured along a change of basis: gradient steps diverged."""
    model = sj.LGSSM(2, 1)
    turn = np.array([[np.cos(0.3), -np.sin(0.3)], [np.sin(0.3), np.cos(0.3)]])
    params = {"A": 0.95 * turn, "Q": 0.1 * np.eye(2), "R": np.array([[0.1]])}
    y = model.simulate({**params, "C": np.array([[1.0, 0.0]])}, 400, seed=0)[1]
    few = {"num_samples": 40, "num_chains": 1, "num_warmup": 100, "progress": False}
    with pytest.warns(UserWarning, match="state_dim=2 is more than the 1 columns"):
        fit = sj.sample(model, y, **few)
    assert fit.choices["sampler"] == "Gibbs"
    roots = np.linalg.eigvals(fit.posterior["A"].to_numpy()[0])
    assert abs(np.abs(np.angle(roots)).mean() - 0.3) < 0.1


@pytest.mark.parametrize("roots", [(0.998, 0.99), (0.999, 0.99)])
def test_wide_stationary_laws_are_taken_as_they_are(roots):
    """A smooth trend: the law of its level is millions of times as wide as what moves it."""
    params = {
        **LGSSM_PARAMS,
        "A": np.array([[roots[0], 1.0], [0.0, roots[1]]]),
        "Q": np.diag([1e-4, 1.0]),
    }
    V = solve_discrete_lyapunov(params["A"], params["Q"])
    assert np.trace(V) > 1e6 * np.trace(params["Q"])
    model = sj.LGSSM(2, 2, initial="stationary")
    y = model.simulate(params, 20, seed=0)[1]
    given = sj.log_likelihood(sj.LGSSM(2, 2, initial=V), params, y)
    np.testing.assert_allclose(sj.log_likelihood(model, params, y), given, rtol=1e-7)
    ours = sj.gradient(model, model.to_coords(params), y)["A"]
    slopes = finite_differences(
        lambda moved: sj.log_likelihood(model, {**params, **moved}, y), {"A": params["A"]}, 1e-7
    )
    np.testing.assert_allclose(ours, slopes["A"], rtol=1e-3, atol=1e-2)


def test_no_stationary_start_leaves_the_gradient_finite():
    model = sj.LGSSM(2, 2, initial="stationary")
    params = {**LGSSM_PARAMS, "A": np.eye(2)}
    y = np.random.default_rng(0).normal(size=(30, 2))
    with pytest.warns(UserWarning, match="spectral radius 1"):
        coords = model.to_coords(params)
    for gradient in sj.gradient(model, coords, y).values():
        assert np.isfinite(gradient).all()


def test_a_given_prior_of_C_is_taken_as_it_is():
    """Its density at the same parameters does not change with the units of the data."""
    case = next(case for case in CASES if case.name == "wide_lgssm")
    model = sj.LGSSM(2, 3, C_variance=2.0, Q_scale=np.eye(2), R_scale=np.eye(3), Q_dof=4, R_dof=5)
    model = dataclasses.replace(model, A_column_covariance=np.eye(2))
    scaled = model.scaled_to(model.simulate(case.params, 50, seed=0)[1] * [1.0, 10.0, 100.0])
    difference = []
    for shift in (0.0, 0.7):
        at = {**case.params, "C": case.params["C"] + shift * np.array([[0, 0], [0, 0], [1.0, 1.0]])}
        difference.append(
            model.log_prior(model.to_coords(at)) - scaled.log_prior(scaled.to_coords(at))
        )
    np.testing.assert_allclose(difference[0], difference[1], rtol=1e-8)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sj.LGSSM(0, 2), "state_dim must be at least 1; got 0"),
        (lambda: sj.LGSSM(2, 2, emission_matrix="other"), "emission_matrix must be 'identified'"),
        (lambda: sj.LGSSM(2, 2, emission_matrix=np.eye(3)), r"emission_matrix must have shape"),
        (lambda: sj.LGSSM(2, 2, Q_scale=-np.eye(2)), "Q_scale must be symmetric and positive"),
        (lambda: sj.LGSSM(2, 2, initial="wide"), "initial must be None, 'stationary'"),
        (lambda: sj.LGSSM(2, 2, initial=-np.eye(2)), "initial covariance must be symmetric"),
        (lambda: sj.LGSSM(2, 2, R_dof=0.5), "R_dof must exceed dimension - 1 = 1; got 0.5"),
        (
            lambda: sj.LGSSM(2, 2).to_coords({**LGSSM_PARAMS, "C": 2 * np.eye(2)}),
            "C contradicts the constraint",
        ),
        (
            lambda: sj.LGSSM(1, 2).to_coords(
                {"A": [[0.5]], "Q": [[1.0]], "C": [[2.0], [1.0]], "R": np.eye(2)}
            ),
            "C contradicts the constraint: its first 1 rows must be the identity",
        ),
        (lambda: sj.LGSSM(30, 1).initialize(np.arange(5.0)), "is more than 5 rows of 1 columns"),
        (
            lambda: sj.sample(
                sj.LGSSM(1, 1, initial="stationary"),
                np.random.default_rng(0).normal(size=50),
                sj.Gibbs(),
                progress=False,
            ),
            "Gibbs needs a law of the first state that does not depend on the parameters",
        ),
        (
            lambda: sj.em_lower_bound(
                sj.LGSSM(2, 2, initial="stationary"), LGSSM_PARAMS, np.zeros((5, 2))
            ),
            "em_lower_bound needs an initial law that does not depend",
        ),
    ],
)
def test_bad_input_is_said_in_one_line(make, message):
    with pytest.raises((ValueError, TypeError), match=message) as error:
        make()
    assert "\n" not in str(error.value)


def test_settings_of_windows_do_not_change_what_gradients_estimate(x64):
    """Windowed gradients of complete rows average to the full gradient, buffers long enough."""
    model, params = rotating_state()
    y = model.simulate(params, 400, seed=1)[1]
    coords = model.to_coords(params)
    full = sj.gradient(model, coords, y)
    parts = [
        sj.gradient(model, coords, y, sj.Windows(10, 40, 512), seed=seed) for seed in range(40)
    ]
    for name in coords:
        found = np.stack([part[name] for part in parts])
        error = found.std(0) / np.sqrt(len(parts))
        assert np.abs((found.mean(0) - full[name]) / jnp.maximum(error, 1e-12)).max() < 4.5


def test_units_of_states_do_not_depend_on_those_of_columns(rng):
    """A fixed C of more columns than states, one of them in other units."""
    y = rng.normal(size=(200, 3)) * [1.0, 2.0, 3.0]
    other = np.array([1.0, 1.0, 1e6])
    C = np.ones((3, 1))
    scales = [
        sj.LGSSM(1, 3, emission_matrix=C * s[:, None]).scaled_to(y * s).scales()[0]
        for s in (np.ones(3), other)
    ]
    np.testing.assert_allclose(*scales, rtol=1e-12)
