"""Discrete regimes, each with a linear regression: the common part of the HMM and the ARHMM.

    z_t | z_{t−1} ~ Π[z_{t−1}],    y_t | z_t = k ~ N(A_k χ_t, Σ_k)

Legend: y (L, D, W) rows, χ (L, q, W) regressors, A (D, q, K), ψ (D, D, K) with Σ⁻¹ = ψ ψᵀ. `MATH.md` §7.
"""

import abc
import functools
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from sojourn._linalg import cholesky, matmul, solve_lower, transpose
from sojourn._precision import double
from sojourn._validation import check_array, check_covariance, check_positive, check_seed, shown
from sojourn.batch import Batch, Cut, Edges, Missing, Seam, earlier, edges
from sojourn.blocks import (
    Regression,
    RegressionStatistics,
    Transition,
    TransitionStatistics,
)
from sojourn.blocks.base import freeze
from sojourn.messages import discrete
from sojourn.models import forgetting
from sojourn.models.base import Coords, Model, check_lags, prior_draw
from sojourn.models.initialization import kmeans_coords
from sojourn.models.stationary_start import with_stationary_chain
from sojourn.series import Series

InitMethod = Literal["kmeans", "influence", "prior"]

# Coordinates are logarithms and hold zeros of Π as the smallest number: below this they are zeros again.
_NEVER = 1e-290

# Beyond this many entries of (y, χ), products with the whitening matrix go to a matrix product.
_UNROLL_ROW = 16


class RegimeModel(Model):
    """A Markov chain that selects a regression."""

    num_states: int
    concentration: Any
    dof: float | None
    initial: Any

    @property
    @abc.abstractmethod
    def regression(self) -> Regression: ...

    @abc.abstractmethod
    def regressors(self, y: Array) -> tuple[Array, Array]:
        """Split gathered rows (L+p, D, W) into rows (L, D, W) and their regressors (L, q, W)."""

    @property
    def blocks(self) -> tuple[Transition, Regression]:
        return self.transition, self.regression

    def starts(self, init: str) -> tuple[str, ...]:
        """K-means alone misses regimes that differ in their dynamics only."""
        if init == "prior":
            return ("prior",) * 8
        return ("kmeans", "kmeans", *["influence"] * 4, "prior", "prior")

    @double
    def initial_coords(self, series: Series, method: InitMethod, seed: int) -> dict[str, Array]:
        """Return starting values as coordinates, model and series in the same units."""
        check_lags(self, series)
        if method in ("kmeans", "influence"):
            return kmeans_coords(self, series, check_seed(seed), influence=method == "influence")
        if method == "prior":
            return prior_draw(self, jax.random.key(check_seed(seed)))
        raise ValueError(f"method must be 'kmeans', 'influence' or 'prior'; got {shown(method)}")

    @property
    def noise(self) -> tuple[Literal["uniform", "normal"], int]:
        return "uniform", 1

    def describe_states(self, rows: np.ndarray) -> dict[str, tuple[tuple[str, ...], np.ndarray]]:
        return {"probability": (("time", "label"), rows)}

    @functools.cached_property
    def transition(self) -> Transition:
        return Transition(self.num_states, self.concentration)

    def initial_law(self, Pi: Array) -> Array:
        """Return the law of the state before the first row of a series."""
        if self.initial is None:
            return jnp.full(self.num_states, 1.0 / self.num_states)
        if self.is_stationary:
            return discrete.stationary(Pi)
        return jnp.asarray(self.initial)

    @property
    def is_stationary(self) -> bool:
        """Whether series begin from the stationary law of the chain."""
        return isinstance(self.initial, str) and self.initial == "stationary"

    @property
    def is_conjugate(self) -> bool:
        return not self.is_stationary

    def check_initial(self) -> None:
        """Check `initial` and make it hashable."""
        if self.initial is None or self.is_stationary:
            return
        if isinstance(self.initial, str):
            raise ValueError(
                f"initial must be probabilities or 'stationary'; got {shown(self.initial)}"
            )
        law = check_array("initial", self.initial, (self.num_states,))
        if np.any(law < 0) or not np.isclose(law.sum(), 1):
            got = f"{law.min():.6g}" if np.any(law < 0) else f"the sum {law.sum():.6g}"
            raise ValueError(f"initial must be probabilities that sum to one; got {got}")
        object.__setattr__(self, "initial", tuple(map(float, law)))

    def check_priors(self, shapes: dict[str, tuple[int, ...]]) -> None:
        """Check the priors, those of these shapes and those of all models; make them hashable."""
        K, D = self.num_states, self.emission_dim
        concentration = Transition(K, self.concentration).concentration
        object.__setattr__(self, "concentration", concentration)
        for name, shape in {**shapes, "scale": (D, D)}.items():
            value = getattr(self, name)
            if value is None:
                continue
            value = check_array(name, value, shape)
            if name in ("scale", "column_covariance"):
                check_covariance(name, value)
            object.__setattr__(self, name, freeze(value))
        if self.dof is not None:
            check_positive("dof", self.dof)
            if self.dof <= D - 1:
                raise ValueError(f"dof must exceed emission_dim - 1 = {D - 1}; got {self.dof}")

    def _transitions(self, coords: Coords) -> Array:
        """Return Π with exact zeros: hundreds of rows against one would outweigh a small number."""
        Pi = self.transition.to_params(coords)[self.transition.name]
        return jnp.where(Pi < _NEVER, 0.0, Pi)

    def filter(
        self, coords: Coords, batch: Batch, missing: Missing
    ) -> tuple[Array, discrete.Filtered]:
        """Return Π and the filtered laws of the windows."""
        Pi = self._transitions(coords)
        log_f = self.log_density(coords, batch, missing)
        return Pi, discrete.forward(Pi, self._start(Pi, batch), log_f)

    def moments(
        self, key: Array, coords: Coords, batch: Batch, missing: Missing
    ) -> discrete.Moments:
        del key
        return self._moments(coords, batch, missing)[0]

    def _moments(
        self, coords: Coords, batch: Batch, missing: Missing, *, keep_marginals: bool = False
    ) -> tuple[discrete.Moments, discrete.Filtered, Array | None]:
        """Return the moments of the windows, their filtered laws and, if asked for, the marginals."""
        Pi, filtered = self.filter(coords, batch, missing)
        features = self.features(coords, batch, missing)
        moments, before, gamma = discrete.expected_moments(
            Pi, filtered, batch.weight, features, keep_marginals=keep_marginals
        )
        if self.is_stationary:
            weight = jnp.where(batch.first, batch.weight[0], 0.0)
            moments = with_stationary_chain(moments, Pi, before, weight)
        return moments, filtered, gamma

    def window_statistics(
        self, coords: Coords, batch: Batch, seam: Seam, missing: Missing
    ) -> tuple[dict[str, Any], Edges]:
        moments, filtered, gamma = self._moments(coords, batch, missing, keep_marginals=True)
        assert gamma is not None
        statistics = self.collect(jax.tree.map(lambda m: m.sum(-1), moments))
        return statistics, edges(filtered.previous, filtered.last, gamma, seam)

    def window_scores(
        self, coords: Coords, batch: Batch, seam: Seam, missing: Missing
    ) -> tuple[Array, Edges]:
        _, filtered = self.filter(coords, batch, missing)
        L, _, W = filtered.previous.shape
        scores = (batch.weight * filtered.log_normalizer).sum(0)
        return scores, edges(filtered.previous, filtered.last, jnp.zeros((L, 1, W)), seam)

    def window_predictions(
        self, coords: Coords, batch: Batch, seam: Seam, missing: Missing, horizon: int
    ) -> tuple[Array, Edges]:
        Pi = self._transitions(coords)
        log_f = self.log_density(coords, batch, missing)
        filtered = discrete.forward(Pi, self._start(Pi, batch), log_f)
        L, _, W = filtered.previous.shape
        # `previous[t]` is the law at row t − 1: that at row t − h predicts row t.
        scores = discrete.predict(
            Pi, filtered.previous[1 : L - horizon + 1], log_f[horizon:], horizon
        )
        compared = edges(
            filtered.previous, filtered.last, jnp.zeros((L, 1, W)), earlier(seam, horizon)
        )
        return (batch.weight[horizon:] * scores).sum(0), compared

    def window_marginals(
        self, coords: Coords, batch: Batch, seam: Seam, missing: Missing
    ) -> tuple[Array, Edges]:
        Pi, filtered = self.filter(coords, batch, missing)
        gamma = discrete.backward(Pi, filtered)
        return gamma, edges(filtered.previous, filtered.last, gamma, seam)

    def window_paths(
        self, coords: Coords, batch: Batch, seam: Seam, missing: Missing
    ) -> tuple[Array, Edges]:
        Pi = self._transitions(coords)
        log_f = self.log_density(coords, batch, missing)
        start = jnp.log(self._start(Pi, batch))
        best = discrete.viterbi(jnp.log(Pi), start, log_f, seam.end)
        # Scores of unreachable states are -inf on both sides of a seam; compare them as equal.
        scores = jnp.maximum(best.scores, -1e300)
        previous = jnp.concatenate([jnp.zeros_like(scores[:1]), scores[:-1]])
        path = best.path[:, None].astype(scores.dtype)
        return best.path, edges(previous, scores[-1], path, seam)

    def window_samples(
        self,
        key: Array,
        coords: Coords,
        batch: Batch,
        noise: Array,
        seam: Seam,
        missing: Missing,
    ) -> tuple[tuple[dict[str, Any], Array], Edges]:
        Pi, filtered = self.filter(coords, batch, missing)
        states = discrete.sample(Pi, filtered, noise[:, 0])
        features = self.features(coords, batch, missing, key=key)
        moments = discrete.sampled_moments(self.num_states, states, batch.weight, features)
        statistics = self.collect(jax.tree.map(lambda m: m.sum(-1), moments))
        # The states of a row and of the one before it: the transition across the seam.
        pair = jnp.stack([states[1:], states[:-1]], axis=1).astype(noise.dtype)
        return (statistics, states[1:]), edges(filtered.previous, filtered.last, pair, seam)

    def forgetting_rate(self, coords: Coords, batch: Batch, missing: Missing) -> Array:
        return forgetting.regime_rate(self, coords, batch, missing)

    def error_bounds(
        self,
        coords: Coords,
        cut: Cut,
        missing: Missing,
        length: int,
        gradient: forgetting.Gradient,
    ) -> Array:
        return forgetting.regime_bounds(self, coords, cut, missing, length, gradient)

    def collect(self, moments: discrete.Moments) -> dict[str, Any]:
        d, n = self.emission_dim, self.emission_dim + self.regression.num_regressors
        rows, columns = np.tril_indices(n)
        index = np.zeros((n, n), dtype=int)
        index[rows, columns] = index[columns, rows] = 1 + np.arange(len(rows))
        outer = moments.features[:, index]
        return {
            self.transition.names[0]: TransitionStatistics(moments.counts),
            self.regression.names[0]: RegressionStatistics(
                n=moments.features[:, 0],
                yy=outer[:, :d, :d],
                yx=outer[:, :d, d:],
                xx=outer[:, d:, d:],
            ),
        }

    def log_density(self, coords: Coords, batch: Batch, missing: Missing) -> Array:
        """Return log N(y_t; A_k χ_t, Σ_k), of shape (L, K, W); 0 where a row is missing."""
        y, chi, seen = self._observed(batch, missing)
        A, psi = self.regression.unpack(coords)
        log_diagonal = jnp.log(jnp.stack([psi[b, b] for b in range(self.emission_dim)]))
        if missing == "entries":
            return self._completion(A, psi, y, chi, seen)[0]
        # ψᵀ (y − A χ) as one product with the row (y, χ).
        whitening = jnp.concatenate([jnp.swapaxes(psi, 0, 1), -matmul(transpose(psi), A)], axis=1)
        row = jnp.concatenate([y, chi], axis=1)
        residual = _product(whitening, row)
        constant = log_diagonal.sum(0) - self.emission_dim / 2 * np.log(2 * np.pi)
        # Written out, as a sum over an axis would not fuse with what makes its terms.
        squares = sum(jnp.square(residual[:, :, a]) for a in range(self.emission_dim))
        log_f = constant[:, None] - 0.5 * squares
        return log_f if missing == "none" else jnp.where(seen[:, None], log_f, 0.0)

    def features(
        self, coords: Coords, batch: Batch, missing: Missing, *, key: Array | None = None
    ) -> Array:
        """Return (1, lower triangle of (y, χ)(y, χ)ᵀ) for each row, shape (L, 1 or K, F, W).

        Missing entries are completed by their conditional moments given the observed ones and the
        state or, with a key, by a draw; missing rows give zero.
        """
        y, chi, seen = self._observed(batch, missing)
        if missing == "entries":
            A, psi = self.regression.unpack(coords)
            _, completed, extra = self._completion(A, psi, y, chi, seen)
            any_seen = seen.any(1)[:, None]
            if key is not None:
                completed = completed + _conditional_noise(key, extra, y)
                extra = None
            chi = jnp.broadcast_to(chi[:, None], (*completed.shape[:2], *chi.shape[1:]))
            features = _outer_features(jnp.concatenate([completed, chi], axis=2), extra)
            return jnp.where(any_seen[:, :, None], features, 0.0)
        features = _outer_features(jnp.concatenate([y, chi], axis=1)[:, None], None)
        return features if missing == "none" else jnp.where(seen[:, None, None], features, 0.0)

    def _observed(self, batch: Batch, missing: Missing) -> tuple[Array, Array, Array]:
        """Return rows and regressors with zeros for what is missing, and what was seen."""
        y, chi = self.regressors(batch.y)
        if missing == "entries":
            seen = ~jnp.isnan(y)
            return jnp.where(seen, y, 0.0), chi, seen
        if missing == "none":
            return y, chi, jnp.ones((), bool)
        seen = ~(jnp.isnan(y).any(1) | jnp.isnan(chi).any(1))
        return jnp.where(seen[:, None], y, 0.0), jnp.where(seen[:, None], chi, 0.0), seen

    def _completion(
        self, A: Array, psi: Array, y: Array, chi: Array, seen: Array
    ) -> tuple[Array, Array, Array]:
        """Condition each row on its observed entries o, for each state. `MATH.md` §2.4.

        Returns:
            log N(y_o; μ_o, Σ_oo), (L, K, W), 0 for rows without an entry; E[y | y_o], (L, K, D, W);
            Cov[y | y_o], (D, D, L, K, W).
        """
        d = self.emission_dim
        inverse = solve_lower(psi, jnp.eye(d).reshape(d, d, 1) * jnp.ones_like(psi))
        Sigma = matmul(transpose(inverse), inverse)[:, :, None, :, None]
        mean = jnp.moveaxis(_product(A, chi), 2, 0)
        o = jnp.moveaxis(seen, 1, 0)[:, :, None].astype(y.dtype)
        residual = o * (jnp.moveaxis(y, 1, 0)[:, :, None] - mean)
        # Rows and columns of missing entries become those of the identity: Σ̃ = o Σ o + (1 − o).
        masked = o[:, None] * Sigma * o[None] + jnp.eye(d).reshape(d, d, 1, 1, 1) * (1 - o)
        root = cholesky(masked)
        half = solve_lower(root, residual[:, None])
        cross = solve_lower(root, o[:, None] * Sigma)
        log_root = jnp.log(jnp.stack([root[b, b] for b in range(d)])).sum(0)
        log_f = -0.5 * (jnp.square(half).sum((0, 1)) + o.sum(0) * np.log(2 * np.pi)) - log_root
        gain = matmul(transpose(cross), half)[:, 0]
        conditional = Sigma - matmul(transpose(cross), cross)
        completed = jnp.where(o > 0, jnp.moveaxis(y, 1, 0)[:, :, None], mean + gain)
        conditional = conditional * (1 - o[:, None]) * (1 - o[None])
        return log_f, jnp.moveaxis(completed, 0, 2), conditional

    def _start(self, Pi: Array, batch: Batch) -> Array:
        return discrete.start_law(self.initial_law(Pi), discrete.stationary(Pi), batch.first)


def _outer_features(row: Array, extra: Array | None) -> Array:
    """Return (1, lower triangle of row rowᵀ + extra) for rows (L, J, n, W)."""
    i, j = np.tril_indices(row.shape[2])
    outer = row[:, :, i] * row[:, :, j]
    if extra is not None:
        d = extra.shape[0]
        inside = (i < d) & (j < d)
        added = jnp.moveaxis(extra[np.minimum(i, d - 1), np.minimum(j, d - 1)], 0, 2)
        outer = outer + jnp.where(inside[:, None], added, 0.0)
    return jnp.concatenate([jnp.ones_like(outer[:, :, :1]), outer], axis=2)


def _conditional_noise(key: Array, covariance: Array, y: Array) -> Array:
    """Draw N(0, covariance) for each row and state, zero where the entry was seen."""
    d = covariance.shape[0]
    missing = jnp.stack([covariance[b, b] > 0 for b in range(d)])
    identity = jnp.eye(d).reshape(d, d, *(1,) * (covariance.ndim - 2))
    root = cholesky(covariance + identity * ~missing)
    noise = jax.random.normal(key, (d, y.shape[0], 1, y.shape[2]))
    drawn = matmul(root, jnp.broadcast_to(noise, (d, *covariance.shape[2:]))[:, None])[:, 0]
    return jnp.moveaxis(jnp.where(missing, drawn, 0.0), 0, 2)


def _product(matrix: Array, row: Array) -> Array:
    """Return matrix (d, n, K) times rows (L, n, W), of shape (L, K, d, W)."""
    n = matrix.shape[1]
    if n > _UNROLL_ROW:
        return jnp.einsum("dnk,lnw->lkdw", matrix, row)
    columns = jnp.moveaxis(matrix, 1, 0)
    terms = (columns[c].T[:, :, None] * row[:, None, None, c] for c in range(n))
    return functools.reduce(jnp.add, terms)
