"""Small matrices by the batch, with the matrix axes first and the batch last.

Inside a pass the batch of windows is the last, contiguous axis. LAPACK wants it first and costs a
call per matrix, so dimensions up to `UNROLL` are written out entry by entry, which XLA fuses and
vectorises over the batch; larger ones are handed to LAPACK.
"""

import jax.numpy as jnp
from jax import Array
from jax.scipy.linalg import solve_triangular

UNROLL = 6


def cholesky(S: Array) -> Array:
    """Return lower-triangular L of shape (d, d, *batch) with L Lᵀ = S."""
    d = S.shape[0]
    if d > UNROLL:
        return jnp.moveaxis(
            jnp.linalg.cholesky(jnp.moveaxis(S, (0, 1), (-2, -1))), (-2, -1), (0, 1)
        )
    L = [[jnp.zeros_like(S[0, 0])] * d for _ in range(d)]
    for b in range(d):
        for a in range(b, d):
            rest = S[a, b] - sum((L[a][c] * L[b][c] for c in range(b)), start=0.0)
            L[a][b] = jnp.sqrt(rest) if a == b else rest / L[b][b]
    return jnp.stack([jnp.stack(row) for row in L])


def solve_lower(L: Array, B: Array) -> Array:
    """Return X of shape (d, r, *batch) with L X = B, L lower triangular."""
    d = L.shape[0]
    if d > UNROLL:
        L, B = (jnp.moveaxis(M, (0, 1), (-2, -1)) for M in (L, B))
        return jnp.moveaxis(solve_triangular(L, B, lower=True), (-2, -1), (0, 1))
    X = []
    for a in range(d):
        X.append((B[a] - sum((L[a, c] * X[c] for c in range(a)), start=0.0)) / L[a, a])
    return jnp.stack(X)


def solve_lower_transposed(L: Array, B: Array) -> Array:
    """Return X of shape (d, r, *batch) with Lᵀ X = B, L lower triangular."""
    d = L.shape[0]
    if d > UNROLL:
        L, B = (jnp.moveaxis(M, (0, 1), (-2, -1)) for M in (L, B))
        return jnp.moveaxis(solve_triangular(L, B, lower=True, trans=1), (-2, -1), (0, 1))
    X: list[Array] = []
    for a in reversed(range(d)):
        later = sum((L[c, a] * X[d - 1 - c] for c in range(a + 1, d)), start=0.0)
        X.append((B[a] - later) / L[a, a])
    return jnp.stack(X[::-1])


def matmul(A: Array, B: Array) -> Array:
    """Return the product of matrices (d, e, *batch) and (e, f, *batch)."""
    if A.shape[1] > UNROLL:
        return jnp.einsum("ab...,bc...->ac...", A, B)
    return sum((A[:, c, None] * B[None, c] for c in range(1, A.shape[1])), start=A[:, :1] * B[:1])


def transpose(M: Array) -> Array:
    """Return the transposes of matrices (d, e, *batch)."""
    return jnp.swapaxes(M, 0, 1)


def symmetric(M: Array) -> Array:
    """Return the symmetric part of matrices (d, d, *batch)."""
    return (M + transpose(M)) / 2


def eye(n: int, like: Array) -> Array:
    """Return the identity (n, n) with trailing axes of size one, as many as `like` has."""
    return jnp.eye(n, dtype=like.dtype).reshape(n, n, *(1,) * (like.ndim - 2))


def diagonal(M: Array) -> Array:
    """Return the diagonals (d, *batch) of matrices (d, d, *batch)."""
    if M.shape[0] > UNROLL:
        return jnp.einsum("bb...->b...", M)
    return jnp.stack([M[b, b] for b in range(M.shape[0])])
