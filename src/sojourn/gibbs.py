"""Blocked Gibbs: states given parameters, parameters given states. The batch baseline.

One sweep draws all states of all series given the parameters, by forward filtering and backward
sampling on windows that tile the series, then each block's parameters from its conjugate
conditional. It targets the same posterior as the gradient samplers (`MATH.md` §11).
"""

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from sojourn._precision import double
from sojourn.batch import Batch, Edges
from sojourn.models.base import Coords, Model
from sojourn.passes import counted_rows, in_order, run, seam
from sojourn.series import Drawn, Series
from sojourn.series.series import Missing


@dataclass(frozen=True)
class Gibbs:
    """Blocked Gibbs sampling on the whole data: exact, with no step size; a sweep costs a full pass."""


class Sweep:
    """Gibbs sweeps over one data set."""

    def __init__(self, model: Model, series: Series) -> None:
        with jax.enable_x64(True):
            self._values = series.resident()
        self._model, self._series = model, series
        self._buffer = 32

    @double
    def __call__(self, key: Array, coords: Coords) -> dict[str, Array]:
        """Draw states, then parameters; returns new coordinates."""
        key_states, key_params = jax.random.split(key)
        statistics, _ = self.states(key_states, coords)
        return _conjugate_draw(self._model, key_params, coords, statistics)

    @double
    def states(self, key: Array, coords: Coords) -> tuple[dict[str, Any], np.ndarray]:
        """Draw the states of all series; returns their statistics and the states, in order."""
        key_noise, key_rest = jax.random.split(key)
        # One number for the state before each series and one for each row, so series i begins at its
        # first row plus i; windows that overlap share them.
        size = self._series.num_rows + len(self._series.lengths)
        kind, dim = self._model.noise
        draw = jax.random.uniform if kind == "uniform" else jax.random.normal
        noise = draw(key_noise, (size, dim))

        def kernel(batch: Batch, drawn: Drawn, core: int, missing: Missing) -> tuple[Any, Edges]:
            return _sample(self._model, key_rest, coords, batch, noise, drawn, core, missing)

        results, tiles, _ = run(
            self._model, self._series, kernel, values=self._values, buffer=self._buffer
        )
        self._buffer = tiles.buffer
        sums = (result[0] for result in results)
        statistics = jax.tree.map(lambda *parts: jnp.asarray(np.sum(parts, axis=0)), *sums)
        return statistics, in_order(tiles, np.concatenate([r[1] for r in results])[: tiles.count])


@functools.partial(jax.jit, static_argnums=(0, 6, 7))
def _sample(
    model: Model,
    key: Array,
    coords: Coords,
    batch: Batch,
    noise: Array,
    drawn: Drawn,
    core: int,
    missing: Missing,
) -> tuple[Any, Edges]:
    place = drawn.origin + drawn.sequence
    steps = jnp.arange(batch.weight.shape[0] + 1)[:, None]
    picked = jnp.moveaxis(noise[jnp.minimum(place + steps, noise.shape[0] - 1)], -1, 1)
    # Rows that count belong to one window alone: its start tells groups apart.
    first = drawn.origin[0] - drawn.shift[0] + drawn.start[0]
    key = jax.random.fold_in(key, first)
    (statistics, states), edges = model.window_samples(
        key, coords, batch, picked, seam(drawn), missing
    )
    return (statistics, counted_rows(states, drawn, core)), edges


@functools.partial(jax.jit, static_argnums=0)
def _conjugate_draw(model: Model, key: Array, coords: Coords, statistics: Any) -> dict[str, Array]:
    return model.conjugate_draw(key, coords, statistics)
