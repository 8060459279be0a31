"""Ways to the mode of the log-posterior.

Legend: as in `curvature`.
"""

from collections.abc import Callable, Mapping

import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy.optimize import minimize

from sojourn.dynamics import push
from sojourn.gradients import Estimator, Source
from sojourn.models.base import Coords
from sojourn.tuning.curvature import Curvature
from sojourn.tuning.objective import value_and_pulled

NOT_FINITE = (
    "no step size could be found: the statistics near the start are not finite; check that some rows "
    "are complete (with their lags), centre and scale data far from zero, and use Gibbs where a "
    "transition is all but impossible"
)

# Squared Newton decrement (twice the nats to gain) below which the mode is reached.
AT_MODE = 0.02

# Nats that a step of a quasi-Newton method should gain, and earlier steps that it remembers.
_GAIN = 1e-3
_MEMORY = 20

# Most steps on a sample of windows.
_STEPS = 300

# Furthest that a Newton step may move a coordinate: these are logarithms, or in units of the data.
_FURTHEST = 1.0


def ascend(
    estimator: Estimator, source: Source, key: Array, coords: Coords, root: Mapping[str, Array]
) -> dict[str, Array]:
    """Return the mode on windows that stay the same."""

    def objective(coords: Coords) -> tuple[float, Array]:
        value, gradient = value_and_pulled(estimator, source, key, dict(root), coords)
        return float(value), gradient

    return maximize(objective, coords, root, _STEPS)


def maximize(
    objective: Callable[[Coords], tuple[float, Array]],
    coords: Coords,
    root: Mapping[str, Array],
    most: int,
) -> dict[str, Array]:
    """Return coordinates nearer the mode, by a quasi-Newton method that begins at unit curvature.

    Args:
        objective: Log-posterior, and its gradient in r.
        coords: Where to start.
        root: What r are coordinates in.
        most: Most evaluations of the objective.
    """
    seen: list[tuple[float, dict[str, Array]]] = []

    def lost(r: np.ndarray) -> tuple[float, np.ndarray]:
        at = push(coords, root, jnp.asarray(r))
        value, gradient = objective(at)
        if not seen and not (np.isfinite(value) and np.isfinite(gradient).all()):
            raise ValueError(NOT_FINITE)
        seen.append((value if np.isfinite(value) else -np.inf, at))
        return -value, -np.asarray(gradient)

    beginning = np.zeros(next(iter(root.values())).shape[1])
    first = lost(beginning)
    scale = max(abs(first[0]), 1.0)
    how = {"maxfun": most, "maxcor": _MEMORY, "ftol": _GAIN / scale, "gtol": 0.0}
    lost_again = lambda r: lost(r) if r.any() else first  # noqa: E731
    minimize(lost_again, beginning, jac=True, method="L-BFGS-B", options=how)
    return max(seen, key=lambda found: found[0])[1]


def approach(
    gradient: Callable[[int, Coords], Array],
    coords: Coords,
    curvature: Curvature,
    longest: float,
    num_steps: int,
) -> dict[str, Array]:
    """Return coordinates near the mode from noisy gradients: Newton steps that shrink, averaged.

    Args:
        gradient: Gradient of the log-posterior in r, from the number of a step and where it starts.
        coords: Where to start.
        curvature: Curvature near the mode, held fixed.
        longest: Longest step, in r.
        num_steps: Steps to take; the last half is averaged.
    """
    at, places = dict(coords), []
    for t in range(num_steps):
        step, _ = curvature.newton(np.asarray(gradient(t, at)))
        step = step * min(1.0, longest / np.linalg.norm(step)) / (1 + t / 5)
        at = push(at, curvature.root, jnp.asarray(step))
        places.append(at)
    kept = places[num_steps // 2 :]
    return {name: jnp.mean(jnp.stack([place[name] for place in kept]), axis=0) for name in at}


def climb(
    gradient: Callable[[Coords], Array], coords: Coords, curvature: Curvature, num_steps: int
) -> tuple[dict[str, Array], float]:
    """Return coordinates nearer the mode, by Newton's method, and how far it still is.

    That is the squared Newton decrement, twice the nats to gain; a step that does not lower it is
    halved.

    Args:
        gradient: Gradient of the log-posterior in r.
        coords: Where to start.
        curvature: Curvature near the mode, held fixed.
        num_steps: Most steps to take.
    """
    at = dict(coords)
    step, left = curvature.newton(np.asarray(gradient(at)))
    for _ in range(num_steps):
        if not np.isfinite(left) or left < AT_MODE:
            break
        step = step * min(1.0, _FURTHEST / _largest_move(curvature.root, step))
        tried = push(at, curvature.root, jnp.asarray(step))
        next_step, next_left = curvature.newton(np.asarray(gradient(tried)))
        if next_left < left:
            at, step, left = tried, next_step, next_left
        else:
            step = step / 2
    return at, left


def _largest_move(root: Mapping[str, Array], step: np.ndarray) -> float:
    return max(float(np.abs(np.asarray(E) @ step).max()) for E in root.values())
