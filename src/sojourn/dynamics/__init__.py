"""Langevin and Hamiltonian dynamics with stochastic gradients: pure steps on a state.

A sampler is configuration: `start` makes a state of coordinates, `step` maps a state and the statistics
of an estimator at its coordinates to the next. Step sizes have one meaning for all of them: ε, with
h = ε / T for T rows of data, so that good values do not depend on T (`MATH.md` §3.2). Near the mode a
step of SGRLD contracts by ε λ, λ being the curvature of the log-posterior, per row, in the metric; the
samplers with momentum turn by an angle of √(ε λ).

Steps in a constant metric end with the half of their motion that the next noise decides, so that their
stationary law is exact for Gaussian posteriors at any stable ε:

    r ← r + √h Eᵀ g,   u ← u + √h/2 E r,   r ← c r + √(1 − c²) ξ,   u ← u + √h/2 E r

the splitting known as BAOAB; Langevin dynamics are its limit c = 0.
"""

from sojourn.dynamics.base import (
    Decay,
    Metric,
    Sampler,
    Shape,
    State,
    dimension,
    has_left,
    own_blocks,
    posterior_gradient,
    pull,
    push,
)
from sojourn.dynamics.hamiltonian import SGHMC, SGNHT
from sojourn.dynamics.langevin import OWN_ERROR, SGLD, SGRLD

__all__ = [
    "OWN_ERROR",
    "SGHMC",
    "SGLD",
    "SGNHT",
    "SGRLD",
    "Decay",
    "Metric",
    "Sampler",
    "Shape",
    "State",
    "dimension",
    "has_left",
    "own_blocks",
    "posterior_gradient",
    "pull",
    "push",
]
