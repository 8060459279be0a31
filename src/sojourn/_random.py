"""Random numbers that JAX draws slowly on CPU, and seeds."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from sojourn._validation import check_seed


def gamma(key: Array, shape: Array) -> Array:
    """Draw Gamma(shape, 1)."""
    return jnp.exp(log_gamma(key, shape))


def log_gamma(key: Array, shape: Array) -> Array:
    """Draw the log of Gamma(shape, 1) by Marsaglia and Tsang's rejection, all entries at once.

    `jax.random.gamma` loops over entries one by one on CPU, which would take most of a step.
    """
    key_boost, key = jax.random.split(key)
    boosted = jnp.where(shape < 1, shape + 1, shape)
    d = boosted - 1 / 3
    c = 1 / jnp.sqrt(9 * d)

    def propose(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        key, value, done = carry
        key, key_normal, key_uniform = jax.random.split(key, 3)
        x = jax.random.normal(key_normal, shape.shape)
        log_u = jnp.log1p(-jax.random.uniform(key_uniform, shape.shape))
        v = (1 + c * x) ** 3
        log_v = jnp.log(jnp.where(v > 0, v, 1.0))
        accept = (v > 0) & (log_u < 0.5 * x * x + d * (1 - v + log_v))
        return key, jnp.where(accept & ~done, d * v, value), done | accept

    hopeless = ~jnp.isfinite(shape)  # a diverged chain must not loop for ever
    start = (key, jnp.where(hopeless, jnp.nan, 1.0), hopeless)
    _, value, _ = lax.while_loop(lambda carry: ~carry[2].all(), propose, start)
    log_u = jnp.log1p(-jax.random.uniform(key_boost, shape.shape))
    return jnp.log(value) + jnp.where(shape < 1, log_u / shape, 0.0)


def random_key(seed: int) -> Array:
    """Return the key of a seed, made of all its 64 bits whatever the precision around."""
    with jax.enable_x64(True):
        return jax.random.key(check_seed(seed))


def child_seed(seed: int, i: int) -> int:
    """Return the seed of the i-th of several draws, which no neighbouring seed shares."""
    return int(np.random.SeedSequence((seed, i)).generate_state(1)[0])
