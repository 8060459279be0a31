"""Checks of parameters, coordinates and what linear models are given."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from sojourn._validation import check_array, check_covariance, check_positive, shown
from sojourn.blocks.base import freeze

# Rows of probabilities may miss one, and fixed matrices their value, by the rounding of a file.
_TOLERANCE = 1e-6


def check_params(
    params: Any,
    shapes: Mapping[str, tuple[int, ...]],
    dims: Mapping[str, tuple[str, ...]],
    constants: Mapping[str, np.ndarray],
) -> dict[str, Array]:
    """Check names, shapes, finiteness and constraints; returns arrays of floats.

    Args:
        params: What was given.
        shapes: Shapes of the parameters, by name.
        dims: Names of their dimensions, which tell covariances and rows of probabilities.
        constants: Parameters that are held fixed; they may be left out.
    """
    if not isinstance(params, Mapping):
        raise TypeError(f"expected a dict of parameters; got {type(params).__name__}")
    unknown = sorted(set(params) - set(shapes) - set(constants), key=str)
    absent = sorted(set(shapes) - set(params))
    if unknown or absent:
        raise ValueError(
            f"expected parameters {sorted(shapes)}"
            + (f"; missing {absent}" if absent else "")
            + (f"; unknown {unknown}" if unknown else "")
        )
    for name, fixed in constants.items():
        tolerance = _TOLERANCE * np.abs(fixed).max()
        if name in params and not np.allclose(
            check_array(name, params[name], fixed.shape), fixed, rtol=0, atol=tolerance
        ):
            raise ValueError(
                f"{name} contradicts the constraint: this model holds {name} at "
                f"{shown(fixed.tolist())}; leave it out, or make a model with another {name}"
            )
    checked = {}
    for name, shape in shapes.items():
        value = params[name]
        if not isinstance(value, Tracer):
            value = check_array(name, value, shape)
            _check_constraint(name, value, dims[name])
        elif value.shape != shape:
            raise ValueError(f"{name} must have shape {shape}; got shape {value.shape}")
        checked[name] = jnp.asarray(value)
    return checked


def _check_constraint(name: str, value: np.ndarray, dims: tuple[str, ...]) -> None:
    if dims[-1] == "to_state":
        what, total = f"{name} must have rows of probabilities that sum to one", value.sum(-1)
        if np.any(value < 0):
            raise ValueError(f"{what}; got {value.min():.6g}")
        if not np.allclose(total, 1.0, atol=_TOLERANCE):
            worst = int(np.argmax(np.abs(total - 1)))
            raise ValueError(f"{what}; got {total[worst]:.6g} in row {worst}")
    if len(dims) >= 2 and dims[-1] == f"{dims[-2]}_bis":
        check_covariance(name, value)


def check_coords(coords: Any, expected: Mapping[str, Any]) -> dict[str, Array]:
    """Check that coordinates have the names and shapes expected."""
    if not isinstance(coords, Mapping) or set(coords) != set(expected):
        raise ValueError(f"expected coordinates {sorted(expected)} from model.to_coords(params)")
    for name, like in expected.items():
        if np.shape(coords[name]) != like.shape:
            raise ValueError(
                f"coordinates {name} must have shape {like.shape}, as from "
                f"model.to_coords(params); got {np.shape(coords[name])}"
            )
    return {name: jnp.asarray(coords[name]) for name in expected}


def check_emission_matrix(C: Any, shape: tuple[int, int]) -> Any:
    """Return "identified", "free", or a matrix of this shape as tuples."""
    if not isinstance(C, str):
        return freeze(check_array("emission_matrix", C, shape))
    if C not in ("identified", "free"):
        raise ValueError(f"emission_matrix must be 'identified', 'free' or a matrix; got {C!r}")
    return C


def check_variance(variance: Any, shape: tuple[int, int] | None) -> Any:
    """Return the prior variance of C: a number or, where `shape` is given, an array as tuples."""
    if variance is None:
        return None
    if not np.ndim(variance):
        check_positive("C_variance", variance)
        return variance
    if shape is None:
        raise ValueError("C_variance must be a number where C has no identified and free rows")
    variance = check_array("C_variance", variance, shape)
    if np.any(variance <= 0):
        raise ValueError(f"C_variance must be positive; got {variance.min():.6g}")
    return freeze(variance)


def check_initial(law: Any, n: int) -> Any:
    """Return None, "stationary", or a mean and a covariance as tuples."""
    if law is None or (isinstance(law, str) and law == "stationary"):
        return law
    if isinstance(law, str):
        raise ValueError(
            f"initial must be None, 'stationary', a covariance or a mean and a covariance; "
            f"got {shown(law)}"
        )
    if isinstance(law, tuple) and len(law) == 2 and np.ndim(law[1]) == 2:
        mean, covariance = law
    else:
        mean, covariance = np.zeros(n), law
    mean = check_array("initial mean", mean, (n,))
    covariance = check_array("initial covariance", covariance, (n, n))
    check_covariance("initial covariance", covariance)
    return freeze(mean), freeze(covariance)
