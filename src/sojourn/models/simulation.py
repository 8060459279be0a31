"""Pieces that simulators share."""

import functools
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jax import Array, lax

from sojourn._random import random_key
from sojourn._validation import check_size


def check_simulation(num_timesteps: int, seed: int) -> Array:
    """Check the arguments of `simulate` and return a random key."""
    check_size("num_timesteps", num_timesteps)
    return random_key(seed)


@functools.partial(jax.jit, static_argnums=3)
def markov_chain(key: Array, Pi: Array, initial: Array, num_timesteps: int) -> Array:
    """Draw z_1, …, z_T, the state before the first having law `initial`."""
    uniform = jax.random.uniform(key, (num_timesteps + 1,))
    cumulative = jnp.cumsum(Pi, axis=1)

    def step(state: Array, u: Array) -> tuple[Array, Array]:
        row = cumulative[state]
        following = (row[:-1] <= u * row[-1]).sum().astype(jnp.int32)
        return following, following

    law = jnp.cumsum(initial)
    start = (law[:-1] <= uniform[0] * law[-1]).sum().astype(jnp.int32)
    return lax.scan(step, start, uniform[1:])[1]


@jax.jit
def linear_process(
    key: Array, params: Mapping[str, Array], start: tuple[Array, Array], z: Array
) -> tuple[Array, Array]:
    """Draw x_1, …, x_T and rows given z, the state before the first having mean and covariance `start`.

    `A` and `Q` have one matrix for each value of z, (K, n, n).
    """
    mean, covariance = start
    T, n, m = z.shape[0], covariance.shape[0], params["R"].shape[0]
    key_start, key_states, key_rows = jax.random.split(key, 3)
    first = mean + jnp.linalg.cholesky(covariance) @ jax.random.normal(key_start, (n,))
    roots = jnp.linalg.cholesky(params["Q"])

    def step(x: Array, row: tuple[Array, Array]) -> tuple[Array, Array]:
        state, e = row
        x = params["A"][state] @ x + roots[state] @ e
        return x, x

    _, x = lax.scan(step, first, (z, jax.random.normal(key_states, (T, n))))
    noise = jax.random.normal(key_rows, (T, m)) @ jnp.linalg.cholesky(params["R"]).T
    return x, x @ jnp.asarray(params["C"]).T + noise
