"""How fast messages forget, and what a buffer leaves at most: rates and bounds for windows of data.

A buffer of B rows replaces the law γ of the states of a window by γ̃: rows before ℓ and behind r are not
seen. Let γ̂ be the law where only rows before ℓ are not. Then γ and γ̂ are chains with the same kernels
forward in time and different laws at ℓ − 1, γ̂ and γ̃ chains with the same kernels backward in time and
different laws at r. What differs at an edge is carried inward by these kernels, and shrinks (`MATH.md`
§12.4, Theorems 1 and 2).

The theorems take the worst kernel to the power B. Here the kernels of each window are multiplied along
its buffers, which is never larger: a bound for these windows, not for all conceivable data.
"""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from sojourn._linalg import cholesky, matmul, solve_lower, solve_lower_transposed, transpose
from sojourn.batch import Batch, Cut, Missing, counted, counted_values, rows_at
from sojourn.messages import discrete, gaussian, linear_moments
from sojourn.messages.rows import read_rows
from sojourn.models.base import Coords

if TYPE_CHECKING:
    from sojourn.models.lgssm import LGSSM
    from sojourn.models.regimes import RegimeModel
    from sojourn.models.slds import SLDS

Gradient = Callable[[dict[str, Any]], Array]

# Transitions with at most this probability do not occur.
_IMPOSSIBLE = 1e-300

# Rows after which the steady state of a Kalman filter is looked at.
_STEADY_ROWS = 4096


@functools.partial(jax.jit, static_argnums=(0, 3))
def regime_rate(model: "RegimeModel", coords: Coords, batch: Batch, missing: Missing) -> Array:
    """Return the Lyapunov gap of the windows: the typical rate of a discrete chain given data."""
    Pi = model.transition.to_params(coords)[model.transition.name]
    log_f = model.log_density(coords, batch, missing)
    return discrete.lyapunov_gap(Pi, log_f, skip=log_f.shape[0] // 10)


def regime_bounds(
    model: "RegimeModel",
    coords: Coords,
    cut: Cut,
    missing: Missing,
    length: int,
    gradient: Gradient,
) -> Array:
    """Bound ‖Σ_t w_t (E_γ[s_t] − E_γ̃[s_t])‖ of each window by Dobrushin coefficients.

        ≤ Σ_t w_t diam(s_t) min(1, Π_{ℓ ≤ s < t} δ(F_s) + Π_{t < s ≤ r} δ(B_s)),

    the total variation between laws being at most one, and diam(s_t) the largest distance between the
    scores of two pairs (z_{t−1}, z_t). Theorem 1 with the coefficients multiplied along the window.
    """
    Pi, whole = model.filter(coords, cut.whole, missing)
    _, near = model.filter(coords, cut.near, missing)
    ahead, back = discrete.contractions(Pi, whole, discrete.backward(Pi, whole), near)
    L = ahead.shape[0]
    t = jnp.arange(L)[:, None]
    log_ahead = jnp.where(t >= cut.start, jnp.log(ahead), 0.0)
    log_back = jnp.where(t < cut.stop, jnp.log(back), 0.0)
    nothing = jnp.zeros_like(log_ahead[:1])
    before = jnp.concatenate([nothing, jnp.cumsum(log_ahead, axis=0)[:-1]])
    behind = jnp.concatenate([nothing, jnp.cumsum(log_back[::-1], axis=0)[:-1]])[::-1]
    left = jnp.where(cut.start > 0, jnp.exp(before), 0.0)
    right = jnp.where(cut.stop < L, jnp.exp(behind), 0.0)
    distance = counted_values(jnp.minimum(left + right, 1.0), cut.whole, length)
    core = counted(cut.whole, length)
    return (core.weight * distance * _diameters(model, coords, core, missing, gradient)).sum(0)


def _diameters(
    model: "RegimeModel", coords: Coords, core: Batch, missing: Missing, gradient: Gradient
) -> Array:
    """Return the diameter of s_t over pairs of states, at each row (S, W), to within a factor √2."""
    K = model.num_states
    features = model.features(coords, core, missing)
    F = features.shape[2]

    def score(counts: Array, sums: Array) -> Array:
        return gradient(model.collect(discrete.Moments(counts, sums)))

    pairs = jnp.eye(K * K).reshape(K * K, K, K)
    moves = jax.vmap(lambda counts: score(counts, jnp.zeros((K, F))))(pairs)
    # Moves of probability zero do not occur; the likeliest stands in for them.
    Pi = model.transition.to_params(coords)[model.transition.name].ravel()
    moves = jnp.where((Pi > _IMPOSSIBLE)[:, None], moves, moves[jnp.argmax(Pi)])

    def of_row(row: Array) -> Array:
        by_state = jnp.broadcast_to(row, (K, F, row.shape[2]))

        def of_state(k: Array) -> Array:
            sums = jnp.where((jnp.arange(K) == k)[:, None, None], by_state, 0.0)
            return jax.vmap(lambda s: score(jnp.zeros((K, K)), s), in_axes=-1)(sums)

        return _diameter(jax.vmap(of_state, out_axes=1)(jnp.arange(K)))

    rows = lax.map(of_row, features)
    return jnp.sqrt(jnp.square(rows) + jnp.square(_diameter(moves)))


def _diameter(points: Array) -> Array:
    """Return the largest distance between points (..., N, d)."""
    gram = jnp.einsum("...id,...jd->...ij", points, points)
    own = jnp.einsum("...ii->...i", gram)
    squares = own[..., :, None] + own[..., None, :] - 2 * gram
    return jnp.sqrt(jnp.maximum(squares.max((-2, -1)), 0.0))


def linear_rate(model: "LGSSM", coords: Coords) -> float:
    """Return ρ((I − K C) A), K the steady-state Kalman gain of complete rows: the rate of an LGSSM."""
    params = model.dynamics.to_params(coords)
    return _slowest(params["A"][None], params["Q"][None], *model.emission_values(coords))


def switching_rate(model: "SLDS", coords: Coords) -> float:
    """Return the largest rate, as of an LGSSM, of a state of an SLDS that never changes."""
    params = model.dynamics.to_params(coords)
    return _slowest(params["A"], params["Q"], *model.linear.emission_values(coords))


def _slowest(A: Array, Q: Array, C: Array, psi: Array) -> float:
    """Return the largest spectral radius of (I − K C) A, of several A and Q, (K, n, n)."""
    # Eigenvalues of matrices that are not symmetric exist on CPUs alone.
    loops = np.moveaxis(np.asarray(_steady_loops(A, Q, C, psi)), -1, 0)
    return float(np.abs(np.linalg.eigvals(loops)).max())


@jax.jit
def _steady_loops(A: Array, Q: Array, C: Array, psi: Array) -> Array:
    observed = read_rows(C, psi, jnp.zeros((1, C.shape[0], 1)), "none").whitened
    start = jnp.moveaxis(jax.vmap(gaussian.stationary)(A, Q), 0, -1)
    A, Q = (jnp.moveaxis(M, 0, -1)[None] for M in (A, Q))
    return gaussian.gains(A, Q, observed.C, start, _STEADY_ROWS).F[-1]


def linear_bounds(
    model: "LGSSM",
    coords: Coords,
    cut: Cut,
    missing: Missing,
    length: int,
    gradient: Gradient,
) -> Array:
    """Bound ‖Σ_t w_t (E_γ[s_t] − E_γ̃[s_t])‖ of each window by the maps that carry states inward.

        ≤ Σ_t w_t ‖s_t‖_Lip (2 √M_t d_t + d_t²),    M_t = E_γ ‖(1, x_{t−1}, x_t)‖²,

    s_t being linear in ū ūᵀ, ū = (1, x_{t−1}, x_t), and d_t a bound on the distance W₂ of the laws of
    (x_{t−1}, x_t). Given states at an edge that are coupled, x − x' is multiplied by the maps
    F_t = Cov(x_t, x_{t−1}) Var(x_{t−1})⁻¹ forward, by smoother gains backward. Theorem 2 as corrected in
    `MATH.md` §12.4. The score of a stationary initial law is left out.
    """
    whole, after, near = (
        _smooth(model, coords, batch, missing) for batch in (cut.whole, cut.after, cut.near)
    )
    # Rows are the middle axis of matrices from here on: (n, n, L, W).
    law, gains = whole[1], near[0]
    variance = jnp.moveaxis(law.covariance, 0, 2)
    root = cholesky(variance[:, :, :-1])
    cross = transpose(jnp.moveaxis(law.cross, 0, 2))
    ahead = transpose(solve_lower_transposed(root, solve_lower(root, cross)))
    L = ahead.shape[2]
    t = jnp.arange(L)
    # Index t + 1 is the state of row t: before the first row that is left, and of the last.
    left = _coupling(whole[1], after[1], jnp.clip(cut.start, 0, L))
    right = _coupling(after[1], near[1], jnp.clip(cut.stop, 0, L))
    left = jnp.where(cut.start > 0, left, 0.0)
    right = jnp.where(cut.stop < L, right, 0.0)

    def forward(G: Array, row: tuple[Array, Array]) -> tuple[Array, Array]:
        t, F = row
        following = jnp.where(t >= cut.start, matmul(F, G), left)
        return following, jnp.square(G).sum((0, 1)) + jnp.square(following).sum((0, 1))

    def backward(G: Array, row: tuple[Array, Array]) -> tuple[Array, Array]:
        t, J = row
        before = jnp.where(t < cut.stop, matmul(J, G), right)
        return before, jnp.square(G).sum((0, 1)) + jnp.square(before).sum((0, 1))

    _, from_left = lax.scan(forward, left, (t, jnp.moveaxis(ahead, 2, 0)))
    _, from_right = lax.scan(backward, right, (t, gains.J), reverse=True)
    distance = jnp.sqrt(from_left) + jnp.sqrt(from_right)
    second = jnp.square(law.mean).sum(1) + jnp.einsum("aatw->tw", variance)
    size = jnp.sqrt(1 + second[1:] + second[:-1])
    change = counted_values(2 * size * distance + jnp.square(distance), cut.whole, length)
    core = counted(cut.whole, length)
    return (core.weight * change * _slopes(model, coords, core, missing, gradient)).sum(0)


def _smooth(
    model: "LGSSM", coords: Coords, batch: Batch, missing: Missing
) -> tuple[gaussian.Gains, gaussian.Smoothed]:
    done = model.run(coords, batch, missing)
    return done.gains, gaussian.backward(done.gains, done.first, done.filtered)


def _coupling(one: gaussian.Smoothed, other: gaussian.Smoothed, index: Array) -> Array:
    """Couple the laws at `index`, x = m + L ε and x' = m' + L' ε: return [Δm, ΔL], (n, n + 1, W)."""
    n = one.mean.shape[1]

    def affine(law: gaussian.Smoothed) -> Array:
        flat = law.covariance.reshape(law.covariance.shape[0], n * n, -1)
        root = cholesky(rows_at(flat, index).reshape(n, n, -1))
        return jnp.concatenate([rows_at(law.mean, index)[:, None], root], axis=1)

    return affine(one) - affine(other)


def _slopes(
    model: "LGSSM", coords: Coords, core: Batch, missing: Missing, gradient: Gradient
) -> Array:
    """Return, for each row (S, W), the Frobenius norm of s_t as a linear map of ū ūᵀ."""
    n, (S, W) = model.state_dim, core.weight.shape
    C, psi = model.emission_values(coords)
    y = jnp.swapaxes(core.y, 0, 1).reshape(1, model.emission_dim, S * W)
    rows, one = read_rows(C, psi, y, missing), jnp.ones((1, S * W))

    def score(mean: Array, second: Array) -> Array:
        """Return s_t of each row where (x_{t−1}, x_t) has these first and second moments."""
        spread = second - mean[:, None] * mean[None]
        law = gaussian.Smoothed(
            jnp.broadcast_to(mean.reshape(2, n, 1), (2, n, S * W)),
            jnp.broadcast_to(
                jnp.stack([spread[:n, :n], spread[n:, n:]])[..., None], (2, n, n, S * W)
            ),
            jnp.broadcast_to(spread[None, n:, :n, None], (1, n, n, S * W)),
        )
        moments = linear_moments.expected_moments(law, None, one, rows)
        return jax.vmap(lambda m: gradient(model.collect(m)), in_axes=-1)(moments)

    # An orthonormal basis of the symmetric matrices ū ūᵀ; the entry of 1 · 1 does not change.
    i, j = np.triu_indices(2 * n + 1)
    basis = np.zeros((len(i), 2 * n + 1, 2 * n + 1))
    basis[np.arange(len(i)), i, j] = basis[np.arange(len(i)), j, i] = np.where(i == j, 1, 0.5**0.5)
    basis = jnp.asarray(basis[1:])
    nothing = score(jnp.zeros(2 * n), jnp.zeros((2 * n, 2 * n)))
    squares = lax.map(lambda e: jnp.square(score(e[0, 1:], e[1:, 1:]) - nothing).sum(1), basis)
    return jnp.sqrt(squares.sum(0)).reshape(S, W)
