"""The models of the paper's synthetic experiments that are timed."""

import numpy as np

import sojourn as sj

ROWS = 1_000_000


def reversed_cycles() -> tuple[sj.GaussianHMM, dict[str, np.ndarray]]:
    """Eight states in two cycles that run through the same places in opposite order."""
    Pi = np.zeros((8, 8))
    for a, b, c, d in ((0, 1, 2, 3), (4, 5, 6, 7)):
        Pi[a, [a, b]] = Pi[b, [b, c]] = 0.01, 0.99
        Pi[c, [a, d]] = 0.85, 0.15
    Pi[3, 4] = Pi[7, 0] = 1.0
    means = [(-50, 0), (30, -30), (30, 30), (-100, -10), (40, -40), (-65, 0), (40, 40), (100, 10)]
    return sj.GaussianHMM(num_states=8, emission_dim=2), {
        "transition_matrix": Pi,
        "means": np.asarray(means, dtype=float),
        "covariances": np.tile(20.0 * np.eye(2), (8, 1, 1)),
    }


def rotations() -> tuple[sj.ARHMM, dict[str, np.ndarray]]:
    """Two states that turn the plane in opposite directions."""
    c = 0.9 * np.cos(np.pi / 4)
    s = 0.9 * np.sin(np.pi / 4)
    return sj.ARHMM(num_states=2, emission_dim=2, num_lags=1), {
        "transition_matrix": np.array([[0.1, 0.9], [0.9, 0.1]]),
        "A": np.array([[[c, s], [-s, c]], [[c, -s], [s, c]]]),
        "Q": np.tile(0.1 * np.eye(2), (2, 1, 1)),
    }
