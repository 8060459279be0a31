"""Checks of arguments at the edge."""

import math
from typing import Any

import numpy as np


def check_size(name: str, value: Any) -> None:
    """Raise unless `value` is an integer of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} must be an integer; got {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1; got {value}")


def check_positive(name: str, value: Any) -> None:
    """Raise unless `value` is a positive finite number."""
    if isinstance(value, bool | str) or not isinstance(value, int | float | np.number):
        raise TypeError(f"{name} must be a number; got {value!r}")
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{name} must be positive and finite; got {value}")


def check_seed(seed: Any) -> int:
    """Return `seed` if it is an integer that a random key can be made from."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
        raise TypeError(f"seed must be an integer; got {seed!r}")
    if not 0 <= seed < 2**63:
        raise ValueError(f"seed must lie between 0 and 2**63 - 1; got {seed}")
    return int(seed)
