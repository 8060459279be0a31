"""Checks of arguments at the edge."""

import math
from typing import Any

import numpy as np


def shown(value: Any) -> str:
    """Return what came, for a message: one line, cut where it is long."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def check_size(name: str, value: Any, least: int = 1) -> None:
    """Raise unless `value` is an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} must be an integer; got {shown(value)}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}; got {value}")


def check_positive(name: str, value: Any) -> None:
    """Raise unless `value` is a positive finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise TypeError(f"{name} must be a number; got {shown(value)}")
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{name} must be positive and finite; got {value}")


def as_real(name: str, value: Any) -> np.ndarray:
    """Return `value` as an array of floats; raise if it holds anything but real numbers."""
    try:
        array = np.asarray(value)
    except ValueError:
        raise ValueError(f"{name} has rows of unequal length; expected an array") from None
    if array.dtype.kind not in "iuf":
        got = f"an array of type {array.dtype}" if array.ndim else shown(value)
        raise TypeError(f"{name} must hold real numbers; got {got}")
    return array.astype(float)


def check_array(name: str, value: Any, *shapes: tuple[int, ...]) -> np.ndarray:
    """Return `value` as finite floats of one of the shapes."""
    array = as_real(name, value)
    if array.shape not in shapes:
        expected = " or ".join(f"have shape {s}" if s else "be a number" for s in shapes)
        raise ValueError(f"{name} must {expected}; got shape {array.shape}")
    if not np.all(np.isfinite(array)):
        raise ValueError(f"{name} must be finite; got {array[~np.isfinite(array)].flat[0]}")
    return array


def check_covariance(name: str, value: np.ndarray) -> None:
    """Raise unless matrices (..., d, d) are symmetric and positive definite, in whatever units."""
    diagonal = np.diagonal(value, axis1=-2, axis2=-1)
    what = f"{name} must be symmetric and positive definite"
    if np.any(diagonal <= 0):
        raise ValueError(f"{what}; got {diagonal[diagonal <= 0].flat[0]:.6g} on a diagonal")
    scale = np.sqrt(diagonal)
    correlation = value / scale[..., :, None] / scale[..., None, :]
    gap = np.abs(correlation - np.swapaxes(correlation, -1, -2)).max()
    if gap > 1e-6:  # covariances that went through single precision are let in
        raise ValueError(f"{what}; it differs from its transpose")
    # Eigenvalues of a correlation matrix are known to about d roundings of one.
    smallest = np.linalg.eigvalsh(correlation).min()
    if smallest <= value.shape[-1] * np.finfo(float).eps:
        raise ValueError(f"{what}; its correlations have the eigenvalue {smallest:.3g}")


def check_seed(seed: Any) -> int:
    """Return `seed` if it is an integer that a random key can be made from."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
        raise TypeError(f"seed must be an integer; got {shown(seed)}")
    if not 0 <= seed < 2**63:
        raise ValueError(f"seed must lie between 0 and 2**63 - 1; got {seed}")
    return int(seed)
