"""Autoregressive hidden Markov model."""

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from sojourn._linalg import eye, matmul, solve_lower, transpose
from sojourn._validation import check_size
from sojourn.batch import Batch, Edges, Missing, Seam, earlier, edges, key_of
from sojourn.blocks import Regression
from sojourn.messages import particle
from sojourn.models.base import Coords, Params, Units
from sojourn.models.regimes import RegimeModel
from sojourn.models.simulation import check_simulation, markov_chain

# Paths of states, for each row, that predictions of farther rows are averaged over.
_PATHS = 64


@dataclass(frozen=True)
class ARHMM(RegimeModel):
    """Hidden Markov model whose emissions are vector autoregressions.

        z_t | z_{t−1} ~ Π[z_{t−1}],    y_t | z_t = k ~ N(A_k (y_{t−1}; …; y_{t−p}), Q_k)

    The first p rows of each series are conditioned on. A row whose own value or lags are missing in
    part is treated as missing (`MATH.md` §2.4).

    Priors: Π_k ~ Dirichlet(α), Q_k⁻¹ ~ Wishart(ν, Ψ⁻¹), A_k | Q_k ~ MN(M, Q_k, V). Where a prior is not
    given, it is the paper's in the units of the data: M = 0, V = 100 diag(scale of the lags)⁻²,
    Ψ = ν diag(scale²), ν = D + 1.

    Parameters: `transition_matrix` (K, K); `A` (K, D, D p), the most recent lag first; `Q` (K, D, D).

    Args:
        num_states: Number of states K.
        emission_dim: Number of columns D of the data.
        num_lags: Order p of the autoregression.
        concentration: Dirichlet concentration α, a number or (K, K).
        prior_mean: M, shape (D, D p), in the units of the data.
        column_covariance: V, shape (D p, D p), in one over the squared units of the data.
        dof: Wishart degrees of freedom ν > D − 1.
        scale: Wishart scale Ψ, shape (D, D), in the units of the data.
        initial: Law of the state before the first row after the lags, shape (K,), or
            "stationary", the law of the chain in the long run, with its gradient; uniform by default.
        units: Scale of the data; set by `scaled_to` and `sample`.
    """

    num_states: int
    emission_dim: int
    num_lags: int = 1  # type: ignore[assignment]
    concentration: Any = 1.0
    prior_mean: Any = None
    column_covariance: Any = None
    dof: float | None = None
    scale: Any = None
    initial: Any = None
    units: Units | None = None

    def __post_init__(self) -> None:
        check_size("num_states", self.num_states)
        check_size("emission_dim", self.emission_dim)
        check_size("num_lags", self.num_lags)
        self.check_initial()
        D, q = self.emission_dim, self.emission_dim * self.num_lags
        self.check_priors({"prior_mean": (D, q), "column_covariance": (q, q)})

    @functools.cached_property
    def regression(self) -> Regression:
        if self.units is not None:
            return self.unitless().regression
        D, q = self.emission_dim, self.emission_dim * self.num_lags
        dof = D + 1.0 if self.dof is None else float(self.dof)
        column = 100.0 * np.eye(q)
        if self.column_covariance is not None:
            column = np.asarray(self.column_covariance)
        return Regression(
            matrix="A",
            covariance="Q",
            num_states=self.num_states,
            dim=D,
            num_regressors=q,
            mean=np.zeros((D, q)) if self.prior_mean is None else self.prior_mean,
            precision=np.linalg.inv(column),
            dof=dof,
            scale=dof * np.eye(D) if self.scale is None else self.scale,
        )

    def unitless(self) -> "ARHMM":
        scale, lag_scale = self._scales()
        given: dict[str, Any] = {"units": None}
        if self.prior_mean is not None:
            given["prior_mean"] = np.asarray(self.prior_mean) * lag_scale / scale[:, None]
        if self.column_covariance is not None:
            given["column_covariance"] = np.asarray(self.column_covariance) * np.outer(
                lag_scale, lag_scale
            )
        if self.scale is not None:
            given["scale"] = np.asarray(self.scale) / np.outer(scale, scale)
        return dataclasses.replace(self, **given)

    @property
    def param_shapes(self) -> dict[str, tuple[int, ...]]:
        K, D = self.num_states, self.emission_dim
        return {"transition_matrix": (K, K), "A": (K, D, D * self.num_lags), "Q": (K, D, D)}

    @property
    def param_dims(self) -> dict[str, tuple[str, ...]]:
        return {
            "transition_matrix": ("state", "to_state"),
            "A": ("state", "column", "lag_column"),
            "Q": ("state", "column", "column_bis"),
        }

    def missing_kind(self, missing: Missing) -> Missing:
        return "rows" if missing == "entries" else missing

    def regressors(self, y: Array) -> tuple[Array, Array]:
        p = self.num_lags
        L = y.shape[0] - p
        lags = [y[p - 1 - lag : p - 1 - lag + L] for lag in range(p)]
        return y[p:], jnp.concatenate(lags, axis=1)

    def window_predictions(
        self, coords: Coords, batch: Batch, seam: Seam, missing: Missing, horizon: int
    ) -> tuple[Array, Edges]:
        """Return scores of predictions; beyond one row ahead, averages over paths of the states between.

        Rows whose last known lags are not complete are not predicted.
        """
        if horizon == 1:
            return super().window_predictions(coords, batch, seam, missing, horizon)
        Pi, filtered = self.filter(coords, batch, missing)
        L, _, W = filtered.previous.shape
        A, psi = self.regression.unpack(coords)
        inverse = solve_lower(psi, jnp.broadcast_to(eye(self.emission_dim, psi), psi.shape))
        Q = matmul(transpose(inverse), inverse)
        y, lags = self.regressors(batch.y)
        known = slice(1, L - horizon + 1)  # `previous` and lags of row t are those of row t − 1
        y, lags = y[horizon:], lags[known]
        seen = ~(jnp.isnan(y).any(1) | jnp.isnan(lags).any(1))
        y, lags = (jnp.where(seen[:, None], rows, 0.0) for rows in (y, lags))
        laws = filtered.previous[known]
        scores = particle.predict_rows(key_of(batch), Pi, A, Q, laws, lags, y, _PATHS, horizon)
        scores = jnp.where(seen, scores, 0.0)
        nothing = jnp.zeros((L, 1, W))
        compared = edges(filtered.previous, filtered.last, nothing, earlier(seam, horizon))
        return (batch.weight[horizon:] * scores).sum(0), compared

    def rows_ahead(
        self,
        rng: np.random.Generator,
        params: Params,
        states: Mapping[str, np.ndarray],
        lags: np.ndarray,
    ) -> np.ndarray:
        """Draw each row given its state and the rows before it."""
        z = states["state"]
        D, roots = self.emission_dim, np.linalg.cholesky(params["Q"])
        chi = lags[:, ::-1].reshape(len(lags), -1)  # most recent lag first
        rows = np.empty((*z.shape, D))
        for h in range(z.shape[1]):
            noise = np.einsum("nij,nj->ni", roots[z[:, h]], rng.normal(size=(len(z), D)))
            rows[:, h] = np.einsum("nij,nj->ni", params["A"][z[:, h]], chi) + noise
            chi = np.concatenate([rows[:, h], chi[:, :-D]], axis=1)
        return rows

    def standardise(self, params: Params, *, inverse: bool = False) -> dict[str, Array]:
        if self.units is None:
            return dict(params)
        scale, lag_scale = (jnp.asarray(v) for v in self._scales())
        ratio, outer = lag_scale / scale[:, None], scale[:, None] * scale
        if inverse:
            return {**params, "A": params["A"] / ratio, "Q": params["Q"] * outer}
        return {**params, "A": params["A"] * ratio, "Q": params["Q"] / outer}

    def simulate(
        self, params: Params, num_timesteps: int, seed: int = 0
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Draw states and rows from the model; the rows before the first are zero.

        Returns:
            `{"z": (T,)}` and rows (T, D).
        """
        key = check_simulation(num_timesteps, seed)
        with jax.enable_x64(True):
            values = self.check_params(params)
            key_states, key_noise = jax.random.split(key)
            law = self.initial_law(values["transition_matrix"])
            z = markov_chain(key_states, values["transition_matrix"], law, num_timesteps)
            noise = jax.random.normal(key_noise, (num_timesteps, self.emission_dim))
            y = _autoregress(values["A"], jnp.linalg.cholesky(values["Q"]), z, noise)
            return {"z": np.array(z)}, np.array(y)

    def _scales(self) -> tuple[np.ndarray, np.ndarray]:
        scale = np.ones(self.emission_dim) if self.units is None else np.asarray(self.units.scale)
        return scale, np.tile(scale, self.num_lags)


@jax.jit
def _autoregress(A: Array, roots: Array, z: Array, noise: Array) -> Array:
    D = noise.shape[1]

    def step(lags: Array, row: tuple[Array, Array]) -> tuple[Array, Array]:
        state, e = row
        y = A[state] @ lags + roots[state] @ e
        return jnp.concatenate([y, lags[:-D]]), y

    return lax.scan(step, jnp.zeros(A.shape[2]), (z, noise))[1]
