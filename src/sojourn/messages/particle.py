"""Rao–Blackwellised particles for a linear Gaussian process that switches.

Legend: K discrete states, n continuous ones, L rows, W windows, N particles; a particle is a discrete
state z and the Gaussian law N(m, P) of x given its path of z. Axes of a matrix come first, then the
states K, then particles N, then windows W.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float, Int

from sojourn._linalg import cholesky, eye, matmul, solve_lower, transpose
from sojourn.messages.rows import Observations

# Up to this many pairs of particle and state, cumulative sums and searches compare all with all.
_FEW = 64


class System(NamedTuple):
    """x_t = A_k x_{t−1} + N(0, Q_k) with z_t = k; what holds before the first row of each window.

    Attributes:
        Pi: Transition matrix, rows "from".
        A: Transition matrices of x.
        Q: Covariances of x.
        psi: Lower-triangular factors of the precisions, Q⁻¹ = ψ ψᵀ.
        law: Probability of each state before the first row.
        root: Cholesky factors of the covariance of x before the first row given that state.
    """

    Pi: Float[Array, "K K"]
    A: Float[Array, "n n K"]
    Q: Float[Array, "n n K"]
    psi: Float[Array, "n n K"]
    law: Float[Array, "K W"]
    root: Float[Array, "n n K W"]


class Particles(NamedTuple):
    """Particles with equal weights."""

    z: Int[Array, "N W"]
    mean: Float[Array, "n N W"]
    covariance: Float[Array, "n n N W"]


def log_likelihood(
    key: Array, system: System, rows: Observations, num_particles: int
) -> Float[Array, "L W"]:
    """Estimate log p(y_t | earlier rows) for each row. `MATH.md` §9.6.

        ω_ik = Π[z_i, k] N(y_t; C A_k m_i, S_ik),    p̂(y_t | y_<t) = (1/N) Σ_ik ω_ik

    then N of the N K pairs are kept, with equal weights. The product of the estimates over rows is
    unbiased, its logarithm is not.

    Args:
        key: Random key.
        system: The dynamics.
        rows: Whitened rows.
        num_particles: Number N of particles in each window.
    """
    return _run(key, system, rows, num_particles)[0]


def predict(
    key: Array, system: System, rows: Observations, num_particles: int, horizon: int
) -> Float[Array, "M W"]:
    """Estimate log p(y_t | rows up to t − horizon) for each row but the first `horizon` ones.

    Each particle draws the states in between and is averaged over that of the row itself. `MATH.md` §13.
    """
    key_run, key_ahead = jax.random.split(key)
    L = rows.log_constant.shape[0]
    C = jnp.broadcast_to(rows.C, (L, *rows.C.shape[1:]))
    keys = jax.random.split(key_ahead, L)
    # What each row predicts; for the last rows there is nothing, and what they give is cut off.
    ahead = jax.tree.map(lambda v: jnp.roll(v, -horizon, axis=0), (rows.y, C, rows.log_constant))

    def score(particles: Particles, parents: Array, row: Any) -> Array:
        del parents
        key, (y, c, log_constant) = row
        between = jax.random.split(key, horizon - 1)
        particles = _move(between, system.Pi, system.A, system.Q, particles)
        log_w, _, _ = _branch(system, particles, y, c)
        return log_constant + _log_mean(log_w, num_particles)

    return _run(key_run, system, rows, num_particles, score, (keys, ahead))[2][: L - horizon]


def predict_rows(
    key: Array,
    Pi: Float[Array, "K K"],
    A: Float[Array, "D q K"],
    Q: Float[Array, "D D K"],
    law: Float[Array, "M K W"],
    lags: Float[Array, "M q W"],
    y: Float[Array, "M D W"],
    num_particles: int,
    horizon: int,
) -> Float[Array, "M W"]:
    """Estimate log p(y | rows up to `horizon` before it) of autoregressions that switch.

    Each particle draws the states in between, given which all rows are Gaussian, and is averaged over
    that of the row itself. The law of (y_t, …, y_{t−p+1}) moves by the companion matrix.

    Args:
        key: Random key.
        Pi: Transition matrix.
        A: Coefficients of each state, the most recent lag first.
        Q: Covariances.
        law: Law of the state of the last row that is known.
        lags: That row and those before it, as many as there are lags.
        y: Rows to predict.
        num_particles: Number N of particles for each row.
        horizon: How many rows ahead.
    """
    D, q, K = A.shape
    shift = jnp.broadcast_to(jnp.eye(q - D, q)[:, :, None], (q - D, q, K))
    companion = jnp.concatenate([A, shift])
    noise = jnp.zeros((q, q, K), Q.dtype).at[:D, :D].set(Q)
    W, N = y.shape[2], num_particles

    def score(row: Any) -> Array:
        key, law, lags, y = row
        keys = jax.random.split(key, horizon)
        z = _systematic(law, jax.random.uniform(keys[0], (W,), law.dtype), N)
        mean = jnp.broadcast_to(lags[:, None], (q, N, W))
        particles = Particles(z, mean, jnp.zeros((q, q, N, W), law.dtype))
        particles = _move(keys[1:], Pi, companion, noise, particles)
        log_w = _log_weights(Pi, particles, *_ahead(A, Q, particles), y)
        return _log_mean(log_w, N) - D / 2 * math.log(2 * math.pi)

    keys = jax.random.split(key, y.shape[0])
    return lax.map(score, (keys, law, lags, y))


def _move(keys: Array, Pi: Array, A: Array, Q: Array, particles: Particles) -> Particles:
    """Draw the next states of each particle, one with each key, and carry its law of x along."""
    cumulative = jnp.cumsum(Pi, axis=1)

    def step(particles: Particles, key: Array) -> tuple[Particles, None]:
        u = jax.random.uniform(key, particles.z.shape, particles.mean.dtype)
        z = (cumulative[particles.z][..., :-1] <= u[..., None]).sum(-1).astype(jnp.int32)
        own_A, own_Q = A[:, :, z], Q[:, :, z]
        mean = matmul(own_A, particles.mean[:, None])[:, 0]
        spread = matmul(matmul(own_A, particles.covariance), transpose(own_A)) + own_Q
        return Particles(z, mean, spread), None

    return lax.scan(step, particles, keys)[0]


def draw_path(
    key: Array, system: System, rows: Observations, num_particles: int
) -> Int[Array, "S W"]:
    """Draw a path z for each window: the line of descent of one particle at the last row.

    With one particle this is a draw forward, each state given the rows up to its own (`MATH.md` §9.3);
    its law nears that of z given all rows as one over the number of particles.
    """
    key_run, key_pick = jax.random.split(key)
    line = lambda particles, parents, _: (particles.z, parents)  # noqa: E731
    _, start, (states, parents) = _run(key_run, system, rows, num_particles, line)
    W = start.shape[1]
    last = jax.random.randint(key_pick, (W,), 0, num_particles, parents.dtype)

    def trace(index: Array, row: tuple[Array, Array]) -> tuple[Array, Array]:
        z, parent = (jnp.take_along_axis(values, index[None], axis=0)[0] for values in row)
        return parent, z

    first, path = lax.scan(trace, last, (states, parents), reverse=True)
    return jnp.concatenate([jnp.take_along_axis(start, first[None], axis=0), path])


def _run(
    key: Array,
    system: System,
    rows: Observations,
    num_particles: int,
    visit: Callable[[Particles, Array, Any], Any] = lambda particles, parents, row: None,
    others: Any = None,
) -> tuple[Array, Array, Any]:
    """Return scores (L, W), the states before the first row, and what `visit` makes of each row.

    It sees the particles, the numbers of their parents, and the row of `others`.
    """
    L, W = rows.log_constant.shape
    N = num_particles
    n, K = system.A.shape[1:]
    uniform = jax.random.uniform(key, (L + 1, W), rows.y.dtype)
    z = _systematic(system.law, uniform[0], N)
    picked = jnp.take_along_axis(system.root, z[None, None], axis=2)
    first = Particles(z, jnp.zeros((n, N, W), rows.y.dtype), matmul(picked, transpose(picked)))
    C = jnp.broadcast_to(rows.C, (L, *rows.C.shape[1:]))

    def step(particles: Particles, row: Any) -> tuple[Particles, tuple[Array, Any]]:
        (y, c, log_constant, u), other = row
        log_w, mean, covariance = _branch(system, particles, y, c)
        flat = log_w.reshape(K * N, W)
        top = flat.max(0)
        weight = lax.optimization_barrier(jnp.exp(flat - top))
        score = log_constant + top + jnp.log(weight.sum(0)) - math.log(N)
        index = lax.optimization_barrier(_systematic(weight, u, N))

        def pick(values: Array) -> Array:
            lead = values.ndim - 3
            values = values.reshape(*values.shape[:lead], K * N, W)
            return jnp.take_along_axis(values, index[(None,) * lead], axis=lead)

        mean, covariance = lax.optimization_barrier((pick(mean), pick(covariance)))
        law = _update(mean, covariance, y, c)
        kept = Particles((index // N).astype(jnp.int32), *law)
        return kept, (score, visit(kept, index % N, other))

    own = (rows.y, C, rows.log_constant, uniform[1:])
    _, (scores, visited) = lax.scan(step, first, (own, others))
    return scores, z, visited


def _branch(
    system: System, particles: Particles, y: Array, C: Array
) -> tuple[Float[Array, "K N W"], Float[Array, "n K N W"], Float[Array, "n n K N W"]]:
    """Return log ω of each pair of particle and next state, and the predicted law of x it leads to.

    The constant of the row's density is left out.
    """
    c = C[:, :, None, None]
    mean, predicted = _ahead(system.A, system.Q, particles)
    innovation = lax.optimization_barrier(
        matmul(matmul(c, predicted), transpose(c)) + eye(C.shape[0], predicted)
    )
    expected = matmul(c, mean[:, None])[:, 0]
    return _log_weights(system.Pi, particles, expected, innovation, y), mean, predicted


def _ahead(A: Array, Q: Array, particles: Particles) -> tuple[Array, Array]:
    """Return mean (d, K, N, W) and covariance of A_k x + N(0, Q_k) for each particle and next state.

    Barriers keep XLA from computing a covariance once for each of the expressions that it enters.
    """
    A, Q = A[..., None, None], Q[..., None, None]
    mean = matmul(A, particles.mean[:, None, None])[:, 0]
    half = lax.optimization_barrier(matmul(A, particles.covariance[:, :, None]))
    return mean, lax.optimization_barrier(matmul(half, transpose(A)) + Q)


def _log_weights(
    Pi: Array, particles: Particles, mean: Array, covariance: Array, y: Array
) -> Float[Array, "K N W"]:
    """Return log Π[z, k] N(y; mean, covariance), but for the constant of the row's density.

    A law so wide that rounding leaves it no density weighs nothing: dynamics that explode, of a state
    that few rows tell of, should not spoil what all others say.
    """
    d, K = mean.shape[0], Pi.shape[0]
    root = cholesky(covariance)
    white = solve_lower(root, (y[:, None, None] - mean)[:, None])
    log_root = jnp.log(jnp.stack([root[a, a] for a in range(d)]).prod(0))
    log_Pi = jnp.log(Pi)
    # log Π[z, k] as a sum over one-hot states, which vectorises where a gather would not.
    moved = sum(
        (jnp.where(particles.z == j, log_Pi[j][:, None, None], 0.0) for j in range(K)),
        start=jnp.zeros((), y.dtype),
    )
    found = moved - log_root - 0.5 * jnp.square(white).sum((0, 1))
    return jnp.where(jnp.isnan(found), -jnp.inf, found)


def _log_mean(log_w: Array, num_particles: int) -> Array:
    """Return the logarithm of the sum of weights (K, N, W) over the number of particles."""
    top = log_w.max((0, 1))
    return top + jnp.log(jnp.exp(log_w - top).sum((0, 1)) / num_particles)


def _update(mean: Array, predicted: Array, y: Array, C: Array) -> tuple[Array, Array]:
    """Return mean (n, N, W) and covariance given the row, from those before it."""
    c = C[:, :, None]
    seen = matmul(c, predicted)
    root = cholesky(matmul(seen, transpose(c)) + eye(C.shape[0], predicted))
    gain = solve_lower(root, seen)
    white = solve_lower(root, (y[:, None] - matmul(c, mean[:, None])[:, 0])[:, None])
    updated = predicted - matmul(transpose(gain), gain)
    return mean + matmul(transpose(gain), white)[:, 0], (updated + transpose(updated)) / 2


def _systematic(weight: Array, u: Array, num: int) -> Array:
    """Draw `num` entries of weights (J, W) with the points (i + u) / num, one u for each window.

    Each point is in one of `num` strata, and together, over u, they cover (0, 1) evenly: the expected
    number of copies of an entry is `num` times its share, and more is not asked of resampling for an
    unbiased estimate.
    """
    J = weight.shape[0]
    if J <= _FEW:
        cumulative = jnp.tril(jnp.ones((J, J), weight.dtype)) @ weight
    else:
        cumulative = jnp.cumsum(weight, axis=0)
    points = (jnp.arange(num)[:, None] + u) / num * cumulative[-1]
    if J <= _FEW:
        index = (cumulative[:, None] <= points).sum(0)
    else:
        index = jax.vmap(lambda c, q: jnp.searchsorted(c, q, side="right"), in_axes=1, out_axes=1)(
            cumulative, points
        )
    # Rounding may place the last point behind the last entry.
    return jnp.minimum(index, J - 1).astype(jnp.int32)
