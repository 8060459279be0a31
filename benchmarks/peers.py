"""The same computations by hmmlearn, statsmodels and dynamax, set up as their users would for speed.

Ours gives the state *before* the first row a uniform law; the peers state the law of the first one,
which is that law after one transition.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from dynamax.hidden_markov_model import hmm_filter, hmm_smoother, hmm_two_filter_smoother
from dynamax.linear_gaussian_ssm import (
    ParamsLGSSM,
    ParamsLGSSMDynamics,
    ParamsLGSSMEmissions,
    ParamsLGSSMInitial,
    lgssm_filter,
    lgssm_smoother,
)
from hmmlearn.hmm import GaussianHMM
from jax import Array
from statsmodels.tsa.statespace.mlemodel import MLEModel

from sojourn.models import ARHMM, LGSSM

Params = dict[str, np.ndarray]


def hmmlearn_models(params: Params) -> dict[str, GaussianHMM]:
    """Return hmmlearn's Gaussian HMM in both of its implementations."""
    models = {}
    for implementation in ("scaling", "log"):
        model = GaussianHMM(
            len(params["means"]), covariance_type="full", implementation=implementation
        )
        model.startprob_ = params["transition_matrix"].mean(0)
        model.transmat_ = params["transition_matrix"]
        model.means_ = params["means"]
        model.covars_ = params["covariances"]
        model.n_features = params["means"].shape[1]
        models[f"hmmlearn, {implementation}"] = model
    return models


def dynamax_log_likelihood(params: Params, y: Array) -> Callable[[], Array]:
    """Return a compiled call of dynamax's filter, densities included."""
    values = {name: jnp.asarray(value) for name, value in params.items()}

    @jax.jit
    def run(values: dict[str, Array], y: Array) -> Array:
        Pi = values["transition_matrix"]
        return hmm_filter(Pi.mean(0), Pi, _gaussian(values, y)).marginal_loglik

    return lambda: run(values, y)


def dynamax_marginals(params: Params, y: Array) -> dict[str, Callable[[], Array]]:
    """Return compiled calls of dynamax's two smoothers, densities included.

    They also offer transition probabilities, which the compiler drops, as nothing uses them.
    """
    values = {name: jnp.asarray(value) for name, value in params.items()}

    def compiled(smoother: Callable[..., Any]) -> Callable[[], Array]:
        @jax.jit
        def run(values: dict[str, Array], y: Array) -> Array:
            Pi = values["transition_matrix"]
            log_f = _gaussian(values, y)
            return smoother(Pi.mean(0), Pi, log_f).smoothed_probs

        return lambda: run(values, y)

    return {
        "dynamax": compiled(hmm_smoother),
        "dynamax, two filters": compiled(hmm_two_filter_smoother),
    }


def dynamax_gradients(model: ARHMM, coords: Any, y: Array) -> dict[str, Callable[[], Any]]:
    """Return compiled gradients of the log-likelihood of windows y (L+1, D, W), summed over them."""

    def log_likelihood(coords: Any, window: Array) -> Array:
        params = model.to_params(coords)
        Pi = params["transition_matrix"]
        return hmm_filter(Pi.mean(0), Pi, _autoregression(params, window)).marginal_loglik

    return _gradients(log_likelihood, coords, y)


def dynamax_linear_gradients(model: LGSSM, coords: Any, y: Array) -> dict[str, Callable[[], Any]]:
    """Return compiled gradients of the log-likelihood of windows y (L, m, W), summed over them."""

    def log_likelihood(coords: Any, window: Array) -> Array:
        return lgssm_filter(_dynamax_linear(model.to_params(coords)), window).marginal_loglik

    return _gradients(log_likelihood, coords, y)


def dynamax_linear(params: Params, y: Array) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Return compiled calls of dynamax's Kalman filter (log-likelihood) and smoother (means)."""
    values = _dynamax_linear({name: jnp.asarray(value) for name, value in params.items()})
    score = jax.jit(lambda values, y: lgssm_filter(values, y).marginal_loglik)

    @jax.jit
    def smooth(values: ParamsLGSSM, y: Array) -> tuple[Array, Array]:
        found = lgssm_smoother(values, y)
        return found.smoothed_means, found.smoothed_covariances

    return lambda: score(values, y), lambda: smooth(values, y)


def statsmodels_linear(
    params: Params, y: np.ndarray
) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Return calls of statsmodels' Kalman filter (log-likelihood) and smoother (means)."""
    n, m = len(params["A"]), y.shape[1]
    model = MLEModel(y, k_states=n, k_posdef=n)
    model["design"], model["obs_cov"] = np.eye(m, n), params["R"]
    model["transition"], model["state_cov"] = params["A"], params["Q"]
    model["selection"] = np.eye(n)
    mean, covariance = _first_state(params)
    model.initialize_known(np.asarray(mean), np.asarray(covariance))
    model.loglikelihood_burn = 0

    def smooth() -> tuple[np.ndarray, np.ndarray]:
        found = model.ssm.smooth()
        return found.smoothed_state.T, np.moveaxis(found.smoothed_state_cov, -1, 0)

    return lambda: model.ssm.loglike(), smooth


def _dynamax_linear(params: Any) -> ParamsLGSSM:
    n, m = params["A"].shape[0], params["R"].shape[0]
    return ParamsLGSSM(
        ParamsLGSSMInitial(*_first_state(params)),
        ParamsLGSSMDynamics(params["A"], jnp.zeros(n), jnp.zeros((n, 0)), params["Q"]),
        ParamsLGSSMEmissions(jnp.eye(m, n), jnp.zeros(m), jnp.zeros((m, 0)), params["R"]),
    )


def _first_state(params: Any) -> tuple[Any, Any]:
    """Return the law of the first state: N(0, 10 I) after one transition."""
    A = params["A"]
    return jnp.zeros(len(A)), 10 * A @ A.T + params["Q"]


def _gradients(
    log_likelihood: Callable[[Any, Array], Array], coords: Any, y: Array
) -> dict[str, Callable[[], Any]]:
    """Return the gradient summed over windows: one for each window, and the gradient of the sum."""

    @jax.jit
    def each(coords: Any, windows: Array) -> Any:
        gradients = jax.vmap(jax.grad(log_likelihood), (None, 0))(coords, windows)
        return jax.tree.map(lambda g: g.sum(0), gradients)

    @jax.jit
    def together(coords: Any, windows: Array) -> Any:
        total = lambda u: jax.vmap(log_likelihood, (None, 0))(u, windows).sum()  # noqa: E731
        return jax.grad(total)(coords)

    windows = jnp.moveaxis(y, -1, 0)
    return {
        "dynamax, vmap of grad": lambda: each(coords, windows),
        "dynamax, grad of vmap": lambda: together(coords, windows),
    }


def _gaussian(params: dict[str, Array], y: Array) -> Array:
    """Return log N(y_t; μ_k, Σ_k), of shape (T, K)."""
    return _log_normal(y[:, None] - params["means"], params["covariances"])


def _autoregression(params: dict[str, Array], y: Array) -> Array:
    """Return log N(y_t; A_k y_{t−1}, Q_k), of shape (L, K)."""
    predicted = jnp.einsum("kde,te->tkd", params["A"], y[:-1])
    return _log_normal(y[1:, None] - predicted, params["Q"])


def _log_normal(residual: Array, covariance: Array) -> Array:
    root = jnp.linalg.cholesky(covariance)
    identity = jnp.broadcast_to(jnp.eye(root.shape[-1]), root.shape)
    inverse = jax.scipy.linalg.solve_triangular(root, identity, lower=True)
    white = jnp.einsum("kde,tke->tkd", inverse, residual)
    log_det = jnp.log(jnp.diagonal(root, axis1=-2, axis2=-1)).sum(-1)
    constant = log_det + root.shape[-1] / 2 * np.log(2 * np.pi)
    return -0.5 * jnp.square(white).sum(-1) - constant
