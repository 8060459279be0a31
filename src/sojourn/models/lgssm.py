"""Linear Gaussian state space model.

Legend: x (n) state, y (m) row; A, Q (n, n); C (m, n), R (m, m); V stationary covariance. `MATH.md` §8.
"""

import dataclasses
import functools
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from sojourn._validation import check_array, check_covariance, check_positive, check_size, shown
from sojourn.batch import Batch, Cut, Edges, Missing, Seam, earlier
from sojourn.blocks import Block, Emission, Regression, RegressionStatistics
from sojourn.blocks.base import freeze
from sojourn.messages import gaussian, linear_moments
from sojourn.messages.rows import Rows, read_rows
from sojourn.models import completion, forgetting
from sojourn.models.base import Coords, Model, Params, Units, prior_draw
from sojourn.models.checks import check_emission_matrix, check_initial, check_variance
from sojourn.models.linear_edges import filtered_edges, with_paths, with_smoothed
from sojourn.models.simulation import check_simulation, linear_process
from sojourn.models.stationary_start import with_stationary_start
from sojourn.models.subspace import subspace_params
from sojourn.series import Series

# Variance of the default law N(0, 10 I) of the state before the first row, in units of the data.
INITIAL_VARIANCE = 10.0

# Variance of a free entry of C under the default prior, in units of the data: the paper's.
_C_VARIANCE = 100.0

# Column covariance of A under the default prior: the paper's.
_A_VARIANCE = 100.0


class Pass(NamedTuple):
    """What the filter of a batch of windows leaves for what comes after."""

    rows: Rows
    gains: gaussian.Gains
    first: Array | None
    filtered: gaussian.Filtered
    scale: Array


@dataclass(frozen=True)
class LGSSM(Model):
    """Linear Gaussian state space model.

        x_t | x_{t−1} ~ N(A x_{t−1}, Q),    y_t | x_t ~ N(C x_t, R)

    Any change of basis of x leaves the law of the data as it is. By default C is *identified*: its first
    min(n, m) rows and columns are the identity, which fixes the basis if m ≥ n. Windows inside a
    series start from the stationary law N(0, V), V = A V Aᵀ + Q; where A has none, from a wide one.

    Priors: Q⁻¹ ~ Wishart(ν, Ψ⁻¹), A | Q ~ MN(M, Q, V_A), R⁻¹ ~ Wishart(ν, Ψ⁻¹), free entries of an
    identified C ~ N(0, s²), a free C | R ~ MN(0, R, s² I). Where a prior is not given, it is the
    paper's in the units of the data: ν one more than the dimension, Ψ = ν diag(scale²), M = 0, V_A = 100
    and s² = 100 in matching units.

    Parameters: `A` (n, n), `Q` (n, n), `C` (m, n), `R` (m, m). A `C` that is fixed in whole, as the
    identity for m = n, is a constant: it may be left out of parameters and is not drawn.

    Args:
        state_dim: Dimension n of the state.
        emission_dim: Number of columns m of the data.
        emission_matrix: "identified", "free", or the matrix C (m, n) to hold fixed.
        A_mean: M, shape (n, n), in the units of the state.
        A_column_covariance: V_A, shape (n, n).
        Q_dof: Degrees of freedom of Q.
        Q_scale: Ψ of Q, shape (n, n).
        C_variance: s², a number; for an identified C also an array for its free rows, (m − n, n).
        R_dof: Degrees of freedom of R.
        R_scale: Ψ of R, shape (m, m).
        initial: Law of the state before the first row: None for N(0, 10 I) in the units of the data,
            "stationary" for N(0, V) with its part in the gradient, a covariance (n, n), or a mean and a
            covariance.
        units: Scale of the data; set by `scaled_to` and `sample`.
    """

    state_dim: int
    emission_dim: int
    emission_matrix: Any = "identified"
    A_mean: Any = None
    A_column_covariance: Any = None
    Q_dof: float | None = None
    Q_scale: Any = None
    C_variance: Any = None
    R_dof: float | None = None
    R_scale: Any = None
    initial: Any = None
    units: Units | None = None

    def __post_init__(self) -> None:
        n, m = self.state_dim, self.emission_dim
        check_size("state_dim", n)
        check_size("emission_dim", m)
        is_mixed = isinstance(self.emission_matrix, str) and self.emission_matrix == "identified"
        checked = {
            "emission_matrix": check_emission_matrix(self.emission_matrix, (m, n)),
            "initial": check_initial(self.initial, n),
            "C_variance": check_variance(
                self.C_variance, (m - n, n) if is_mixed and m > n else None
            ),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        shapes = {"A_mean": n, "A_column_covariance": n, "Q_scale": n, "R_scale": m}
        for name, size in shapes.items():
            value = getattr(self, name)
            if value is None:
                continue
            value = check_array(name, value, (size, size))
            if name != "A_mean":
                check_covariance(name, value)
            object.__setattr__(self, name, freeze(value))
        for name, size in (("Q_dof", n), ("R_dof", m)):
            dof = getattr(self, name)
            if dof is not None:
                check_positive(name, dof)
                if dof <= size - 1:
                    raise ValueError(f"{name} must exceed dimension - 1 = {size - 1}; got {dof}")

    # Blocks.

    @functools.cached_property
    def dynamics(self) -> Regression:
        if self.units is not None:
            return self.unitless().dynamics
        n = self.state_dim
        dof = n + 1.0 if self.Q_dof is None else float(self.Q_dof)
        column = _A_VARIANCE * np.eye(n)
        if self.A_column_covariance is not None:
            column = np.asarray(self.A_column_covariance)
        return Regression(
            matrix="A",
            covariance="Q",
            num_states=None,
            dim=n,
            num_regressors=n,
            mean=np.zeros((n, n)) if self.A_mean is None else self.A_mean,
            precision=np.linalg.inv(column),
            dof=dof,
            scale=dof * np.eye(n) if self.Q_scale is None else self.Q_scale,
        )

    @functools.cached_property
    def emission(self) -> Regression | Emission:
        if self.units is not None:
            return self.unitless().emission
        n, m = self.state_dim, self.emission_dim
        dof = m + 1.0 if self.R_dof is None else float(self.R_dof)
        scale = dof * np.eye(m) if self.R_scale is None else self.R_scale
        variance = _C_VARIANCE if self.C_variance is None else self.C_variance
        if isinstance(self.emission_matrix, str) and self.emission_matrix == "free":
            return Regression(
                matrix="C",
                covariance="R",
                num_states=None,
                dim=m,
                num_regressors=n,
                mean=np.zeros((m, n)),
                precision=np.eye(n) / variance,
                dof=dof,
                scale=scale,
            )
        fixed = np.eye(min(n, m), n)
        if not isinstance(self.emission_matrix, str):
            fixed = np.asarray(self.emission_matrix)
        return Emission(
            matrix="C",
            covariance="R",
            dim=m,
            num_regressors=n,
            fixed=fixed,
            variance=variance,
            dof=dof,
            scale=scale,
        )

    @property
    def blocks(self) -> tuple[Block, ...]:
        return self.dynamics, self.emission

    @property
    def _draws_C(self) -> bool:
        if isinstance(self.emission_matrix, str):
            return self.emission_matrix == "free" or self.emission_dim > self.state_dim
        return False

    @property
    def constants(self) -> dict[str, np.ndarray]:
        if self._draws_C:
            return {}
        if isinstance(self.emission_matrix, str):
            return {"C": np.eye(self.emission_dim, self.state_dim)}
        return {"C": np.asarray(self.emission_matrix)}

    @property
    def param_shapes(self) -> dict[str, tuple[int, ...]]:
        n, m = self.state_dim, self.emission_dim
        shapes = {"A": (n, n), "Q": (n, n), "C": (m, n), "R": (m, m)}
        return {name: shape for name, shape in shapes.items() if name not in self.constants}

    @property
    def param_dims(self) -> dict[str, tuple[str, ...]]:
        dims = {
            "A": ("dim", "from_dim"),
            "Q": ("dim", "dim_bis"),
            "C": ("column", "dim"),
            "R": ("column", "column_bis"),
        }
        return {name: of for name, of in dims.items() if name not in self.constants}

    def check_params(self, params: Params) -> dict[str, Array]:
        checked = super().check_params(params)
        C = checked.get("C")
        if self.emission_matrix == "identified" and isinstance(C, jax.Array):
            self.check_identified(C)
        if self.initial == "stationary" and not isinstance(checked["A"], Tracer):
            radius = np.abs(np.linalg.eigvals(np.asarray(checked["A"]))).max()
            if radius >= 1:
                warnings.warn(
                    f"A has spectral radius {radius:.4g} and so no stationary law; series start "
                    "from a wide law N(0, V) instead, with no part in the gradient",
                    UserWarning,
                    stacklevel=3,
                )
        return checked

    def check_identified(self, C: Array) -> None:
        if isinstance(C, Tracer):
            return
        n = self.state_dim
        if not np.allclose(np.asarray(C)[:n], np.eye(n)):
            raise ValueError(
                f"C contradicts the constraint: its first {n} rows must be the identity; change the "
                "basis of the state, or use emission_matrix='free'"
            )

    # Units: x_i is in units of column i where C is the identity.

    def unitless(self) -> "LGSSM":
        D, S = self.scales()
        given: dict[str, Any] = {"units": None}
        if self.A_mean is not None:
            given["A_mean"] = np.asarray(self.A_mean) * D / D[:, None]
        if self.A_column_covariance is not None:
            given["A_column_covariance"] = np.asarray(self.A_column_covariance) * np.outer(D, D)
        if self.Q_scale is not None:
            given["Q_scale"] = np.asarray(self.Q_scale) / np.outer(D, D)
        if self.R_scale is not None:
            given["R_scale"] = np.asarray(self.R_scale) / np.outer(S, S)
        if self.C_variance is not None and self.emission_matrix == "identified":
            rows = S[self.state_dim :, None]
            given["C_variance"] = (
                np.asarray(self.C_variance) * (D / rows) ** 2 if rows.size else 1.0
            )
        if not isinstance(self.emission_matrix, str):
            given["emission_matrix"] = np.asarray(self.emission_matrix) * D / S[:, None]
        if isinstance(self.initial, tuple):
            mean, covariance = (np.asarray(v) for v in self.initial)
            given["initial"] = (mean / D, covariance / np.outer(D, D))
        return dataclasses.replace(self, **given)

    def raw(self) -> "LGSSM":
        if self.units is None:
            return self
        initial = self.initial
        if initial is None:
            D, _ = self.scales()
            initial = np.diag(INITIAL_VARIANCE * D**2)
        return dataclasses.replace(self, units=None, initial=initial)

    def standardise(self, params: Params, *, inverse: bool = False) -> dict[str, Array]:
        if self.units is None:
            return dict(params)
        D, S = (jnp.asarray(v) for v in self.scales())
        D, S = (1 / D, 1 / S) if inverse else (D, S)
        factor = {
            "A": D / D[:, None],
            "Q": 1 / (D * D[:, None]),
            "C": D / S[:, None],
            "R": 1 / (S * S[:, None]),
        }
        return {name: value * factor[name] for name, value in params.items()}

    def scales(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the scales of the state and of the columns."""
        n, m = self.state_dim, self.emission_dim
        if self.units is None:
            return np.ones(n), np.ones(m)
        S = np.asarray(self.units.scale)
        if isinstance(self.emission_matrix, str):
            state = np.ones(n)
            if self.emission_matrix == "identified":
                state[: min(n, m)] = S[: min(n, m)]
            return state, S
        spread = np.abs(np.linalg.pinv(np.asarray(self.emission_matrix) / S[:, None])).sum(1)
        return np.where(spread > 0, spread, 1.0), S

    # Passes.

    def first_buffer(self, coords: Coords) -> int:
        """Longer than of discrete states, of which more is forgotten with each row."""
        del coords
        return 64

    def run(self, coords: Coords, batch: Batch, missing: Missing) -> Pass:
        """Filter the windows."""
        params = self.dynamics.to_params(coords)
        A, Q = params["A"], params["Q"]
        C, psi = self.emission_values(coords)
        rows = read_rows(C, psi, batch.y, missing)
        edge = gaussian.stationary(A, Q)
        mean, covariance = self._initial_law(A, Q)
        start = gaussian.start_variants(covariance, edge)
        means = jnp.where(batch.first, mean[:, None], 0.0)
        if rows.seen is None:
            first: Array | None = batch.first
        else:
            first, start = None, gaussian.by_window(start, batch.first)
        observed, L = rows.whitened, batch.weight.shape[0]
        found = gaussian.gains(A[None, :, :, None], Q[None, :, :, None], observed.C, start, L)
        filtered = gaussian.forward(found, first, means, observed)
        scale = jnp.sqrt(jnp.diagonal(edge))
        return Pass(rows, found, first, filtered, scale)

    def emission_values(self, coords: Coords) -> tuple[Array, Array]:
        if isinstance(self.emission, Emission):
            return self.emission.whole(coords)
        return self.emission.unpack(coords)

    def _initial_law(self, A: Array, Q: Array) -> tuple[Array, Array]:
        n = self.state_dim
        if self.initial is None:
            return jnp.zeros(n), INITIAL_VARIANCE * jnp.eye(n)
        if isinstance(self.initial, str):
            return jnp.zeros(n), gaussian.stationary_law(A, Q)[0]
        mean, covariance = self.initial
        return jnp.asarray(mean), jnp.asarray(covariance)

    def moments(
        self, key: Array, coords: Coords, batch: Batch, missing: Missing
    ) -> linear_moments.Moments:
        del key
        done = self.run(coords, batch, missing)
        smoothed = gaussian.backward(done.gains, done.first, done.filtered)
        return self._moments(coords, batch, done, smoothed)

    def _moments(
        self, coords: Coords, batch: Batch, done: Pass, smoothed: gaussian.Smoothed
    ) -> linear_moments.Moments:
        moments = linear_moments.expected_moments(smoothed, done.first, batch.weight, done.rows)
        if self.initial != "stationary":
            return moments
        params = self.dynamics.to_params(coords)
        covariance = smoothed.covariance[0]
        if done.first is not None:
            covariance = gaussian.by_window(covariance, done.first)
        mean = smoothed.mean[0]
        square = mean[:, None] * mean[None] + covariance
        weight = jnp.where(batch.first, batch.weight[0], 0.0)
        return with_stationary_start(moments, params["A"], params["Q"], square, weight)

    def collect(self, moments: linear_moments.Moments) -> dict[str, Any]:
        m = moments
        return {
            self.dynamics.names[0]: RegressionStatistics(n=m.n, yy=m.cc, yx=m.cp, xx=m.pp),
            self.emission.names[0]: RegressionStatistics(n=m.rows, yy=m.yy, yx=m.yx, xx=m.xx),
        }

    def window_statistics(
        self, coords: Coords, batch: Batch, seam: Seam, missing: Missing
    ) -> tuple[dict[str, Any], Edges]:
        done = self.run(coords, batch, missing)
        smoothed = gaussian.backward(done.gains, done.first, done.filtered)
        moments = self._moments(coords, batch, done, smoothed)
        statistics = self.collect(jax.tree.map(lambda m: m.sum(-1), moments))
        return statistics, self._edges(done, seam, smoothed)

    def window_scores(
        self, coords: Coords, batch: Batch, seam: Seam, missing: Missing
    ) -> tuple[Array, Edges]:
        done = self.run(coords, batch, missing)
        scores = (batch.weight * done.filtered.log_normalizer).sum(0)
        return scores, self._edges(done, seam, None)

    def window_predictions(
        self, coords: Coords, batch: Batch, seam: Seam, missing: Missing, horizon: int
    ) -> tuple[Array, Edges]:
        done = self.run(coords, batch, missing)
        params = self.dynamics.to_params(coords)
        scores = gaussian.predict(
            params["A"],
            params["Q"],
            done.gains,
            done.first,
            done.filtered,
            done.rows.whitened,
            horizon,
        )
        compared = self._edges(done, earlier(seam, horizon), None)
        return (batch.weight[horizon:] * scores).sum(0), compared

    def window_marginals(
        self, coords: Coords, batch: Batch, seam: Seam, missing: Missing
    ) -> tuple[Array, Edges]:
        """Return means and covariances of the states, (L, n + n², W)."""
        done = self.run(coords, batch, missing)
        smoothed = gaussian.backward(done.gains, done.first, done.filtered)
        covariance = smoothed.covariance[1:]
        if done.first is not None:
            covariance = gaussian.by_window(covariance, done.first)
        entries = jnp.broadcast_to(covariance, (*covariance.shape[:3], batch.weight.shape[1]))
        flat = entries.reshape(entries.shape[0], -1, entries.shape[3])
        rows = jnp.concatenate([smoothed.mean[1:], flat], axis=1)
        return rows, self._edges(done, seam, smoothed)

    def window_paths(
        self, coords: Coords, batch: Batch, seam: Seam, missing: Missing
    ) -> tuple[Array, Edges]:
        """Return the most probable states, (L, n, W): for a Gaussian, the smoothed means."""
        done = self.run(coords, batch, missing)
        smoothed = gaussian.backward(done.gains, done.first, done.filtered)
        return smoothed.mean[1:], self._edges(done, seam, smoothed)

    def window_samples(
        self,
        key: Array,
        coords: Coords,
        batch: Batch,
        noise: Array,
        seam: Seam,
        missing: Missing,
    ) -> tuple[tuple[dict[str, Any], Array], Edges]:
        done = self.run(coords, batch, missing)
        x = gaussian.sample(done.gains, done.first, done.filtered, noise)
        moments = linear_moments.sampled_moments(key, x, batch.weight, done.rows)
        statistics = self.collect(jax.tree.map(lambda m: m.sum(-1), moments))
        compared = with_paths(self._edges(done, seam, None), x, done.scale, seam)
        return (statistics, x[1:]), compared

    def forgetting_rate(self, coords: Coords, batch: Batch, missing: Missing) -> float:
        del batch, missing
        return forgetting.linear_rate(self, coords)

    def error_bounds(
        self,
        coords: Coords,
        cut: Cut,
        missing: Missing,
        length: int,
        gradient: forgetting.Gradient,
    ) -> Array:
        return forgetting.linear_bounds(self, coords, cut, missing, length, gradient)

    def _edges(self, done: Pass, seam: Seam, smoothed: gaussian.Smoothed | None) -> Edges:
        """Return the filtered and, where there are any, the smoothed moments at the seams."""
        found = filtered_edges(done.gains, done.filtered, done.first, done.scale, seam)
        return (
            found
            if smoothed is None
            else with_smoothed(found, smoothed, done.first, done.scale, seam)
        )

    @property
    def seam_tolerance(self) -> float:
        """Covariances settle to a few roundings over the gap of their contraction."""
        return 1e-11

    @property
    def is_conjugate(self) -> bool:
        return self.initial != "stationary"

    @property
    def is_identified(self) -> bool:
        """With more states than columns, or C free, another basis of x leaves the rows as they are."""
        return self.state_dim <= self.emission_dim and self.emission_matrix != "free"

    @property
    def noise(self) -> tuple[str, int]:
        return "normal", self.state_dim

    def describe_states(self, rows: np.ndarray) -> dict[str, tuple[tuple[str, ...], np.ndarray]]:
        n = self.state_dim
        return {
            "x": (("time", "dim"), rows[:, :n]),
            "covariance": (("time", "dim", "dim_bis"), rows[:, n:].reshape(-1, n, n)),
        }

    def complete_rows(
        self, params: Params, states: Mapping[str, np.ndarray], y: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        law = (states["x"], states["covariance"])
        offset = np.zeros(self.emission_dim)
        return completion.complete(offset, params["C"], params["R"], law, y)

    # Start and simulation.

    def starts(self, init: str) -> tuple[str, ...]:
        return ("prior",) * 8 if init == "prior" else ("subspace", *["prior"] * 3)

    def initial_coords(self, series: Series, method: Any, seed: int) -> dict[str, Array]:
        """Return starting values: "subspace" (also under the name "kmeans"), or "prior"."""
        n, m = self.state_dim, self.emission_dim
        if method in ("kmeans", "subspace"):
            if n > m * max(series.lengths):
                raise ValueError(
                    f"state_dim={n} is more than {max(series.lengths)} rows of {m} columns can "
                    f"identify; use {m * max(series.lengths)} at the most, or init='prior'"
                )
            params = subspace_params(series, self.state_dim, self.constants.get("C"))
            if not self._draws_C:
                params.pop("C")
            elif self.emission_matrix == "identified":
                params["C"][:n] = np.eye(n)
            with jax.enable_x64(True):
                values = {name: jnp.asarray(value) for name, value in params.items()}
                return self._join(block.to_coords(values) for block in self.blocks)
        if method == "prior":
            return self.prior_coords(seed)
        raise ValueError(f"method must be 'subspace', 'kmeans' or 'prior'; got {shown(method)}")

    def prior_coords(self, seed: int) -> dict[str, Array]:
        """Draw from the prior, A shrunk into the stable region where windows can start."""
        with jax.enable_x64(True):
            coords = prior_draw(self, jax.random.key(seed))
            return {**coords, "A": stable(coords["A"])}

    def simulate(
        self, params: Params, num_timesteps: int, seed: int = 0
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Draw states and rows from the model.

        Returns:
            `{"x": (T, n)}` and rows (T, m).
        """
        key = check_simulation(num_timesteps, seed)
        with jax.enable_x64(True):
            values = {**self.constants, **self.check_params(params)}
            law = self.raw()._initial_law(values["A"], values["Q"])
            one = values | {name: values[name][None] for name in ("A", "Q")}
            z = jnp.zeros(num_timesteps, int)
            x, y = linear_process(key, one, law, z)
            return {"x": np.array(x)}, np.array(y)


def stable(A: Array) -> Array:
    """Shrink matrices (..., n, n) so that their roots are at most 0.9, where windows can start."""
    radius = np.abs(np.linalg.eigvals(np.asarray(A))).max(-1)
    return A * np.minimum(1.0, 0.9 / radius)[..., None, None]
