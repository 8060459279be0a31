"""Starting values: k-means on a sample of rows, or a draw from the prior."""

import functools
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from sojourn.messages.discrete import Moments
from sojourn.series import Series

if TYPE_CHECKING:
    from sojourn.models.regimes import RegimeModel

# Rows that k-means looks at, in stretches of consecutive rows so that transitions can be counted.
_ROWS = 20_000
_STRETCH = 200


def kmeans_coords(
    model: "RegimeModel", series: Series, seed: int, *, influence: bool
) -> dict[str, jax.Array]:
    """Cluster rows, then fit each block to the labels as if they were the states.

    Mini-batch k-means on a sample of rows: the cost does not grow with the series.

    Args:
        model: The model, in the units of the data.
        series: The series.
        seed: Which rows and clusters.
        influence: Cluster not the rows with their lags but the pull of each row on a regression common
            to all states, e χᵀ: it tells regimes apart that visit the same places and differ in
            where they go from there.
    """
    from sklearn.cluster import MiniBatchKMeans
    from threadpoolctl import threadpool_limits

    rng = np.random.default_rng(seed)
    rows, consecutive, looked_at = _sample_rows(model, series, rng)
    distinct = len(np.unique(rows, axis=0))
    if distinct < model.num_states:
        among = f" among {looked_at} that were looked at" * (looked_at < model.num_rows(series))
        raise ValueError(
            f"data has {distinct} distinct complete rows{among}; num_states={model.num_states} "
            'needs at least as many, or init="prior"'
        )
    points = _influence(rows, model.emission_dim) if influence and model.num_lags else rows
    scale = points.std(0)
    points = (points - points.mean(0)) / np.where(scale > 0, scale, 1.0)
    kmeans = MiniBatchKMeans(
        model.num_states,
        random_state=int(rng.integers(2**31)),
        n_init=3,  # type: ignore[arg-type]
        batch_size=2048,
    )
    with threadpool_limits(1):  # its threads would spin on the cores that chains use
        labels = kmeans.fit_predict(points)
    one_hot = np.eye(model.num_states)[labels]
    chi = rows[:, model.emission_dim :] if model.num_lags else np.ones((len(rows), 1))
    full_rows = np.concatenate([rows[:, : model.emission_dim], chi], axis=1)
    i, j = np.tril_indices(full_rows.shape[1])
    features = np.concatenate([np.ones((len(rows), 1)), full_rows[:, i] * full_rows[:, j]], axis=1)
    counts = one_hot[:-1].T @ (one_hot[1:] * consecutive[1:, None])
    moments = Moments(jnp.asarray(counts), jnp.asarray(one_hot.T @ features))
    return _center(model, moments)


def _influence(rows: np.ndarray, dim: int) -> np.ndarray:
    """Return e χᵀ of the least-squares regression of the first columns on the others."""
    y, chi = rows[:, :dim], rows[:, dim:]
    residual = y - chi @ np.linalg.lstsq(chi, y, rcond=None)[0]
    return (residual[:, :, None] * chi[:, None]).reshape(len(rows), -1)


def _sample_rows(
    model: "RegimeModel", series: Series, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, int]:
    """Return complete rows with their lags, which follow their predecessor, and how many were seen."""
    p = model.num_lags
    lengths = np.asarray(series.lengths) - p
    begin = np.cumsum(series.lengths) - lengths
    starts = np.concatenate(
        [b + np.arange(0, n, _STRETCH) for b, n in zip(begin, lengths, strict=True)]
    )
    stops = np.concatenate(
        [
            np.minimum(b + np.arange(0, n, _STRETCH) + _STRETCH, b + n)
            for b, n in zip(begin, lengths, strict=True)
        ]
    )
    if lengths.sum() > _ROWS:
        order = rng.permutation(len(starts))
        enough = np.searchsorted(np.cumsum((stops - starts)[order]), _ROWS) + 1
        chosen = np.sort(order[:enough])
        starts, stops = starts[chosen], stops[chosen]
    stretches = []
    for start, stop in zip(starts, stops, strict=True):
        part = series.rows(start - p, stop)
        stretches.append(
            np.concatenate([part[p - lag : len(part) - lag] for lag in range(p + 1)], axis=1)
        )
    rows = np.concatenate(stretches)
    complete = ~np.isnan(rows).any(1)
    first = np.zeros(len(rows), bool)
    first[np.cumsum([0] + [len(s) for s in stretches[:-1]])] = True
    kept = np.flatnonzero(complete)
    follows = np.zeros(len(kept), bool)
    follows[1:] = (np.diff(kept) == 1) & ~first[kept[1:]]
    return rows[kept], follows, len(rows)


@functools.partial(jax.jit, static_argnums=0)
def _center(model: "RegimeModel", moments: Moments) -> dict[str, jax.Array]:
    return model.center(model.collect(moments))
