"""The part of a stationary initial law in gradients. `MATH.md` §7.4, §8.4."""

import jax.numpy as jnp
from jax import Array

from sojourn.messages import discrete, gaussian
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


def with_stationary_chain(
    moments: discrete.Moments, Pi: Array, before: Array, weight: Array
) -> discrete.Moments:
    """Add what makes gradients those of log π(z_0), π the stationary law of Π, as well.

    With v = (I − Π + 1 πᵀ)⁻¹ (γ_0 / π) the derivative by Π_kj is π_k v_j, which is that of as many
    transitions as Π_kj π_k v_j. A constant added to v changes no gradient within the simplex: the least
    entry is made zero, as counts are.

    Args:
        moments: Moments of each window.
        Pi: Transition matrix.
        before: γ_0, the law of the state before the first row given all, (K, W).
        weight: Weight of the start of each window; zero inside a series.
    """
    pi = discrete.stationary(Pi)
    ratio = before / jnp.maximum(pi, jnp.finfo(pi.dtype).tiny)[:, None]
    v = jnp.linalg.solve(jnp.eye(len(pi)) - Pi + pi, ratio)
    v = weight * (v - v.min(0))
    return moments._replace(counts=moments.counts + (pi[:, None] * Pi)[:, :, None] * v)
