"""How far draws are from a posterior: the kernel Stein discrepancy."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sojourn._random import child_seed
from sojourn._validation import as_real, check_positive, check_seed
from sojourn.gradients import gradient
from sojourn.models.base import Model, Params
from sojourn.series import Series, Windows

if TYPE_CHECKING:
    import pandas


# Pairs of draws held at once.
_PAIRS = 2_000_000

# Smallest variance of a direction that is believed, relative to the largest: rounding leaves 1e-16.
_SMALLEST = 1e-12


class KSD(NamedTuple):
    """A kernel Stein discrepancy.

    Attributes:
        total: Σ_j w_j, the paper's.
        columns: w_j of each column.
        squares: w_j², negative by chance where they are unbiased estimates of zero.
    """

    total: float
    columns: np.ndarray
    squares: np.ndarray


def ksd(
    draws: Any, scores: Any, *, beta: float = 0.5, scale: float = 1.0, unbiased: bool = False
) -> KSD:
    """Return the kernel Stein discrepancy between draws and the density whose scores are given.

        w_j² = (1/N²) Σ_{i,i'} k₀ʲ(i, i'),    k(x, x') = (c² + ‖x − x'‖²)^(−β)

    `MATH.md` §13. Draws and scores must be in one set of coordinates, the density there with its
    Jacobian. The kernel sees differences of about c: divide columns by their posterior sd, and multiply
    scores by it, unless they are of order one. Memory grows with N alone, time with N².

    Args:
        draws: Draws, (N, d).
        scores: Gradients of the log density at the draws, (N, d).
        beta: Exponent β of the inverse multiquadric kernel.
        scale: Its length c.
        unbiased: Leave out the pairs i = i', which add at least as much as the noise of estimated scores
            has variance; the squares are then unbiased, and may be negative.
    """
    x, b = as_real("draws", draws), as_real("scores", scores)
    check_positive("beta", beta)
    check_positive("scale", scale)
    if x.ndim != 2 or b.shape != x.shape:
        raise ValueError(
            f"draws and scores must have one shape (N, d); got {x.shape} and {b.shape}"
        )
    N, d = x.shape
    if N < 2:
        raise ValueError(f"expected at least two draws; got {N}")
    if not (np.isfinite(x).all() and np.isfinite(b).all()):
        raise ValueError("draws and scores must be finite; leave out rows that are not")
    x = x - x.mean(0)  # products below cancel offsets
    own = np.square(x).sum(1)
    total, bx, xx = np.zeros(d), b * x, x * x
    size = max(1, _PAIRS // N)
    for first in range(0, N, size):
        i = slice(first, first + size)
        squared = np.maximum(own[i, None] + own - 2 * x[i] @ x.T, 0.0)
        base = 1 / (scale**2 + squared)
        k = base**beta
        k1 = 2 * beta * k * base
        k2 = 2 * (beta + 1) * k1 * base
        row1, row2 = k1.sum(1)[:, None], k2.sum(1)[:, None]
        # Sums over i' of the four terms, (b_i − b_i')(x_i − x_i') and (x_i − x_i')² multiplied out.
        terms = b[i] * (k @ b) + row1
        terms += bx[i] * row1 - b[i] * (k1 @ x) - x[i] * (k1 @ b) + k1 @ bx
        terms -= xx[i] * row2 - 2 * x[i] * (k2 @ x) + k2 @ xx
        total += terms.sum(0)
    same = np.square(b).sum(0) * scale ** (-2 * beta) + N * 2 * beta * scale ** (-2 * beta - 2)
    squares = (total - same) / (N * (N - 1)) if unbiased else total / N**2
    columns = np.sqrt(np.maximum(squares, 0.0))
    return KSD(float(columns.sum()), columns, squares)


def standardised_discrepancy(
    model: Model, draws: Sequence[Params], series: Series, every: Sequence[Params]
) -> float:
    """Return by how many sds the discrepancy of some draws exceeds that of draws of the posterior.

        z = Σ_{i≠i'} h(i, i') / √(2 Σ_{i≠i'} h(i, i')²),    h = Σ_j k₀ʲ

    Pairs of independent draws of the posterior have mean zero, whatever its shape; the root is the sd
    of their sum if each draw is given a sign at random. Coordinates are those in which the fit's draws
    are uncorrelated with unit spread, so that no direction hides another; the kernel's length is √d.

    Args:
        model: The model.
        draws: The draws, almost independent of each other.
        series: The data.
        every: Draws that tell the spread.
    """
    x, b = (_side_by_side(part) for part in _scored(model, draws, series, None, 0))
    coords = [model.to_coords(params) for params in every]
    stacked = {name: np.stack([one[name] for one in coords]) for name in coords[0]}
    x_every = _side_by_side(model.free(stacked, stacked)[0])
    center, sd = x_every.mean(0), np.maximum(x_every.std(0), np.finfo(float).tiny)
    x, b = (x - center) / sd, b * sd
    d = x.shape[1]
    if len(every) > 2 * d:
        values, vectors = np.linalg.eigh(
            np.cov((x_every - center) / sd, rowvar=False).reshape(d, d)
        )
        root = np.sqrt(np.maximum(values, _SMALLEST * values[-1]))
        x, b = x @ vectors / root, b @ vectors * root
    h = of_pairs(x, b)[~np.eye(len(x), dtype=bool)]
    return float(h.sum() / np.sqrt(2 * np.square(h).sum()))


def of_pairs(x: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return Σ_j k₀ʲ(i, i') of all pairs, (N, N), for β = ½ and c² = d: what `ksd` sums up."""
    own, along, d = np.square(x).sum(1), b @ x.T, x.shape[1]
    apart = np.maximum(own[:, None] + own - 2 * x @ x.T, 0.0)
    base = 1 / (d + apart)
    k = np.sqrt(base)
    k1 = k * base
    here = np.diag(along)
    return k * (b @ b.T) + k1 * (here[:, None] + here - along - along.T + d - 3 * base * apart)


def _side_by_side(parts: dict[str, np.ndarray]) -> np.ndarray:
    """Return draws by name as one array, (N, d)."""
    return np.concatenate([u.reshape(len(u), -1) for u in parts.values()], axis=1)


def _scored(
    model: Model, draws: Sequence[Params], series: Series, windows: Windows | None, seed: int
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return free coordinates of draws, and gradients of the log-posterior there, (N, …) by name."""
    points, scores = [], []
    for i, params in enumerate(draws):
        coords = model.to_coords(params)
        own = child_seed(check_seed(seed), i)
        found = gradient(model, coords, series, windows=windows, seed=own)
        prior = model.prior_gradient(coords)
        points.append(coords)
        scores.append({name: found[name] + prior[name] for name in coords})
    x, b = ({n: np.stack([p[n] for p in of]) for n in of[0]} for of in (points, scores))
    return model.free(x, b)


def ksd_of_posterior(
    model: Model,
    draws: Sequence[Params],
    series: Series,
    windows: Windows | None,
    *,
    standardize: bool,
    unbiased: bool,
    seed: int,
) -> "pandas.Series":
    """Return the discrepancy of draws of the parameters, by parameter and in total; see `Fit.ksd`."""
    import pandas

    x, b = _scored(model, draws, series, windows, seed)
    flat, slopes = _side_by_side(x), _side_by_side(b)
    if standardize:
        sd = np.maximum(flat.std(0), np.finfo(float).tiny)
        flat, slopes = flat / sd, slopes * sd
    by_column = ksd(flat, slopes, unbiased=unbiased).columns
    sizes = np.cumsum([x[name][0].size for name in x])[:-1]
    totals = {name: part.sum() for name, part in zip(x, np.split(by_column, sizes), strict=True)}
    return pandas.Series({**totals, "total": by_column.sum()}, name="ksd")
