"""A batch of windows of data as it enters a pass, and the seams between neighbouring windows."""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float, Int

# What can be missing: nothing, whole rows, or single entries.
Missing = Literal["none", "rows", "entries"]


class Batch(NamedTuple):
    """W windows of L rows each, the windows last.

    Attributes:
        y: Rows of each window after `p` rows of context (lags), missing entries NaN.
        weight: Weight of each row; zero in buffers and padding.
        first: Whether a window starts at the true beginning of its series.
    """

    y: Float[Array, "L+p D W"]
    weight: Float[Array, "L W"]
    first: Bool[Array, "W"]


def key_of(batch: Batch) -> Array:
    """Return a random key that is a function of the rows, so that other windows see other numbers."""
    total = jnp.nansum(batch.y).astype(jnp.float32)
    return jax.random.fold_in(jax.random.key(0), lax.bitcast_convert_type(total, jnp.uint32))


class Seam(NamedTuple):
    """Where neighbouring windows can be compared; row numbers within each window.

    `start` is the first row that counts, `stop` the row behind the last: the neighbour's first. Rows
    from `end` on lie behind the end of the series.
    """

    start: Int[Array, "W"]
    stop: Int[Array, "W"]
    end: Int[Array, "W"]


class Edges(NamedTuple):
    """Messages of each window on both sides of its seams; equal ones mean that buffers sufficed.

    `before` and `at_end` are forward messages of the rows start − 1 and stop − 1, `own` and `ahead`
    backward quantities of the rows start and stop: `at_end` of a window should equal `before` of the
    next, and `ahead` the next one's `own`.
    """

    before: Float[Array, "K W"]
    at_end: Float[Array, "K W"]
    own: Float[Array, "J W"]
    ahead: Float[Array, "J W"]


class Cut(NamedTuple):
    """Windows whose rows beyond a buffer were taken away: what an error of the buffer is measured on.

    Attributes:
        whole: The windows with all their rows.
        after: Rows before `start` missing.
        near: Rows before `start` and from `stop` on missing.
        start: First row that was left, zero or less if none was taken.
        stop: Row behind the last that was left, L or more if none was taken.
    """

    whole: Batch
    after: Batch
    near: Batch
    start: Int[Array, "W"]
    stop: Int[Array, "W"]


def counted(batch: Batch, length: int) -> Batch:
    """Return the windows cut down to the rows that count, at most `length`, with their lags."""
    L, lags = batch.weight.shape[0], batch.y.shape[0] - batch.weight.shape[0]
    start = jnp.argmax(batch.weight > 0, axis=0)
    index = start + jnp.arange(length + lags)[:, None]
    y = jnp.take_along_axis(batch.y, jnp.minimum(index, L + lags - 1)[:, None], axis=0)
    own = jnp.minimum(index[:length], L - 1)
    weight = jnp.where(index[:length] < L, jnp.take_along_axis(batch.weight, own, axis=0), 0.0)
    return Batch(y, weight, batch.first & (start == 0))


def counted_values(rows: Array, batch: Batch, length: int) -> Array:
    """Return values by row (L, W) at the rows that `counted` keeps."""
    index = jnp.argmax(batch.weight > 0, axis=0) + jnp.arange(length)[:, None]
    return jnp.take_along_axis(rows, jnp.minimum(index, rows.shape[0] - 1), axis=0)


def edges(previous: Array, last: Array, backward: Array, seam: Seam) -> Edges:
    """Pick the messages at the seams.

    Args:
        previous: Forward messages before each row, (L, K, W).
        last: Forward message of the last row, (K, W).
        backward: Backward quantities of each row, (L, J, W).
        seam: The seams; a `stop` behind the last row, at the end of a series, picks the last.
    """
    every = jnp.concatenate([previous, last[None]])
    L = previous.shape[0]
    return Edges(
        before=rows_at(every, seam.start),
        at_end=rows_at(every, jnp.minimum(seam.stop, L)),
        own=rows_at(backward, seam.start),
        ahead=rows_at(backward, jnp.minimum(seam.stop, L - 1)),
    )


def earlier(seam: Seam, horizon: int) -> Seam:
    """Return the seam seen from `horizon` rows before, where what predicts its rows is known."""
    start, stop = (jnp.maximum(row - horizon, 0) for row in (seam.start, seam.stop))
    return Seam(start, stop, seam.end)


def rows_at(rows: Array, index: Array) -> Array:
    """Return rows[index[w], :, w] for each window w."""
    return jnp.take_along_axis(rows, index[None, None, :], axis=0)[0]
