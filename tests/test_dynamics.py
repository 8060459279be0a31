"""Each sampler reaches the law of a Gaussian target, with exact and with noisy gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

import sojourn as sj
from sojourn.dynamics import Metric, Shape, has_left, push

ROWS = 1000.0
PRECISION = np.array([[2.0, 0.6], [0.6, 1.0]]) * ROWS
CHAINS, STEPS = 4000, 150


class _Block:
    names = ("u",)


class _Gaussian:
    """A target N(0, PRECISION⁻¹); its statistics are an error added to the gradient."""

    blocks = (_Block(),)

    def expected_log_joint(self, coords, statistics):
        u = coords["u"]
        return -u @ jnp.asarray(PRECISION) @ u / 2 + statistics @ u

    def log_prior(self, coords):
        return 0.0 * coords["u"].sum()


def _root(curvature: float) -> np.ndarray:
    """Return E with Eᵀ (PRECISION / T) E = curvature · 1."""
    return np.linalg.inv(np.linalg.cholesky(PRECISION / ROWS)).T * np.sqrt(curvature)


def _covariance(sampler, metric, noise: np.ndarray) -> np.ndarray:
    """Return the covariance, over its target's, of many chains after many steps."""
    target = _Gaussian()
    root = jnp.asarray(np.linalg.cholesky(noise + 1e-30 * np.eye(2)))

    def chain(key):
        key_start, key_steps = jax.random.split(key)
        state = sampler.start(key_start, {"u": jnp.zeros(2)}, metric)

        def step(t, state):
            key_noise, key_step = jax.random.split(jax.random.fold_in(key_steps, t))
            error = root @ jax.random.normal(key_noise, (2,))
            epsilon = jnp.asarray(sampler.step_size)
            return sampler.step(key_step, target, state, error, epsilon, metric, tame=0.0)

        return jax.lax.fori_loop(0, STEPS, step, state).coords["u"]

    with jax.enable_x64(True):
        u = np.asarray(jax.jit(jax.vmap(chain))(jax.random.split(jax.random.key(0), CHAINS)))
    L = np.linalg.cholesky(PRECISION)
    return np.cov((u @ L).T)


# Standard error of a variance over CHAINS chains.
SE = np.sqrt(2 / CHAINS)


@pytest.mark.parametrize(
    "sampler",
    [
        sj.SGRLD(step_size=0.3),
        sj.SGRLD(step_size=1.0),
        sj.SGHMC(step_size=0.5),
        sj.SGHMC(step_size=0.2, friction=0.5),
        sj.SGNHT(step_size=0.1),
    ],
    ids=str,
)
@pytest.mark.parametrize("curvature", [0.5, 1.0])
def test_covariance_is_exact_for_gaussian_targets(sampler, curvature):
    metric = Metric({}, {"u": jnp.asarray(_root(curvature))}, ROWS)
    found = _covariance(sampler, metric, np.zeros((2, 2)))
    np.testing.assert_allclose(found, np.eye(2), atol=4 * SE)


def test_plain_langevin_steps_inflate_by_half_the_step():
    """SGLD has no such luck: 1 / (1 − ε λ / 2) in a direction of curvature λ."""
    metric = Metric({}, {}, ROWS)
    found = _covariance(sj.SGLD(step_size=0.2), metric, np.zeros((2, 2)))
    L = np.linalg.cholesky(PRECISION)
    expected = L.T @ np.linalg.inv(PRECISION - 0.1 * PRECISION @ PRECISION / ROWS) @ L
    np.testing.assert_allclose(found, expected, atol=5 * SE)
    assert np.linalg.norm(expected - np.eye(2)) > 0.2


def test_known_noise_is_made_up_for():
    """Noise of a fifth of the variance is seen without, and gone with its covariance known."""
    E = _root(1.0)
    values, vectors = np.array([0.2, 1.5]), np.linalg.qr(np.array([[1.0, 0.4], [-0.3, 1.0]]))[0]
    # Eᵀ Σ E / T = V diag(values) Vᵀ
    inverse = np.linalg.inv(E)
    noise = inverse.T @ (vectors * values) @ vectors.T @ inverse * ROWS
    sampler = sj.SGRLD(step_size=0.3)
    ignored = Metric({}, {"u": jnp.asarray(E)}, ROWS)
    known = ignored._replace(noise=(jnp.asarray(values), jnp.asarray(vectors)))
    share = sampler.noise_share(0.3, 1.5)
    largest = np.linalg.eigvalsh(_covariance(sampler, ignored, noise))[-1]
    assert largest > 1 + share - 4 * SE
    np.testing.assert_allclose(_covariance(sampler, known, noise), np.eye(2), atol=4 * SE)


def test_a_thermostat_absorbs_noise_of_unknown_size():
    """Isotropic noise inflates SGHMC as predicted, and SGNHT not."""
    E = _root(1.0)
    inverse = np.linalg.inv(E)
    noise = 2.0 * inverse.T @ inverse * ROWS
    metric = Metric({}, {"u": jnp.asarray(E)}, ROWS)
    naive = sj.SGHMC(step_size=0.05, friction=1.0)
    inflated = np.trace(_covariance(naive, metric, noise)) / 2 - 1
    assert inflated == pytest.approx(naive.noise_share(0.05, 2.0), rel=0.35)
    absorbed = np.trace(_covariance(sj.SGNHT(step_size=0.05, friction=1.0), metric, noise)) / 2
    assert abs(absorbed - 1) < 4 * SE + 0.03  # the thermostat of two coordinates moves itself


class _LogGamma(_Gaussian):
    """The logarithms of two gamma variables of shape n, in units of 1/√n: steeper on one side."""

    def __init__(self, n):
        self.n = n

    def expected_log_joint(self, coords, statistics):
        x = coords["u"] * np.sqrt(ROWS)
        return (np.sqrt(self.n) * x - self.n * jnp.exp(x / np.sqrt(self.n))).sum()


@pytest.mark.parametrize("n", [5, 50])
@pytest.mark.parametrize("sampler", [sj.SGRLD(), sj.SGHMC(friction=0.25), sj.SGHMC(), sj.SGNHT()])
def test_the_largest_step_keeps_its_promise_where_curvature_varies(sampler, n):
    """Variances within what diagnostics allow, with the shape measured at the mode and an sd aside."""
    target, chains = _LogGamma(n), 40_000
    curvatures = np.exp(np.array([0.0, -1.0, 1.0]) / np.sqrt(n))
    mean = curvatures.mean()
    shape = Shape(curvatures.max() / mean, np.abs(curvatures / mean - 1).max())
    metric = Metric({}, {"u": jnp.eye(2) / np.sqrt(mean)}, ROWS)
    epsilon = sampler.largest_step(target, metric, shape)
    assert sampler.discretisation(target, metric, shape, epsilon) <= 0.0401

    def chain(key):
        state = sampler.start(key, {"u": jnp.zeros(2)}, metric)

        def step(t, state):
            key_step = jax.random.fold_in(key, t)
            return sampler.step(key_step, target, state, {}, jnp.asarray(epsilon), metric, tame=0.0)

        return jax.lax.fori_loop(0, STEPS, step, state).coords["u"]

    with jax.enable_x64(True):
        u = np.asarray(jax.jit(jax.vmap(chain))(jax.random.split(jax.random.key(0), chains)))
    exact = n * special.polygamma(1, n)
    assert u.var() * ROWS / exact == pytest.approx(1.0, abs=0.06 + 3 * np.sqrt(1 / chains))


@pytest.mark.parametrize(
    "sampler", [sj.SGRLD(0.1), sj.SGHMC(0.1), sj.SGHMC(0.1, friction=0.25), sj.SGHMC(0.1, 6.0)]
)
def test_after_a_relaxation_time_little_is_remembered(sampler):
    """The correlation of draws of a Gaussian target that many steps apart is below one half."""
    target, metric = _Gaussian(), Metric({}, {"u": jnp.asarray(_root(1.0))}, ROWS)
    num_steps = int(np.ceil(sampler.relaxation(0.1)))
    L = np.linalg.cholesky(PRECISION)

    def chain(key):
        key_place, key_start, key_steps = jax.random.split(key, 3)
        first = jnp.asarray(np.linalg.inv(L).T) @ jax.random.normal(key_place, (2,))
        state = sampler.start(key_start, {"u": first}, metric)

        def step(t, state):
            key_step = jax.random.fold_in(key_steps, t)
            epsilon = jnp.asarray(0.1)
            return sampler.step(key_step, target, state, np.zeros(2), epsilon, metric, tame=0.0)

        return first, jax.lax.fori_loop(0, num_steps, step, state).coords["u"]

    with jax.enable_x64(True):
        ends = jax.jit(jax.vmap(chain))(jax.random.split(jax.random.key(0), CHAINS))
    correlation = np.corrcoef(*((np.asarray(u) @ L).ravel() for u in ends))[0, 1]
    assert abs(correlation) < 0.5


class _Steep(_Gaussian):
    """The Gaussian, with walls many sds out that grow exponentially, as scales in logarithms have."""

    def expected_log_joint(self, coords, statistics):
        wall = jnp.exp(30 * np.sqrt(ROWS) * jnp.abs(coords["u"]) - 150)
        return super().expected_log_joint(coords, statistics) - wall.sum()


@pytest.mark.parametrize("sampler", [sj.SGRLD(0.8), sj.SGHMC(0.5), sj.SGNHT(0.5)])
def test_chains_are_not_lost_where_the_posterior_is_steep(sampler):
    """From behind a wall, where one step along the gradient would lead to infinity."""
    with jax.enable_x64(True):
        metric = Metric({}, {"u": jnp.asarray(_root(1.0))}, ROWS)
        start = {"u": jnp.array([8.0, 0.0]) / np.sqrt(ROWS)}
        state = sampler.start(jax.random.key(0), start, metric)

        def step(t, state):
            key = jax.random.fold_in(jax.random.key(1), t)
            epsilon = jnp.asarray(sampler.step_size)
            return sampler.step(
                key, _Steep(), state, jnp.zeros(2), epsilon, metric, tame=jnp.asarray(0.0)
            )

        u = jax.lax.fori_loop(0, STEPS, step, state).coords["u"]
    assert np.abs(u).max() * np.sqrt(ROWS) < 10


def test_leaving_the_mode_is_told_from_drawing():
    """The longest of a million Gaussian draws has not left; what is twice as far has, whatever E is."""
    d = 5
    root = {"u": jnp.asarray(np.random.default_rng(2).normal(size=(d, d)))}
    metric, center = Metric({}, root, ROWS), {"u": jnp.ones(d)}
    r = np.full(d, 1 / np.sqrt(d))
    longest = np.sqrt(stats.chi2.ppf(1 - 1e-6, d))
    for length, left in ((longest, False), (2 * longest, True), (np.nan, True)):
        place = push(center, root, length / np.sqrt(ROWS) * r)
        assert has_left(place, center, metric) is left
