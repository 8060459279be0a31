"""Discrete messages against the enumeration of all paths."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from oracles import enumerate_paths
from sojourn.messages import discrete

pytestmark = pytest.mark.usefixtures("x64")


def random_chain(rng, K, T, W, *, zeros=False, spread=2.0):
    Pi = rng.dirichlet(np.ones(K), size=K)
    if zeros and K > 1:
        Pi = np.eye(K)[:, np.roll(np.arange(K), -1)] * 0.7 + np.eye(K) * 0.3
    initial = rng.dirichlet(np.ones(K), size=W).T
    log_f = spread * rng.normal(size=(T, K, W))
    return Pi, initial, log_f


@pytest.mark.parametrize("K", [1, 2, 3])
@pytest.mark.parametrize("zeros", [False, True])
def test_messages_equal_enumeration(rng, K, zeros):
    T, W = 5, 4
    Pi, initial, log_f = random_chain(rng, K, T, W, zeros=zeros)
    log_f[2] = 0.0  # a missing row
    weight = rng.uniform(size=(T, W))
    features = rng.normal(size=(T, 1, 2, W))
    filtered = discrete.forward(*map(jnp.asarray, (Pi, initial, log_f)))
    gamma = discrete.backward(jnp.asarray(Pi), filtered)
    moments, before, kept = discrete.expected_moments(
        jnp.asarray(Pi), filtered, jnp.asarray(weight), jnp.asarray(features), keep_marginals=True
    )
    best = best_paths(Pi, initial, log_f, np.full(W, T))
    for w in range(W):
        truth = enumerate_paths(Pi, initial[:, w], log_f[:, :, w])
        total = filtered.log_normalizer[:, w].sum()
        np.testing.assert_allclose(total, truth.log_likelihood, rtol=1e-12)
        np.testing.assert_allclose(gamma[:, :, w], truth.marginals, atol=1e-12)
        np.testing.assert_allclose(kept[:, :, w], truth.marginals, atol=1e-12)
        counts = np.einsum("t,tkj->kj", weight[:, w], truth.pairs)
        np.testing.assert_allclose(moments.counts[:, :, w], counts, atol=1e-12)
        sums = np.einsum("t,tk,tf->kf", weight[:, w], truth.marginals, features[:, 0, :, w])
        np.testing.assert_allclose(moments.features[:, :, w], sums, atol=1e-12)
        np.testing.assert_allclose(before[:, w], truth.pairs[0].sum(1), atol=1e-12)
        np.testing.assert_array_equal(best.path[:, w], truth.best)


def best_paths(Pi, initial, log_f, end):
    return discrete.viterbi(
        jnp.log(jnp.asarray(Pi)),
        jnp.log(jnp.asarray(initial)),
        jnp.asarray(log_f),
        jnp.asarray(end),
    )


@pytest.mark.parametrize("end", [1, 3, 5])
def test_rows_behind_the_end_have_no_say_in_the_best_path(rng, end):
    """They are missing, but unlike missing rows of the series no state of theirs is sought."""
    W = 40
    Pi, initial, log_f = random_chain(rng, 3, 5, W, spread=0.2)
    log_f[end:] = 0.0
    best = best_paths(Pi, initial, log_f, np.full(W, end))
    for w in range(W):
        truth = enumerate_paths(Pi, initial[:, w], log_f[:end, :, w])
        np.testing.assert_array_equal(best.path[:end, w], truth.best)


def test_features_of_each_state(rng):
    """State-specific features are weighted by their own state's probability."""
    Pi, initial, log_f = random_chain(rng, 2, 4, 1)
    features = rng.normal(size=(4, 2, 3, 1))
    filtered = discrete.forward(*map(jnp.asarray, (Pi, initial, log_f)))
    moments, _, _ = discrete.expected_moments(
        jnp.asarray(Pi), filtered, jnp.ones((4, 1)), jnp.asarray(features)
    )
    truth = enumerate_paths(Pi, initial[:, 0], log_f[:, :, 0])
    expected = np.einsum("tk,tkf->kf", truth.marginals, features[..., 0])
    np.testing.assert_allclose(moments.features[..., 0], expected, atol=1e-12)


def test_large_state_spaces_take_the_product_path(rng):
    """Above the unrolled size, products and the stationary law go another way to the same place."""
    K = 20
    Pi, initial, log_f = random_chain(rng, K, 30, 2)
    filtered = discrete.forward(*map(jnp.asarray, (Pi, initial, log_f)))
    alpha = initial[:, 0]
    for t in range(30):
        alpha = alpha @ Pi * np.exp(log_f[t, :, 0])
        alpha /= alpha.sum()
    np.testing.assert_allclose(filtered.last[:, 0], alpha, rtol=1e-10)
    law = np.asarray(discrete.stationary(jnp.asarray(Pi)))
    np.testing.assert_allclose(law @ Pi, law, atol=1e-14)


def test_extreme_densities_under_true_zeros():
    """A row that points, by a thousand nats, to a state that cannot be reached leaves all finite."""
    Pi = np.array([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    initial = np.array([[1.0], [0.0], [0.0]])
    log_f = np.zeros((3, 3, 1))
    log_f[0] = [[0.0], [-2000.0], [5000.0]]
    filtered = discrete.forward(*map(jnp.asarray, (Pi, initial, log_f)))
    np.testing.assert_allclose(filtered.log_normalizer[:, 0].sum(), -2000.0)
    gamma = discrete.backward(jnp.asarray(Pi), filtered)
    np.testing.assert_allclose(gamma[:, :, 0], np.eye(3)[[1, 2, 0]])


def test_sampled_states_have_the_smoothing_law(rng):
    """Frequencies of whole paths against enumeration, by a chi-square statistic."""
    K, T, W = 2, 3, 200_000
    Pi, initial, log_f = random_chain(rng, K, T, 1)
    wide = [jnp.asarray(np.repeat(x, W, axis=-1)) for x in (initial, log_f)]
    filtered = discrete.forward(jnp.asarray(Pi), *wide)
    uniform = jax.random.uniform(jax.random.key(1), (T + 1, W))
    states = np.asarray(discrete.sample(jnp.asarray(Pi), filtered, uniform))
    truth = enumerate_paths(Pi, initial[:, 0], log_f[:, :, 0])
    code = states.T @ K ** np.arange(T, -1, -1)
    observed = np.bincount(code, minlength=K ** (T + 1))
    expected = W * truth.probabilities
    chi_square = np.sum((observed - expected) ** 2 / expected)
    assert chi_square < 40  # 15 degrees of freedom: exceeded once in 2,000 seeds
    features = rng.normal(size=(T, 1, 2, W))
    moments = discrete.sampled_moments(
        K, jnp.asarray(states[:, :5]), jnp.ones((T, 5)), jnp.asarray(features[..., :5])
    )
    for w in range(5):
        counts = np.zeros((K, K))
        np.add.at(counts, (states[:-1, w], states[1:, w]), 1)
        np.testing.assert_array_equal(moments.counts[:, :, w], counts)
        sums = np.eye(K)[states[1:, w]].T @ features[:, 0, :, w]
        np.testing.assert_allclose(moments.features[:, :, w], sums, atol=1e-12)


@pytest.mark.parametrize("K", [1, 2, 5])
def test_stationary_law(rng, K):
    Pi = rng.dirichlet(np.ones(K), size=K)
    law = np.asarray(discrete.stationary(jnp.asarray(Pi)))
    np.testing.assert_allclose(law @ Pi, law, atol=1e-14)
    np.testing.assert_allclose(law.sum(), 1)


def test_stationary_law_of_nearly_absorbing_and_periodic_chains():
    slow = np.array([[1 - 1e-13, 1e-13], [3e-13, 1 - 3e-13]])
    law = np.asarray(discrete.stationary(jnp.asarray(slow)))
    np.testing.assert_allclose(law, [0.75, 0.25], rtol=1e-3)
    cycle = np.eye(4)[[1, 2, 3, 0]]
    np.testing.assert_allclose(discrete.stationary(jnp.asarray(cycle)), np.full(4, 0.25))
    absorbing = np.array([[0.5, 0.5], [0.0, 1.0]])
    law = np.asarray(discrete.stationary(jnp.asarray(absorbing)))
    np.testing.assert_allclose(law, [0, 1], atol=1e-15)


def test_stationary_law_of_many_nearly_absorbing_states():
    K = 20
    Pi = np.full((K, K), 1e-13) + np.eye(K) * (1 - K * 1e-13)
    np.testing.assert_allclose(discrete.stationary(jnp.asarray(Pi)), np.full(K, 1 / K), rtol=1e-3)
    assert np.isfinite(discrete.stationary(jnp.eye(K))).all()
