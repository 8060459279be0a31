"""One labelling of the discrete states for all chains."""

from collections.abc import Mapping

import numpy as np


def align_chains(
    draws: Mapping[str, np.ndarray], dims: Mapping[str, tuple[str, ...]]
) -> dict[str, np.ndarray]:
    """Relabel the states of each chain to match the first.

    States are matched by the medians, over a chain, of what belongs to one state alone (means,
    covariances, regression matrices and the chance to stay), each entry over its spread between
    states. Labels that switch within a chain are left as they are and show in R-hat. Chains kept
    after a divergence may end in numbers whose squares overflow; they are as far as can be.

    Args:
        draws: Parameters, shape (chain, draw, ...).
        dims: Names of the axes of each parameter.
    """
    if not any("state" in of for of in dims.values()):
        return dict(draws)
    signatures = np.concatenate(
        [signature(values, dims[name]) for name, values in draws.items() if "state" in dims[name]],
        axis=-1,
    )
    aligned = {name: values.copy() for name, values in draws.items()}
    for chain in range(1, len(signatures)):
        order = match_states(signatures[0], signatures[chain])
        for name, values in aligned.items():
            values[chain] = permute(values[chain], dims[name], order, leading=1)
    return aligned


def match_states(reference: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return the order of `other`'s states, (K, features), that comes closest to the reference."""
    from scipy.optimize import linear_sum_assignment

    with np.errstate(over="ignore", invalid="ignore"):
        spread = np.concatenate([reference, other]).std(0)
        scale = np.where(spread > 0, spread, 1.0)
        cost = np.square((reference[:, None] - other[None]) / scale).sum(-1)
    # A total of K such costs must stay finite too.
    farthest = np.finfo(float).max / (1 + len(cost))
    return linear_sum_assignment(np.nan_to_num(cost, nan=farthest, posinf=farthest))[1]


def permute(
    values: np.ndarray, dims: tuple[str, ...], order: np.ndarray, *, leading: int = 0
) -> np.ndarray:
    """Put the states of a parameter in this order, along every axis that runs over states."""
    for axis, dim in enumerate(dims, start=leading):
        if dim in ("state", "to_state"):
            values = np.take(values, order, axis=axis)
    return values


def signature(values: np.ndarray, dims: tuple[str, ...]) -> np.ndarray:
    """Return what tells states apart: (chain, K, features)."""
    with np.errstate(over="ignore"):
        center = np.median(values, axis=1)
    if "to_state" in dims:
        return np.diagonal(center, axis1=-2, axis2=-1)[..., None]
    return center.reshape(*center.shape[:2], -1)
