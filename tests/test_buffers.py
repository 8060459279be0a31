"""Buffers: measured errors, rates and bounds of the theory, on random models of every kind."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import solve_discrete_are

import sojourn as sj
from oracles import regime_log_densities
from sojourn.dynamics import SGLD
from sojourn.gradients import windowed
from sojourn.messages import discrete
from sojourn.plots import plot_gradient_error
from sojourn.tuning import buffers
from sojourn.tuning.buffer_errors import Errors
from sojourn.tuning.buffers import TOLERANCE, _metric, reference_windows
from sojourn.tuning.watching import Watch

HMM = sj.GaussianHMM(num_states=3, emission_dim=1)
LINEAR = sj.LGSSM(state_dim=2, emission_dim=2)

# One shape for all random models, so that one program serves them.
SMALL = {"length": 10, "max_buffer": 16, "num_windows": 16}


def random_hmm(rng):
    Pi = rng.dirichlet(np.full(3, rng.choice([0.3, 1.0, 5.0])), size=3)
    return {
        "transition_matrix": 0.98 * Pi + 0.02 / 3,
        "means": rng.normal(size=(3, 1)) * 2,
        "covariances": rng.uniform(0.3, 3, size=(3, 1, 1)),
    }


def random_linear(rng):
    A = rng.normal(size=(2, 2))
    roots = rng.normal(size=(2, 2, 2))
    Q, R = roots @ np.swapaxes(roots, 1, 2) + 0.05 * np.eye(2)
    return {"A": A * rng.uniform(0.3, 0.95) / np.abs(np.linalg.eigvals(A)).max(), "Q": Q, "R": R}


def test_short_series_are_measured_in_part():
    """Windows that were the whole series would make any buffer look perfect."""
    params = {"A": 0.9 * np.eye(2), "Q": np.eye(2), "R": 4 * np.eye(2)}
    y = LINEAR.simulate(params, 120, seed=0)[1]
    assert sj.choose_buffer(LINEAR, params, y, max_buffer=16, num_windows=16).buffer > 0


@pytest.mark.parametrize(
    ("model", "draw"), [(HMM, random_hmm), (LINEAR, random_linear)], ids=["hmm", "lgssm"]
)
def test_bounds_hold_on_random_models(rng, model, draw):
    """Many rows missing or few, two series, one of them shorter than a window."""
    for trial in range(12):
        params = draw(rng)
        data = [model.simulate(params, T, seed=trial)[1] for T in (400, 30)]
        data[0][rng.uniform(size=data[0].shape) < (0.1 if trial % 2 else 0.01)] = np.nan
        found = sj.gradient_error(
            model, params, data, lengths=[10], buffers=[0, 1, 2, 4, 8], reference=32, num_windows=16
        )
        error, bound = found["error"].to_numpy(), found["bound"].to_numpy()
        assert np.all(error <= bound * (1 + 1e-9) + 1e-12)
        assert np.all(error[0, :3] > 0)
        assert np.all(np.diff(bound[0]) <= 1e-12)


def test_contractions_are_dobrushin_coefficients(rng, x64):
    """Against all pairs of rows of kernels made from textbook messages."""
    params = random_hmm(rng)
    Pi, law = params["transition_matrix"], np.full(3, 1 / 3)
    y = HMM.simulate(params, 8, seed=0)[1]
    f = np.exp(regime_log_densities(HMM, params, y))
    beta = np.ones((9, 3))
    for t in range(7, -1, -1):
        beta[t] = Pi @ (f[t] * beta[t + 1])
    alpha = [law]
    for t in range(8):
        alpha.append((alpha[-1] @ Pi) * f[t])

    def coefficient(kernel):
        kernel = kernel / kernel.sum(1, keepdims=True)
        return max(np.abs(a - b).sum() / 2 for a, b in itertools.product(kernel, kernel))

    expected = [
        (coefficient(Pi * f[t] * beta[t + 1]), coefficient((alpha[t][:, None] * Pi).T))
        for t in range(8)
    ]
    Pi = jnp.asarray(Pi)
    filtered = discrete.forward(Pi, jnp.asarray(law)[:, None], jnp.log(f)[:, :, None])
    found = discrete.contractions(Pi, filtered, discrete.backward(Pi, filtered), filtered)
    np.testing.assert_allclose(np.stack(found)[:, :, 0].T, expected, rtol=1e-9)
    mixing = 1 - (Pi / Pi.mean(0)).min() / (Pi / Pi.mean(0)).max()
    assert np.max(expected) <= mixing


def test_rate_of_a_chain_is_its_lyapunov_gap(rng, x64):
    """QR iteration over one long stretch, with all K vectors."""
    params = random_hmm(rng)
    y = HMM.simulate(params, 4000, seed=1)[1]
    log_f = regime_log_densities(HMM, params, y)
    basis, total = np.linalg.qr(rng.normal(size=(3, 3)))[0], np.zeros(3)
    for t, row in enumerate(log_f):
        matrix = params["transition_matrix"] * np.exp(row - row.max())
        basis, upper = np.linalg.qr(matrix.T @ basis)
        total += np.log(np.abs(np.diag(upper))) * (t >= 400)
    expected = np.exp((total[1] - total[0]) / 3600)
    Pi = jnp.asarray(params["transition_matrix"])
    found = discrete.lyapunov_gap(Pi, jnp.asarray(log_f)[:, :, None], 400)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_rate_of_a_linear_model_is_that_of_its_steady_filter(rng):
    params = random_linear(rng)
    y = LINEAR.simulate(params, 3000, seed=2)[1]
    found = sj.choose_buffer(LINEAR, params, y, 1e-3, **SMALL)
    P = solve_discrete_are(params["A"].T, np.eye(2), params["Q"], params["R"])
    loop = params["A"] @ (np.eye(2) - P @ np.linalg.inv(P + params["R"]))
    np.testing.assert_allclose(found.rate, np.abs(np.linalg.eigvals(loop)).max(), rtol=1e-8)
    assert abs(np.log(found.measured_rate / found.rate)) < 0.4


def test_choice_is_the_smallest_within_the_tolerance():
    params = random_hmm(np.random.default_rng(3))
    params["transition_matrix"] = 0.6 * np.eye(3) + 0.4 * params["transition_matrix"]
    y = HMM.simulate(params, 2000, seed=3)[1]
    found = sj.choose_buffer(HMM, params, y, tolerance=0.02, **SMALL)
    assert found.reached and 0 < found.buffer <= 16
    assert found.error <= 0.02 < found.bound
    assert 0 < found.rate < 1 and 0 < found.measured_rate < 1
    wider = sj.choose_buffer(HMM, params, y, tolerance=0.2, **SMALL)
    assert wider.buffer < found.buffer and wider.error > found.error
    curve = sj.gradient_error(
        HMM, params, y, [10], [found.buffer - 1, found.buffer], reference=32, num_windows=16
    )
    np.testing.assert_allclose(curve["error"][0, 1], found.error, rtol=1e-9)
    assert curve["error"][0, 0] > 0.02
    figure = plot_gradient_error(curve)
    assert figure.axes[0].get_yscale() == "log" and len(figure.axes[0].lines) == 2


def test_differences_are_those_of_gradients_with_these_buffers(x64):
    """Windows with hidden rows against windows that never had them, far from the ends."""
    params = random_hmm(np.random.default_rng(4))
    series = sj.as_series(HMM.simulate(params, 20_000, seed=4)[1])
    coords = HMM.to_coords(params)
    key = jax.random.key(1)
    pilot = _metric(HMM, series, coords, key)
    errors = Errors(HMM, series, sj.Windows(10, 32, 16), SGLD(), coords, pilot, key)
    total = errors.differences(2).sum(0)
    short, long = (
        sj.gradient(HMM, coords, series, windows=sj.Windows(10, b, 16), seed=1) for b in (2, 32)
    )
    expected = np.concatenate([(short[n] - long[n]).ravel() for n in sorted(short)])
    np.testing.assert_allclose(total, expected, rtol=1e-6, atol=1e-8 * np.abs(expected).max())


def test_bias_is_the_shift_of_the_mode():
    """A buffer's bias in sds, against that of very many windows and the curvature of the likelihood."""
    model = sj.LGSSM(1, 1)
    params = {"A": np.array([[0.95]]), "Q": np.array([[0.1]]), "R": np.array([[1.0]])}
    y = model.simulate(params, 3000, seed=5)[1]
    found = sj.choose_buffer(model, params, y, 10.0, length=2, max_buffer=32, num_windows=8192)
    assert found.buffer == 0
    coords = model.to_coords(params)

    def gradient(at, windows=None):
        value = sj.gradient(model, at, y, windows=windows)
        return np.concatenate([value[n].ravel() for n in sorted(value)])

    names, step = sorted(coords), 1e-4
    hessian = []
    for name in names:
        up, down = ({**coords, name: coords[name] + s} for s in (step, -step))
        hessian.append((gradient(up) - gradient(down)) / (2 * step))
    wrong = gradient(coords, sj.Windows(2, 0, 200_000)) - gradient(coords)
    expected = np.sqrt(wrong @ np.linalg.solve(-np.array(hessian), wrong))
    assert 0.4 < found.bias / expected < 2.5
    assert found.bias_error < found.bias


def test_a_watched_buffer_grows_where_it_leaves_too_much_unless_the_user_set_it(x64):
    model = sj.GaussianHMM(2, 1).raw()
    params = {
        "transition_matrix": np.array([[0.95, 0.05], [0.05, 0.95]]),
        "means": np.array([[0.0], [1.0]]),
        "covariances": np.ones((2, 1, 1)),
    }
    series = sj.as_series(model.simulate(params, 3000, seed=2)[1])
    coords = model.to_coords(params)
    windows = sj.Windows(32, buffer=2, batch=8)
    estimator, source = windowed(model, series, windows)
    metric = _metric(model, series, coords, jax.random.key(0))
    watch = Watch(estimator, source, series, reference_windows(windows), metric, may_grow=True)
    buffer, error = watch(coords, 2)
    assert buffer > 8
    assert error <= TOLERANCE
    assert watch(coords, buffer) == (buffer, error)
    assert watch.with_buffer(buffer)[0].windows == sj.Windows(32, buffer=buffer, batch=8)
    kept, left = dataclasses.replace(watch, may_grow=False)(coords, 2)
    assert kept == 2
    assert left > 10 * TOLERANCE
    nowhere = {name: jnp.full_like(u, jnp.nan) for name, u in coords.items()}
    kept, left = watch(nowhere, 2)
    assert kept == 2
    assert np.isnan(left)


def test_errors_do_not_depend_on_units():
    """Columns of very different sizes, an explicit prior in raw units among them."""
    units = np.array([1e-6, 1e5])
    squares = np.diag(units**2)
    model = sj.LGSSM(2, 2, Q_scale=squares, R_scale=3 * squares, initial=10 * squares)
    plain = sj.LGSSM(2, 2, Q_scale=np.eye(2), R_scale=3 * np.eye(2))
    params = {
        "A": np.array([[0.8, 0.1], [-0.2, 0.7]]),
        "Q": np.array([[0.3, 0.1], [0.1, 0.4]]),
        "R": np.array([[1.0, 0.2], [0.2, 0.8]]),
    }
    y = plain.simulate(params, 3000, seed=0)[1]
    scaled = {
        "A": params["A"] * units[:, None] / units,
        "Q": params["Q"] * np.outer(units, units),
        "R": params["R"] * np.outer(units, units),
    }
    one, other = sj.choose_buffer(plain, params, y), sj.choose_buffer(model, scaled, y * units)
    assert one.buffer == other.buffer
    assert other.error == pytest.approx(one.error, rel=1e-6)


def test_slow_forgetting_is_said_with_its_cost():
    params = {"A": np.diag([0.999, 0.5]), "Q": 1e-4 * np.eye(2), "R": np.eye(2)}
    y = LINEAR.simulate(params, 3000, seed=6)[1]
    with pytest.warns(UserWarning, match="rows would do, at .* times the cost|Windows.full"):
        found = sj.choose_buffer(LINEAR, params, y, tolerance=1e-4, **SMALL)
    assert not found.reached and found.buffer == 16
    assert found.error <= found.bound


def test_switching_models_have_a_measured_decay_alone():
    model = sj.SLDS(num_states=2, state_dim=1, emission_dim=1)
    params = {
        "transition_matrix": np.array([[0.9, 0.1], [0.2, 0.8]]),
        "A": np.array([[[0.9]], [[-0.5]]]),
        "Q": np.array([[[0.3]], [[1.0]]]),
        "R": np.array([[0.5]]),
    }
    y = model.simulate(params, 500, seed=7)[1]
    found = sj.choose_buffer(model, params, y, 0.2, **SMALL)
    assert np.isnan(found.bound)
    assert 0 < found.rate == found.measured_rate < 1


def test_transitions_that_never_happen_do_no_harm():
    params = random_hmm(np.random.default_rng(8))
    params["transition_matrix"] = np.array([[0.9, 0.1, 0.0], [0.0, 0.8, 0.2], [0.3, 0.0, 0.7]])
    y = HMM.simulate(params, 2000, seed=8)[1]
    found = sj.choose_buffer(HMM, params, y, tolerance=0.3, **SMALL)
    assert 0 < found.error <= found.bound < np.inf
    assert np.isfinite([found.bias, found.bias_error]).all()


def test_one_state_needs_no_buffer():
    model = sj.GaussianHMM(num_states=1, emission_dim=1)
    params = {"transition_matrix": [[1.0]], "means": [[0.0]], "covariances": [[[1.0]]]}
    found = sj.choose_buffer(model, params, np.random.default_rng(0).normal(size=50), **SMALL)
    assert (found.buffer, found.rate, found.bias) == (0, 0, 0)
    assert found.error < 1e-12 and found.bound == 0


def test_arguments_that_make_no_sense_are_refused():
    params = random_hmm(np.random.default_rng(0))
    y = np.random.default_rng(0).normal(size=50)
    with pytest.raises(ValueError, match="tolerance must be positive"):
        sj.choose_buffer(HMM, params, y, 0.0)
    with pytest.raises(ValueError, match="length=80 is longer than the longest series"):
        sj.choose_buffer(HMM, params, y, length=80)
    with pytest.raises(ValueError, match="buffers is empty"):
        sj.gradient_error(HMM, params, y, [5], [])
    with pytest.raises(ValueError, match="reference=4 must be longer than all buffers"):
        sj.gradient_error(HMM, params, y, [5], [4], reference=4)


def test_a_shift_that_noise_hides_is_none(switching_rows):
    """On few windows the noise of a shift is several sds; none of ten seeds takes it for a shift."""
    model, params, y = switching_rows
    series = sj.as_series(y)
    with jax.enable_x64(True):
        coords = {n: jnp.asarray(u) for n, u in model.to_coords(params).items()}
        pilot = _metric(model, series, coords, jax.random.key(0))
        windows, found = reference_windows(sj.Windows(10, 0, 64)), []
        for seed in range(10):
            errors = Errors(model, series, windows, sj.SGRLD(), coords, pilot, jax.random.key(seed))
            found.append(buffers._shift(errors, 0, model, series, windows))
        shifts, hidden = np.array(found).T
        assert (hidden > 1).all() and (shifts == 0).all()
        # What a run says is measured on more.
        at = (model, series, windows, 0, coords, pilot, jax.random.key(0))
        assert buffers.check(*at)[2] < 0.5 * hidden.mean()


@pytest.fixture
def switching_rows():
    """Many rows of two states that an emission hardly tells apart."""
    model = sj.GaussianHMM(num_states=2, emission_dim=1).raw()
    params = {
        "transition_matrix": np.array([[0.98, 0.02], [0.03, 0.97]]),
        "means": np.array([[0.0], [1.0]]),
        "covariances": np.ones((2, 1, 1)),
    }
    return model, params, model.simulate(params, 50_000, seed=4)[1]
