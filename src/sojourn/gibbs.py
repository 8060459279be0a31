"""Blocked Gibbs: states given parameters, parameters given states. The batch baseline.

One sweep draws all states of all series given the parameters, by forward filtering and backward
sampling on windows that tile the series, then each block's parameters from its conjugate
conditional. It targets the same posterior as the gradient samplers (`MATH.md` §11).

Where states are discrete and continuous, neither kind can be drawn without the other: a sweep draws
the continuous ones given the discrete ones of the last sweep, then the discrete ones given these.
"""

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from sojourn._precision import double
from sojourn.batch import Batch, Edges, Missing
from sojourn.models.base import Coords, Model
from sojourn.passes import Kernel, counted_rows, first_buffer, in_order, run, seam
from sojourn.series import Drawn, Series


@dataclass(frozen=True)
class Gibbs:
    """Blocked Gibbs sampling on the whole data: exact, with no step size; a sweep costs a full pass."""


# Buffer of the first sweep; it grows where neighbouring windows do not agree.
_BUFFER = 32


def make_sweep(model: Model, series: Series) -> "Sweep | AlternatingSweep":
    """Return the sweeps that suit the model; each chain needs its own."""
    return Sweep(model, series) if model.is_exact else AlternatingSweep(model, series)


class Sweep:
    """Gibbs sweeps over one data set.

    Args:
        model: The model.
        series: The series.
        values: All rows, columns first, with any columns that the model reads behind the data's.
        buffer: First buffer to try.
    """

    def __init__(
        self, model: Model, series: Series, values: Array | None = None, buffer: int = _BUFFER
    ) -> None:
        with jax.enable_x64(True):
            self._values = series.resident() if values is None else values
        self._model, self._series = model, series
        self.buffer = buffer

    @property
    def memory(self) -> dict[str, np.ndarray]:
        """What the next sweep depends on besides coordinates: the buffer, by roundings."""
        return {"buffers": np.array([self.buffer])}

    def restore(self, memory: dict[str, np.ndarray]) -> None:
        """Go on from the memory of an earlier sweep."""
        self.buffer = int(memory["buffers"][0])

    @double
    def __call__(self, key: Array, coords: Coords) -> dict[str, Array]:
        """Draw states, then parameters; returns new coordinates."""
        key_states, key_params = _split(key, 2)
        statistics, _ = self.states(key_states, coords)
        return _conjugate_draw(self._model, key_params, coords, statistics)

    @double
    def states(self, key: Array, coords: Coords) -> tuple[dict[str, Any], np.ndarray]:
        """Draw the states of all series; returns their statistics and the states, in order."""
        # One number for the state before each series and one for each row, so series i begins at its
        # first row plus i; windows that overlap share them.
        size = self._series.num_rows + len(self._series.lengths)
        noise, key_rest = _noise(key, size, *self._model.noise)

        shortest = min(self._series.lengths) - self._model.num_lags
        kernel = Kernel(_sample, (self._model, shortest), (key_rest, coords, noise))
        results, tiles, _ = run(
            self._model, self._series, kernel, values=self._values, buffer=self.buffer
        )
        self.buffer = tiles.buffer
        sums = (result[0] for result in results)
        statistics = jax.tree.map(lambda *parts: np.sum(parts, axis=0), *sums)
        return statistics, in_order(tiles, np.concatenate([r[1] for r in results])[: tiles.count])


class AlternatingSweep:
    """Gibbs sweeps for a model of discrete and continuous states, over one data set.

    Given the discrete states of all rows, which are carried from sweep to sweep, the continuous ones are
    drawn by tiles of the series; these are then the data of its `discrete_part`, from which the
    discrete states are drawn. The state before the first row of a series is the lag of its first.

    Attributes:
        z: Discrete states of all rows; None before the first sweep, which begins with the model's own.
    """

    def __init__(self, model: Model, series: Series) -> None:
        assert model.discrete_part is not None
        with jax.enable_x64(True):
            self._values = series.resident()
        self._model, self._discrete, self._series = model, model.discrete_part, series
        self._buffers = [_BUFFER, _BUFFER]
        self.z: np.ndarray | None = None

    @property
    def memory(self) -> dict[str, np.ndarray]:
        """What the next sweep depends on besides coordinates: discrete states and buffers."""
        z = {} if self.z is None else {"z": self.z}
        return {"buffers": np.array(self._buffers), **z}

    def restore(self, memory: dict[str, np.ndarray]) -> None:
        """Go on from the memory of an earlier sweep."""
        self._buffers = [int(buffer) for buffer in memory["buffers"]]
        self.z = memory.get("z")

    @double
    def __call__(self, key: Array, coords: Coords) -> dict[str, Array]:
        """Draw continuous states, discrete states, then parameters; returns new coordinates."""
        key_states, key_params = _split(key, 2)
        statistics, _, _ = self.states(key_states, coords)
        return _conjugate_draw(self._model, key_params, coords, statistics)

    @double
    def states(self, key: Array, coords: Coords) -> tuple[dict[str, Any], np.ndarray, np.ndarray]:
        """Draw the states of all series; returns their statistics, z and x, in order."""
        key_start, key_x, key_z = _split(key, 3)
        if self.z is None:
            self.z = self._start(key_start, coords)
        values = _with_states(self._values, self.z)
        continuous = Sweep(self._model, self._series, values, self._buffers[0])
        emission, pairs = continuous.states(key_x, coords)
        x = self._with_first(pairs)
        discrete = Sweep(self._discrete, x, None, self._buffers[1])
        dynamics, self.z = discrete.states(key_z, coords)
        self._buffers = [continuous.buffer, discrete.buffer]
        return {**dynamics, **emission}, self.z, pairs[:, : x.dim]

    def _start(self, key: Array, coords: Coords) -> np.ndarray:
        kernel = Kernel(_start, (self._model,), (key, coords))
        buffer = first_buffer(self._model, coords, self._series)
        z, _, _ = run(
            self._model, self._series, kernel, buffer=buffer, values=self._values, by_row=True
        )
        return z

    def _with_first(self, pairs: np.ndarray) -> Series:
        """Return x of all series, each with the state before its first row; rows hold (x_t, x_{t−1})."""
        lengths = self._series.lengths
        n = pairs.shape[1] // 2
        first = np.concatenate([[0], np.cumsum(lengths)[:-1]])
        x = np.insert(pairs[:, :n], first, pairs[first, n:], axis=0)
        names = tuple(f"x{i}" for i in range(n))
        return Series(x, tuple(length + 1 for length in lengths), names, "none")


def _start(
    model: Model,
    key: Array,
    coords: Coords,
    batch: Batch,
    drawn: Drawn,
    core: int,
    missing: Missing,
) -> tuple[Any, Edges]:
    first = drawn.origin[0] - drawn.shift[0] + drawn.start[0]
    z = model.window_starts(jax.random.fold_in(key, first), coords, batch, missing)
    zero = jnp.zeros((1, z.shape[1]))
    return counted_rows(z, drawn, core), Edges(zero, zero, zero, zero)


def _sample(
    model: Model,
    shortest: int,
    key: Array,
    coords: Coords,
    noise: Array,
    batch: Batch,
    drawn: Drawn,
    core: int,
    missing: Missing,
) -> tuple[Any, Edges]:
    # Rows that count belong to one window alone: its start tells groups apart.
    first = drawn.origin[0] - drawn.shift[0] + drawn.start[0]
    key_states, key_padding = jax.random.split(jax.random.fold_in(key, first))
    place = drawn.origin + drawn.sequence
    steps = jnp.arange(batch.weight.shape[0] + 1)[:, None]
    picked = jnp.moveaxis(noise[jnp.minimum(place + steps, noise.shape[0] - 1)], -1, 1)
    if shortest < batch.weight.shape[0]:
        # States behind the end of a series have numbers of their own, not those of the next series.
        inside = drawn.shift + steps <= drawn.length
        padding = _numbers(key_padding, picked.shape, model.noise[0])
        picked = jnp.where(inside[:, None], picked, padding)
    (statistics, states), edges = model.window_samples(
        key_states, coords, batch, picked, seam(drawn), missing
    )
    return (statistics, counted_rows(states, drawn, core)), edges


@functools.partial(jax.jit, static_argnums=0)
def _conjugate_draw(model: Model, key: Array, coords: Coords, statistics: Any) -> dict[str, Array]:
    return model.conjugate_draw(key, coords, statistics)


@functools.partial(jax.jit, static_argnums=1)
def _split(key: Array, num: int) -> tuple[Array, ...]:
    return tuple(jax.random.split(key, num))


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def _noise(key: Array, size: int, kind: str, dim: int) -> tuple[Array, Array]:
    """Return numbers for all rows, (size, dim), and a key for the rest."""
    key_noise, key_rest = jax.random.split(key)
    return _numbers(key_noise, (size, dim), kind), key_rest


def _numbers(key: Array, shape: tuple[int, ...], kind: str) -> Array:
    return (jax.random.uniform if kind == "uniform" else jax.random.normal)(key, shape)


@jax.jit
def _with_states(values: Array, z: Array) -> Array:
    """Return all rows, columns first, with the discrete states as one more column."""
    return jnp.concatenate([values, z.astype(values.dtype)[None]])
