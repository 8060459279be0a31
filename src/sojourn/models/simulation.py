"""Pieces that simulators share."""

import functools

import jax
import jax.numpy as jnp
from jax import Array, lax

from sojourn._validation import check_seed, check_size


def check_simulation(num_timesteps: int, seed: int) -> Array:
    """Check the arguments of `simulate` and return a random key."""
    check_size("num_timesteps", num_timesteps)
    return jax.random.key(check_seed(seed))


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
