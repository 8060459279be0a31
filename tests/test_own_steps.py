"""Step sizes where some blocks move in their own metric."""

import jax
import numpy as np
import pytest

import sojourn as sj
from sojourn.dynamics import SGRLD
from sojourn.synthetic import reversed_cycles
from sojourn.tuning.own_steps import mixed_error


@pytest.mark.parametrize("epsilon", [0.1, 1.0])
@pytest.mark.parametrize("share", [1.0, 0.9, 0.3])
def test_error_of_an_exact_step_is_what_hidden_states_hide(share, epsilon):
    q = 1 - np.exp(-epsilon)
    H = np.diag([1.0, share])
    expected = 1 - (2 - q) / (2 - share * q)
    np.testing.assert_allclose(mixed_error(H, 1, np.eye(2), epsilon), expected, atol=1e-12)


def test_error_counts_in_parameters_alone(rng):
    """Coupled blocks, by a recursion of covariances; a flat direction that no parameter sees."""
    root = np.eye(4) + 0.2 * rng.normal(size=(4, 4))
    H = root @ root.T
    H[3] = H[:, 3] = 0.0
    H[3, 3] = 1e-3
    H /= np.linalg.eigvalsh(H)[-1]
    slopes, epsilon = rng.normal(size=(6, 4)) * [1, 1, 1, 0], 0.4
    rate = np.array([epsilon, epsilon, 1 - np.exp(-epsilon), 1 - np.exp(-epsilon)])
    step, S = np.eye(4) - np.diag(rate) @ H, np.eye(4)
    for _ in range(1000):
        S = step @ S @ step.T + np.diag(rate * (2 - rate))
    found, right = (np.diag(slopes @ V @ slopes.T) for V in (S, np.linalg.inv(H)))
    expected = np.abs(found / right - 1).max()
    np.testing.assert_allclose(mixed_error(H, 2, slopes, epsilon), expected, rtol=1e-8)


def test_steps_that_are_not_stable_are_ruled_out():
    assert mixed_error(np.diag([3.0, 1.0]), 1, np.eye(2), 0.9) == np.inf


def test_rare_transitions_take_long_steps_where_states_are_clear():
    """States an emission tells apart: nothing is hidden, and a step may be a relaxation time."""
    model, params = reversed_cycles()
    y = model.simulate(params, 5000, seed=0)[1]
    fit = sj.sample(model, y, num_samples=10, num_chains=1, num_warmup=0, progress=False)
    assert "complete for transition_matrix" in fit.choices["metric"]
    assert fit.choices["step_size"] > 0.2
    complete = sj.sample(
        model,
        y,
        SGRLD(metric="complete"),
        num_samples=10,
        num_chains=1,
        num_warmup=0,
        progress=False,
    )
    np.testing.assert_allclose(complete.choices["step_size"], 0.1)
    assert not jax.config.jax_enable_x64
