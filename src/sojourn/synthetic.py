"""The synthetic models of the paper, with their parameters."""

import numpy as np

from sojourn.models import ARHMM, LGSSM, SLDS, GaussianHMM


def rotation(angle: float) -> np.ndarray:
    """Return the matrix that turns the plane by `angle`."""
    return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


def alternating_rotations() -> tuple[ARHMM, dict[str, np.ndarray]]:
    """Two states that turn the plane left and right and alternate quickly. Paper, §6.1."""
    model = ARHMM(num_states=2, emission_dim=2, num_lags=1)
    return model, {
        "transition_matrix": np.array([[0.1, 0.9], [0.9, 0.1]]),
        "A": 0.9 * np.stack([rotation(-np.pi / 4), rotation(np.pi / 4)]),
        "Q": np.stack([0.1 * np.eye(2)] * 2),
    }


def rotating_state() -> tuple[LGSSM, dict[str, np.ndarray]]:
    """A state that turns in the plane, seen with noise. Paper, §6.1."""
    model = LGSSM(state_dim=2, emission_dim=2)
    return model, {"A": 0.7 * rotation(np.pi / 4), "Q": 0.1 * np.eye(2), "R": np.eye(2)}


def reversed_cycles() -> tuple[GaussianHMM, dict[str, np.ndarray]]:
    """Two cycles over three states in opposite directions, with true zeros. Paper, supplement."""
    model = GaussianHMM(num_states=8, emission_dim=2)
    Pi = np.zeros((8, 8))
    for first in (0, 4):
        stay, go, leave = first, first + 1, first + 2
        Pi[stay, [stay, go]] = Pi[go, [go, leave]] = 0.01, 0.99
        Pi[leave, [stay, first + 3]] = 0.85, 0.15
    Pi[3, 4] = Pi[7, 0] = 1.0
    means = [(-50, 0), (30, -30), (30, 30), (-100, -10), (40, -40), (-65, 0), (40, 40), (100, 10)]
    return model, {
        "transition_matrix": Pi,
        "means": np.array(means, dtype=float),
        "covariances": np.stack([20.0 * np.eye(2)] * 8),
    }


def switching_rotations() -> tuple[SLDS, dict[str, np.ndarray]]:
    """A state that turns left or right in the plane for a while, seen with noise. Paper, §6.2."""
    model = SLDS(num_states=2, state_dim=2, emission_dim=2)
    return model, {
        "transition_matrix": np.array([[0.9, 0.1], [0.1, 0.9]]),
        "A": 0.9 * np.stack([rotation(-np.pi / 4), rotation(np.pi / 4)]),
        "Q": np.stack([0.1 * np.eye(2)] * 2),
        "R": 0.1 * np.eye(2),
    }
