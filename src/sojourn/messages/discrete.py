"""Messages of a discrete hidden chain over a batch of windows.

Legend: K states, L rows, W windows; Π (K, K) with rows "from"; log_f (L, K, W) log-densities of rows,
0 where a row is missing; the state before the first row has law `initial` (K, W).

    α_t(j) ∝ Σ_k α_{t−1}(k) Π_kj f_t(j),    log p(y) = Σ_t log c_t                  (`MATH.md` §7.1)

Backward, no density is needed again: with the prediction p_t(j) = Σ_k α_{t−1}(k) Π_kj and the ratio
r_t = γ_t / p_t,

    γ_{t−1,t}(k, j) = α_{t−1}(k) Π_kj r_t(j),    γ_{t−1}(k) = α_{t−1}(k) Σ_j Π_kj r_t(j),

which costs no exponential and keeps every marginal summing to one.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jax.scipy.special import logsumexp
from jaxtyping import Bool, Float, Int

# Up to this many states a product with Π is written out, which fuses with its neighbours.
_UNROLL = 16

# Predictions below this count as unreachable when a row's densities are scaled by their largest.
_UNREACHABLE = 1e-290

# Predictions are floored here before they divide.
_FLOOR = 1e-300

# Largest exponent of a scaled density: with predictions ≤ 1e-290, e^600 · 1e-290 stays below overflow.
_CAP = 600.0

# A state left less often than this is absorbing for every series there is.
_ABSORBING = 1e-18


class Filtered(NamedTuple):
    """Filtered laws: `previous[t]` is α_{t−1}, so `previous[0]` is the initial law."""

    previous: Float[Array, "L K W"]
    last: Float[Array, "K W"]
    log_normalizer: Float[Array, "L W"]


class Moments(NamedTuple):
    """Weighted sums over the rows of each window."""

    counts: Float[Array, "K K W"]
    features: Float[Array, "K F W"]


def forward(
    Pi: Float[Array, "K K"], initial: Float[Array, "K W"], log_f: Float[Array, "L K W"]
) -> Filtered:
    """Filter: α_t for each row, and log c_t."""

    def step(alpha: Array, row: Array) -> tuple[Array, tuple[Array, Array]]:
        predicted = _mix(Pi, alpha)
        # Scaling by the largest density among *reachable* states keeps c_t positive when true zeros
        # in Π rule out the state that the row points to.
        top = jnp.max(jnp.where(predicted > _UNREACHABLE, row, -jnp.inf), axis=0)
        joint = predicted * jnp.exp(jnp.minimum(row - top, _CAP))
        total = joint.sum(0)
        return joint / total, (alpha, jnp.log(total) + top)

    last, (previous, log_normalizer) = lax.scan(step, initial, log_f)
    return Filtered(previous, last, log_normalizer)


def predict(
    Pi: Float[Array, "K K"], law: Float[Array, "M K W"], log_f: Float[Array, "M K W"], horizon: int
) -> Float[Array, "M W"]:
    """Return log Σ_j (α Π^h)_j f(j): the density of rows `horizon` transitions after these laws."""
    predicted = jnp.einsum("mkw,kj->mjw", law, jnp.linalg.matrix_power(Pi, horizon))
    return logsumexp(log_f, b=predicted, axis=1)


def backward(Pi: Float[Array, "K K"], filtered: Filtered) -> Float[Array, "L K W"]:
    """Smooth: marginals γ_t of each row."""

    def step(gamma: Array, alpha: Array) -> tuple[Array, Array]:
        return alpha * _mix(Pi.T, _ratio(gamma, _mix(Pi, alpha))), gamma

    return lax.scan(step, filtered.last, filtered.previous, reverse=True)[1]


def expected_moments(
    Pi: Float[Array, "K K"],
    filtered: Filtered,
    weight: Float[Array, "L W"],
    features: Float[Array, "L J F W"],
    *,
    keep_marginals: bool = False,
) -> tuple[Moments, Float[Array, "K W"], Float[Array, "L K W"] | None]:
    """Return Σ_t w_t γ_{t−1,t} and Σ_t w_t γ_t(k) features_t, in one backward pass.

    Memory does not grow with K² L: pairwise marginals are summed as they are made.

    Args:
        Pi: Transition matrix.
        filtered: Result of `forward`.
        weight: Weight of each row; zero in buffers.
        features: Features of each row, for each state (J = K) or common to all (J = 1).
        keep_marginals: Return the marginals γ_t as well.

    Returns:
        The sums; the law γ_0 of the state before the first row; the marginals or None.
    """
    K, W = filtered.last.shape
    F = features.shape[2]

    def step(carry: tuple[Array, Array, Array], row: tuple[Array, Array, Array]):
        gamma, counts, sums = carry
        alpha, w, feature = row
        ratio = _ratio(gamma, _mix(Pi, alpha))
        counts = counts + alpha[:, None] * (ratio * w)[None]
        sums = sums + (gamma * w)[:, None] * feature
        kept = gamma if keep_marginals else None
        return (alpha * _mix(Pi.T, ratio), counts, sums), kept

    zero = jnp.zeros((K, K, W)), jnp.zeros((K, F, W))
    rows = (filtered.previous, weight, features)
    carry, marginals = lax.scan(step, (filtered.last, *zero), rows, reverse=True)
    before, counts, sums = carry
    return Moments(Pi[:, :, None] * counts, sums), before, marginals


def sample(
    Pi: Float[Array, "K K"], filtered: Filtered, uniform: Float[Array, "N W"]
) -> Int[Array, "N W"]:
    """Draw the N = L + 1 states backward, `uniform[t]` deciding state t; state 0 is before row 0.

    The draw is by inverse cumulative probability, so windows that share a stretch of rows and its
    uniform numbers draw the same states there as soon as they have met once.
    """
    last = choose(filtered.last, uniform[-1])

    def step(state: Array, row: tuple[Array, Array]) -> tuple[Array, Array]:
        alpha, u = row
        previous = choose(alpha * jnp.take(Pi, state, axis=1), u)
        return previous, previous

    _, states = lax.scan(step, last, (filtered.previous, uniform[:-1]), reverse=True)
    return jnp.concatenate([states, last[None]])


def sampled_moments(
    num_states: int,
    states: Int[Array, "N W"],
    weight: Float[Array, "L W"],
    features: Float[Array, "L J F W"],
) -> Moments:
    """Return the sums of `expected_moments` for given states."""
    K, W, F = num_states, states.shape[1], features.shape[2]
    level = jnp.arange(K)[:, None]

    def step(carry: tuple[Array, Array], row: tuple[Array, Array, Array, Array]):
        counts, sums = carry
        before, now, w, feature = row
        current = jnp.where(now == level, w, 0.0)
        counts = counts + jnp.where(before == level, 1.0, 0.0)[:, None] * current[None]
        return (counts, sums + current[:, None] * feature), None

    zero = jnp.zeros((K, K, W)), jnp.zeros((K, F, W))
    rows = (states[:-1], states[1:], weight, features)
    (counts, sums), _ = lax.scan(step, zero, rows)
    return Moments(counts, sums)


class Best(NamedTuple):
    """A most probable path and the normalised scores it was traced from.

    `scores[t]` is the best log-probability of a path that ends in each state at row t, less the best
    of all states; `scores[-1]` decides the end.
    """

    path: Int[Array, "L W"]
    scores: Float[Array, "L K W"]


def viterbi(
    log_Pi: Float[Array, "K K"],
    log_initial: Float[Array, "K W"],
    log_f: Float[Array, "L K W"],
    end: Int[Array, "W"],
) -> Best:
    """Find the most probable states of each window; ties go to the lower state.

    Rows from `end` on are none of the series: unlike a missing row, whose state is part of the path,
    they repeat the last state.
    """
    K = log_Pi.shape[0]

    def step(score: Array, row: tuple[Array, Array]) -> tuple[Array, tuple[Array, Array]]:
        log_f, inside = row
        joint = score[:, None] + log_Pi[:, :, None]
        best = joint.max(0) + log_f
        best = jnp.where(inside, best - best.max(0), score)
        pointer = jnp.where(inside, jnp.argmax(joint, axis=0), jnp.arange(K)[:, None])
        return best, (pointer.astype(jnp.int32), best)

    inside = jnp.arange(log_f.shape[0])[:, None] < end
    last, (pointers, scores) = lax.scan(step, log_initial, (log_f, inside))
    end = jnp.argmax(last, axis=0).astype(jnp.int32)

    def trace(state: Array, pointer: Array) -> tuple[Array, Array]:
        return jnp.take_along_axis(pointer, state[None], axis=0)[0], state

    _, path = lax.scan(trace, end, pointers, reverse=True)
    return Best(path, scores)


def contractions(
    Pi: Float[Array, "K K"],
    filtered: Filtered,
    marginals: Float[Array, "L K W"],
    near: Filtered,
) -> tuple[Float[Array, "L W"], Float[Array, "L W"]]:
    """Return the Dobrushin coefficients of the kernels that lead into each row and back from it.

        F_t(k, j) ∝ Π_kj γ_t(j) / p_t(j),    B_t(j, k) ∝ α̃_{t−1}(k) Π_kj,
        δ(M) = max_{i,i'} ½ ‖M_i − M_i'‖₁

    F is the kernel of the smoothed chain forward in time, B that backward in time of the law with the
    filter `near` (`MATH.md` §12.4). A kernel with an empty row counts as one that does not contract.
    """

    def step(_: None, row: tuple[Array, Array, Array]) -> tuple[None, tuple[Array, Array]]:
        alpha, gamma, alpha_near = row
        ahead = Pi[:, :, None] * _ratio(gamma, _mix(Pi, alpha))[None]
        back = jnp.swapaxes(alpha_near[:, None] * Pi[:, :, None], 0, 1)
        return None, (_dobrushin(ahead), _dobrushin(back))

    return lax.scan(step, None, (filtered.previous, marginals, near.previous))[1]


def _dobrushin(kernel: Array) -> Array:
    """Return δ of unnormalised kernels (K, K, W), rows "from"."""
    total = kernel.sum(1, keepdims=True)
    M = kernel / jnp.maximum(total, _FLOOR)
    shared = jnp.stack([jnp.minimum(M[i], M).sum(1).min(0) for i in range(M.shape[0])]).min(0)
    return jnp.where((total > _FLOOR).all((0, 1)), jnp.clip(1 - shared, 0.0, 1.0), 1.0)


def lyapunov_gap(
    Pi: Float[Array, "K K"], log_f: Float[Array, "L K W"], skip: int
) -> Float[Array, ""]:
    """Return exp(λ₂ − λ₁) of the products of Π diag(f_t): the rate at which a filter forgets.

    `MATH.md` §12.2. Two vectors are carried through the rows of each window and made orthonormal after
    each; the logarithms of their lengths, averaged over rows after the first `skip`, are λ₁ and λ₂.
    """
    K, W = log_f.shape[1:]
    if K == 1:
        return jnp.zeros(())
    start = jnp.stack([jnp.ones(K), (-1.0) ** jnp.arange(K)]) / jnp.sqrt(K)
    second = start[1] - (start[0] @ start[1]) * start[0]
    start = jnp.stack([start[0], second / jnp.linalg.norm(second)])

    def step(pair: Array, row: Array) -> tuple[Array, Array]:
        scaled = jnp.exp(row - row.max(0))
        u, v = _mix(Pi, pair[0]) * scaled, _mix(Pi, pair[1]) * scaled
        long = jnp.sqrt(jnp.square(u).sum(0))
        u = u / jnp.maximum(long, _FLOOR)
        v = v - (u * v).sum(0) * u
        short = jnp.sqrt(jnp.square(v).sum(0))
        v = v / jnp.maximum(short, _FLOOR)
        ratio = jnp.log(jnp.maximum(short, _FLOOR)) - jnp.log(jnp.maximum(long, _FLOOR))
        return jnp.stack([u, v]), ratio

    pair = jnp.broadcast_to(start[:, :, None], (2, K, W))
    _, ratios = lax.scan(step, pair, log_f)
    return jnp.exp(jnp.minimum(ratios[skip:].mean(), 0.0))


def stationary(Pi: Float[Array, "K K"]) -> Float[Array, "K"]:
    """Return the stationary law π of Π, π Π = π.

    By elimination without subtraction (Grassmann, Taksar and Heyman), which stays accurate for nearly
    absorbing chains, where solving (I − Π + 1 1ᵀ)ᵀ π = 1 (`MATH.md` §1) loses all digits.
    """
    K = Pi.shape[0]
    index = jnp.arange(K)

    def eliminate(i: Any, reduced: Array) -> Array:
        n = K - 1 - i
        below = index < n
        leave = jnp.maximum(jnp.where(below, reduced[n], 0.0).sum(), _ABSORBING)
        into = reduced[:, n] / leave
        through = jnp.where(below[:, None] & below, into[:, None] * reduced[n], 0.0)
        return (reduced + through).at[:, n].set(jnp.where(below, into, reduced[:, n]))

    def restore(n: Any, law: Array) -> Array:
        share = jnp.where(index < n, law * reduced[:, n], 0.0).sum()
        law = law.at[n].set(share)
        return law / law.max()  # products of many such ratios could overflow

    unroll = K <= _UNROLL
    reduced = lax.fori_loop(0, K - 1, eliminate, Pi, unroll=unroll or None)
    law = lax.fori_loop(1, K, restore, jnp.where(index == 0, 1.0, 0.0), unroll=unroll or None)
    return law / law.sum()


def start_law(
    initial: Float[Array, "K"], edge: Float[Array, "K"], first: Bool[Array, "W"]
) -> Float[Array, "K W"]:
    """Return the law before each window: the initial one at the start of a series, else the edge's."""
    return jnp.where(first, initial[:, None], edge[:, None])


def _mix(Pi: Array, alpha: Array) -> Array:
    """Return Σ_k α_k Π_kj."""
    K = Pi.shape[0]
    if K > _UNROLL:
        return Pi.T @ alpha
    return sum((alpha[k] * Pi[k][:, None] for k in range(1, K)), start=alpha[0] * Pi[0][:, None])


def _ratio(gamma: Array, predicted: Array) -> Array:
    """Return γ / p, 0 where the state cannot be reached: there γ is 0 as well.

    A floor instead of a condition on p, which would make XLA compute the prediction twice over.
    """
    return gamma / jnp.maximum(predicted, _FLOOR)


def choose(weights: Array, u: Array) -> Array:
    """Draw a state with probability proportional to `weights` (K, W), by inverse cumulation."""
    cumulative = jnp.cumsum(weights, axis=0)
    return (cumulative[:-1] <= u * cumulative[-1]).sum(0).astype(jnp.int32)
