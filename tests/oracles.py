"""Slow, obvious truth: path enumeration, SciPy densities, finite differences, a textbook pass."""

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import solve_discrete_lyapunov
from scipy.special import logsumexp
from scipy.stats import multivariate_normal


class Enumerated(NamedTuple):
    """Everything about a short chain, from all its paths z_0, …, z_T."""

    log_likelihood: float
    marginals: np.ndarray  # (T, K)
    pairs: np.ndarray  # (T, K, K), of (z_{t-1}, z_t)
    best: np.ndarray  # (T,)
    paths: np.ndarray
    probabilities: np.ndarray


def law_before(model: Any, params: dict[str, np.ndarray]) -> np.ndarray:
    """Return the law of the discrete state before the first row."""
    Pi = params["transition_matrix"]
    if model.initial is None:
        return np.full(len(Pi), 1 / len(Pi))
    if isinstance(model.initial, str):
        values, vectors = np.linalg.eig(np.asarray(Pi).T)
        law = np.real(vectors[:, np.argmax(np.real(values))])
        return law / law.sum()
    return np.asarray(model.initial)


def enumerate_paths(Pi: np.ndarray, initial: np.ndarray, log_f: np.ndarray) -> Enumerated:
    """Sum over all K^(T+1) paths; `initial` is the law of the state before the first row."""
    T, K = log_f.shape
    paths = np.array(list(itertools.product(range(K), repeat=T + 1)))
    with np.errstate(divide="ignore"):
        log_p = np.log(initial)[paths[:, 0]]
        for t in range(T):
            log_p = log_p + np.log(Pi)[paths[:, t], paths[:, t + 1]] + log_f[t, paths[:, t + 1]]
    total = logsumexp(log_p)
    p = np.exp(log_p - total)
    one_hot = np.eye(K)[paths]
    marginals = np.einsum("n,ntk->tk", p, one_hot[:, 1:])
    pairs = np.einsum("n,ntk,ntj->tkj", p, one_hot[:, :-1], one_hot[:, 1:])
    # Viterbi maximises over the state before the first row as well.
    return Enumerated(float(total), marginals, pairs, paths[np.argmax(log_p), 1:], paths, p)


def regime_log_densities(model: Any, params: dict[str, np.ndarray], y: np.ndarray) -> np.ndarray:
    """Return log p(y_t | z_t = k), missing entries integrated out, rows after the lags."""
    p = model.num_lags
    out = np.zeros((len(y) - p, model.num_states))
    for t in range(p, len(y)):
        for k in range(model.num_states):
            if p:
                lags = np.concatenate([y[t - lag] for lag in range(1, p + 1)])
                if np.isnan(lags).any() or np.isnan(y[t]).any():
                    continue
                mean, covariance = params["A"][k] @ lags, params["Q"][k]
            else:
                mean, covariance = params["means"][k], params["covariances"][k]
            seen = ~np.isnan(y[t])
            if seen.any():
                law = multivariate_normal(mean[seen], covariance[np.ix_(seen, seen)])
                out[t - p, k] = law.logpdf(y[t][seen])
    return out


def textbook_pass(
    Pi: np.ndarray, initial: np.ndarray, log_f: np.ndarray
) -> tuple[float, np.ndarray, np.ndarray]:
    """Return log-likelihood, marginals and Viterbi path of one series, row by row in log space."""
    with np.errstate(divide="ignore"):
        log_Pi, log_initial = np.log(Pi), np.log(initial)
    T, K = log_f.shape
    forward, backward, score = np.zeros((T, K)), np.zeros((T, K)), np.zeros((T, K))
    pointer = np.zeros((T, K), dtype=int)
    alpha = delta = log_initial
    for t in range(T):
        alpha = forward[t] = logsumexp(alpha[:, None] + log_Pi, axis=0) + log_f[t]
        joint = delta[:, None] + log_Pi
        pointer[t] = joint.argmax(0)
        delta = score[t] = joint.max(0) + log_f[t]
    for t in range(T - 2, -1, -1):
        backward[t] = logsumexp(log_Pi + (log_f[t + 1] + backward[t + 1])[None], axis=1)
    total = logsumexp(forward[-1])
    path = np.zeros(T, dtype=int)
    path[-1] = score[-1].argmax()
    for t in range(T - 1, 0, -1):
        path[t - 1] = pointer[t, path[t]]
    return float(total), np.exp(forward + backward - total), path


def finite_differences(
    function: Callable[[dict[str, np.ndarray]], float],
    at: dict[str, np.ndarray],
    step: float = 1e-5,
) -> dict[str, np.ndarray]:
    """Return central differences of a function of a dict of arrays."""
    gradient = {}
    for name, value in at.items():
        gradient[name] = np.zeros_like(value)
        for index in np.ndindex(value.shape):
            moved = []
            for sign in (1, -1):
                shifted = {n: np.array(v) for n, v in at.items()}
                shifted[name][index] += sign * step
                moved.append(function(shifted))
            gradient[name][index] = (moved[0] - moved[1]) / (2 * step)
    return gradient


def linear_law(model: Any, params: dict[str, np.ndarray], y: np.ndarray) -> "DenseGaussian":
    """Return the law of the states of an LGSSM given one series."""
    A, Q = params["A"], params["Q"]
    C = params.get("C", np.eye(model.emission_dim, model.state_dim))
    mean, covariance = np.zeros(len(A)), 10 * np.eye(len(A))
    if isinstance(model.initial, str):
        covariance = solve_discrete_lyapunov(A, Q)
    elif model.initial is not None:
        mean, covariance = (np.asarray(value) for value in model.initial)
    return dense_gaussian(A, Q, C, params["R"], (mean, covariance), y)


class DenseGaussian(NamedTuple):
    """Everything about a short linear Gaussian series, from the joint law of all states and rows."""

    log_likelihood: float
    mean: np.ndarray  # (T + 1, n), of x_0, …, x_T
    covariance: np.ndarray  # (T + 1, n, T + 1, n)


def dense_gaussian(
    A: np.ndarray,
    Q: np.ndarray,
    C: np.ndarray,
    R: np.ndarray,
    initial: tuple[np.ndarray, np.ndarray],
    y: np.ndarray,
) -> DenseGaussian:
    """Condition the joint Gaussian of x_0, …, x_T on the entries of y that are not NaN.

    A and Q may have one matrix for each row, (T, n, n).
    """
    T, m = y.shape
    n = C.shape[1]
    A, Q = np.broadcast_to(A, (T, n, n)), np.broadcast_to(Q, (T, n, n))
    mean = np.zeros((T + 1, n))
    covariance = np.zeros((T + 1, n, T + 1, n))
    mean[0], covariance[0, :, 0] = initial
    for t in range(1, T + 1):
        mean[t] = A[t - 1] @ mean[t - 1]
        for s in range(t):
            covariance[t, :, s] = A[t - 1] @ covariance[t - 1, :, s]
            covariance[s, :, t] = covariance[t, :, s].T
        covariance[t, :, t] = A[t - 1] @ covariance[t - 1, :, t - 1] @ A[t - 1].T + Q[t - 1]
    size = (T + 1) * n
    flat = covariance.reshape(size, size)
    lift = np.zeros((T * m, size))
    for t in range(T):
        lift[t * m : (t + 1) * m, (t + 1) * n : (t + 2) * n] = C
    seen = ~np.isnan(y.ravel())
    lift, noise = lift[seen], np.kron(np.eye(T), R)[np.ix_(seen, seen)]
    S = lift @ flat @ lift.T + noise
    residual = y.ravel()[seen] - lift @ mean.ravel()
    gain = np.linalg.solve(S, lift @ flat).T
    posterior = flat - gain @ lift @ flat
    total = multivariate_normal(np.zeros(len(S)), S).logpdf(residual) if len(S) else 0.0
    return DenseGaussian(
        float(total),
        (mean.ravel() + gain @ residual).reshape(T + 1, n),
        posterior.reshape(T + 1, n, T + 1, n),
    )


def textbook_kalman(
    A: np.ndarray,
    Q: np.ndarray,
    C: np.ndarray,
    R: np.ndarray,
    initial: tuple[np.ndarray, np.ndarray],
    y: np.ndarray,
) -> tuple[float, np.ndarray, np.ndarray]:
    """Return log-likelihood, smoothed means and covariances of one series, row by row."""
    T, n = len(y), len(A)
    means, covariances = np.zeros((T, n)), np.zeros((T, n, n))
    predicted, spread = np.zeros((T, n)), np.zeros((T, n, n))
    m, P = initial
    total = 0.0
    for t in range(T):
        m, P = A @ m, A @ P @ A.T + Q
        predicted[t], spread[t] = m, P
        o = ~np.isnan(y[t])
        if o.any():
            S = C[o] @ P @ C[o].T + R[np.ix_(o, o)]
            residual = y[t, o] - C[o] @ m
            total += multivariate_normal(np.zeros(o.sum()), S).logpdf(residual)
            K = np.linalg.solve(S, C[o] @ P).T
            m, P = m + K @ residual, P - K @ S @ K.T
        means[t], covariances[t] = m, P
    for t in range(T - 2, -1, -1):
        J = np.linalg.solve(spread[t + 1], A @ covariances[t]).T
        means[t] += J @ (means[t + 1] - predicted[t + 1])
        covariances[t] += J @ (covariances[t + 1] - spread[t + 1]) @ J.T
    return float(total), means, covariances


class EnumeratedSLDS(NamedTuple):
    """Everything about a short switching linear series, from all its paths z_0, …, z_T."""

    log_likelihood: float
    marginals: np.ndarray  # (T, K)
    mean: np.ndarray  # (T, n), of x_1, …, x_T
    second: np.ndarray  # (T, n, n)
    paths: np.ndarray
    probabilities: np.ndarray


def enumerate_slds(
    params: dict[str, np.ndarray], initial: tuple[np.ndarray, np.ndarray], y: np.ndarray
) -> EnumeratedSLDS:
    """Sum over all K^(T+1) paths, x integrated out of each by its dense joint law.

    `initial` is the law of z_0 and the covariance of x_0, (n, n) or one for each state, (K, n, n).
    """
    law, covariance = initial
    Pi, A, Q, C, R = (params[name] for name in ("transition_matrix", "A", "Q", "C", "R"))
    K, n = A.shape[:2]
    T = len(y)
    covariance = np.broadcast_to(covariance, (K, n, n))
    paths = np.array(list(itertools.product(range(K), repeat=T + 1)))
    log_p, mean, second = [], [], []
    with np.errstate(divide="ignore"):
        log_Pi, log_law = np.log(Pi), np.log(law)
    for z in paths:
        exact = dense_gaussian(A[z[1:]], Q[z[1:]], C, R, (np.zeros(n), covariance[z[0]]), y)
        log_p.append(log_law[z[0]] + log_Pi[z[:-1], z[1:]].sum() + exact.log_likelihood)
        mean.append(exact.mean[1:])
        own = np.einsum("tatb->tab", exact.covariance[1:, :, 1:])
        second.append(own + exact.mean[1:, :, None] * exact.mean[1:, None])
    total = logsumexp(log_p)
    p = np.exp(np.array(log_p) - total)
    return EnumeratedSLDS(
        float(total),
        np.einsum("n,ntk->tk", p, np.eye(K)[paths[:, 1:]]),
        np.einsum("n,nta->ta", p, np.array(mean)),
        np.einsum("n,ntab->tab", p, np.array(second)),
        paths,
        p,
    )
