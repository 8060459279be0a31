"""Switching linear dynamical system.

Legend: z discrete and x (n) continuous state, y (m) row; Π (K, K); A, Q (K, n, n); C (m, n), R (m, m).
`MATH.md` §9.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from sojourn._precision import double
from sojourn._validation import check_array, check_covariance, check_size, shown
from sojourn.batch import Batch, Edges, Missing, Seam, key_of
from sojourn.blocks import (
    Block,
    Emission,
    Regression,
    RegressionStatistics,
    Transition,
    TransitionStatistics,
)
from sojourn.blocks.base import freeze
from sojourn.messages import gaussian, linear_moments, particle, switching
from sojourn.messages.rows import Rows, read_rows
from sojourn.models import forgetting, lgssm
from sojourn.models.arhmm import ARHMM
from sojourn.models.base import Coords, Model, Params, Units, prior_draw
from sojourn.models.lgssm import LGSSM
from sojourn.models.linear_edges import filtered_edges, with_paths
from sojourn.models.simulation import check_simulation, linear_process, markov_chain
from sojourn.series import Series

# Sweeps that count where differences of gradients are measured.
_COUPLED_DRAWS = 12

# Sweeps that smoothed probabilities are averaged over: each is integrated over z given x, so that
# their error is some hundredths, at times a tenth.
_SMOOTHING_DRAWS = 50

# Rows at the start of each series that a start of x is smoothed from.
_SMOOTHED_ROWS = 20_000

# What full passes leave at most of the x before a window's buffer, and the longest of these.
_FORGOTTEN = 1e-5
_LONGEST_BUFFER = 2**14

# Fields that the model shares with its linear part.
_LINEAR = (
    "state_dim",
    "emission_dim",
    "emission_matrix",
    "A_mean",
    "A_column_covariance",
    "Q_dof",
    "Q_scale",
    "C_variance",
    "R_dof",
    "R_scale",
    "units",
)


@dataclass(frozen=True)
class SLDS(Model):
    """Switching linear dynamical system: a linear Gaussian model whose dynamics follow a Markov chain.

        z_t | z_{t−1} ~ Π[z_{t−1}]
        x_t | x_{t−1}, z_t = k ~ N(A_k x_{t−1}, Q_k),    y_t | x_t ~ N(C x_t, R)

    C is that of `LGSSM`: identified by default. Windows inside a series start from the stationary law
    of (z, x); where the process has none, from a wide one.

    *Expectations are Monte Carlo averages.* In each window a path of z is drawn among a few particles,
    `num_burnin` Gibbs sweeps follow, then `num_draws` sweeps whose moments are averaged. Blocked sweeps
    alone forget their start slowly, at times by a tenth a sweep; a path chosen among sixteen particles
    is already close to the law it should have (test_switching_messages.py). The likelihood is that of a
    Rao–Blackwellised particle filter.

    Priors: Π_k ~ Dirichlet(α); the others as in `LGSSM`, the same for all states.

    Parameters: `transition_matrix` (K, K), `A` (K, n, n), `Q` (K, n, n), `C` (m, n), `R` (m, m). A `C`
    that is fixed in whole is a constant: it may be left out of parameters and is not drawn.

    Args:
        num_states: Number of discrete states K.
        state_dim: Dimension n of the continuous state.
        emission_dim: Number of columns m of the data.
        concentration: Dirichlet concentration α, a number or (K, K).
        emission_matrix: "identified", "free", or the matrix C (m, n) to hold fixed.
        A_mean: Prior mean of each A_k, shape (n, n), in the units of the state.
        A_column_covariance: Prior column covariance of each A_k, shape (n, n).
        Q_dof: Degrees of freedom of each Q_k.
        Q_scale: Wishart scale of each Q_k, shape (n, n).
        C_variance: Prior variance of free entries of C, a number.
        R_dof: Degrees of freedom of R.
        R_scale: Wishart scale of R, shape (m, m).
        initial: Law before the first row: None for uniform z and x ~ N(0, 10 I) in the units of the
            data, or the law of z (K,) and the covariance of x (n, n).
        estimator: What a gradient integrates out given each draw: "z" x, given z, which varies least;
            "x" z, given x; "xz" nothing.
        update: "blocked" draws all of x given z, then all of z given x; "single_site" each z_t in turn
            with x integrated out.
        start: Where sweeps begin: "filtered" draws z forward along with the filter, among particles;
            "rows" draws z as if the first n columns were x, where C begins with the identity.
        num_particles: Particles in each window, for the start of sweeps and for scores of windows.
        num_burnin: Sweeps before those that count.
        num_draws: Sweeps that count.
        units: Scale of the data; set by `scaled_to` and `sample`.
    """

    num_states: int
    state_dim: int
    emission_dim: int
    concentration: Any = 1.0
    emission_matrix: Any = "identified"
    A_mean: Any = None
    A_column_covariance: Any = None
    Q_dof: float | None = None
    Q_scale: Any = None
    C_variance: Any = None
    R_dof: float | None = None
    R_scale: Any = None
    initial: Any = None
    estimator: switching.Estimator = "z"
    update: switching.Update = "blocked"
    start: switching.Start = "filtered"
    num_particles: int = 16
    num_burnin: int = 1
    num_draws: int = 2
    units: Units | None = None

    # The long unrolled steps of its filters take half again as long, and to compile too, by the emitters
    # that serve the other models better.
    compiler_options: ClassVar = (("xla_cpu_use_fusion_emitters", False),)

    def __post_init__(self) -> None:
        check_size("num_states", self.num_states)
        check_size("num_particles", self.num_particles)
        check_size("num_burnin", self.num_burnin, least=0)
        check_size("num_draws", self.num_draws)
        for name, kinds in (
            ("estimator", switching.Estimator),
            ("update", switching.Update),
            ("start", switching.Start),
        ):
            value, allowed = getattr(self, name), get_args(kinds)
            if value not in allowed:
                raise ValueError(f"{name} must be one of {allowed}; got {shown(value)}")
        self._check_initial()
        concentration = Transition(self.num_states, self.concentration).concentration
        object.__setattr__(self, "concentration", concentration)
        for name in _LINEAR:  # checked and made hashable there
            object.__setattr__(self, name, getattr(self.linear, name))
        n = self.state_dim
        if self.start == "rows" and not self._begins_with_identity():
            raise ValueError(
                f"start='rows' needs an emission matrix whose first {n} rows are the identity; use "
                "start='filtered'"
            )

    def _check_initial(self) -> None:
        if self.initial is None:
            return
        if not isinstance(self.initial, tuple) or len(self.initial) != 2:
            raise ValueError(
                "initial must be None, or the law of z and the covariance of x; "
                f"got {shown(self.initial)}"
            )
        law = check_array("initial law", self.initial[0], (self.num_states,))
        if np.any(law < 0) or not np.isclose(law.sum(), 1):
            raise ValueError(f"initial law must be probabilities that sum to one; got {shown(law)}")
        n = self.state_dim
        covariance = check_array("initial covariance", self.initial[1], (n, n))
        check_covariance("initial covariance", covariance)
        object.__setattr__(self, "initial", (freeze(law), freeze(covariance)))

    def _begins_with_identity(self) -> bool:
        n = self.state_dim
        if n > self.emission_dim:
            return False
        if isinstance(self.emission_matrix, str):
            return self.emission_matrix == "identified"
        return np.allclose(np.asarray(self.emission_matrix)[:n], np.eye(n))

    # Blocks.

    @functools.cached_property
    def linear(self) -> LGSSM:
        """The model of a single state: priors, emission and units."""
        return LGSSM(**{name: getattr(self, name) for name in _LINEAR})

    @functools.cached_property
    def transition(self) -> Transition:
        return Transition(self.num_states, self.concentration)

    @functools.cached_property
    def dynamics(self) -> Regression:
        return dataclasses.replace(self.linear.dynamics, num_states=self.num_states)

    @functools.cached_property
    def emission(self) -> Regression | Emission:
        return self.linear.emission

    @property
    def blocks(self) -> tuple[Block, ...]:
        return self.transition, self.dynamics, self.emission

    @property
    def discrete_part(self) -> ARHMM:
        """The model of x as data: what z is drawn from given x."""
        return ARHMM(self.num_states, self.state_dim, num_lags=1, initial=self.initial_law())

    @property
    def constants(self) -> dict[str, np.ndarray]:
        return self.linear.constants

    @property
    def param_shapes(self) -> dict[str, tuple[int, ...]]:
        K = self.num_states
        shapes = self.linear.param_shapes
        return {
            "transition_matrix": (K, K),
            **shapes,
            "A": (K, *shapes["A"]),
            "Q": (K, *shapes["Q"]),
        }

    @property
    def param_dims(self) -> dict[str, tuple[str, ...]]:
        dims = self.linear.param_dims
        return {
            "transition_matrix": ("state", "to_state"),
            **dims,
            "A": ("state", *dims["A"]),
            "Q": ("state", *dims["Q"]),
        }

    @property
    def is_identified(self) -> bool:
        return self.linear.is_identified

    def check_params(self, params: Params) -> dict[str, Array]:
        checked = super().check_params(params)
        if self.emission_matrix == "identified" and "C" in checked:
            self.linear.check_identified(checked["C"])
        return checked

    # Units.

    def unitless(self) -> "SLDS":
        inner = self.linear.unitless()
        initial = self.initial
        if initial is not None:
            D, _ = self.linear.scales()
            initial = (initial[0], np.asarray(initial[1]) / np.outer(D, D))
        return dataclasses.replace(
            self, initial=initial, **{name: getattr(inner, name) for name in _LINEAR}
        )

    def raw(self) -> "SLDS":
        initial = self.initial
        if initial is None and self.units is not None:
            D, _ = self.linear.scales()
            initial = (self.initial_law(), np.diag(lgssm.INITIAL_VARIANCE * D**2))
        return dataclasses.replace(self, units=None, initial=initial)

    def standardise(self, params: Params, *, inverse: bool = False) -> dict[str, Array]:
        linear = {name: value for name, value in params.items() if name != "transition_matrix"}
        return {**params, **self.linear.standardise(linear, inverse=inverse)}

    # Passes.

    def initial_law(self) -> np.ndarray:
        """Law of z before the first row of a series."""
        if self.initial is None:
            return np.full(self.num_states, 1.0 / self.num_states)
        return np.asarray(self.initial[0])

    def _initial_covariance(self) -> np.ndarray:
        if self.initial is None:
            return lgssm.INITIAL_VARIANCE * np.eye(self.state_dim)
        return np.asarray(self.initial[1])

    def prepare(
        self, coords: Coords, batch: Batch, missing: Missing
    ) -> tuple[particle.System, Rows]:
        """Return the dynamics, with the law before each window, and the rows."""
        Pi = self.transition.to_params(coords)[self.transition.name]
        A, psi = self.dynamics.unpack(coords)
        initial = (jnp.asarray(self.initial_law()), jnp.asarray(self._initial_covariance()))
        system = switching.make_system(Pi, A, psi, initial, batch.first)
        C, psi_R = self.linear.emission_values(coords)
        rows = batch.y[:, : self.emission_dim]
        return system, read_rows(C, psi_R, rows, missing)

    def moments(
        self, key: Array, coords: Coords, batch: Batch, missing: Missing
    ) -> switching.Moments:
        key_start, key_sweeps = jax.random.split(key)
        system, rows = self.prepare(coords, batch, missing)
        z = switching.draw_start(key_start, system, rows, self.start, self.num_particles)
        return switching.expected_moments(
            key_sweeps,
            system,
            rows,
            batch.weight,
            z,
            estimator=self.estimator,
            update=self.update,
            num_burnin=self.num_burnin,
            num_draws=self.num_draws,
        )

    def coupled(self) -> "SLDS":
        """Sweep in blocks from one particle: draws by inversion meet again, particles do not."""
        return dataclasses.replace(
            self, update="blocked", num_particles=1, num_burnin=5, num_draws=_COUPLED_DRAWS
        )

    def rough(self) -> "SLDS":
        """Draw each path once, among a few particles; averages over steps make up for the noise."""
        return dataclasses.replace(self, num_particles=4, num_burnin=0, num_draws=1)

    def collect(self, moments: switching.Moments) -> dict[str, Any]:
        m = moments
        return {
            self.transition.names[0]: TransitionStatistics(m.counts),
            self.dynamics.names[0]: RegressionStatistics(n=m.n, yy=m.cc, yx=m.cp, xx=m.pp),
            self.emission.names[0]: RegressionStatistics(n=m.rows, yy=m.yy, yx=m.yx, xx=m.xx),
        }

    def window_statistics(
        self, coords: Coords, batch: Batch, seam: Seam, missing: Missing
    ) -> tuple[dict[str, Any], Edges]:
        """Return averages over sweeps; Monte Carlo results cannot be compared at seams."""
        del seam
        return self.statistics(key_of(batch), coords, batch, missing), _nothing(batch)

    def window_scores(
        self, coords: Coords, batch: Batch, seam: Seam, missing: Missing
    ) -> tuple[Array, Edges]:
        """Return estimates from a few particles; they cannot be compared at seams."""
        del seam
        key, N = key_of(batch), self.num_particles
        return self.estimate_scores(key, coords, batch, missing, N), _nothing(batch)

    def estimate_scores(
        self,
        key: Array,
        coords: Coords,
        batch: Batch,
        missing: Missing,
        num_particles: int,
        horizon: int | None = None,
    ) -> Array:
        """Return Σ_t w_t log p̂(y_t | earlier rows) of each window, by a particle filter."""
        system, rows = self.prepare(coords, batch, missing)
        if horizon is not None:
            scores = particle.predict(key, system, rows.whitened, num_particles, horizon)
            return (batch.weight[horizon:] * scores).sum(0)
        scores = particle.log_likelihood(key, system, rows.whitened, num_particles)
        return (batch.weight * scores).sum(0)

    def window_predictions(
        self, coords: Coords, batch: Batch, seam: Seam, missing: Missing, horizon: int
    ) -> tuple[Array, Edges]:
        """Return estimates from a few particles; they cannot be compared at seams."""
        del seam
        key, N = key_of(batch), self.num_particles
        return self.estimate_scores(key, coords, batch, missing, N, horizon), _nothing(batch)

    def window_marginals(
        self, coords: Coords, batch: Batch, seam: Seam, missing: Missing
    ) -> tuple[Array, Edges]:
        """Return probabilities of z, means and covariances of x, by row.

        Averages over sweeps; Monte Carlo results cannot be compared at seams.
        """
        del seam
        key_start, key_sweeps = jax.random.split(key_of(batch))
        system, rows = self.prepare(coords, batch, missing)
        z = switching.draw_start(key_start, system, rows, self.start, self.num_particles)
        gamma, mean, second = switching.marginals(
            key_sweeps,
            system,
            rows,
            z,
            update=self.update,
            num_burnin=self.num_burnin,
            num_draws=max(_SMOOTHING_DRAWS, self.num_draws),
        )
        covariance = second - mean[:, :, None] * mean[:, None]
        flat = covariance.reshape(covariance.shape[0], -1, covariance.shape[3])
        return jnp.concatenate([gamma, mean, flat], axis=1), _nothing(batch)

    def window_paths(
        self, coords: Coords, batch: Batch, seam: Seam, missing: Missing
    ) -> tuple[Array, Edges]:
        """Return the most probable z of each row: the most probable path is out of reach."""
        rows, nothing = self.window_marginals(coords, batch, seam, missing)
        return jnp.argmax(rows[:, : self.num_states], axis=1), nothing

    def window_starts(self, key: Array, coords: Coords, batch: Batch, missing: Missing) -> Array:
        """Draw z of each row, (L, W), for Gibbs sweeps to begin from."""
        system, rows = self.prepare(coords, batch, missing)
        return switching.draw_start(key, system, rows, self.start, self.num_particles)[1:]

    def window_samples(
        self,
        key: Array,
        coords: Coords,
        batch: Batch,
        noise: Array,
        seam: Seam,
        missing: Missing,
    ) -> tuple[tuple[dict[str, Any], Array], Edges]:
        """Draw x given z, which stands in one more column of the rows behind the data.

        Returns statistics of the emission alone and, by row, x and x of the row before, (L, 2n, W).
        """
        system, rows = self.prepare(coords, batch, missing)
        column = batch.y[:, self.emission_dim]
        z = jnp.where(jnp.isnan(column), 0.0, column).astype(jnp.int32)
        # The state before the row is not known; what starts from it is forgotten within the buffer, and
        # the initial law of x does not depend on it.
        found, filtered = switching.filter_x(system, rows, jnp.concatenate([z[:1], z]))
        x = gaussian.sample(found, None, filtered, noise)
        m = linear_moments.sampled_moments(key, x, batch.weight, rows)
        m = jax.tree.map(lambda total: total.sum(-1), m)
        statistics = RegressionStatistics(n=m.rows, yy=m.yy, yx=m.yx, xx=m.xx)
        scale = jnp.sqrt(jnp.stack([system.Q[a, a].max() for a in range(self.state_dim)]))
        compared = filtered_edges(found, filtered, None, scale, seam)
        compared = with_paths(compared, x, scale, seam)
        pair = jnp.concatenate([x[1:], x[:-1]], axis=1)
        return ({self.emission.names[0]: statistics}, pair), compared

    def first_buffer(self, coords: Coords) -> int:
        """Return a buffer in which x is forgotten, in the state that forgets it most slowly.

        What Monte Carlo averages leave at seams is not checked. A power of two, so that coordinates
        that differ little share programs.
        """
        rate = forgetting.switching_rate(self, coords)
        if not rate < 1:
            return _LONGEST_BUFFER
        wanted = math.log(_FORGOTTEN) / math.log(max(rate, 0.1))
        return int(2 ** np.ceil(np.log2(np.clip(wanted, 64, _LONGEST_BUFFER))))

    @property
    def seam_tolerance(self) -> float:
        """Of draws of x given z, in units of the noise that feeds it."""
        return 1e-10

    @property
    def noise(self) -> tuple[Literal["uniform", "normal"], int]:
        return "normal", self.state_dim

    def describe_states(self, rows: np.ndarray) -> dict[str, tuple[tuple[str, ...], np.ndarray]]:
        K = self.num_states
        found = {"probability": (("time", "label"), rows[:, :K])}
        return found | self.linear.describe_states(rows[:, K:])

    def complete_rows(
        self, params: Params, states: Mapping[str, np.ndarray], y: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        return self.linear.complete_rows(params, states, y)

    # Start and simulation.

    def starts(self, init: str) -> tuple[str, ...]:
        """K-means alone misses regimes that differ in their dynamics only."""
        if init == "prior":
            return ("prior",) * 6
        return ("kmeans", *["influence"] * 3, "prior")

    @double
    def initial_coords(self, series: Series, method: Any, seed: int) -> dict[str, Array]:
        """Return starting values: transitions, A and Q from clusters of rows, R from its prior.

        "kmeans" and "influence" are those of an ARHMM on the first n columns, where these are complete
        and x with noise; otherwise on x smoothed by a linear model without regimes, whose C is taken.
        """
        prior = self._prior_coords(seed)
        if method == "prior":
            return prior
        if method not in ("kmeans", "influence"):
            raise ValueError(
                f"method must be 'kmeans', 'influence' or 'prior'; got {shown(method)}"
            )
        # The emission of a linear model without regimes; its R is left to the prior, as in the paper.
        found = self.linear.initial_coords(series, "subspace", seed)
        if self._begins_with_identity() and series.missing == "none":
            x = series.select(series.columns[: self.state_dim])
        else:
            x = _smoothed(self.linear, found, series)
        matrix = {"C": found["C"]} if "C" in found else {}
        return {**prior, **matrix, **self.discrete_part.initial_coords(x, method, seed)}

    def _prior_coords(self, seed: int) -> dict[str, Array]:
        """Draw from the prior, each A shrunk into the stable region where windows can start."""
        coords = prior_draw(self, jax.random.key(seed))
        return {**coords, "A": lgssm.stable(coords["A"])}

    def simulate(
        self, params: Params, num_timesteps: int, seed: int = 0
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Draw states and rows from the model.

        Returns:
            `{"z": (T,), "x": (T, n)}` and rows (T, m).
        """
        key = check_simulation(num_timesteps, seed)
        with jax.enable_x64(True):
            values = {**self.constants, **self.check_params(params)}
            key_z, key_x = jax.random.split(key)
            law = jnp.asarray(self.initial_law())
            z = markov_chain(key_z, values["transition_matrix"], law, num_timesteps)
            start = (jnp.zeros(self.state_dim), jnp.asarray(self.raw()._initial_covariance()))
            x, y = linear_process(key_x, values, start, z)
            return {"z": np.array(z), "x": np.array(x)}, np.array(y)


def _smoothed(model: LGSSM, coords: Coords, series: Series) -> Series:
    """Return the smoothed means of a linear model as a series, of the first rows of each."""
    rows = min(max(series.lengths), _SMOOTHED_ROWS)
    W = len(series.lengths)
    y = np.full((rows, series.dim, W), np.nan)
    offset = np.concatenate([[0], np.cumsum(series.lengths)])
    kept = [min(rows, length) for length in series.lengths]
    for w, length in enumerate(kept):
        y[:length, :, w] = series.rows(int(offset[w]), int(offset[w]) + length)
    batch = Batch(jnp.asarray(y), jnp.ones((rows, W)), jnp.ones(W, bool))
    missing: Missing = "none" if series.missing == "none" and min(kept) == rows else "entries"
    nowhere = Seam(*jnp.zeros((3, W), int))
    x = np.asarray(_means(model, coords, batch, nowhere, missing))
    joined = np.concatenate([x[:length, :, w] for w, length in enumerate(kept)])
    names = tuple(f"x{i}" for i in range(model.state_dim))
    return Series(joined.astype(np.float64), tuple(kept), names, "none")


@functools.partial(jax.jit, static_argnums=(0, 4))
def _means(model: LGSSM, coords: Coords, batch: Batch, seam: Seam, missing: Missing) -> Array:
    return model.window_paths(coords, batch, seam, missing)[0]


def _nothing(batch: Batch) -> Edges:
    zero = jnp.zeros((1, batch.weight.shape[1]))
    return Edges(zero, zero, zero, zero)
