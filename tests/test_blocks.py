"""Blocks: densities against SciPy, metrics by their definitions, steps by their stationary laws."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy import stats

import sojourn as sj
from sojourn._linalg import UNROLL
from sojourn.blocks import (
    Emission,
    Pilot,
    Regression,
    RegressionStatistics,
    Transition,
    TransitionStatistics,
)

pytestmark = pytest.mark.usefixtures("x64")

REGRESSION = Regression(
    matrix="A",
    covariance="Q",
    num_states=2,
    dim=3,
    num_regressors=2,
    mean=[[0.1, 0.2], [0.0, -0.3], [0.4, 0.0]],
    precision=[[0.5, 0.1], [0.1, 0.3]],
    dof=5.0,
    scale=[[2.0, 0.3, 0.0], [0.3, 1.5, 0.2], [0.0, 0.2, 1.0]],
)
SINGLE = Regression("C", "R", None, 2, 1, [[0.0], [0.0]], [[0.1]], 4.0, [[1.0, 0.2], [0.2, 2.0]])
TRANSITION = Transition(3, concentration=[[1.0, 2.0, 0.5], [1.0, 1.0, 1.0], [0.3, 0.3, 4.0]])
EMISSION = Emission(
    dim=3,
    num_regressors=2,
    fixed=[[1.0, -0.2]],
    mean=[[0.1, 0.2], [0.0, -0.3]],
    variance=[[2.0, 0.5], [1.0, 3.0]],
    dof=5.0,
    scale=[[2.0, 0.3, 0.0], [0.3, 1.5, 0.2], [0.0, 0.2, 1.0]],
)
FIXED = Emission(
    dim=2, num_regressors=1, fixed=[[1.0], [0.5]], dof=4.0, scale=[[1.0, 0.2], [0.2, 2.0]]
)
WIDE = Emission(
    dim=UNROLL + 2,
    num_regressors=2,
    fixed=np.eye(2),
    mean=0.3,
    variance=4.0,
    dof=UNROLL + 4.0,
    scale=np.eye(UNROLL + 2) + 0.1,
)


def lead_axes(block):
    """Return the shape of the axes of states."""
    states = None if isinstance(block, Emission) else block.num_states
    return () if states is None else (states,)


def random_params(block, rng):
    if isinstance(block, Transition):
        return {block.name: rng.dirichlet(np.ones(block.num_states), size=block.num_states)}
    lead = lead_axes(block)
    root = rng.normal(size=(*lead, block.dim, block.dim)) + 2 * np.eye(block.dim)
    matrix = rng.normal(size=(*lead, block.dim, block.num_regressors))
    if isinstance(block, Emission):
        matrix[: block.num_fixed] = block.fixed
    params = {block.matrix: matrix, block.covariance: root @ np.swapaxes(root, -1, -2) / 4}
    return {name: params[name] for name in block.names}


def random_pilot(block, rng):
    if isinstance(block, Transition):
        occupancy = rng.uniform(0.1, 0.5, size=block.num_states)
        return Pilot(jnp.asarray(occupancy), jnp.ones((block.num_states, 0, 0)))
    lead = lead_axes(block)
    q = block.num_regressors
    whitener = np.tril(0.3 * rng.normal(size=(*lead, q, q))) + np.eye(q)
    return Pilot(jnp.asarray(rng.uniform(0.1, 0.9, size=lead)), jnp.asarray(whitener))


def random_statistics(block, rng, num_rows=30):
    """Return statistics of unrelated responses and regressors."""
    if isinstance(block, Transition):
        return TransitionStatistics(jnp.asarray(50 * rng.uniform(size=(3, 3))))
    lead, q, d = lead_axes(block), block.num_regressors, block.dim
    chi = rng.normal(size=(*lead, num_rows, q + d))
    outer = np.swapaxes(chi, -1, -2) @ chi
    return RegressionStatistics(
        jnp.full(lead, float(num_rows)),
        jnp.asarray(outer[..., :d, :d]),
        jnp.asarray(outer[..., :d, d:]),
        jnp.asarray(outer[..., d:, d:]),
    )


small_blocks = pytest.mark.parametrize(
    "block",
    [TRANSITION, REGRESSION, SINGLE, EMISSION, FIXED],
    ids=["Π", "A", "C", "[1;C]", "[1]"],
)
all_blocks = pytest.mark.parametrize(
    "block",
    [TRANSITION, REGRESSION, SINGLE, EMISSION, FIXED, WIDE],
    ids=["Π", "A", "C", "[1;C]", "[1]", "wide"],
)


@all_blocks
def test_coordinates_round_trip(block, rng):
    params = random_params(block, rng)
    assert tuple(params) == block.names
    assert set(block.to_coords(params)) == set(params)
    coords = {n: np.asarray(u) for n, u in block.to_coords(params).items()}  # as from a file
    back = block.to_params(coords)
    for name, value in params.items():
        np.testing.assert_allclose(back[name], value, rtol=1e-12)


@pytest.mark.parametrize("block", [REGRESSION, SINGLE], ids=["A", "C"])
def test_regression_prior_equals_scipy_with_numerical_jacobian(block, rng):
    """log p(u) = Wishart + matrix normal + log |det d(A, Λ)/du|, the determinant by autodiff."""
    coords = block.to_coords(random_params(block, rng))
    lead = [()] if block.num_states is None else [(k,) for k in range(block.num_states)]
    d = block.dim
    rows, columns = np.tril_indices(d)
    expected = 0.0
    for where in lead:
        one = {n: u[where] for n, u in coords.items()}
        lone = Regression(
            "A",
            "Q",
            None,
            d,
            block.num_regressors,
            block.mean,
            block.precision,
            block.dof,
            block.scale,
        )
        one = {"A": one[block.matrix], "Q": one[block.covariance]}
        precision = lambda packed, one=one, lone=lone: jnp.linalg.inv(  # noqa: E731
            lone.to_params({**one, "Q": packed})["Q"]
        )[rows, columns]
        jacobian = np.linalg.slogdet(np.asarray(jax.jacfwd(precision)(one["Q"])))[1]
        params = {n: np.asarray(v) for n, v in lone.to_params(one).items()}
        scale = np.linalg.inv(np.asarray(block.scale))
        Lambda = np.linalg.inv(params["Q"])
        expected += stats.wishart(block.dof, scale).logpdf((Lambda + Lambda.T) / 2)
        column_covariance = np.linalg.inv(np.asarray(block.precision))
        normal = stats.matrix_normal(np.asarray(block.mean), params["Q"], column_covariance)
        expected += normal.logpdf(params["A"]) + jacobian
    np.testing.assert_allclose(block.log_prior(coords), expected, rtol=1e-10)


@pytest.mark.parametrize("block", [EMISSION, FIXED, WIDE], ids=["[1;C]", "[1]", "wide"])
def test_emission_prior_equals_scipy_with_numerical_jacobian(block, rng):
    """log p(u) = Wishart + normals of the free entries + log |det dΛ/du|, by autodiff."""
    params = random_params(block, rng)
    coords = block.to_coords(params)
    rows, columns = np.tril_indices(block.dim)

    def precision(packed):
        return jnp.linalg.inv(block.to_params({**coords, "R": packed})["R"])[rows, columns]

    expected = np.linalg.slogdet(np.asarray(jax.jacfwd(precision)(coords["R"])))[1]
    Lambda = np.linalg.inv(params["R"])
    wishart = stats.wishart(block.dof, np.linalg.inv(np.asarray(block.scale)))
    expected += wishart.logpdf((Lambda + Lambda.T) / 2)
    if block.num_free:
        normal = stats.norm(np.asarray(block.mean), np.sqrt(np.asarray(block.variance)))
        expected += normal.logpdf(params["C"][block.num_fixed :]).sum()
    np.testing.assert_allclose(block.log_prior(coords), expected, rtol=1e-10)


def test_transition_prior_is_dirichlet_times_an_independent_scale(rng):
    """In φ: Dirichlet on Π, Gamma(100, 100) on Φ, Jacobian Φ^(K−1) of (Π, Φ) → φ, and ∏ φ to logs."""
    eta = rng.normal(size=(3, 3))
    phi = np.exp(eta)
    expected = 0.0
    for alpha, row in zip(np.asarray(TRANSITION.concentration), phi, strict=True):
        scale = row.sum()
        expected += stats.dirichlet(alpha).logpdf(row / scale)
        expected += stats.gamma(100, scale=1 / 100).logpdf(scale)
        expected += -2 * np.log(scale) + np.log(row).sum()
    value = TRANSITION.log_prior({"transition_matrix": jnp.asarray(eta)})
    np.testing.assert_allclose(value, expected, rtol=1e-12)


def test_expected_log_likelihood_equals_scipy(rng):
    """With statistics of complete data it is the sum of log-densities."""
    params = random_params(REGRESSION, rng)
    coords = REGRESSION.to_coords(params)
    total, parts = 0.0, []
    for k, n in enumerate((5, 7)):
        chi = rng.normal(size=(n, 2))
        y = rng.normal(size=(n, 3))
        mean = chi @ params["A"][k].T
        total += stats.multivariate_normal(np.zeros(3), params["Q"][k]).logpdf(y - mean).sum()
        parts.append((float(n), y.T @ y, y.T @ chi, chi.T @ chi))
    statistics = RegressionStatistics(*(jnp.asarray(np.stack(p)) for p in zip(*parts, strict=True)))
    np.testing.assert_allclose(
        REGRESSION.expected_log_likelihood(coords, statistics), total, rtol=1e-12
    )
    for block in (EMISSION, FIXED, WIDE):
        params = random_params(block, rng)
        C = params.get("C", np.asarray(block.fixed))
        x, y = rng.normal(size=(9, block.num_regressors)), rng.normal(size=(9, block.dim))
        statistics = RegressionStatistics(
            *(jnp.asarray(s) for s in (9.0, y.T @ y, y.T @ x, x.T @ x))
        )
        noise = stats.multivariate_normal(np.zeros(block.dim), params["R"])
        np.testing.assert_allclose(
            block.expected_log_likelihood(block.to_coords(params), statistics),
            noise.logpdf(y - x @ C.T).sum(),
            rtol=1e-12,
        )
    counts = rng.uniform(size=(3, 3))
    Pi = random_params(TRANSITION, rng)
    value = TRANSITION.expected_log_likelihood(
        TRANSITION.to_coords(Pi), TransitionStatistics(jnp.asarray(counts))
    )
    np.testing.assert_allclose(value, (counts * np.log(Pi["transition_matrix"])).sum())


@all_blocks
def test_gradients_equal_finite_differences(block, rng):
    flat, unravel = ravel_pytree(block.to_coords(random_params(block, rng)))
    statistics = random_statistics(block, rng)
    target = jax.jit(
        lambda v: (
            block.expected_log_likelihood(unravel(v), statistics) + block.log_prior(unravel(v))
        )
    )
    width = 1e-5
    basis = width * np.eye(len(flat))
    differences = [(target(flat + e) - target(flat - e)) / (2 * width) for e in basis]
    gradient = jax.grad(target)(flat)
    np.testing.assert_allclose(gradient, differences, rtol=1e-5, atol=1e-5)


def dense(function, coords):
    """Return the matrix of a linear function of coordinates."""
    flat, unravel = ravel_pytree(coords)
    linear = lambda v: ravel_pytree(function(unravel(v)))[0]  # noqa: E731
    return jax.jit(jax.jacfwd(linear))(jnp.zeros_like(flat))


@all_blocks
def test_metric_is_the_square_of_its_root_and_gamma_its_divergence(block, rng):
    coords = {n: jnp.asarray(u) for n, u in block.to_coords(random_params(block, rng)).items()}
    pilot = random_pilot(block, rng)
    D = dense(lambda v: block.precondition(coords, v, pilot), coords)
    E = dense(lambda v: block.sqrt_metric(coords, v, pilot), coords)
    np.testing.assert_allclose(E @ E.T, D, rtol=1e-10, atol=1e-12)
    whitening = dense(lambda v: block.whiten(coords, v, pilot), coords)
    np.testing.assert_allclose(whitening, E.T, rtol=1e-10, atol=1e-12)
    flat, unravel = ravel_pytree(coords)
    metric = lambda v: dense(lambda w: block.precondition(unravel(v), w, pilot), coords)  # noqa: E731
    divergence = jnp.einsum("ijj->i", jax.jit(jax.jacfwd(metric))(flat))
    np.testing.assert_allclose(
        divergence, ravel_pytree(block.divergence(coords, pilot))[0], atol=1e-10
    )


def precondition(block, coords, pilot, vector):
    return block.precondition(coords, vector, pilot)


def test_metrics_invert_the_complete_data_information(rng):
    """D is the inverse of −E ∇² log p(y, u) per row; for Π only along the simplex."""
    for block in (REGRESSION, EMISSION, FIXED, WIDE):
        params = random_params(block, rng)
        coords = {n: jnp.asarray(u) for n, u in block.to_coords(params).items()}
        pilot = random_pilot(block, rng)
        moment = np.linalg.inv(np.swapaxes(pilot.whitener, -1, -2) @ pilot.whitener)
        A = params[block.matrix] if block.matrix in params else np.asarray(block.fixed)
        Q = params[block.covariance]
        occupancy = np.asarray(pilot.occupancy)[..., None, None]
        statistics = RegressionStatistics(
            n=pilot.occupancy,
            yy=jnp.asarray(occupancy * (A @ moment @ np.swapaxes(A, -1, -2) + Q)),
            yx=jnp.asarray(occupancy * (A @ moment)),
            xx=jnp.asarray(occupancy * moment),
        )
        flat, unravel = ravel_pytree(coords)
        expected = lambda v, block=block, unravel=unravel, s=statistics: (  # noqa: E731
            block.expected_log_likelihood(unravel(v), s)
        )
        information = -jax.jit(jax.hessian(expected))(flat)
        D = dense(functools.partial(precondition, block, coords, pilot), coords)
        np.testing.assert_allclose(D @ information, np.eye(len(flat)), atol=1e-9)

    Pi = random_params(TRANSITION, rng)["transition_matrix"]
    eta = jnp.log(jnp.asarray(Pi))
    pilot = random_pilot(TRANSITION, rng)
    counts = TransitionStatistics(jnp.asarray(pilot.occupancy[:, None] * Pi))
    log_likelihood = lambda v: TRANSITION.expected_log_likelihood(  # noqa: E731
        {"transition_matrix": v.reshape(3, 3)}, counts
    )
    information = -jax.hessian(log_likelihood)(eta.ravel())
    D = dense(
        lambda v: TRANSITION.precondition({"transition_matrix": eta}, v, pilot),
        {"transition_matrix": eta},
    )
    np.testing.assert_allclose(information @ D @ information, information, atol=1e-12)


@small_blocks
def test_one_step_has_the_drift_and_noise_of_the_dynamics(block, rng):
    """Over 10⁵ draws of a small step: mean h (D g + Γ) and covariance 2 h D, to first order."""
    coords = {n: jnp.asarray(u) for n, u in block.to_coords(random_params(block, rng)).items()}
    pilot = random_pilot(block, rng)
    statistics = random_statistics(block, rng)
    h = 1e-6
    keys = jax.random.split(jax.random.key(0), 100_000)
    move = lambda key: ravel_pytree(  # noqa: E731
        block.step(key, coords, statistics, jnp.asarray(h), pilot, tame=0.0)
    )[0]
    flat, unravel = ravel_pytree(coords)
    steps = np.asarray(jax.jit(jax.vmap(move))(keys) - flat)

    def target(v):
        u = unravel(v)
        return block.expected_log_likelihood(u, statistics) + block.log_prior(u)

    drift = block.precondition(coords, unravel(jax.grad(target)(flat)), pilot)
    drift = ravel_pytree(drift)[0] + ravel_pytree(block.divergence(coords, pilot))[0]
    D = np.asarray(dense(lambda v: block.precondition(coords, v, pilot), coords))
    error = np.sqrt(2 * h * np.diag(D) / len(keys))
    assert np.max(np.abs(steps.mean(0) - h * np.asarray(drift)) / error) < 4.5
    scale = np.sqrt(np.outer(np.diag(D), np.diag(D)))
    covariance = np.cov(steps.T) / (2 * h)
    assert (
        np.max(np.abs(covariance - D) / scale) < 0.02
    )  # entries have a standard error of 0.003–0.005


def stationary_draws(block, start, statistics, h, pilot, *, chains, burn, steps, every):
    """Run many chains of one block on fixed statistics; returns params (steps/every, chains, …)."""
    step = jax.vmap(lambda key, u: block.step(key, u, statistics, h, pilot, tame=0.0))

    def body(u, key):
        return step(jax.random.split(key, chains), u), None

    def outer(u, key):
        u, _ = jax.lax.scan(body, u, jax.random.split(key, every))
        return u, jax.vmap(block.to_params)(u)

    coords = {n: jnp.broadcast_to(u, (chains, *u.shape)) for n, u in block.to_coords(start).items()}
    keys = jax.random.split(jax.random.key(7), (burn + steps) // every)
    _, drawn = jax.jit(lambda u, k: jax.lax.scan(outer, u, k))(coords, keys)
    return {n: np.asarray(p)[burn // every :] for n, p in drawn.items()}


def draws_from_few_rows(block, start, statistics):
    """Run chains of a regression on one regressor, with steps small for a handful of rows."""
    h, pilot = jnp.asarray(0.005), Pilot(jnp.asarray(1.0), jnp.eye(1))
    return stationary_draws(
        block, start, statistics, h, pilot, chains=4000, burn=1000, steps=1000, every=100
    )


@pytest.mark.parametrize("epsilon", [0.1, 1.0])
@pytest.mark.parametrize("alpha", [1.0, 0.1])
def test_sparse_rows_neither_absorb_nor_bias_the_rest(alpha, epsilon):
    """Stationary law of a row with counts (200, 3, 0): the Dirichlet posterior, in every moment.

    The counts being known, long steps are as good as short ones.
    """
    block = Transition(3, concentration=alpha)
    counts = np.array([[200.0, 3.0, 0.0]] * 3)
    pilot = Pilot(jnp.ones(3), jnp.ones((3, 0, 0)))
    start = {"transition_matrix": np.full((3, 3), 1 / 3)}
    drawn = stationary_draws(
        block,
        start,
        TransitionStatistics(jnp.asarray(counts)),
        jnp.asarray(epsilon / 203),
        pilot,
        chains=200,
        burn=300,
        steps=2000,
        every=20,
    )["transition_matrix"].reshape(-1, 3)
    truth = stats.dirichlet(alpha + counts[0])
    n = 200 * 3 * 20  # chains times rows times relaxation times kept
    np.testing.assert_array_less(
        np.abs(drawn.mean(0) - truth.mean()) / np.sqrt(truth.var() / n), 5.0
    )
    np.testing.assert_allclose(drawn.std(0), np.sqrt(truth.var()), rtol=0.05)
    # Quantiles of the entry without counts: its law piles up at zero and must not stay there.
    beta = stats.beta(alpha, 2 * alpha + 203)
    below = [np.mean(drawn[:, 2] < beta.ppf(q)) for q in (0.25, 0.5, 0.75)]
    np.testing.assert_allclose(below, (0.25, 0.5, 0.75), atol=0.03)


def test_regression_step_keeps_the_posterior_of_five_rows(rng):
    """Few rows make the corrections Γ and the Jacobian visible: Λ of a Wishart posterior, and A."""
    block = Regression("A", "Q", None, 2, 1, [[0.0], [0.0]], [[1.0]], 3.0, 3 * np.eye(2))
    chi, y = rng.normal(size=(5, 1)), rng.normal(size=(5, 2))
    statistics = RegressionStatistics(
        *(jnp.asarray(s) for s in (5.0, y.T @ y, y.T @ chi, chi.T @ chi))
    )
    start = {"A": np.zeros((2, 1)), "Q": np.eye(2)}
    drawn = draws_from_few_rows(block, start, statistics)
    exact = jax.vmap(lambda key: block.draw(key, statistics, start))(
        jax.random.split(jax.random.key(3), 100_000)
    )
    nu, M_n, _, Psi_n = block._posterior(statistics)
    Lambda = np.linalg.inv(drawn["Q"].reshape(-1, 2, 2))
    expected = float(nu) * np.linalg.inv(np.asarray(Psi_n))
    np.testing.assert_allclose(Lambda.mean(0), expected, rtol=0.02, atol=0.01)
    exact_Lambda = np.linalg.inv(np.asarray(exact["Q"]))
    np.testing.assert_allclose(exact_Lambda.mean(0), expected, rtol=0.01, atol=0.01)
    np.testing.assert_allclose(Lambda.std(0), exact_Lambda.std(0), rtol=0.05)
    np.testing.assert_allclose(exact["A"].mean(0), M_n, atol=0.01)
    np.testing.assert_allclose(drawn["A"].reshape(-1, 2, 1).mean(0), M_n, atol=0.02)
    np.testing.assert_allclose(
        drawn["A"].reshape(-1, 2, 1).std(0), np.asarray(exact["A"]).std(0), rtol=0.05
    )


def test_emission_step_and_gibbs_cycle_keep_the_same_posterior(rng):
    """Few rows make the corrections Γ and the Jacobian visible; the law of C_2 by quadrature."""
    block = Emission(
        dim=2, num_regressors=1, fixed=[[1.0]], mean=0.5, variance=0.5, dof=4.0, scale=3 * np.eye(2)
    )
    x = rng.normal(size=(6, 1))
    y = x @ np.array([[1.0, -0.8]]) + rng.normal(size=(6, 2)) @ np.array([[1.0, 0.7], [0.0, 0.5]])
    statistics = RegressionStatistics(*(jnp.asarray(s) for s in (6.0, y.T @ y, y.T @ x, x.T @ x)))
    start = {"C": np.array([[1.0], [0.0]]), "R": np.eye(2)}
    drawn = draws_from_few_rows(block, start, statistics)

    def cycle(params, key):
        params = block.draw(key, statistics, params)
        return params, params

    def chain(key):
        first = {n: jnp.asarray(p) for n, p in start.items()}
        return jax.lax.scan(cycle, first, jax.random.split(key, 60))[1]

    gibbs = jax.jit(jax.vmap(chain))(jax.random.split(jax.random.key(3), 2000))
    gibbs = {n: np.asarray(p)[:, 20:] for n, p in gibbs.items()}
    assert np.all(gibbs["C"][..., 0, 0] == 1.0)
    assert np.all(drawn["C"][..., 0, 0] == 1.0)

    # The law of C_2 alone, with R integrated out: p(c) ∝ N(c; M, s²) |Ψ + S(c)|^(−(ν + n)/2).
    grid = np.linspace(-6.0, 6.0, 4001)
    C = np.stack([np.ones_like(grid), grid], axis=1)[..., None]
    residual = y - x[:, 0, None] * C[:, None, :, 0]
    scatter = np.asarray(block.scale) + np.swapaxes(residual, -1, -2) @ residual
    log_density = stats.norm(0.5, np.sqrt(0.5)).logpdf(grid) - 5 * np.linalg.slogdet(scatter)[1]
    density = np.exp(log_density - log_density.max())
    density /= density.sum()
    mean = density @ grid
    sd = np.sqrt(density @ (grid - mean) ** 2)
    Lambda = np.einsum("g,gab->ab", density, 10 * np.linalg.inv(scatter))
    for draws, error in ((gibbs, 0.01), (drawn, 0.03)):
        free, R = draws["C"][..., 1, 0], draws["R"].reshape(-1, 2, 2)
        np.testing.assert_allclose(free.mean(), mean, atol=error * sd)
        np.testing.assert_allclose(free.std(), sd, rtol=error)
        np.testing.assert_allclose(np.linalg.inv(R).mean(0), Lambda, rtol=error, atol=error)
    exact_sd = np.linalg.inv(gibbs["R"].reshape(-1, 2, 2)).std(0)
    np.testing.assert_allclose(
        np.linalg.inv(drawn["R"].reshape(-1, 2, 2)).std(0), exact_sd, rtol=0.05
    )


@pytest.mark.parametrize("block", [EMISSION, FIXED, WIDE], ids=["[1;C]", "[1]", "wide"])
def test_emission_without_data_is_drawn_from_its_prior(block):
    d, q = block.dim, block.num_regressors
    empty = RegressionStatistics(*(jnp.zeros(s) for s in ((), (d, d), (d, q), (q, q))))
    start = block.center(empty)
    keys = jax.random.split(jax.random.key(0), 40_000)
    drawn = jax.jit(jax.vmap(lambda key: block.draw(key, empty, start)))(keys)
    expected = block.dof * np.linalg.inv(np.asarray(block.scale))
    Lambda = np.linalg.inv(np.asarray(drawn["R"]))
    error = Lambda.std(0) / np.sqrt(len(keys))
    np.testing.assert_array_less(np.abs(Lambda.mean(0) - expected) / error, 4.5)
    if block.num_free:
        free = np.asarray(drawn["C"])[:, block.num_fixed :]
        sd = np.broadcast_to(np.sqrt(np.asarray(block.variance)), free.shape[1:])
        error = np.abs(free.mean(0) - np.asarray(block.mean)) / sd * np.sqrt(len(keys))
        np.testing.assert_array_less(error, 4.5)
        np.testing.assert_allclose(free.std(0), sd, rtol=0.02)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fixed": np.ones((4, 2))}, "1 to 3 rows of 2 numbers"),
        ({"fixed": np.ones((0, 2))}, "1 to 3 rows of 2 numbers"),
        ({"fixed": [[1.0, np.nan]]}, "fixed must be finite"),
        ({"mean": np.ones((3, 2))}, r"prior mean must be a number or have shape \(2, 2\)"),
        ({"variance": 0.0}, "prior variance must be positive"),
        ({"scale": -np.eye(3)}, "prior scale must be symmetric and positive definite"),
        ({"dof": 2.0}, "degrees of freedom must exceed"),
    ],
)
def test_emission_refuses_bad_priors(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(EMISSION, **change)


def test_equal_emissions_share_compiled_functions():
    assert hash(dataclasses.replace(WIDE, fixed=np.eye(2))) == hash(WIDE)
    assert dataclasses.replace(WIDE, fixed=np.eye(2)) == WIDE


def test_emission_centre_is_where_conditional_maximisation_settles(rng):
    """A regression with noise that the fixed rows tell about; more cycles change little."""
    for block in (EMISSION, WIDE):
        params = random_params(block, rng)
        x = rng.normal(size=(500, block.num_regressors))
        noise = rng.multivariate_normal(np.zeros(block.dim), params["R"], size=500)
        y = x @ params["C"].T + noise
        statistics = RegressionStatistics(
            *(jnp.asarray(s) for s in (500.0, y.T @ y, y.T @ x, x.T @ x))
        )
        centre = block.center(statistics)
        R, C = centre["R"], centre["C"]
        for _ in range(30):
            C = block._join(block._conditional(R, statistics)[0])
            R = block._total_scatter(C, statistics) / (block.dof + 500.0)
        error = np.sqrt(np.diag(params["R"]))[:, None] / np.sqrt(500)
        assert np.max(np.abs(centre["C"] - C) / error) < 0.1
        assert np.max(np.abs(C - params["C"]) / error) < 5.0


def test_steps_keep_their_constraints_from_bad_starts():
    """Covariances and transitions stay inside from a start thirty times too large, tamed."""
    block = Regression("A", "Q", None, 2, 1, [[0.0], [0.0]], [[1.0]], 3.0, 3 * np.eye(2))
    statistics = RegressionStatistics(
        jnp.asarray(1000.0), 1000.0 * jnp.eye(2), jnp.zeros((2, 1)), 1000.0 * jnp.eye(1)
    )
    pilot = Pilot(jnp.asarray(1.0), jnp.eye(1))
    coords = block.to_coords({"A": np.zeros((2, 1)), "Q": np.eye(2) / 900})
    step = jax.jit(functools.partial(block.step, tame=1.0))
    for key in jax.random.split(jax.random.key(0), 300):
        coords = step(key, coords, statistics, jnp.asarray(1e-4), pilot)
    Q = np.asarray(block.to_params(coords)["Q"])
    np.testing.assert_allclose(Q, np.eye(2), atol=0.2)


def test_conjugate_draw_of_tiny_concentrations_is_not_the_centre():
    """Gammas that underflow must not make a row without data uniform."""
    block = Transition(2, concentration=1e-3)
    keys = jax.random.split(jax.random.key(0), 2000)
    empty = TransitionStatistics(jnp.zeros((2, 2)))
    start = block.center(empty)
    drawn = np.asarray(jax.vmap(lambda k: block.draw(k, empty, start)[block.name])(keys))[..., 0]
    assert np.mean((drawn > 0.01) & (drawn < 0.99)) < 0.03


def test_priors_in_any_units_are_positive_definite(rng):
    """Columns of very different sizes: what counts are correlations."""
    sizes = np.array([1.0, 1e5, 1e-6, 1e3])
    for root in rng.normal(size=(20, 4, 4)):
        scale = (root @ root.T + np.eye(4)) * np.outer(sizes, sizes)
        assert len(sj.GaussianHMM(2, 4, scale=scale).blocks) == 2
    with pytest.raises(ValueError, match="positive definite"):
        _ = sj.GaussianHMM(2, 4, scale=scale - 1.5 * np.diag(np.diag(scale))).blocks
