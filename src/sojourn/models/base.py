"""What a model offers to gradients, samplers and passes.

A model is configuration: a frozen dataclass whose equality and hash are those of its fields, so that
compiled functions are shared between equal models.
"""

import abc
import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from sojourn._compile import compiled
from sojourn._precision import double, to_host
from sojourn._validation import check_seed, shown
from sojourn.batch import Batch, Cut, Edges, Missing, Seam
from sojourn.blocks import Block, Pilot
from sojourn.models import completion
from sojourn.models.checks import check_coords, check_params
from sojourn.series import Series, as_series

Params = Mapping[str, Any]
Coords = Mapping[str, Any]


class Units(NamedTuple):
    """Location and scale of the data's columns, in which default priors and coordinates are stated."""

    location: tuple[float, ...]
    scale: tuple[float, ...]


class Model(abc.ABC):
    """A state space model made of conjugate blocks.

    Coordinates and statistics are in the model's own units: data enter as (y − location) / scale, and
    `to_params` returns to the units of the user. Models without `units` work in raw units.
    """

    emission_dim: int
    units: Units | None

    # Options of the XLA compiler for programs of this model, as pairs of name and value.
    compiler_options: ClassVar[tuple[tuple[str, Any], ...]] = ()

    # What a concrete model defines.

    @property
    @abc.abstractmethod
    def blocks(self) -> tuple[Block, ...]:
        """The conjugate blocks, with their priors in the model's units."""

    @property
    @abc.abstractmethod
    def param_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each parameter."""

    @property
    @abc.abstractmethod
    def param_dims(self) -> dict[str, tuple[str, ...]]:
        """Names of the axes of each parameter; "state" and "to_state" run over discrete states."""

    @abc.abstractmethod
    def moments(self, key: Array, coords: Coords, batch: Batch, missing: Missing) -> Any:
        """Return expected sums over the rows of each window, windows last.

        `key` serves models whose expectations are Monte Carlo averages; the others leave it alone.
        """

    @abc.abstractmethod
    def collect(self, moments: Any) -> dict[str, Any]:
        """Turn sums over windows into the statistics of each block, by its first name."""

    @abc.abstractmethod
    def unitless(self) -> Self:
        """Return the model of data in the model's units: no units, given priors carried over."""

    @abc.abstractmethod
    def standardise(self, params: Params, *, inverse: bool = False) -> dict[str, Array]:
        """Carry parameters from raw to the model's units, or back."""

    @abc.abstractmethod
    def initial_coords(self, series: Series, method: Any, seed: int) -> dict[str, Array]:
        """Return starting values as coordinates."""

    @abc.abstractmethod
    def starts(self, init: str) -> tuple[str, ...]:
        """Return the methods of `initial_coords` to try for this kind of start."""

    @abc.abstractmethod
    def simulate(
        self, params: Params, num_timesteps: int, seed: int = 0
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Draw states, by name, and rows from the model."""

    @abc.abstractmethod
    def describe_states(self, rows: np.ndarray) -> dict[str, tuple[tuple[str, ...], np.ndarray]]:
        """Turn rows of `window_marginals` into named arrays with the names of their axes."""

    @property
    @abc.abstractmethod
    def noise(self) -> tuple[Literal["uniform", "normal"], int]:
        """What decides a sampled state: the kind of random numbers, and how many."""

    @property
    def num_lags(self) -> int:
        """Rows of context before each row."""
        return 0

    @property
    def constants(self) -> dict[str, np.ndarray]:
        """Parameters that are held fixed, in the units of the user."""
        return {}

    def first_buffer(self, coords: Coords) -> int:
        """Return the buffer that full passes try first."""
        del coords
        return 32

    @property
    def seam_tolerance(self) -> float:
        """Largest difference of messages at seams: a few hundred roundings of numbers below one."""
        return 1e-13

    @property
    def is_conjugate(self) -> bool:
        """Whether parameters given states have the conjugate conditionals of the blocks."""
        return True

    @property
    def is_identified(self) -> bool:
        """Whether parameters that are near each other have different laws of the rows."""
        return True

    @property
    def discrete_part(self) -> "Model | None":
        """A model of the continuous states as data, for models that draw discrete states given these.

        None if all states are drawn at once.
        """
        return None

    @property
    def is_exact(self) -> bool:
        """Whether messages are exact, and with them likelihoods, gradients and seams.

        Otherwise expectations are Monte Carlo averages, and the model has a `discrete_part`,
        `window_starts` and `estimate_scores`.
        """
        return self.discrete_part is None

    @property
    def has_discrete_states(self) -> bool:
        """Whether the hidden state is, or has a part that is, discrete."""
        return any("to_state" in dims for dims in self.param_dims.values())

    @property
    def has_continuous_states(self) -> bool:
        """Whether the hidden state is, or has a part that is, continuous."""
        return not (self.has_discrete_states and self.is_exact)

    # One method for each kind of full pass: results by window, and messages at the seams.

    @abc.abstractmethod
    def window_statistics(
        self, coords: Coords, batch: Batch, seam: Seam, missing: Missing
    ) -> tuple[dict[str, Any], Edges]:
        """Return the expected statistics, summed over windows."""

    @abc.abstractmethod
    def window_scores(
        self, coords: Coords, batch: Batch, seam: Seam, missing: Missing
    ) -> tuple[Array, Edges]:
        """Return Σ_t w_t log p(y_t | earlier rows) of each window, (W,)."""

    @abc.abstractmethod
    def window_predictions(
        self, coords: Coords, batch: Batch, seam: Seam, missing: Missing, horizon: int
    ) -> tuple[Array, Edges]:
        """Return Σ_t w_t log p(y_t | rows up to t − horizon) of each window, (W,).

        The first `horizon` rows of a window have no such rows in it and do not count.
        """

    @abc.abstractmethod
    def window_marginals(
        self, coords: Coords, batch: Batch, seam: Seam, missing: Missing
    ) -> tuple[Array, Edges]:
        """Return what describes the marginal law of the state at each row, (L, J, W)."""

    @abc.abstractmethod
    def window_paths(
        self, coords: Coords, batch: Batch, seam: Seam, missing: Missing
    ) -> tuple[Array, Edges]:
        """Return the most probable states, (L, W) or (L, n, W)."""

    @abc.abstractmethod
    def window_samples(
        self,
        key: Array,
        coords: Coords,
        batch: Batch,
        noise: Array,
        seam: Seam,
        missing: Missing,
    ) -> tuple[tuple[dict[str, Any], Array], Edges]:
        """Return statistics of sampled states, summed over windows, and the states (L, …, W).

        `noise` (L+1, d, W) decides the state before the first row and of each row; `key` serves
        everything else, such as missing entries.
        """

    def window_starts(self, key: Array, coords: Coords, batch: Batch, missing: Missing) -> Array:
        """Return discrete states of each row, (L, W), for sweeps to begin from."""
        raise NotImplementedError

    def estimate_scores(
        self,
        key: Array,
        coords: Coords,
        batch: Batch,
        missing: Missing,
        num_particles: int,
        horizon: int | None = None,
    ) -> Array:
        """Return an estimate of Σ_t w_t log p(y_t | earlier rows) of each window, (W,).

        With a horizon, given the rows up to t − horizon, as in `window_predictions`.
        """
        raise NotImplementedError

    def coupled(self) -> Self:
        """Return a variant whose Monte Carlo draws do not change when distant rows do.

        Small differences can then be measured with common random numbers.
        """
        return self

    def rough(self) -> Self:
        """Return the model with cheap Monte Carlo draws, good enough on the way to a start."""
        return self

    def complete_rows(
        self, params: Params, states: Mapping[str, np.ndarray], y: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return mean (M, D) and covariance (M, D, D) of rows given their entries that are not NaN.

        Args:
            params: Parameters in the units of the user, constants included.
            states: Laws of the states of these rows given all rows, as `describe_states` names them.
            y: Rows, (M, D).
        """
        raise NotImplementedError

    def known_states(self, states: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return states `state` (M,) or `x` (M, n) as laws that leave no doubt."""
        if "x" in states:
            x = states["x"]
            return {"x": x, "covariance": np.zeros((*x.shape, x.shape[1]))}
        K = self.param_shapes["transition_matrix"][0]
        return {"probability": np.eye(K)[states["state"]]}

    def rows_ahead(
        self,
        rng: np.random.Generator,
        params: Params,
        states: Mapping[str, np.ndarray],
        lags: np.ndarray,
    ) -> np.ndarray:
        """Draw rows (N, h, D) with these states (N, h, …), which follow the rows `lags` (N, p, D)."""
        del lags
        N, h = next(iter(states.values())).shape[:2]
        flat = {name: value.reshape(N * h, *value.shape[2:]) for name, value in states.items()}
        nothing = np.full((N * h, self.emission_dim), np.nan)
        law = self.complete_rows(params, self.known_states(flat), nothing)
        return completion.draw(rng, *law).reshape(N, h, -1)

    def forgetting_rate(self, coords: Coords, batch: Batch, missing: Missing) -> Any | None:
        """Return the rate at which the messages of these windows forget; None if there is no theory."""
        return None

    def error_bounds(
        self,
        coords: Coords,
        cut: Cut,
        missing: Missing,
        length: int,
        gradient: Callable[[dict[str, Any]], Array],
    ) -> Array | None:
        """Return a bound, for each window, on the error that its cut makes in the gradient, (W,).

        Args:
            coords: Coordinates.
            cut: Windows with and without the rows beyond a buffer.
            missing: What can be missing, the rows that were taken away included.
            length: Rows that count in a window, at most.
            gradient: Linear map from the statistics of a window to a vector, whose norm is bounded.

        Returns:
            The bounds; None where no theory gives any.
        """
        return None

    def missing_kind(self, missing: Missing) -> Missing:
        """How the model treats data with this kind of missing entries."""
        return missing

    # What every model has.

    def num_rows(self, series: Series) -> int:
        """Return the rows T of the likelihood: all rows after the lags."""
        return series.num_rows - self.num_lags * len(series.lengths)

    def to_coords(self, params: Params) -> dict[str, Array]:
        """Map parameters to the coordinates of the samplers.

        Raises:
            ValueError: A parameter is missing, has a wrong shape or violates its constraint.
        """
        with jax.enable_x64(True):
            values = self.standardise(self.check_params(params))
            # Units differ from data to data: programs of models with units would serve but once.
            to_coords = _compiled_coords if self.units is None else _coords
            return to_host(to_coords(self, values))

    def to_params(self, coords: Coords) -> dict[str, Array]:
        """Map coordinates of the samplers to parameters."""
        with jax.enable_x64(True):
            joined = self.standardise(self.constrain(coords), inverse=True)
            return to_host(joined | self.constants)

    def constrain(self, coords: Coords) -> dict[str, Array]:
        """Map coordinates to parameters in the model's own units."""
        return self._join(block.to_params(coords) for block in self.blocks)

    @double
    def log_prior(self, coords: Coords) -> Array:
        """Return the log density of the coordinates, Jacobian included."""
        terms = (block.log_prior(coords) for block in self.blocks)
        return to_host(sum(terms, start=jnp.asarray(0.0)))

    def prior_gradient(self, coords: Coords) -> dict[str, np.ndarray]:
        """Return the gradient of `log_prior`."""
        with jax.enable_x64(True):
            return to_host(_prior_gradient(self, {n: jnp.asarray(u) for n, u in coords.items()}))

    def free(self, coords: Coords, scores: Coords) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return coordinates of the parameters alone, and the gradient of their log density.

        `coords` are those of `to_coords` and `scores` the gradient of the log posterior there, both with
        leading axes. The scale of a transition row is left out.
        """
        parts = [
            b.free({n: coords[n] for n in b.names}, {n: scores[n] for n in b.names})
            for b in self.blocks
        ]
        return self._join(part[0] for part in parts), self._join(part[1] for part in parts)

    def statistics(
        self, key: Array, coords: Coords, batch: Batch, missing: Missing
    ) -> dict[str, Any]:
        """Return expected statistics of the rows that count, summed over windows."""
        moments = self.moments(key, coords, batch, missing)
        return self.collect(jax.tree.map(lambda m: m.sum(-1), moments))

    def expected_log_joint(self, coords: Coords, statistics: Mapping[str, Any]) -> Array:
        """Return the expected complete-data log-likelihood at fixed statistics."""
        terms = (
            block.expected_log_likelihood(coords, statistics[block.names[0]])
            for block in self.blocks
        )
        return sum(terms, start=jnp.asarray(0.0))

    def gradient(self, coords: Coords, statistics: Mapping[str, Any]) -> dict[str, Array]:
        """Return the gradient of the log-likelihood from its statistics, by Fisher's identity."""
        return jax.grad(lambda u: self.expected_log_joint(u, statistics))(dict(coords))

    def pilot(self, statistics: Mapping[str, Any], num_rows: float) -> dict[str, Pilot]:
        """Estimate the constants of the blocks' metrics."""
        return {b.names[0]: b.pilot(statistics[b.names[0]], num_rows) for b in self.blocks}

    def center(self, statistics: Mapping[str, Any]) -> dict[str, Array]:
        """Return the coordinates at the centre of the conjugate conditionals: an M-step."""
        params = self._join(b.center(statistics[b.names[0]]) for b in self.blocks)
        return self._join(b.to_coords(params) for b in self.blocks)

    def conjugate_draw(
        self, key: Array, coords: Coords, statistics: Mapping[str, Any]
    ) -> dict[str, Array]:
        """Draw coordinates given statistics of sampled states and the current coordinates."""
        keys = jax.random.split(key, len(self.blocks))
        current = self.constrain(coords)
        params = self._join(
            block.draw(key, statistics[block.names[0]], current)
            for block, key in zip(self.blocks, keys, strict=True)
        )
        return self._join(b.to_coords(params) for b in self.blocks)

    def scaled_to(self, data: Any) -> Self:
        """Return this model with default priors and coordinates in the units of the data.

        A model that already has units keeps them.
        """
        if self.units is not None:
            return self
        location, scale = as_series(data, self.emission_dim).location_scale()
        units = Units(tuple(map(float, self._location(location))), tuple(map(float, scale)))
        return dataclasses.replace(self, units=units)  # type: ignore[type-var]

    def raw(self) -> Self:
        """Return this model in the units of the user, with the same law before the first row.

        Priors that were not given are stated in the model's units, and so change.
        """
        return dataclasses.replace(self, units=None)  # type: ignore[type-var]

    def initialize(self, data: Any, method: str = "kmeans", seed: int = 0) -> dict[str, np.ndarray]:
        """Return starting values of the parameters.

        Args:
            data: The series, as in `sample`.
            method: "kmeans" clusters a sample of rows, with their lags, and fits each state to its
                cluster (for an LGSSM autocovariances of rows take its place, also under the name
                "subspace"); "influence", for models with discrete states, clusters the pull of rows on a
                common regression; "prior" draws from the prior.
            seed: Which rows and clusters, or which draw.
        """
        series = as_series(data, self.emission_dim)
        check_lags(self, series)
        scaled = self.scaled_to(series)
        inner, own = scaled.enter(series)
        params = scaled.to_params(inner.initial_coords(own, method, check_seed(seed)))
        return {name: np.asarray(value) for name, value in params.items()}

    def enter(self, series: Series) -> tuple[Self, Series]:
        """Return model and series in the model's own units, where all work is done.

        What is compiled for one data set then serves the next, whatever its units.
        """
        if self.units is None:
            return self, series
        location, scale = (np.asarray(value) for value in self.units)
        return self.unitless(), series.in_units(location, scale)

    def check_params(self, params: Params) -> dict[str, Array]:
        """Check names, shapes, finiteness and constraints; returns arrays of floats."""
        return check_params(params, self.param_shapes, self.param_dims, self.constants)

    def check_coords(self, coords: Coords) -> dict[str, Array]:
        """Check that coordinates have the names and shapes of `to_coords`."""
        with jax.enable_x64(True):
            zero = {n: jnp.zeros(shape) for n, shape in self.param_shapes.items()}
            expected = jax.eval_shape(
                lambda p: self._join(b.to_coords(p) for b in self.blocks), zero
            )
        return check_coords(coords, expected)

    def _location(self, location: np.ndarray) -> np.ndarray:
        """Return the location that the model can absorb; zero for models without a mean."""
        return np.zeros_like(location)

    def _join(self, parts: Any) -> dict[str, Array]:
        joined: dict[str, Array] = {}
        for part in parts:
            joined.update(part)
        return joined


@functools.partial(jax.jit, static_argnums=0)
def _prior_gradient(model: Model, coords: dict[str, Array]) -> dict[str, Array]:
    return jax.grad(model.log_prior)(coords)


def _coords(model: Model, params: dict[str, Array]) -> dict[str, Array]:
    return model._join(block.to_coords(params) for block in model.blocks)


_compiled_coords = jax.jit(_coords, static_argnums=0)


@compiled(static_argnums=0, quick=True)
def prior_draw(model: Model, key: Array) -> dict[str, Array]:
    """Draw coordinates from the prior: those given no rows, wherever the draw starts."""
    empty = {block.names[0]: block.empty_statistics() for block in model.blocks}
    return model.conjugate_draw(key, model.center(empty), empty)


def check_data(model: Any, data: Any) -> Series:
    """Return data as a series that the model, if it is one, can work on."""
    check_model(model)
    series = as_series(data, model.emission_dim)
    check_lags(model, series)
    return series


def check_model(model: Any) -> None:
    """Raise unless `model` is one."""
    if not isinstance(model, Model):
        raise TypeError(f"expected a model such as GaussianHMM(...); got {shown(model)}")


def check_lags(model: Model, series: Series) -> None:
    """Raise if a series has no row left after its lags."""
    shortest = min(series.lengths)
    if shortest <= model.num_lags:
        which = series.lengths.index(shortest)
        raise ValueError(
            f"series {which} has {shortest} rows; num_lags={model.num_lags} needs at least "
            f"{model.num_lags + 1}"
        )
