"""The part of a stationary initial law in gradients. `MATH.md` §8.4."""

import jax.numpy as jnp
from jax import Array

from sojourn.messages import gaussian
from sojourn.messages.linear_moments import Moments


def with_stationary_start(
    moments: Moments, A: Array, Q: Array, square: Array, weight: Array
) -> Moments:
    """Add what makes gradients those of log N(x_0; 0, V(A, Q)) as well.

    With G = ½ (V⁻¹ M V⁻¹ − V⁻¹), M = E[x_0 x_0ᵀ] and X = Aᵀ X A + G, moments cp + 2 Q X A V and
    cc + 2 Q X Q + A (·)ᵀ + (·) Aᵀ have the gradients 2 X A V for A and −2 Q X Q ψ for ψ.

    Args:
        moments: Moments of each window.
        A: Dynamics.
        Q: Their noise.
        square: M of each window, (n, n, W).
        weight: Weight of the start of each window; zero inside a series.
    """
    n = A.shape[0]
    V, stable = gaussian.stationary_law(A, Q)
    inverse = jnp.linalg.inv(V)
    G = jnp.einsum("ab,bcw,cd->adw", inverse, square, inverse) - inverse[:, :, None]
    operator = jnp.where(stable, jnp.eye(n * n) - jnp.kron(A.T, A.T), jnp.eye(n * n))
    counted = jnp.where(stable, weight, 0.0)
    X = jnp.linalg.solve(operator, (counted * G / 2).reshape(n * n, -1)).reshape(G.shape)
    added = 2 * jnp.einsum("ab,bcw,cd->adw", Q, X, A @ V)
    turned = jnp.einsum("ab,cbw->acw", A, added)
    change = 2 * jnp.einsum("ab,bcw,cd->adw", Q, X, Q)
    return moments._replace(
        cp=moments.cp + added,
        cc=moments.cc + change + turned + jnp.swapaxes(turned, 0, 1),
    )
