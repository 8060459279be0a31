"""Gaussian hidden Markov model."""

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from sojourn._validation import check_positive, check_size
from sojourn.blocks import Regression
from sojourn.models import completion
from sojourn.models.base import Params, Units
from sojourn.models.regimes import RegimeModel
from sojourn.models.simulation import check_simulation, markov_chain


@dataclass(frozen=True)
class GaussianHMM(RegimeModel):
    """Hidden Markov model with Gaussian emissions.

        z_t | z_{t−1} ~ Π[z_{t−1}],    y_t | z_t = k ~ N(μ_k, Σ_k)

    Priors: Π_k ~ Dirichlet(α), Σ_k⁻¹ ~ Wishart(ν, Ψ⁻¹), μ_k | Σ_k ~ N(m₀, Σ_k / κ₀). Where a prior
    is not given, it is the paper's in the units of the data: m₀ their centre, Ψ = ν diag(scale²),
    ν = D + 1, κ₀ = 0.01.

    Parameters: `transition_matrix` (K, K), `means` (K, D), `covariances` (K, D, D).

    Args:
        num_states: Number of states K.
        emission_dim: Number of columns D of the data.
        concentration: Dirichlet concentration α, a number or (K, K).
        mean_precision: κ₀, the weight of the prior mean in rows.
        prior_mean: m₀, shape (D,), in the units of the data.
        dof: Wishart degrees of freedom ν > D − 1.
        scale: Wishart scale Ψ, shape (D, D), in the units of the data.
        initial: Law of the state before the first row, shape (K,), or
            "stationary", the law of the chain in the long run, with its gradient; uniform by default.
        units: Location and scale of the data; set by `scaled_to` and `sample`.
    """

    num_states: int
    emission_dim: int
    concentration: Any = 1.0
    mean_precision: float = 0.01
    prior_mean: Any = None
    dof: float | None = None
    scale: Any = None
    initial: Any = None
    units: Units | None = None

    def __post_init__(self) -> None:
        check_size("num_states", self.num_states)
        check_size("emission_dim", self.emission_dim)
        check_positive("mean_precision", self.mean_precision)
        self.check_initial()
        self.check_priors({"prior_mean": (self.emission_dim,)})

    @functools.cached_property
    def regression(self) -> Regression:
        if self.units is not None:
            return self.unitless().regression
        D = self.emission_dim
        dof = D + 1.0 if self.dof is None else float(self.dof)
        mean = np.zeros(D) if self.prior_mean is None else np.asarray(self.prior_mean)
        return Regression(
            matrix="means",
            covariance="covariances",
            num_states=self.num_states,
            dim=D,
            num_regressors=1,
            mean=np.reshape(mean, (D, 1)),
            precision=[[self.mean_precision]],
            dof=dof,
            scale=dof * np.eye(D) if self.scale is None else self.scale,
            vector=True,
        )

    def unitless(self) -> "GaussianHMM":
        location, scale = self._location_scale()
        given: dict[str, Any] = {"units": None}
        if self.prior_mean is not None:
            given["prior_mean"] = (np.asarray(self.prior_mean) - location) / scale
        if self.scale is not None:
            given["scale"] = np.asarray(self.scale) / np.outer(scale, scale)
        return dataclasses.replace(self, **given)

    @property
    def param_shapes(self) -> dict[str, tuple[int, ...]]:
        K, D = self.num_states, self.emission_dim
        return {"transition_matrix": (K, K), "means": (K, D), "covariances": (K, D, D)}

    @property
    def param_dims(self) -> dict[str, tuple[str, ...]]:
        return {
            "transition_matrix": ("state", "to_state"),
            "means": ("state", "column"),
            "covariances": ("state", "column", "column_bis"),
        }

    def regressors(self, y: Array) -> tuple[Array, Array]:
        return y, jnp.ones_like(y[:, :1])

    def complete_rows(
        self, params: Params, states: Mapping[str, np.ndarray], y: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Mix the laws of the missing entries given those seen and each state."""
        nothing = (np.zeros((len(y), 0)), np.zeros((len(y), 0, 0)))
        H = np.zeros((self.emission_dim, 0))
        parts = [
            completion.complete(mean, H, covariance, nothing, y)
            for mean, covariance in zip(params["means"], params["covariances"], strict=True)
        ]
        means, covariances = (np.stack(part) for part in zip(*parts, strict=True))
        return completion.mix(states["probability"], means, covariances)

    def standardise(self, params: Params, *, inverse: bool = False) -> dict[str, Array]:
        if self.units is None:
            return dict(params)
        location, scale = (jnp.asarray(v) for v in self._location_scale())
        means, outer = params["means"], scale[:, None] * scale
        if inverse:
            means, covariances = means * scale + location, params["covariances"] * outer
        else:
            means, covariances = (means - location) / scale, params["covariances"] / outer
        return {**params, "means": means, "covariances": covariances}

    def simulate(
        self, params: Params, num_timesteps: int, seed: int = 0
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Draw states and rows from the model.

        Returns:
            `{"z": (T,)}` and rows (T, D).
        """
        key = check_simulation(num_timesteps, seed)
        with jax.enable_x64(True):
            values = self.check_params(params)
            key_states, key_noise = jax.random.split(key)
            law = self.initial_law(values["transition_matrix"])
            z = markov_chain(key_states, values["transition_matrix"], law, num_timesteps)
            roots = jnp.linalg.cholesky(values["covariances"])
            noise = jax.random.normal(key_noise, (num_timesteps, self.emission_dim))
            y = values["means"][z] + jnp.einsum("tij,tj->ti", roots[z], noise)
            return {"z": np.array(z)}, np.array(y)

    def _location(self, location: np.ndarray) -> np.ndarray:
        return location

    def _location_scale(self) -> tuple[np.ndarray, np.ndarray]:
        if self.units is None:
            return np.zeros(self.emission_dim), np.ones(self.emission_dim)
        return np.asarray(self.units.location), np.asarray(self.units.scale)
