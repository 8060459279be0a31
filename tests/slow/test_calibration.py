"""Simulation-based calibration: ranks of true parameters among posterior draws are uniform."""

import dataclasses

import jax
import numpy as np
import pytest
from scipy import stats

import sojourn as sj
from sojourn.models.base import Units, prior_draw

pytestmark = pytest.mark.slow

ROWS, REPEATS, DRAWS = 500, 100, 99

# Priors narrow enough that no series explodes. Units are fixed: the prior is then that of the draws.
MODELS = {
    "hmm": sj.GaussianHMM(
        2, 1, concentration=5.0, prior_mean=[0.0], mean_precision=0.2, dof=6.0, scale=[[6.0]]
    ),
    "arhmm": sj.ARHMM(2, 1, concentration=5.0, column_covariance=[[0.05]], dof=6.0, scale=[[6.0]]),
    "lgssm": sj.LGSSM(
        1,
        1,
        A_mean=[[0.6]],
        A_column_covariance=[[0.02]],
        Q_dof=8.0,
        Q_scale=[[8.0]],
        R_dof=8.0,
        R_scale=[[8.0]],
        initial=np.eye(1),
    ),
}


def summaries(params):
    """Return what does not depend on labels, of draws (N, …): traces, sums of logs, sums."""
    found = []
    for name, value in params.items():
        if name == "transition_matrix":
            found.append(np.trace(value, axis1=1, axis2=2))
        else:
            flat = value.reshape(len(value), -1)
            found.append((np.log(flat) if name in ("covariances", "Q", "R") else flat).sum(1))
    return np.stack(found, axis=1)


@pytest.mark.parametrize("name", MODELS)
def test_ranks_are_uniform(name):
    """Chi-square over ten bins of ranks, at one in a thousand for each function."""
    model = dataclasses.replace(MODELS[name], units=Units((0.0,), (1.0,)))
    ranks = []
    for i in range(REPEATS):
        truth = draw_prior(model, i)
        y = model.simulate(truth, ROWS, seed=i)[1]
        fit = sj.sample(model, y, num_samples=500, seed=i, progress=False)
        params = {n: v.to_numpy() for n, v in fit.posterior.items()}
        flat = {n: v.reshape(-1, *v.shape[2:]) for n, v in params.items()}
        drawn = summaries(flat)
        picked = drawn[np.linspace(0, len(drawn) - 1, DRAWS).astype(int)]
        true = summaries({n: np.asarray(truth[n])[None] for n in flat})
        ranks.append((picked < true).sum(0))
    for ranks_of_one in np.stack(ranks, axis=1):
        counts, _ = np.histogram(ranks_of_one, bins=np.linspace(0, DRAWS + 1, 11))
        print(name, counts)
        assert stats.chisquare(counts).pvalue > 0.001, counts


def draw_prior(model, seed):
    with jax.enable_x64(True):
        raw = model.unitless()
        return raw.to_params(prior_draw(raw, jax.random.key(seed)))
