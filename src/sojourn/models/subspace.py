"""Starting values of linear Gaussian models from the autocovariances of the data.

    Γ_h = E[y_{t+h} y_tᵀ] = C A^h V Cᵀ  for h ≥ 1,    Γ_0 = C V Cᵀ + R

The matrix of Γ_{i+j−1}, i, j = 1 … H, has rank n; its singular vectors give C and A in some basis, V
and the noise follow by least squares (Ho and Kalman).
"""

import numpy as np

from sojourn.series import Series

# Rows that autocovariances are averaged over.
_ROWS = 200_000

# Share of a variance that noise is left with at least.
_FLOOR = 0.02

# Condition number beyond which a change of basis loses half of the digits.
_WORST_BASIS = 1e8

# Modulus that roots of A are pulled inside of.
_RADIUS = 0.98


def subspace_params(series: Series, n: int, fixed: np.ndarray | None) -> dict[str, np.ndarray]:
    """Return A, Q, C, R; C has its first n rows equal to the identity, or is `fixed`.

    Args:
        series: The series, in the model's units.
        n: Dimension of the state.
        fixed: C where it is not free.
    """
    m = series.dim
    horizon = max(2, -(-n // m) + 1)
    gamma = _autocovariances(series, 2 * horizon)
    hankel = np.block([[gamma[i + j + 1] for j in range(horizon)] for i in range(horizon)])
    U, s, Vt = np.linalg.svd(hankel)
    observability = U[:, :n] * np.sqrt(s[:n])
    control = np.sqrt(s[:n])[:, None] * Vt[:n]
    C = observability[:m]
    A = np.linalg.lstsq(observability[:-m], observability[m:], rcond=None)[0]
    G = np.linalg.lstsq(A, control[:, :m], rcond=None)[0]  # V Cᵀ, as Γ_1 = C A (V Cᵀ)
    wanted = np.eye(m, n) if fixed is None else fixed
    basis = _change_of_basis(C, wanted)
    A = basis @ A @ np.linalg.pinv(basis)
    C, G = C @ np.linalg.pinv(basis), basis @ G
    if fixed is not None:
        C = fixed
    A = A * min(1.0, _RADIUS / max(np.abs(np.linalg.eigvals(A)).max(), 1e-12))
    V = np.linalg.lstsq(C, G.T, rcond=None)[0]
    V = _positive((V + V.T) / 2, np.trace(gamma[0]) / m)
    Q = _positive(V - A @ V @ A.T, np.trace(V) / n)
    R = _positive(gamma[0] - C @ V @ C.T, np.trace(gamma[0]) / m)
    return {"A": A, "Q": Q, "C": C, "R": R}


def _change_of_basis(C: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return M such that C M⁻¹ is, or comes close to, the wanted matrix."""
    m, n = C.shape
    basis = np.linalg.pinv(wanted) @ C
    if m < n:
        # Directions that C does not see become those that the wanted matrix does not see.
        unseen, hidden = np.linalg.svd(wanted)[2][m:], np.linalg.svd(C)[2][m:]
        basis = basis + unseen.T @ hidden
    # A basis that cannot be inverted: no dynamics were found in the data, any will do to start from.
    return basis if np.linalg.cond(basis) < _WORST_BASIS else np.eye(n)


def _autocovariances(series: Series, num: int) -> list[np.ndarray]:
    """Return Γ_0, …, Γ_num, missing entries left out."""
    totals = np.zeros((num + 1, series.dim, series.dim))
    counts = np.zeros_like(totals)
    budget, start = _ROWS, 0
    for length in series.lengths:
        if budget == 0:
            break
        part = series.rows(start, start + min(length, budget))
        start, budget = start + length, budget - len(part)
        seen = ~np.isnan(part)
        filled = np.where(seen, part, 0.0)
        for h in range(min(num + 1, len(part))):
            totals[h] += filled[h:].T @ filled[: len(part) - h]
            counts[h] += seen[h:].T.astype(float) @ seen[: len(part) - h]
    return list(totals / np.maximum(counts, 1))


def _positive(M: np.ndarray, scale: float) -> np.ndarray:
    """Return the nearest covariance with eigenvalues of at least a share of `scale`."""
    values, vectors = np.linalg.eigh((M + M.T) / 2)
    return (vectors * np.maximum(values, _FLOOR * max(scale, 1e-12))) @ vectors.T
