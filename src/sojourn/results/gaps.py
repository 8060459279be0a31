"""Missing entries of models whose rows depend on earlier rows, by Gibbs sweeps.

Given the states, rows are a linear autoregression, and the missing entries are jointly Gaussian with a
precision that links entries at most p rows apart: one banded factorisation draws them all. Given all
entries, the states are drawn as for complete rows.
"""

import dataclasses
from typing import NamedTuple

import jax
import numpy as np
from scipy.linalg import cho_solve_banded, cholesky_banded, get_lapack_funcs

from sojourn._random import random_key
from sojourn.gibbs import Sweep
from sojourn.models.base import Coords, Model, Params
from sojourn.results.states import draw_paths
from sojourn.series import Series

_BURNIN = 20


class Filled(NamedTuple):
    """Missing entries in order of rows, one line for each sweep that counts."""

    mean: np.ndarray  # given the states
    draws: np.ndarray

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and variance over sweeps; means given the states vary less than draws."""
        within = np.square(self.draws - self.mean).mean(0)
        return self.mean.mean(0), within + self.mean.var(0)


def fill_gaps(
    model: Model, params: Params, coords: Coords, series: Series, seed: int, num_sweeps: int
) -> Filled:
    """Draw the missing entries `num_sweeps` times, after a burn-in.

    Args:
        model: An autoregression with `A` and `Q` by state, in the units of the data.
        params: Its parameters.
        coords: The same as coordinates.
        series: The series, in memory.
        seed: Which draws.
        num_sweeps: Sweeps that count.
    """
    y = np.array(series.to_numpy())
    hidden = np.isnan(y)
    count = int(hidden.sum())
    filled = Filled(np.zeros((num_sweeps, count)), np.zeros((num_sweeps, count)))
    if count == 0:
        return filled
    rng, key = np.random.default_rng(seed), random_key(seed)
    links = _Links.of(params, hidden, series.lengths, model.num_lags)
    z = draw_paths(model, coords, series, key, 1)["state"][0]
    for sweep in range(-_BURNIN, num_sweeps):
        y[hidden] = 0.0
        mean, drawn = links.draw(rng, y, z)
        y[hidden] = drawn
        if sweep >= 0:
            filled.mean[sweep], filled.draws[sweep] = mean, drawn
        complete = dataclasses.replace(series, values=y.copy(), missing="none")
        key_now = jax.random.fold_in(key, sweep + _BURNIN)
        z = Sweep(model, complete).states(key_now, coords)[1]
    return filled


@dataclasses.dataclass(frozen=True)
class _Links:
    """Rows whose value or lags miss entries.

    With v_t = (y_t, y_{t−1}, …, y_{t−p}) a row has the density exp(−½ v_tᵀ G_k v_t) in state k.

    Attributes:
        weight: G, (K, q, q).
        rows: Numbers of these rows among all.
        states: Numbers of these rows among those that have all lags.
        entries: Which missing entry each entry of v_t is, −1 if it was seen, (rows, q).
        lags: Number p of lags.
    """

    weight: np.ndarray
    rows: np.ndarray
    states: np.ndarray
    entries: np.ndarray
    lags: int

    @classmethod
    def of(cls, params: Params, hidden: np.ndarray, lengths: tuple[int, ...], p: int) -> "_Links":
        A = np.asarray(params["A"])
        D = A.shape[1]
        whitening = np.concatenate([np.broadcast_to(np.eye(D), (len(A), D, D)), -A], axis=2)
        weight = np.swapaxes(whitening, 1, 2) @ np.linalg.solve(params["Q"], whitening)
        number = np.full(hidden.shape, -1)
        number[hidden] = np.arange(hidden.sum())
        first = np.cumsum([0, *lengths[:-1]])
        own = np.concatenate([f + np.arange(p, n) for f, n in zip(first, lengths, strict=True)])
        entries = number[own[:, None] - np.arange(p + 1)].reshape(len(own), -1)
        kept = np.flatnonzero((entries >= 0).any(1))
        return cls(weight, own[kept], kept, entries[kept], p)

    def draw(
        self, rng: np.random.Generator, y: np.ndarray, z: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean of the missing entries given states and seen rows, and a draw of them.

        Missing entries of `y` are zero.
        """
        v = y[self.rows[:, None] - np.arange(self.lags + 1)].reshape(len(self.rows), -1)
        G = self.weight[z[self.states]]
        towards = -np.einsum("rij,rj->ri", G, v)
        count, missing = int(self.entries.max()) + 1, self.entries >= 0
        shift = np.bincount(self.entries[missing], towards[missing], minlength=count)
        row, column = self.entries[:, :, None], self.entries[:, None]
        below = (column >= 0) & (row >= column)
        offset = np.broadcast_to(row - column, G.shape)[below]
        where = offset * count + np.broadcast_to(column, G.shape)[below]
        width = int(offset.max()) + 1
        band = np.bincount(where, G[below], minlength=width * count).reshape(width, count)
        root = cholesky_banded(band, lower=True)
        mean = cho_solve_banded((root, True), shift)
        (solve,) = get_lapack_funcs(("tbtrs",), (root,))
        noise, _ = solve(root, rng.normal(size=(count, 1)), uplo="L", trans="T")
        return mean, mean + noise[:, 0]
