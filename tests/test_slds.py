"""The switching linear dynamical system against enumeration of all paths of z."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sojourn as sj
from oracles import enumerate_slds, finite_differences
from sojourn.batch import Batch
from sojourn.gibbs import AlternatingSweep
from sojourn.messages import gaussian, switching
from sojourn.passes import passes
from sojourn.results.metrics import em_lower_bound


def rotation(angle, radius=0.8):
    return radius * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


PARAMS = {
    "transition_matrix": np.array([[0.8, 0.2], [0.3, 0.7]]),
    "A": np.stack([rotation(0.7), rotation(-0.7)]),
    "Q": np.array([[[0.3, 0.1], [0.1, 0.4]], [[0.6, 0.0], [0.0, 0.2]]]),
    "R": np.array([[0.3, 0.1], [0.1, 0.4]]),
}
WIDE = {
    **PARAMS,
    "C": np.array([[1.0, 0.0], [0.0, 1.0], [0.5, -0.3]]),
    "R": np.array([[0.3, 0.1, 0.0], [0.1, 0.4, 0.05], [0.0, 0.05, 0.5]]),
}
FREE = {**PARAMS, "C": np.array([[1.0, 0.5]]), "R": np.array([[0.4]])}
INITIAL = (np.array([0.6, 0.4]), np.array([[0.7, 0.1], [0.1, 0.5]]))
MODELS = {
    "square": (sj.SLDS(2, 2, 2, initial=INITIAL), PARAMS),
    "wide": (sj.SLDS(2, 2, 3, initial=INITIAL), WIDE),
    "free": (sj.SLDS(2, 2, 1, emission_matrix="free", initial=INITIAL), FREE),
}
by_model = pytest.mark.parametrize("name", MODELS)


def short_data(model, params, T=4):
    _, y = model.simulate(params, T, seed=5)
    y[1] = np.nan
    if y.shape[1] > 1:
        y[2, 0] = np.nan
    return y


def log_likelihood(model, params, y):
    return enumerate_slds({**model.constants, **params}, INITIAL, y)


def windows_of(y, copies):
    y = jnp.asarray(np.repeat(y[:, :, None], copies, axis=2))
    return Batch(y, jnp.ones((len(y), copies)), jnp.ones(copies, bool))


@by_model
def test_z_gradient_averaged_over_paths_is_the_gradient(name, x64):
    """Fisher's identity: moments given each z, weighted by p(z | y), give the gradient of log p(y).

    In all blocks, with a row and an entry missing; and so not zero, as in `MATH.md` §15.1.
    """
    model, params = MODELS[name]
    y = short_data(model, params)
    exact = log_likelihood(model, params, y)
    coords = model.to_coords(params)

    @jax.jit
    def gradient(coords, z, probability):
        batch = windows_of(y, len(exact.paths))
        system, rows = model.prepare(coords, batch, "entries")
        found, filtered = switching.filter_x(system, rows, z)
        law = gaussian.backward(found, None, filtered)
        moments = switching.moments_given(system, rows, batch.weight, law, z)
        statistics = model.collect(jax.tree.map(lambda m: (m * probability).sum(-1), moments))
        return model.gradient(coords, statistics)

    ours = gradient(coords, jnp.asarray(exact.paths.T, jnp.int32), jnp.asarray(exact.probabilities))
    truth = finite_differences(
        lambda u: log_likelihood(model, model.to_params(u), y).log_likelihood, coords
    )
    for block, value in truth.items():
        np.testing.assert_allclose(ours[block], value, rtol=1e-6, atol=1e-7)
        assert np.abs(value).max() > 1e-3


def test_gradient_of_short_windows_equals_the_oracle(x64):
    """The public gradient, averaged over many sweeps, within its Monte Carlo error, and not zero."""
    model, params = MODELS["square"]
    model = dataclasses.replace(model, num_draws=100)
    y = short_data(model, params)
    coords = model.to_coords(params)
    truth = finite_differences(
        lambda u: log_likelihood(model, model.to_params(u), y).log_likelihood, coords
    )
    drawn = [
        sj.gradient(model, coords, y, windows=sj.Windows(4, 0, 8), seed=seed) for seed in range(10)
    ]
    for block, value in truth.items():
        values = np.stack([d[block] for d in drawn])
        error = values.std(0, ddof=1) / np.sqrt(len(values))
        assert (np.abs(values.mean(0) - value) <= 6 * error + 0.01).all(), block
        assert np.abs(values.mean(0)).max() > 0.01
    full = sj.gradient(model, coords, y)
    for block, value in truth.items():
        np.testing.assert_allclose(full[block], value, atol=0.5, err_msg=block)


@functools.partial(jax.jit, static_argnums=0)
def window_gradients(model, key, coords, batch):
    moments = model.moments(key, coords, batch, "none")
    statistics = jax.vmap(model.collect, in_axes=-1)(moments)
    return jax.vmap(lambda s: model.gradient(coords, s))(statistics)


def test_variances_of_the_estimators_order_as_in_the_paper(x64):
    """Integrating x out varies least for A, Q and R; integrating z out no more than nothing."""
    base = sj.SLDS(2, 2, 2, num_draws=1)
    _, y = base.simulate(PARAMS, 20, seed=1)
    coords = base.to_coords(PARAMS)
    batch = windows_of(y, 1000)
    spread = {}
    for estimator in ("z", "x", "xz"):
        model = dataclasses.replace(base, estimator=estimator)
        found = window_gradients(model, jax.random.key(0), coords, batch)
        spread[estimator] = {n: float(np.asarray(g).var(0).sum()) for n, g in found.items()}
    for block in ("A", "Q", "R"):
        assert spread["z"][block] < 0.9 * spread["xz"][block]
        assert spread["z"][block] < spread["x"][block]
    for block, value in spread["x"].items():
        assert value < 1.1 * spread["xz"][block]


def test_log_likelihood_is_that_of_enumeration():
    """Two series, entries missing; many particles leave an error of a hundredth."""
    for name in ("wide", "free"):
        model, params = MODELS[name]
        data = [short_data(model, params, T) for T in (3, 5)]
        truth = sum(log_likelihood(model, params, y).log_likelihood for y in data)
        ours = sj.log_likelihood(model, params, data, num_particles=3000)
        assert abs(ours - truth) < 0.03
        again = sj.log_likelihood(model, params, data, num_particles=3000)
        other = sj.log_likelihood(model, params, data, seed=1, num_particles=3000)
        assert again == ours
        assert other != ours


def test_exact_likelihoods_take_no_particles():
    model = sj.GaussianHMM(num_states=1, emission_dim=1)
    params = {
        "transition_matrix": np.ones((1, 1)),
        "means": np.zeros((1, 1)),
        "covariances": np.ones((1, 1, 1)),
    }
    assert sj.log_likelihood(model, params, [1.0, 2.0], seed=3) < 0
    with pytest.raises(ValueError, match="leave num_particles out"):
        sj.log_likelihood(model, params, [1.0, 2.0], num_particles=10)


def test_smoothing_equals_enumeration():
    model, params = MODELS["wide"]
    model = dataclasses.replace(model, num_draws=3000)
    y = short_data(model, params)
    exact = log_likelihood(model, params, y)
    found = sj.decode(model, params, y, method="marginal")
    np.testing.assert_allclose(found["probability"], exact.marginals, atol=0.05)
    np.testing.assert_allclose(found["x"], exact.mean, atol=0.1)
    covariance = exact.second - exact.mean[:, :, None] * exact.mean[:, None]
    np.testing.assert_allclose(found["covariance"], covariance, atol=0.1)
    np.testing.assert_array_equal(found["state"], exact.marginals.argmax(1))


@pytest.fixture(scope="module")
def sweeps():
    """States of many Gibbs sweeps at fixed parameters, and the truth."""
    model, params = MODELS["wide"]
    y = [short_data(model, params, 4), short_data(model, params, 3)]
    with jax.enable_x64(True):
        coords = model.to_coords(params)
        sweep = AlternatingSweep(model, sj.as_series(y))
        drawn = [sweep.states(jax.random.key(i), coords) for i in range(1500)]
    return model, params, y, drawn[100:]


def test_full_sweeps_have_the_enumerated_law(sweeps):
    """Discrete and continuous states of two series over many sweeps, standard errors by batches."""
    model, params, data, drawn = sweeps
    exact = [log_likelihood(model, params, y) for y in data]
    z = np.stack([d[1] for d in drawn]) == 1
    x = np.stack([d[2] for d in drawn])
    truth = (
        (z, np.concatenate([e.marginals[:, 1] for e in exact])),
        (x, np.concatenate([e.mean for e in exact])),
        (x[..., 0] * x[..., 1], np.concatenate([e.second[:, 0, 1] for e in exact])),
    )
    for values, expected in truth:
        batches = values.reshape(20, -1, *values.shape[1:]).mean(1)
        error = batches.std(0, ddof=1) / np.sqrt(len(batches))
        assert (np.abs(values.mean(0) - expected) < 5 * error).all()


def test_full_sweeps_count_every_row(sweeps):
    model, _, data, drawn = sweeps
    statistics, z, x = jax.tree.map(np.asarray, drawn[-1])
    rows = sum(map(len, data))
    assert z.shape == (rows,)
    assert x.shape == (rows, 2)
    assert statistics["transition_matrix"].counts.sum() == rows
    assert statistics["A"].n.sum() == rows
    seen = sum((~np.isnan(y)).any(1).sum() for y in data)
    assert statistics[model.emission.names[0]].n == seen
    # Sums of x x' over states, and of its last rows with y, agree.
    total = np.einsum("ta,tb->ab", x, x)
    np.testing.assert_allclose(statistics["A"].yy.sum(0), total, rtol=1e-9)


def test_tiled_sweeps_equal_those_of_one_window(monkeypatch, x64):
    """x given z crosses seams: tiles and one window draw the same states from the same numbers."""
    model, params = sj.SLDS(2, 2, 2), PARAMS
    # Of equal lengths: behind the end of a shorter one, a whole window draws padding first.
    data = [model.simulate(params, 1800, seed=seed)[1] for seed in range(2)]
    data[0][100:110] = np.nan
    data[1][500, 0] = np.nan
    coords = model.to_coords(params)
    z = np.random.default_rng(0).integers(0, 2, 3600)

    def draw():
        sweep = AlternatingSweep(model, sj.as_series(data))
        sweep.z = z
        return sweep.states(jax.random.key(2), coords)

    _, z_tiled, x_tiled = draw()
    monkeypatch.setattr(passes, "_SHORT", 10_000)
    _, z_whole, x_whole = draw()
    np.testing.assert_allclose(x_tiled, x_whole, atol=1e-9)
    np.testing.assert_array_equal(z_tiled, z_whole)


def test_default_is_gibbs_in_memory_and_gradients_on_windows():
    model = sj.SLDS(2, 1, 1, num_particles=2, num_burnin=0, num_draws=1)
    params = {
        "transition_matrix": np.array([[0.9, 0.1], [0.2, 0.8]]),
        "A": np.array([[[0.9]], [[-0.7]]]),
        "Q": np.array([[[0.3]], [[1.0]]]),
        "R": np.array([[0.2]]),
    }
    _, y = model.simulate(params, 150, seed=0)
    few = {"num_samples": 3, "num_chains": 1, "num_warmup": 2, "init": params, "progress": False}
    fit = sj.sample(model, y, **few)
    assert fit.choices["sampler"] == "Gibbs"
    assert fit.choices["thin"] > 1
    windowed = sj.sample(model, y, windows=sj.Windows(50, 10, 4), **few)
    assert windowed.choices["sampler"] == "SGRLD"


def test_em_quantity_is_no_lower_bound():
    """Erratum 20: E[log p(y, x, z) | y] exceeds log p(y) where noise is small."""
    model = sj.SLDS(2, 2, 2)
    params = {**PARAMS, "Q": PARAMS["Q"] / 10, "R": PARAMS["R"] / 10}
    _, y = model.simulate(params, 200, seed=0)
    total = sj.log_likelihood(model, params, y)
    assert em_lower_bound(model, params, y) > total


@pytest.mark.parametrize("method", ["kmeans", "influence", "prior"])
def test_starts_are_parameters(method):
    for name, (model, params) in MODELS.items():
        _, y = model.simulate(params, 300, seed=2)
        start = model.initialize(y, method=method, seed=1)
        model.check_params(start)
        assert set(start) == {"transition_matrix", "A", "Q", "C", "R"}, name


def test_units_change_nothing():
    """Volts and millivolts: the same coordinates and, up to the Jacobian, the same likelihood."""
    model, params = MODELS["wide"]
    _, y = model.simulate(params, 100, seed=0)
    factor = np.array([1000.0, 1e-3, 10.0])
    moved = {
        **params,
        "A": params["A"] * factor[:2, None] / factor[:2],
        "Q": params["Q"] * np.outer(factor[:2], factor[:2]),
        "C": params["C"] * factor[:, None] / factor[:2],
        "R": params["R"] * np.outer(factor, factor),
    }
    model = sj.SLDS(2, 2, 3)
    one, other = model.scaled_to(y), model.scaled_to(y * factor)
    for block, value in one.to_coords(params).items():
        np.testing.assert_allclose(other.to_coords(moved)[block], value, atol=1e-9)
    for block, value in other.to_params(other.to_coords(moved)).items():
        np.testing.assert_allclose(value, moved[block], rtol=1e-9, atol=1e-12)
    ours = sj.log_likelihood(one, params, y)
    theirs = sj.log_likelihood(other, moved, y * factor)
    np.testing.assert_allclose(theirs + 100 * np.log(factor).sum(), ours, rtol=1e-8)


def test_bad_settings_are_said():
    with pytest.raises(ValueError, match="estimator must be one of"):
        sj.SLDS(2, 2, 2, estimator="y")
    with pytest.raises(ValueError, match="update must be one of"):
        sj.SLDS(2, 2, 2, update="all")
    with pytest.raises(ValueError, match="start='filtered'"):
        sj.SLDS(2, 2, 1, start="rows")
    with pytest.raises(ValueError, match="num_particles must be at least 1"):
        sj.SLDS(2, 2, 2, num_particles=0)
    with pytest.raises(ValueError, match="state_dim must be at least 1"):
        sj.SLDS(2, 0, 2)
    with pytest.raises(ValueError, match="law of z"):
        sj.SLDS(2, 2, 2, initial=np.eye(2))
    model, params = MODELS["wide"]
    with pytest.raises(ValueError, match="must be the identity"):
        model.to_coords({**params, "C": 2 * params["C"]})
    square, _ = MODELS["square"]
    with pytest.raises(ValueError, match="contradicts"):
        square.to_coords({**PARAMS, "C": 2 * np.eye(2)})


def test_buffer_error_falls_geometrically_under_common_random_numbers(x64):
    """What `choose` measures is the effect of hidden rows, not Monte Carlo noise."""
    from sojourn.dynamics import SGRLD
    from sojourn.gradients import windowed
    from sojourn.tuning.modes import place
    from sojourn.tuning.whitening import window_gradients

    model = sj.SLDS(2, 2, 2)
    _, y = model.simulate(PARAMS, 400, seed=0)
    series, coords = sj.as_series(y), model.to_coords(PARAMS)
    pilot = place(model, series, coords).metric
    estimator, source = windowed(model.coupled(), series, sj.Windows(5, 32, 32))
    estimator = dataclasses.replace(estimator, missing="rows")
    key = jax.random.key(0)

    def measure(buffer):
        found = window_gradients(estimator, SGRLD(), source, key, coords, pilot, buffer)
        return np.asarray(found)

    reference = measure(32)
    noise = np.linalg.norm(reference - reference.mean(0))
    error = [np.linalg.norm(measure(b) - reference) / noise for b in (0, 2, 4, 8, 16)]
    assert error[0] > 0.05
    assert error[3] < error[0] / 4
    assert error[4] < 1e-2


def test_full_passes_reach_as_far_as_the_slowest_state_remembers():
    """One state is an LGSSM, whose passes are checked at their seams."""
    linear, model = sj.LGSSM(1, 1), sj.SLDS(1, 1, 1)
    params = {"A": [[0.999]], "Q": [[1e-4]], "R": [[1.0]]}
    _, y = linear.simulate(params, 8000, seed=3)
    same = {name: np.asarray(params[name])[None] for name in ("A", "Q")} | {"R": params["R"]}
    same["transition_matrix"] = [[1.0]]
    right = sj.gradient(linear, linear.to_coords(params), y)
    found = sj.gradient(model, model.to_coords(same), y)
    np.testing.assert_allclose(found["A"][0], right["A"], rtol=1e-3)


def test_a_state_that_explodes_weighs_nothing():
    A = np.array([[[0.9, 0.1], [-0.1, 0.8]], [[110.0, 115.0], [136.0, 131.0]]])
    Q, R = np.stack([0.4 * np.eye(2), 400 * np.eye(2)]), 0.5 * np.eye(2)
    _, y = sj.LGSSM(2, 2).simulate({"A": A[0], "Q": Q[0], "R": R}, 100, seed=1)
    y[40:50] = np.nan
    params = {"transition_matrix": [[0.99, 0.01], [0.59, 0.41]], "A": A, "Q": Q, "R": R}
    model = sj.SLDS(2, 2, 2)
    few, many = (sj.log_likelihood(model, params, y, num_particles=n) for n in (100, 1000))
    assert abs(few - many) < 0.1
    assert np.isfinite(sj.predictive_score(model, params, y, horizon=5))
