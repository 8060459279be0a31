"""Messages of a linear Gaussian hidden process over a batch of windows.

Legend: n states, p observed dimensions, L rows, W windows;

    x_t = A x_{t−1} + N(0, Q),    y_t = C x_t + N(0, I),

rows being whitened beforehand (`observe`), so that missing entries, R and more columns than states
are all settled before a recursion starts. Moment form throughout (`MATH.md` §8.2), in sums of squares
that keep covariances symmetric and positive also in single precision.

*Covariances do not depend on the data.* They run on V *variants*: the two ways a window can start when
no row is missing (from the initial law or from the edge law), shared by all windows; one variant per
window when rows are missing or A and Q switch. Means then run per window with the gains of its variant.
Arrays over rows have time first, variants or windows last; matrices that are the same at every row or
in every variant have size one there.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float, Int

from sojourn._linalg import (
    cholesky,
    diagonal,
    eye,
    matmul,
    solve_lower,
    solve_lower_transposed,
    symmetric,
    transpose,
)
from sojourn.messages.rows import Observations, apply_rows

# A recursion stops when no entry moves by more than this many roundings of its scale.
_SETTLED = 8

# Doublings of the horizon after which the sum for a stationary covariance is taken as it is: 2^20 rows.
DOUBLINGS = 20

# The same where the law itself is asked for, however slowly it is forgotten.
_MANY_DOUBLINGS = 45

# A covariance this much larger than the noise that feeds it is not a stationary law to start from.
UNSTABLE = 1e6


class Gains(NamedTuple):
    """What the means of a filter and a smoother need, and the covariances; V variants.

        m_t = F m_{t−1} + K y_t,    E[x_{t−1} | x_t] = E m_{t−1} + J x_t,    N y_t − H m_{t−1} ~ N(0, I)

    Attributes:
        F: (I − K C) A.
        K: Kalman gains.
        H: N C A.
        N: Inverse Cholesky factors of the covariances of y_t given the rows before.
        E: I − J A.
        J: Smoother gains from row t back to the state before it.
        conditional: Covariances of the state before row t given that of row t and the rows before.
        previous: Filtered covariances before each row.
        last: Filtered covariance of the last row.
        settled: Rows after which all of these are constant in time; None if they never are.
    """

    F: Float[Array, "L n n V"]
    K: Float[Array, "L n p V"]
    H: Float[Array, "L p n V"]
    N: Float[Array, "L p p V"]
    E: Float[Array, "L n n V"]
    J: Float[Array, "L n n V"]
    conditional: Float[Array, "L n n V"]
    previous: Float[Array, "L n n V"]
    last: Float[Array, "n n V"]
    settled: Int[Array, ""] | None


class Filtered(NamedTuple):
    """Filtered means: `previous[t]` is the mean before row t, so `previous[0]` that of the start."""

    previous: Float[Array, "L n W"]
    last: Float[Array, "n W"]
    log_normalizer: Float[Array, "L W"]


class Smoothed(NamedTuple):
    """Moments given all rows of a window, of the state before each row and, last, of the last row."""

    mean: Float[Array, "N n W"]
    covariance: Float[Array, "N n n V"]
    cross: Float[Array, "L n n V"]  # Cov(x_t, x_{t−1}) for each row t


def gains(
    A: Float[Array, "La n n Va"],
    Q: Float[Array, "La n n Va"],
    C: Float[Array, "Lc p n Vc"],
    start: Float[Array, "n n V"],
    num_rows: int,
) -> Gains:
    """Run the covariances forward from those before the first row.

    Where A, Q and C are the same at every row, the recursion stops as soon as it has settled.
    """

    def step(P: Array, row: tuple[Array, ...]) -> tuple[Array, tuple[Array, ...]]:
        a, q, c = row
        eye_n, eye_p = eye(P.shape[0], P), eye(c.shape[0], P)
        carried = matmul(a, P)
        predicted = symmetric(matmul(carried, transpose(a)) + q)
        root = cholesky(predicted)
        J = transpose(solve_lower_transposed(root, solve_lower(root, carried)))
        E = eye_n - matmul(J, a)
        conditional = matmul(matmul(E, P), transpose(E)) + matmul(matmul(J, q), transpose(J))
        seen = matmul(c, predicted)
        innovation = cholesky(symmetric(matmul(seen, transpose(c))) + eye_p)
        N = solve_lower(innovation, eye_p * jnp.ones_like(innovation))
        K = matmul(transpose(matmul(N, seen)), N)
        rest = eye_n - matmul(K, c)
        updated = matmul(matmul(rest, predicted), transpose(rest)) + matmul(K, transpose(K))
        F, H = matmul(rest, a), matmul(N, matmul(c, a))
        # Where only P has all variants, the rest is given its full size: scans stack equal shapes.
        kept = tuple(M * jnp.ones_like(P[:1, :1]) for M in (F, K, H, N, E, J))
        return symmetric(updated), (*kept, symmetric(conditional), P)

    if A.shape[0] == 1 and C.shape[0] == 1:
        last, kept, settled = _until_settled(lambda P: step(P, (A[0], Q[0], C[0])), start, num_rows)
        return Gains(*kept, last=last, settled=settled)
    rows = tuple(jnp.broadcast_to(M, (num_rows, *M.shape[1:])) for M in (A, Q, C))
    last, kept = lax.scan(step, start, rows)
    return Gains(*kept, last=last, settled=None)


def forward(
    found: Gains,
    first: Bool[Array, "W"] | None,
    start: Float[Array, "n W"],
    observations: Observations,
) -> Filtered:
    """Filter the means of each window.

    Args:
        found: Gains.
        first: Which windows use the second of two variants; None if each has its own.
        start: Means before the first row.
        observations: Whitened rows.
    """
    pick = _picker(first)

    def step(mean: Array, row: tuple[Array, ...]) -> tuple[Array, tuple[Array, Array]]:
        y, F, K, N, H = row
        innovation = _apply(pick(N), y) - _apply(pick(H), mean)
        updated = _apply(pick(F), mean) + _apply(pick(K), y)
        return updated, (mean, jnp.square(innovation).sum(0))

    rows = (observations.y, found.F, found.K, found.N, found.H)
    last, (previous, squares) = lax.scan(step, start, rows)
    log_scale = pick(jnp.log(diagonal(jnp.moveaxis(found.N, 0, 2))).sum(0))
    log_normalizer = observations.log_constant + log_scale - 0.5 * squares
    return Filtered(previous, last, log_normalizer)


def predict(
    A: Float[Array, "n n"],
    Q: Float[Array, "n n"],
    found: Gains,
    first: Bool[Array, "W"] | None,
    filtered: Filtered,
    observations: Observations,
    horizon: int,
) -> Float[Array, "M W"]:
    """Return log p(y_t | rows up to t − horizon) of each row but the first `horizon` ones."""
    L = filtered.previous.shape[0]
    start = jnp.eye(A.shape[0], dtype=A.dtype), jnp.zeros_like(Q)
    power, spread = lax.fori_loop(
        0, horizon, lambda _, carry: (A @ carry[0], A @ carry[1] @ A.T + Q), start
    )
    # `previous[t]` is the law at row t − 1: that at row t − h predicts row t.
    mean = apply_rows(power[None, :, :, None], filtered.previous[1 : L - horizon + 1])
    lifted = power[:, :, None, None]
    covariance = jnp.moveaxis(found.previous[1 : L - horizon + 1], 0, 2)
    covariance = matmul(matmul(lifted, covariance), transpose(lifted)) + spread[:, :, None, None]
    C = observations.C if observations.C.shape[0] == 1 else observations.C[horizon:]
    c = jnp.moveaxis(C, 0, 2)
    innovation = symmetric(matmul(matmul(c, covariance), transpose(c))) + eye(
        c.shape[0], covariance
    )
    root = cholesky(innovation)
    N = solve_lower(root, eye(c.shape[0], root) * jnp.ones_like(root))
    pick = _picker(first)
    residual = observations.y[horizon:] - apply_rows(C, mean)
    white = apply_rows(jnp.moveaxis(pick(N), 2, 0), residual)
    log_scale = pick(jnp.log(diagonal(N)).sum(0))
    return observations.log_constant[horizon:] + log_scale - 0.5 * jnp.square(white).sum(1)


def backward(found: Gains, first: Bool[Array, "W"] | None, filtered: Filtered) -> Smoothed:
    """Smooth: moments of all states of each window, the covariances by variant."""
    pick = _picker(first)

    def step(mean: Array, row: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        before, E, J = row
        return _apply(pick(E), before) + _apply(pick(J), mean), mean

    rows = (filtered.previous, found.E, found.J)
    start, means = lax.scan(step, filtered.last, rows, reverse=True)
    covariance, cross = _smoothed_covariances(found)
    return Smoothed(jnp.concatenate([start[None], means]), covariance, cross)


def _smoothed_covariances(found: Gains) -> tuple[Array, Array]:
    """Run J P_t Jᵀ + (I − J A) P (I − J A)ᵀ + J Q Jᵀ backward from the last row."""
    L = found.J.shape[0]
    if found.settled is not None:
        settled = found.settled
        # From the end towards the rows where gains are constant, then on through the others.
        J, steady = found.J[-1], found.conditional[-1]

        def settle(P: Array) -> tuple[Array, Array]:
            return symmetric(matmul(matmul(J, P), transpose(J))) + steady, P

        _, from_end, _ = _until_settled(settle, found.last, L + 1)

        def body(i: Array, rows: Array) -> Array:
            t = settled - 1 - i
            P = symmetric(matmul(matmul(found.J[t], rows[t + 1]), transpose(found.J[t])))
            return rows.at[t].set(P + found.conditional[t])

        covariance = lax.fori_loop(0, settled, body, from_end[::-1])
    else:

        def step(P: Array, row: tuple[Array, Array]) -> tuple[Array, Array]:
            J, conditional = row
            return symmetric(matmul(matmul(J, P), transpose(J))) + conditional, P

        start, rest = lax.scan(step, found.last, (found.J, found.conditional), reverse=True)
        covariance = jnp.concatenate([start[None], rest])
    cross = _matmul_rows(covariance[1:], jnp.swapaxes(found.J, 1, 2))
    return covariance, cross


def sample(
    found: Gains,
    first: Bool[Array, "W"] | None,
    filtered: Filtered,
    noise: Float[Array, "N n W"],
) -> Float[Array, "N n W"]:
    """Draw all states of each window backward, `noise[t]` standard normal numbers deciding state t.

        x_{t−1} | x_t ~ N(m + J (x_t − A m), (I − J A) P (I − J A)ᵀ + J Q Jᵀ)

    An affine map of the state behind it, so windows that share noise forget where they began
    (`MATH.md` §8.5).
    """
    pick = _picker(first)
    roots = jnp.moveaxis(cholesky(jnp.moveaxis(found.conditional, 0, 2)), 2, 0)
    last = filtered.last + _apply(pick(cholesky(found.last)), noise[-1])

    def step(x: Array, row: tuple[Array, ...]) -> tuple[Array, Array]:
        before, E, J, root, e = row
        return _apply(pick(E), before) + _apply(pick(J), x) + _apply(pick(root), e), x

    rows = (filtered.previous, found.E, found.J, roots, noise[:-1])
    start, rest = lax.scan(step, last, rows, reverse=True)
    return jnp.concatenate([start[None], rest])


@jax.jit
def stationary(A: Float[Array, "n n"], Q: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """Return V = A V Aᵀ + Q to start windows from.

    Where A has no stationary law, or one far wider than Q, it is the law of the state after as many
    rows as keep it below a millionfold of Q, a wide law to start from (`MATH.md` §12.1).
    """
    return _summed(A, Q, UNSTABLE, DOUBLINGS)[0]


@jax.jit
def stationary_law(
    A: Float[Array, "n n"], Q: Float[Array, "n n"]
) -> tuple[Float[Array, "n n"], Bool[Array, ""]]:
    """Return V = A V Aᵀ + Q, however wide, and whether there is one; `stationary` where not."""
    V, settled = _summed(A, Q, 1 / jnp.finfo(Q.dtype).eps, _MANY_DOUBLINGS)
    return jnp.where(settled, V, stationary(A, Q)), settled


def _summed(A: Array, Q: Array, widest: Any, doublings: int) -> tuple[Array, Array]:
    """Return Σ_i A^i Q A^iᵀ and whether it settled, by doubling the horizon: V ← V + A V Aᵀ, A ← A².

    The sum stops before it is wider than `widest` times Q.
    """
    limit = widest * jnp.trace(Q)

    def settled(V: Array, grown: Array) -> Array:
        return jnp.abs(grown - V).max() <= jnp.finfo(V.dtype).eps * jnp.abs(V).max()

    def goes_on(carry: tuple[Array, Array, Array, Array]) -> Array:
        count, _, V, grown = carry
        within = jnp.isfinite(grown).all() & (jnp.trace(grown) <= limit)
        return (count < doublings) & within & ~settled(V, grown)

    def double_horizon(carry: Any) -> Any:
        count, power, _, grown = carry
        power = power @ power
        return count + 1, power, grown, symmetric(grown + power @ grown @ power.T)

    first = (jnp.asarray(0), A, Q, symmetric(Q + A @ Q @ A.T))
    _, _, V, grown = lax.while_loop(goes_on, double_horizon, first)
    within = jnp.isfinite(grown).all() & (jnp.trace(grown) <= limit)
    return jnp.where(within, grown, V), within & settled(V, grown)


def start_variants(
    initial: Float[Array, "n n"], edge: Float[Array, "n n"]
) -> Float[Array, "n n 2"]:
    """Stack the covariances that windows start from: variant 0 inside a series, 1 at its start."""
    return jnp.stack([edge, initial], axis=-1)


def by_window(values: Array, first: Bool[Array, "W"]) -> Array:
    """Give each window the entry of its variant along the last axis; one entry serves both."""
    return values if values.shape[-1] == 1 else jnp.where(first, values[..., 1:], values[..., :1])


def _until_settled(step: Any, start: Array, num_rows: int) -> tuple[Array, Any, Array]:
    """Scan `step` over rows, but stop once the carry has settled; later rows repeat the last.

    Entries of a covariance are compared to the standard deviations they belong to, so that a state of
    small scale settles like the others.

    Returns:
        The last carry, the outputs of all rows, and the row from which they are constant.
    """
    shapes = jax.eval_shape(lambda P: step(P)[1], start)
    empty = jax.tree.map(lambda s: jnp.zeros((num_rows, *s.shape), s.dtype), shapes)
    limit = _SETTLED * jnp.finfo(start.dtype).eps

    def goes_on(carry: tuple[Array, Array, Array, Any]) -> Array:
        t, moved, _, _ = carry
        return (t < num_rows) & (moved > limit)

    def body(carry: tuple[Array, Array, Array, Any]) -> tuple[Array, Array, Array, Any]:
        t, _, P, kept = carry
        following, row = step(P)
        scale = jnp.sqrt(diagonal(following))
        moved = (jnp.abs(following - P) / (scale[:, None] * scale[None])).max()
        kept = jax.tree.map(lambda rows, one: rows.at[t].set(one), kept, row)
        return t + 1, moved, following, kept

    first = (jnp.asarray(0), jnp.asarray(jnp.inf, start.dtype), start, empty)
    settled, _, last, kept = lax.while_loop(goes_on, body, first)
    index = jnp.minimum(jnp.arange(num_rows), settled - 1)
    return last, jax.tree.map(lambda rows: rows[index], kept), settled


def _picker(first: Array | None) -> Any:
    """Return a function that gives each window the matrix of its variant."""
    return lambda values: values if first is None else by_window(values, first)


def _apply(M: Array, x: Array) -> Array:
    """Return M x for matrices (d, e, W or 1) and vectors (e, W)."""
    return matmul(M, x[:, None])[:, 0]


def _matmul_rows(A: Array, B: Array) -> Array:
    """Return products of matrices (L, d, e, V), written over rows and variants at once."""
    moved = (jnp.moveaxis(M, 0, 2) for M in (A, B))
    return jnp.moveaxis(matmul(*moved), 2, 0)
