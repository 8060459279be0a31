"""Messages of switching linear systems against enumeration of all paths."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from oracles import dense_gaussian, enumerate_slds
from sojourn.messages import gaussian, particle, switching
from sojourn.messages.rows import read_rows

T = 4
INITIAL = (np.array([0.6, 0.4]), 0.7 * np.eye(2))


def rotation(angle, radius=0.8):
    return radius * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


PARAMS = {
    "transition_matrix": np.array([[0.8, 0.2], [0.3, 0.7]]),
    "A": np.stack([rotation(0.7), rotation(-0.7)]),
    "Q": np.array([[[0.3, 0.1], [0.1, 0.4]], [[0.6, 0.0], [0.0, 0.2]]]),
    "C": np.array([[1.0, 0.0], [0.0, 1.0], [0.5, -0.3]]),
    "R": np.array([[0.3, 0.1, 0.0], [0.1, 0.4, 0.05], [0.0, 0.05, 0.5]]),
}


def data(missing):
    y = np.random.default_rng(3).normal(size=(T, 3))
    if missing:
        y[1] = np.nan
        y[2, 0] = np.nan
    return y


def precision_root(covariance):
    return np.linalg.cholesky(np.linalg.inv(covariance))


def states_last(M):
    return jnp.asarray(np.moveaxis(M, 0, -1))


def prepare(y, copies, *, first=True):
    """Return the system and the rows of one series, copied over windows."""
    system = switching.make_system(
        jnp.asarray(PARAMS["transition_matrix"]),
        states_last(PARAMS["A"]),
        states_last(precision_root(PARAMS["Q"])),
        (jnp.asarray(INITIAL[0]), jnp.asarray(INITIAL[1])),
        jnp.full(copies, first),
    )
    missing = "entries" if np.isnan(y).any() else "none"
    windows = jnp.asarray(np.repeat(y[:, :, None], copies, axis=2))
    psi = jnp.asarray(precision_root(PARAMS["R"]))
    return system, read_rows(jnp.asarray(PARAMS["C"]), psi, windows, missing)


def edge_law():
    pi, S = switching.stationary_moments(
        jnp.asarray(PARAMS["transition_matrix"]), states_last(PARAMS["A"]), states_last(PARAMS["Q"])
    )
    return np.asarray(pi), np.moveaxis(np.asarray(S), -1, 0)


@pytest.mark.parametrize("update", ["blocked", "single_site"])
@pytest.mark.parametrize("first", [True, False])
def test_sweeps_have_the_enumerated_law(x64, update, first):
    """Marginals of z, mean and second moment of x over many chains, at 4.5 standard errors."""
    y, copies = data(missing=True), 4000
    exact = enumerate_slds(PARAMS, INITIAL if first else edge_law(), y)

    @jax.jit
    def estimate(key):
        system, rows = prepare(y, copies, first=first)
        key_start, key = jax.random.split(key)
        z = switching.draw_start(key_start, system, rows, num_particles=32)
        return switching.marginals(key, system, rows, z, update=update, num_burnin=15, num_draws=5)

    found = estimate(jax.random.key(0))
    for values, truth in zip(found, (exact.marginals, exact.mean, exact.second), strict=True):
        values = np.asarray(values)
        error = values.std(-1) / np.sqrt(copies)
        assert (np.abs(values.mean(-1) - truth) <= 4.5 * error + 1e-12).all()


def test_more_particles_leave_less_to_burn_in(x64):
    """A path drawn forward alone ignores later rows; chosen among many, it nearly has their law."""
    y, copies = data(missing=True), 8000
    exact = enumerate_slds(PARAMS, INITIAL, y)
    gap = {}
    for N in (1, 32):

        @functools.partial(jax.jit, static_argnums=1)
        def draw(key, num_particles):
            system, rows = prepare(y, copies)
            return switching.draw_start(key, system, rows, num_particles=num_particles)

        z = np.asarray(draw(jax.random.key(0), N))
        gap[N] = np.abs((z[1:] == 1).mean(-1) - exact.marginals[:, 1]).max()
    assert gap[1] > 0.1
    assert gap[32] < 0.02 + 4 * np.sqrt(0.25 / copies)


def test_start_from_the_rows_themselves(x64):
    """z given x' = y: rows with a missing neighbour tell nothing."""
    y, copies = data(missing=True), 4000
    y[:, 2] = 0.0
    law, _ = INITIAL

    @jax.jit
    def draw(key):
        system, rows = prepare(y, copies)
        return switching.draw_start(key, system, rows, "rows")

    z = np.asarray(draw(jax.random.key(0)))
    Pi = PARAMS["transition_matrix"]
    # Row 1 and entry (2, 0) are missing, so no transition x_{t−1} → x_t is seen: z follows the prior.
    marginal = law
    for t in range(T):
        marginal = marginal @ Pi
        error = np.sqrt(marginal[0] * marginal[1] / copies)
        assert abs((z[t + 1] == 1).mean() - marginal[1]) < 4.5 * error


def test_filtered_start_follows_its_conditionals(x64):
    """The frequency of the paths drawn forward equals the product of their conditionals."""
    y, copies = data(missing=False)[:2], 20_000

    @jax.jit
    def draw(key):
        system, rows = prepare(y, copies)
        return switching.draw_start(key, system, rows)

    z = np.asarray(draw(jax.random.key(0)))
    one, two = (enumerate_slds(PARAMS, INITIAL, y[:t]) for t in (1, 2))
    for path in np.ndindex(2, 2, 2):
        prefix = np.array(path[:2])
        at_one = one.probabilities[(one.paths == prefix).all(1)].sum()
        # z_0 is drawn from its own law, z_1 given y_1 and z_0, z_2 given y_2 as well.
        at_one *= INITIAL[0][path[0]] / one.probabilities[one.paths[:, 0] == path[0]].sum()
        given = (two.paths[:, :2] == prefix).all(1)
        at_two = two.probabilities[(two.paths == np.array(path)).all(1)].sum()
        expected = at_one * at_two / two.probabilities[given].sum()
        observed = (z == np.array(path)[:, None]).all(0).mean()
        assert abs(observed - expected) < 4.5 * np.sqrt(expected * (1 - expected) / copies)


def test_single_site_conditional_looks_at_the_state_ahead(x64):
    """Erratum 17: Π[z_{t−1}, k] Π[k, z_{t+1}], not Π[k, z_t]; one state at a time, all rows in turn."""
    y = data(missing=True)
    exact = enumerate_slds(PARAMS, INITIAL, y)
    z = np.array([0, 1, 0, 1, 1])
    copies = 20_000
    z_all = jnp.asarray(np.repeat(z[:, None], copies, axis=1), jnp.int32)

    @jax.jit
    def once(key):
        system, rows = prepare(y, copies)
        return switching.single_site(key, system, rows, z_all)

    drawn = np.asarray(once(jax.random.key(1)))
    # Enumerate the law of the left-to-right sweep: each state given the new ones before, the old after.
    probability = {tuple(p): q for p, q in zip(exact.paths, exact.probabilities, strict=True)}
    for path in exact.paths:
        expected = 1.0
        for t in range(T + 1):
            weight = [probability[(*path[:t], k, *z[t + 1 :])] for k in range(2)]
            expected *= weight[path[t]] / sum(weight)
        observed = (drawn == path[:, None]).all(0).mean()
        assert abs(observed - expected) < 4.8 * np.sqrt(expected * (1 - expected) / copies)


@pytest.mark.parametrize("missing", [False, True])
def test_moments_given_paths_equal_the_dense_law(x64, missing):
    """The z-estimator's moments of each path, x integrated out by the Kalman smoother."""
    y = data(missing)
    paths = np.array([[0, 1, 0, 0, 1], [1, 1, 1, 0, 0], [0, 0, 0, 0, 0]])
    weight = np.array([1.0, 0.5, 2.0, 0.0])[:, None] * np.ones(3)

    @jax.jit
    def found(z):
        system, rows = prepare(y, 3)
        law = gaussian.backward(*_with_none(switching.filter_x(system, rows, z)))
        return switching.moments_given(system, rows, jnp.asarray(weight), law, z)

    moments = found(jnp.asarray(paths.T, jnp.int32))
    for w, z in enumerate(paths):
        A, Q = PARAMS["A"][z[1:]], PARAMS["Q"][z[1:]]
        law = (np.zeros(2), INITIAL[1])
        exact = dense_gaussian(A, Q, PARAMS["C"], PARAMS["R"], law, y)
        M = exact.mean[:, :, None, None] * exact.mean + exact.covariance
        expected = {name: np.zeros((2, 2, 2)) for name in ("cc", "cp", "pp")}
        counts = np.zeros((2, 2))
        for t in range(T):
            k, u = z[t + 1], weight[t, w]
            counts[z[t], k] += u
            expected["cc"][k] += u * M[t + 1, :, t + 1]
            expected["cp"][k] += u * M[t + 1, :, t]
            expected["pp"][k] += u * M[t, :, t]
        np.testing.assert_allclose(moments.counts[..., w], counts, atol=1e-12)
        np.testing.assert_allclose(moments.n[..., w], counts.sum(0), atol=1e-12)
        for name, value in expected.items():
            np.testing.assert_allclose(getattr(moments, name)[..., w], value, atol=1e-9)


def _with_none(pair):
    return pair[0], None, pair[1]


@functools.partial(jax.jit, static_argnums=(1, 2))
def _three(key, copies, estimator):
    y = data(missing=True)
    system, rows = prepare(y, copies)
    key_start, key = jax.random.split(key)
    z = switching.draw_start(key_start, system, rows, num_particles=32)
    weight = jnp.ones((T, copies))
    return switching.expected_moments(
        key,
        system,
        rows,
        weight,
        z,
        estimator=estimator,
        update="blocked",
        num_burnin=5,
        num_draws=2,
    )


def test_three_estimators_agree_and_their_variances_order(x64):
    """All have one expectation; integrating x out leaves least variance in the moments of x."""
    copies = 4000
    found = {e: _three(jax.random.key(7), copies, e) for e in ("z", "x", "xz")}
    spread = {}
    for estimator, moments in found.items():
        spread[estimator] = {n: np.asarray(v).var(-1) for n, v in moments._asdict().items()}
    for name in found["z"]._fields:
        mean = {e: np.asarray(getattr(found[e], name)).mean(-1) for e in found}
        for other in ("x", "xz"):
            error = np.sqrt((spread["z"][name] + spread[other][name]) / copies)
            assert (np.abs(mean["z"] - mean[other]) <= 4.8 * error + 1e-9).all(), name
    for name in ("cc", "pp", "cp", "xx", "yx"):
        assert spread["z"][name].sum() < spread["x"][name].sum()
        assert spread["x"][name].sum() <= 1.1 * spread["xz"][name].sum()


@pytest.mark.parametrize("num_particles", [3, 20])
def test_particle_estimate_is_unbiased(x64, num_particles):
    """E exp(l̂ − l) = 1, with a row and an entry missing."""
    y, copies = data(missing=True), 20_000
    exact = enumerate_slds(PARAMS, INITIAL, y)

    @jax.jit
    def estimate(key):
        system, rows = prepare(y, copies)
        return particle.log_likelihood(key, system, rows.whitened, num_particles).sum(0)

    ratio = np.exp(np.asarray(estimate(jax.random.key(0))) - exact.log_likelihood)
    assert abs(ratio.mean() - 1) < 4 * ratio.std() / np.sqrt(copies)
    assert ratio.std() > 1e-4


def test_one_state_makes_the_particle_filter_exact(x64):
    y = data(missing=True)
    one = {name: PARAMS[name][:1] for name in ("A", "Q")}
    system = switching.make_system(
        jnp.ones((1, 1)),
        states_last(one["A"]),
        states_last(precision_root(one["Q"])),
        (jnp.ones(1), jnp.asarray(INITIAL[1])),
        jnp.ones(2, bool),
    )
    _, rows = prepare(y, 2)
    estimate = jax.jit(particle.log_likelihood, static_argnums=3)
    found = estimate(jax.random.key(0), system, rows.whitened, 2).sum(0)
    law = (np.zeros(2), INITIAL[1])
    exact = dense_gaussian(one["A"][0], one["Q"][0], PARAMS["C"], PARAMS["R"], law, y)
    np.testing.assert_allclose(found, exact.log_likelihood, rtol=1e-10)


def test_stationary_moments_solve_the_linear_system(x64):
    """Erratum 37: V_k = Σ_j Π_jk A_k V_j A_kᵀ + π_k Q_k, V_k = π_k S_k."""
    pi, S = edge_law()
    V = pi[:, None, None] * S
    Pi, A, Q = (PARAMS[name] for name in ("transition_matrix", "A", "Q"))
    np.testing.assert_allclose(pi @ Pi, pi)
    for k in range(2):
        inner = np.einsum("j,jab->ab", Pi[:, k], V)
        np.testing.assert_allclose(V[k], A[k] @ inner @ A[k].T + pi[k] * Q[k], rtol=1e-10)


@pytest.mark.parametrize("radius", [1.0, 1.2, 1e3])
def test_without_a_stationary_law_the_edge_is_wide_and_finite(x64, radius):
    A = np.stack([rotation(0.7, radius), rotation(0.2, radius)])
    Q = np.stack([np.eye(2), 2 * np.eye(2)])
    _, S = switching.stationary_moments(
        jnp.asarray(PARAMS["transition_matrix"]), states_last(A), states_last(Q)
    )
    S = np.asarray(S)
    assert np.isfinite(S).all()
    assert (S[0, 0] >= [1 - 1e-9, 2 - 1e-9]).all()
    assert np.einsum("aak->k", S).max() <= 1e6 * 4


def test_a_state_never_visited_has_a_law(x64):
    Pi = jnp.asarray([[1.0, 0.0], [0.5, 0.5]])
    pi, S = switching.stationary_moments(Pi, states_last(PARAMS["A"]), states_last(PARAMS["Q"]))
    np.testing.assert_allclose(pi, [1.0, 0.0], atol=1e-12)
    assert np.isfinite(np.asarray(S)).all()
    A, Q = PARAMS["A"][0], PARAMS["Q"][0]
    np.testing.assert_allclose(S[..., 0], gaussian.stationary(jnp.asarray(A), jnp.asarray(Q)))
