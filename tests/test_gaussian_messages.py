"""Gaussian messages against the dense joint law, with and without missing entries."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from oracles import dense_gaussian
from sojourn.messages import gaussian, linear_moments
from sojourn.messages.rows import observe, read_rows

T, W = 6, 3


def system(rng, n, m, *, scale=1.0):
    A = rng.normal(size=(n, n))
    A *= 0.9 / np.abs(np.linalg.eigvals(A)).max()

    def covariance(d):
        root = rng.normal(size=(d, d))
        return root @ root.T / d + 0.3 * np.eye(d)

    return A, covariance(n), rng.normal(size=(m, n)), scale * covariance(m)


def precision_root(R):
    return np.linalg.cholesky(np.linalg.inv(R))


def run(A, Q, C, R, y, first, initial, edge, *, missing, noise=None):
    """Return everything that the messages tell of windows (T, m, W), the covariances by window."""
    rows = read_rows(jnp.asarray(C), jnp.asarray(precision_root(R)), jnp.asarray(y), missing)
    A4, Q4 = A[None, :, :, None], Q[None, :, :, None]
    start = gaussian.start_variants(jnp.asarray(initial), jnp.asarray(edge))
    shared = jnp.asarray(first) if missing == "none" else None
    if shared is None:
        start = gaussian.by_window(start, jnp.asarray(first))
    found = gaussian.gains(jnp.asarray(A4), jnp.asarray(Q4), rows.whitened.C, start, len(y))
    mean = jnp.zeros((A.shape[0], y.shape[2]))
    filtered = gaussian.forward(found, shared, mean, rows.whitened)
    if noise is not None:
        return gaussian.sample(found, shared, filtered, noise)
    smoothed = gaussian.backward(found, shared, filtered)
    weight = jnp.asarray(np.random.default_rng(0).uniform(size=(len(y), y.shape[2])))
    moments = linear_moments.expected_moments(smoothed, shared, weight, rows)
    pick = (lambda v: v) if shared is None else (lambda v: gaussian.by_window(v, shared))
    covariance, cross = (np.asarray(pick(v)) for v in (smoothed.covariance, smoothed.cross))
    return filtered, smoothed.mean, covariance, cross, moments, np.asarray(weight)


@pytest.mark.parametrize(("n", "m"), [(1, 1), (2, 2), (2, 4), (3, 2), (8, 9)])
@pytest.mark.parametrize("missing", ["none", "rows", "entries"])
def test_messages_equal_the_dense_law(x64, rng, n, m, missing):
    A, Q, C, R = system(rng, n, m)
    y = rng.normal(size=(T, m, W))
    if missing != "none":
        y[2, :, 0] = y[0, :, 1] = y[T - 1, :, 1] = np.nan
    if missing == "entries":
        y[3, 0, 0] = y[4, m - 1, 1] = np.nan
    first = np.array([True, False, False])
    initial, edge = 10 * np.eye(n), np.asarray(gaussian.stationary(jnp.asarray(A), jnp.asarray(Q)))
    filtered, mean, covariance, cross, moments, weight = run(
        A, Q, C, R, y, first, initial, edge, missing=missing
    )
    for w in range(W):
        law = (np.zeros(n), initial if first[w] else edge)
        exact = dense_gaussian(A, Q, C, R, law, y[:, :, w])
        total = filtered.log_normalizer[:, w].sum()
        np.testing.assert_allclose(total, exact.log_likelihood, rtol=1e-10)
        np.testing.assert_allclose(mean[:, :, w], exact.mean, atol=1e-9)
        expected = dict.fromkeys(("cc", "cp", "pp", "yy", "yx", "xx"), 0.0)
        for t in range(T + 1):
            np.testing.assert_allclose(covariance[t, :, :, w], exact.covariance[t, :, t], atol=1e-9)
        for t in range(T):
            now, before = exact.mean[t + 1], exact.mean[t]
            pair = exact.covariance[t + 1, :, t]
            np.testing.assert_allclose(cross[t, :, :, w], pair, atol=1e-9)
            M = np.outer(now, now) + exact.covariance[t + 1, :, t + 1]
            expected["cc"] += weight[t, w] * M
            expected["cp"] += weight[t, w] * (np.outer(now, before) + pair)
            expected["pp"] += weight[t, w] * (np.outer(before, before) + exact.covariance[t, :, t])
            seen = ~np.isnan(y[t, :, w])
            if not seen.any():
                continue
            gain = R[:, seen] @ np.linalg.inv(R[np.ix_(seen, seen)])
            u = gain @ y[t, seen, w]
            H = C - gain @ C[seen]
            S = R - gain @ R[seen]
            yx = np.outer(u, now) + H @ M
            expected["yx"] += weight[t, w] * yx
            mixed = np.outer(H @ now, u)
            expected["yy"] += weight[t, w] * (np.outer(u, u) + mixed + mixed.T + H @ M @ H.T + S)
            expected["xx"] += weight[t, w] * M
        for name, value in expected.items():
            np.testing.assert_allclose(getattr(moments, name)[..., w], value, atol=1e-8)


@pytest.mark.parametrize("missing", ["none", "entries"])
def test_sampled_states_have_the_smoothed_law(x64, rng, missing):
    """Mean and covariance over many draws of all states, at 4.5 standard errors."""
    A, Q, C, R = system(rng, 2, 2)
    y = rng.normal(size=(T, 2))
    if missing == "entries":
        y[1, 0] = y[4] = np.nan
    num = 40_000
    windows = np.repeat(y[:, :, None], num, axis=2)
    first = np.arange(num) % 2 == 0
    initial, edge = 10 * np.eye(2), np.eye(2)
    noise = jax.random.normal(jax.random.key(1), (T + 1, 2, num))
    x = np.asarray(run(A, Q, C, R, windows, first, initial, edge, missing=missing, noise=noise))
    for starts, law in ((first, initial), (~first, edge)):
        exact = dense_gaussian(A, Q, C, R, (np.zeros(2), law), y)
        drawn = x[:, :, starts].reshape(-1, num // 2)
        covariance = exact.covariance.reshape(len(drawn), len(drawn))
        variance = np.diag(covariance)
        z = (drawn.mean(1) - exact.mean.ravel()) / np.sqrt(variance / (num / 2))
        assert np.abs(z).max() < 4.5
        error = np.sqrt((np.outer(variance, variance) + covariance**2) / (num / 2))
        assert np.abs((np.cov(drawn) - covariance) / error).max() < 4.5


def test_settled_recursions_equal_unstopped_ones(x64, rng):
    """A long window, where covariances stop early, against rows all marked as seen."""
    A, Q, C, R = system(rng, 3, 2)
    y = rng.normal(size=(300, 2, 2))
    first = np.array([True, False])
    arguments = (A, Q, C, R, y, first, 10 * np.eye(3), np.eye(3))
    stopped = run(*arguments, missing="none")
    stepped = run(*arguments, missing="rows")
    for one, other in zip(jax.tree.leaves(stopped[:4]), jax.tree.leaves(stepped[:4]), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-11)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("radius", "q", "r"), [(0.99999, 1.0, 1.0), (0.9, 1e-6, 1.0), (0.9, 1.0, 1e-6)]
)
def test_covariances_stay_symmetric_and_positive(rng, dtype, radius, q, r):
    """Near a unit root, with tiny Q or tiny R, in both precisions; n = 10."""
    n, m = 10, 10
    A = np.linalg.qr(rng.normal(size=(n, n)))[0] * radius
    with jax.enable_x64(dtype == "float64"):
        C = jnp.asarray(rng.normal(size=(m, n)), dtype)
        y = jnp.asarray(rng.normal(size=(400, m, 2)), dtype)
        psi = jnp.eye(m, dtype=dtype) / np.sqrt(r)
        rows = observe(C, psi.astype(dtype), y, jnp.ones((400, 2), bool))
        A4 = jnp.asarray(A, dtype)[None, :, :, None]
        Q4 = (q * jnp.eye(n, dtype=dtype))[None, :, :, None]
        start = 10 * jnp.eye(n, dtype=dtype)[:, :, None] * jnp.ones(2, dtype)
        found = gaussian.gains(A4, Q4, rows.C, start, 400)
        filtered = gaussian.forward(found, None, jnp.zeros((n, 2), dtype), rows)
        smoothed = gaussian.backward(found, None, filtered)
    for matrices in (np.asarray(found.previous), np.asarray(smoothed.covariance)):
        assert np.isfinite(matrices).all()
        np.testing.assert_array_equal(matrices, np.swapaxes(matrices, 1, 2))
        eigenvalues = np.linalg.eigvalsh(np.moveaxis(matrices, 3, 1).astype(float))
        assert eigenvalues.min() > 0
    assert np.isfinite(filtered.log_normalizer).all()


def test_stationary_covariance(x64, rng):
    for n in (1, 3, 7):
        A, Q, _, _ = system(rng, n, 1)
        V = np.asarray(gaussian.stationary(jnp.asarray(A), jnp.asarray(Q)))
        np.testing.assert_allclose(V, A @ V @ A.T + Q, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("root", [1.0, 1.5, 1e3])
def test_without_a_stationary_law_the_edge_is_wide_and_finite(x64, root):
    A, Q = root * np.eye(2), np.diag([1.0, 2.0])
    V = np.asarray(gaussian.stationary(jnp.asarray(A), jnp.asarray(Q)))
    assert np.isfinite(V).all()
    assert (np.diag(V) > np.diag(Q) - 1e-12).all()
    assert np.trace(V) <= 1e6 * np.trace(Q)
