"""Messages of a linear Gaussian process whose dynamics switch with a discrete chain.

Legend: K discrete states, n continuous ones, m columns, L rows, W windows, N = L + 1 states;

    z_t | z_{t−1} ~ Π[z_{t−1}],    x_t = A_k x_{t−1} + N(0, Q_k) with z_t = k,    y_t = C x_t + N(0, R).

Neither z nor x can be summed out exactly, but each can given the other. A sweep of blocked Gibbs draws
x given z by a Kalman pass whose A and Q change from row to row, then z given x by a discrete pass, over
all windows at once (`MATH.md` §9.1). Expectations are averages over sweeps, with z, x or neither of them
integrated out (§9.4). States z (N, W) and x (N, n, W) begin with those before the first row.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Bool, Float, Int

from sojourn._linalg import (
    cholesky,
    diagonal,
    eye,
    matmul,
    solve_lower,
    transpose,
)
from sojourn.messages import discrete, gaussian, linear_moments, particle
from sojourn.messages.gaussian import DOUBLINGS, UNSTABLE
from sojourn.messages.particle import System
from sojourn.messages.rows import Rows
from sojourn.messages.single_site import select, single_site

Estimator = Literal["z", "x", "xz"]
Update = Literal["blocked", "single_site"]
Start = Literal["filtered", "rows"]


class Moments(NamedTuple):
    """Weighted sums over the rows of each window, those of x by discrete state."""

    counts: Float[Array, "K K W"]
    n: Float[Array, "K W"]
    cc: Float[Array, "K n n W"]
    cp: Float[Array, "K n n W"]
    pp: Float[Array, "K n n W"]
    rows: Float[Array, "W"]
    yy: Float[Array, "m m W"]
    yx: Float[Array, "m n W"]
    xx: Float[Array, "n n W"]


def make_system(
    Pi: Float[Array, "K K"],
    A: Float[Array, "n n K"],
    psi: Float[Array, "n n K"],
    initial: tuple[Float[Array, "K"], Float[Array, "n n"]],
    first: Bool[Array, "W"],
) -> System:
    """Return the dynamics, with the law before each window.

    That is `initial` at the start of a series, else the stationary law at these parameters (`MATH.md`
    §9.5, §12.1).
    """
    n = A.shape[0]
    inverse = solve_lower(psi, jnp.broadcast_to(eye(n, psi), psi.shape))
    Q = matmul(transpose(inverse), inverse)
    edge_law, edge = stationary_moments(Pi, A, Q)
    law, covariance = initial
    root = jnp.stack(
        [cholesky(edge), jnp.broadcast_to(jnp.linalg.cholesky(covariance)[:, :, None], edge.shape)]
    )
    start = discrete.start_law(law, edge_law, first)
    return System(Pi, A, Q, psi, start, jnp.where(first, root[1][..., None], root[0][..., None]))


def stationary_moments(
    Pi: Float[Array, "K K"], A: Float[Array, "n n K"], Q: Float[Array, "n n K"]
) -> tuple[Float[Array, "K"], Float[Array, "n n K"]]:
    """Return the stationary law π of z and the covariances S_k = V_k / π_k of x given z = k.

        S_k = A_k (Σ_j B_kj S_j) A_kᵀ + Q_k,    B_kj = π_j Π_jk / π_k

    `MATH.md` §9.5, V_k being E[x xᵀ 1{z = k}] and B the chain seen backward. The horizon is doubled
    until nothing moves. Where the process is not stable in mean square, or nearly not, the sum stops
    early: the law of x after as many rows as keep it below a millionfold of Q, a wide law to start from.
    A state that is never visited has its own Q.
    """
    n, K = A.shape[1:]
    pi = discrete.stationary(Pi)
    joint = pi[:, None] * Pi
    share = joint / jnp.maximum(joint.sum(0), jnp.finfo(pi.dtype).tiny)
    size = n * n * K
    start = Q.reshape(size)
    step = jnp.einsum("jk,ack,bdk->abkcdj", share, A, A).reshape(size, size)
    limit = UNSTABLE * _trace(Q).max()

    def within(S: Array) -> Array:
        trace = _trace(S.reshape(n, n, K))
        return jnp.isfinite(S).all() & (trace.max() <= limit)

    def goes_on(carry: tuple[Array, Array, Array, Array]) -> Array:
        count, _, S, grown = carry
        settled = jnp.abs(grown - S).max() <= jnp.finfo(S.dtype).eps * jnp.abs(S).max()
        return (count < DOUBLINGS) & within(grown) & ~settled

    def double_horizon(carry: tuple[Array, Array, Array, Array]) -> Any:
        count, power, _, grown = carry
        power = power @ power
        return count + 1, power, grown, grown + power @ grown

    first = (jnp.asarray(0), step, start, start + step @ start)
    _, _, S, grown = lax.while_loop(goes_on, double_horizon, first)
    S = jnp.where(within(grown), grown, S).reshape(n, n, K)
    return pi, (S + transpose(S)) / 2


def draw_start(
    key: Array, system: System, rows: Rows, method: Start = "filtered", num_particles: int = 1
) -> Int[Array, "N W"]:
    """Draw states z to begin sweeps from. `MATH.md` §9.3.

    Args:
        key: Random key.
        system: The dynamics.
        rows: The data.
        method: "filtered" draws each state forward given the rows up to its own; "rows" draws all given
            x' = y, for emissions whose first n columns are x with noise.
        num_particles: Draws forward among which one is chosen; more leave less to burn-in.
    """
    if method == "filtered":
        return particle.draw_path(key, system, rows.whitened, num_particles)
    n = system.A.shape[0]
    L, _, W = rows.y.shape
    x = rows.y[:, :n]
    if rows.seen is None:
        seen = jnp.ones((L, W), bool)
    else:
        seen = rows.seen if rows.seen.ndim == 2 else rows.seen[:, :n].all(1)
    before = jnp.concatenate([jnp.zeros((1, W), bool), seen[:-1]])
    log_f = log_density(system, jnp.concatenate([x[:1], x]))
    log_f = jnp.where((seen & before)[:, None], log_f, 0.0)
    filtered = discrete.forward(system.Pi, system.law, log_f)
    return discrete.sample(system.Pi, filtered, jax.random.uniform(key, (L + 1, W)))


def filter_x(
    system: System, rows: Rows, z: Int[Array, "N W"]
) -> tuple[gaussian.Gains, gaussian.Filtered]:
    """Run the Kalman filter given z."""
    one_hot = (z[:, None] == jnp.arange(system.A.shape[2])[:, None]).astype(system.A.dtype)
    A, Q = (select(M, one_hot[1:]) for M in (system.A, system.Q))
    root = (system.root * one_hot[0]).sum(2)
    start = matmul(root, transpose(root))
    found = gaussian.gains(A, Q, rows.whitened.C, start, z.shape[0] - 1)
    mean = jnp.zeros((A.shape[1], z.shape[1]), A.dtype)
    return found, gaussian.forward(found, None, mean, rows.whitened)


def filter_z(system: System, x: Float[Array, "N n W"]) -> discrete.Filtered:
    """Filter z given x. The state before the first row is told of by x there. `MATH.md` §9.1."""
    white = solve_lower(system.root, jnp.broadcast_to(x[0][:, None, None], _column(system.root)))
    log_root = jnp.log(diagonal(system.root)).sum(0)
    log_law = jnp.log(system.law) - log_root - 0.5 * jnp.square(white).sum((0, 1))
    law = jax.nn.softmax(log_law, axis=0)
    return discrete.forward(system.Pi, law, log_density(system, x))


def log_density(system: System, x: Float[Array, "N n W"]) -> Float[Array, "L K W"]:
    """Return log N(x_t; A_k x_{t−1}, Q_k)."""
    n = system.A.shape[0]
    # ψᵀ (x_t − A x_{t−1}) as one product with (x_t, x_{t−1}).
    psi_t = transpose(system.psi)
    whitening = jnp.concatenate([psi_t, -matmul(psi_t, system.A)], axis=1)
    pair = jnp.concatenate([x[1:], x[:-1]], axis=1)
    constant = jnp.log(diagonal(system.psi)).sum(0) - n / 2 * np.log(2 * np.pi)
    squares: Any = 0.0
    for a in range(n):
        residual: Any = 0.0
        for b in range(2 * n):
            residual = residual + whitening[a, b][:, None] * pair[:, None, b]
        squares = squares + jnp.square(residual)
    return constant[:, None] - 0.5 * squares


def expected_moments(
    key: Array,
    system: System,
    rows: Rows,
    weight: Float[Array, "L W"],
    z: Int[Array, "N W"],
    *,
    estimator: Estimator,
    update: Update,
    num_burnin: int,
    num_draws: int,
) -> Moments:
    """Average the moments of x and z over sweeps. `MATH.md` §9.4.

    Args:
        key: Random key.
        system: The dynamics.
        rows: The data.
        weight: Weight of each row; zero in buffers.
        z: States to begin from, `draw_start`.
        estimator: "z" integrates x out given each draw of z; "x" z given each draw of x; "xz" neither.
        update: How z is drawn; "single_site" takes each z_t in turn with x integrated out.
        num_burnin: Sweeps before the first that counts.
        num_draws: Sweeps that count.
    """

    def moments_at(z: Array, found: Any, filtered: Any, x: Array, of_z: Any) -> Moments:
        law = (
            gaussian.backward(found, None, filtered)
            if estimator == "z"
            else linear_moments.known(x)
        )
        return moments_given(system, rows, weight, law, of_z if estimator == "x" else z)

    n, K = system.A.shape[1:]
    m, W = rows.y.shape[1:]
    square, emission = (K, n, n, W), [(W,), (m, m, W), (m, n, W), (n, n, W)]
    shapes = [(K, K, W), (K, W), square, square, square, *emission]
    zero = Moments(*(jnp.zeros(shape, rows.y.dtype) for shape in shapes))
    total = _sweeps(
        key, system, rows, z, moments_at, zero, update, num_burnin=num_burnin, num_draws=num_draws
    )
    return jax.tree.map(lambda m: m / num_draws, total)


def _sweeps(
    key: Array,
    system: System,
    rows: Rows,
    z: Array,
    visit: Callable[..., Any],
    zero: Any,
    update: Update,
    *,
    num_burnin: int,
    num_draws: int,
) -> Any:
    """Add up what `visit` returns for z, the filter of x given z, a draw of x, the filter of z given x.

    One loop for burn-in and draws: its body, most of what there is to compile, stands in it once.
    """

    def step(carry: tuple[Array, Any], row: tuple[Array, Array]) -> tuple[tuple[Array, Any], None]:
        z, total = carry
        key, counts = row
        key_x, key_z = jax.random.split(key)
        found, filtered = filter_x(system, rows, z)
        x = _draw_x(key_x, found, filtered)
        of_z = filter_z(system, x)
        total = lax.cond(
            counts,
            lambda: jax.tree.map(jnp.add, total, visit(z, found, filtered, x, of_z)),
            lambda: total,
        )
        if update == "single_site":
            return (single_site(key_z, system, rows, z), total), None
        return (discrete.sample(system.Pi, of_z, jax.random.uniform(key_z, z.shape)), total), None

    count = num_burnin + num_draws
    counts = jnp.arange(count) >= num_burnin
    (_, total), _ = lax.scan(step, (z, zero), (jax.random.split(key, count), counts))
    return total


def moments_given(
    system: System,
    rows: Rows,
    weight: Float[Array, "L W"],
    law: gaussian.Smoothed,
    of_z: Int[Array, "N W"] | discrete.Filtered,
) -> Moments:
    """Return the moments of x with this law and of z, given by states or by their filter given x."""
    K, n, W = system.A.shape[2], system.A.shape[0], weight.shape[1]
    mean, before = law.mean[1:], law.mean[:-1]
    parts = (
        mean[:, :, None] * mean[:, None] + law.covariance[1:],
        mean[:, :, None] * before[:, None] + law.cross,
        before[:, :, None] * before[:, None] + law.covariance[:-1],
    )
    flat = [jnp.ones((mean.shape[0], 1, W), mean.dtype)]
    flat += [part.reshape(mean.shape[0], n * n, W) for part in parts]
    features = jnp.concatenate(flat, axis=1)[:, None]
    if isinstance(of_z, discrete.Filtered):
        summed, _, _ = discrete.expected_moments(system.Pi, of_z, weight, features)
    else:
        summed = discrete.sampled_moments(K, of_z, weight, features)
    cc, cp, pp = (
        summed.features[:, 1 + i * n * n : 1 + (i + 1) * n * n].reshape(K, n, n, W)
        for i in range(3)
    )
    emission = linear_moments.expected_moments(law, None, weight, rows)
    return Moments(
        counts=summed.counts,
        n=summed.features[:, 0],
        cc=cc,
        cp=cp,
        pp=pp,
        rows=emission.rows,
        yy=emission.yy,
        yx=emission.yx,
        xx=emission.xx,
    )


def marginals(
    key: Array,
    system: System,
    rows: Rows,
    z: Int[Array, "N W"],
    *,
    update: Update,
    num_burnin: int,
    num_draws: int,
) -> tuple[Float[Array, "L K W"], Float[Array, "L n W"], Float[Array, "L n n W"]]:
    """Average over sweeps P(z_t = k | x), E[x_t | z, y] and E[x_t x_tᵀ | z, y] of each row."""

    def law_at(z: Array, found: Any, filtered: Any, x: Array, of_z: Any) -> Any:
        del z, x
        of_x = gaussian.backward(found, None, filtered)
        mean = of_x.mean[1:]
        second = mean[:, :, None] * mean[:, None] + of_x.covariance[1:]
        return discrete.backward(system.Pi, of_z), mean, second

    L, W, (n, K) = z.shape[0] - 1, z.shape[1], system.A.shape[1:]
    zero = tuple(jnp.zeros((L, *shape, W), rows.y.dtype) for shape in ((K,), (n,), (n, n)))
    total = _sweeps(
        key, system, rows, z, law_at, zero, update, num_burnin=num_burnin, num_draws=num_draws
    )
    gamma, mean, second = (value / num_draws for value in total)
    return gamma, mean, second


def _draw_x(key: Array, found: gaussian.Gains, filtered: gaussian.Filtered) -> Array:
    L, n, W = filtered.previous.shape
    noise = jax.random.normal(key, (L + 1, n, W), filtered.previous.dtype)
    return gaussian.sample(found, None, filtered, noise)


def _column(M: Array) -> tuple[int, ...]:
    return (M.shape[0], 1, *M.shape[2:])


def _trace(M: Array) -> Array:
    return diagonal(M).sum(0)
