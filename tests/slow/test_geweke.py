"""Geweke's joint test: parameters, states and data drawn in turn have the prior's law."""

import jax
import numpy as np
import pytest

import sojourn as sj
from sojourn.gibbs import AlternatingSweep, _conjugate_draw
from sojourn.models.base import prior_draw

pytestmark = pytest.mark.slow


def test_switching_gibbs_leaves_the_joint_law_as_it_is():
    """Means and squares of all parameters, at 4.5 standard errors by batches."""
    model = sj.SLDS(
        num_states=2,
        state_dim=1,
        emission_dim=2,
        concentration=3.0,
        A_column_covariance=[[0.1]],
        Q_dof=8.0,
        Q_scale=[[8.0]],
        C_variance=0.5,
        R_dof=12.0,
        R_scale=12 * np.eye(2),
    )
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        draw = jax.jit(jax.vmap(lambda k: prior_draw(model, k)))
        prior = _features(
            jax.vmap(model.constrain)(draw(jax.random.split(jax.random.key(1), 40_000)))
        )
        coords = prior_draw(model, jax.random.key(2))
        states, y = model.simulate(model.to_params(coords), 8, seed=1)
        y[3, 0] = np.nan
        z, kept = states["z"], []
        for t in range(4000):
            sweep = AlternatingSweep(model, sj.as_series(y))
            sweep.z = z
            key_states, key_params = jax.random.split(jax.random.fold_in(jax.random.key(3), t))
            statistics, z, x = sweep.states(key_states, coords)
            coords = _conjugate_draw(model, key_params, coords, statistics)
            params = model.to_params(coords)
            noise = rng.multivariate_normal(np.zeros(2), params["R"], size=8)
            y = np.where(np.isnan(y), np.nan, x @ params["C"].T + noise)
            kept.append(
                {name: np.asarray(value) for name, value in model.constrain(coords).items()}
            )
    chain = _features({name: np.stack([k[name] for k in kept]) for name in kept[0]})
    batches = chain.reshape(40, -1, chain.shape[1]).mean(1)
    error = np.sqrt(batches.var(0, ddof=1) / 40 + prior.var(0) / len(prior))
    away = (chain.mean(0) - prior.mean(0)) / error
    assert np.abs(away).max() < 4.5, away


def _features(params):
    """Return parameters and their squares, covariances in logs of their diagonals."""
    columns = []
    for name in sorted(params):
        value = np.asarray(params[name])
        if name == "C":
            value = value[:, 1:]  # the first row is fixed
        if name in ("Q", "R"):
            value = np.log(np.diagonal(value, axis1=-2, axis2=-1))
        columns.append(value.reshape(len(value), -1))
    values = np.concatenate(columns, axis=1)
    return np.concatenate([values, values**2], axis=1)
