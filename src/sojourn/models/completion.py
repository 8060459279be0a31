"""Gaussian rows of which some entries were seen: the law of the others. NumPy, rows first.

Legend: M rows of D columns, y (M, D) with NaN where missing; o the entries seen, h the others.
"""

import numpy as np


def complete(
    offset: np.ndarray,
    H: np.ndarray,
    R: np.ndarray,
    x: tuple[np.ndarray, np.ndarray],
    y: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return mean (M, D) and covariance (M, D, D) of y = offset + H x + N(0, R) given its entries seen.

    Given x, missing entries have the mean offset_h + H_h x + R_ho R_oo⁻¹ (y_o − offset_o − H_o x) and
    covariance R_hh − R_ho R_oo⁻¹ R_oh; x has the given mean (M, n) and covariance (M, n, n), given
    all rows, these included. Entries that were seen have no variance. `MATH.md` §2.4.
    """
    mean, spread = x
    full = np.where(np.isnan(y), 0.0, y)
    covariance = np.zeros((*y.shape, y.shape[1]))
    patterns, which = np.unique(np.isnan(y), axis=0, return_inverse=True)
    for index, h in enumerate(patterns):
        if not h.any():
            continue
        rows = np.flatnonzero(which.ravel() == index)
        o = ~h
        pull = np.linalg.solve(R[np.ix_(o, o)], R[np.ix_(o, h)]).T
        slope = H[h] - pull @ H[o]
        base = offset[h] + (y[np.ix_(rows, o)] - offset[o]) @ pull.T
        full[np.ix_(rows, h)] = base + mean[rows] @ slope.T
        noise = R[np.ix_(h, h)] - pull @ R[np.ix_(o, h)]
        covariance[np.ix_(rows, h, h)] = slope @ spread[rows] @ slope.T + noise
    return full, covariance


def mix(
    weights: np.ndarray, means: np.ndarray, covariances: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and covariance of mixtures with weights (M, K) of means (K, M, D) and covariances."""
    mean = np.einsum("mk,kmd->md", weights, means)
    around = means - mean
    second = covariances + around[..., :, None] * around[..., None, :]
    return mean, np.einsum("mk,kmde->mde", weights, second)


def draw(rng: np.random.Generator, mean: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """Draw rows with these means (M, D) and covariances (M, D, D), which may be singular."""
    values, vectors = np.linalg.eigh(covariance)
    noise = rng.normal(size=mean.shape) * np.sqrt(np.maximum(values, 0.0))
    return mean + np.einsum("mij,mj->mi", vectors, noise)
