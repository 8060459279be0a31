"""One labelling of the discrete states for all chains."""

from collections.abc import Mapping

import numpy as np


def align_chains(
    draws: Mapping[str, np.ndarray], dims: Mapping[str, tuple[str, ...]]
) -> dict[str, np.ndarray]:
    """Relabel the states of each chain to match the first.

    States are matched by the medians, over a chain, of what belongs to one state alone (means,
    covariances, regression matrices and the chance to stay), each entry over its sd in a chain: what
    states have in common does not tell them apart, however its noise compares with it. Labels that
    switch within a chain are left as they are and show in R-hat. Chains kept after a divergence may
    end in numbers whose squares overflow; they are as far as can be.

    Args:
        draws: Parameters, shape (chain, draw, ...).
        dims: Names of the axes of each parameter.
    """
    if not any("state" in of for of in dims.values()):
        return dict(draws)
    signatures, noise = signature(draws, dims)
    aligned = {name: values.copy() for name, values in draws.items()}
    for chain in range(1, len(signatures)):
        order = match_states(signatures[0], signatures[chain], noise)
        for name, values in aligned.items():
            values[chain] = permute(values[chain], dims[name], order, leading=1)
    return aligned


def match_states(
    reference: np.ndarray, other: np.ndarray, noise: np.ndarray | None = None
) -> np.ndarray:
    """Return the order of `other`'s states that comes closest to the reference.

    Args:
        reference: What is known of each state, (K, features).
        other: The same of other states.
        noise: Sds of the features of a state. Where one is zero or not given, what is left of
            differences when values are matched in their order stands for it.
    """
    from scipy.optimize import linear_sum_assignment

    with np.errstate(over="ignore", invalid="ignore"):
        left = np.sqrt(np.square(np.sort(reference, axis=0) - np.sort(other, axis=0)).mean(0))
        spread = np.concatenate([reference, other]).std(0)
        scale = np.where(left > 0, left, np.where(spread > 0, spread, 1.0))
        if noise is not None:
            scale = np.where(noise > 0, noise, scale)
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


def signature(
    draws: Mapping[str, np.ndarray], dims: Mapping[str, tuple[str, ...]]
) -> tuple[np.ndarray, np.ndarray]:
    """Return what tells states apart, (chain, K, features), and its sd within a chain, (features,)."""
    centers, sds = [], []
    for name, values in draws.items():
        if "state" not in dims[name]:
            continue
        if "to_state" in dims[name]:
            values = np.diagonal(values, axis1=-2, axis2=-1)
        own = values.reshape(*values.shape[:3], -1)
        with np.errstate(over="ignore", invalid="ignore"):
            centers.append(np.median(own, axis=1))
            # What is held fixed has an sd of rounding alone.
            sds.append(np.where(np.ptp(own, axis=1) > 0, own.std(axis=1), 0.0))
    return np.concatenate(centers, axis=-1), np.median(np.concatenate(sds, axis=-1), axis=(0, 1))
