"""A million rows with no argument but the data: draws against Laplace's law, or that given states."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax

import sojourn as sj
from sojourn.messages.discrete import Moments
from sojourn.results.diagnostics import effective_sample_size
from sojourn.synthetic import alternating_rotations, reversed_cycles, rotating_state

pytestmark = pytest.mark.slow

ROWS = 1_000_000


def flat(model, coords):
    """Return coordinates, or gradients in them, as a vector; rows of transitions as log-ratios."""
    parts = []
    for name in sorted(coords):
        value = np.asarray(coords[name])
        parts.append((value[..., :-1] if name == "transition_matrix" else value).ravel())
    return np.concatenate(parts)


def moved(coords, step):
    """Return coordinates moved by a vector of `flat`."""
    found, first = {}, 0
    for name in sorted(coords):
        value = np.array(coords[name])
        part = value[..., :-1] if name == "transition_matrix" else value
        part += step[first : first + part.size].reshape(part.shape)
        found[name], first = value, first + part.size
    return found


@pytest.mark.parametrize("make", [alternating_rotations, rotating_state])
def test_draws_have_the_mode_and_the_curvature(make):
    """Means within 0.15 sds, sds within 10%, for every coordinate."""
    model, params = make()
    y = model.simulate(params, ROWS, seed=2)[1]
    fit = sj.sample(model, y, num_samples=2000, progress=False, seed=1)
    model = fit.model
    coords = [model.to_coords(draw) for draw in fit.draws(8000)]
    draws = np.stack([flat(model, _ratios(c)) for c in coords])
    sd = draws.std(0)
    center = _ratios(coords[0])
    center = moved(center, draws.mean(0) - flat(model, center))

    def score(at):
        at = dict(at)
        if "transition_matrix" in at:  # where the redundant scale is one
            at["transition_matrix"] = log_softmax(at["transition_matrix"], axis=-1)
        found, prior = sj.gradient(model, at, y), model.prior_gradient(at)
        return flat(model, {name: found[name] + prior[name] for name in found})

    steps = np.diag(0.5 * sd)
    hessian = np.stack([score(moved(center, s)) - score(moved(center, -s)) for s in steps])
    hessian = hessian / np.diag(2 * steps)[:, None]
    covariance = np.linalg.inv(-(hessian + hessian.T) / 2)
    expected = np.sqrt(np.diag(covariance))
    shift = covariance @ score(center) / expected
    ess = min(effective_sample_size(c) for c in draws.T.reshape(len(sd), 4, -1))
    print(f"{np.abs(shift).max():.3f} sds, {np.abs(sd / expected - 1).max():.3f}, ess {ess:.0f}")
    assert ess > 1000
    assert np.abs(shift).max() < 0.15
    assert np.abs(sd / expected - 1).max() < 0.10


def _ratios(coords):
    """Return coordinates with transitions relative to their last entry."""
    found = {name: np.array(value) for name, value in coords.items()}
    if "transition_matrix" in found:
        found["transition_matrix"] -= found["transition_matrix"][..., -1:]
    return found


def test_draws_of_sparse_transitions_have_the_law_given_the_states():
    """Means within 0.15 sds, sds within 10%, for every entry; unseen transitions are not Gaussian.

    Clusters are so far apart that less than one row in a million could be of another state: the
    reference are conjugate draws given the decoded states, independent of each other.
    """
    model, params = reversed_cycles()
    y = model.simulate(params, ROWS, seed=2)[1]
    decoded = sj.decode(model, params, y)
    assert (1 - decoded["probability"].to_numpy().max(1)).sum() < 1
    fit = sj.sample(model, y, init=params, num_samples=2000, progress=False, seed=1)
    outer, states = fit.model, np.eye(8)[decoded["state"].to_numpy()]
    with jax.enable_x64(True):
        inner, own = outer.enter(sj.as_series(y))
        rows = np.concatenate([own.to_numpy(), np.ones((ROWS, 1))], axis=1)
        i, j = np.tril_indices(3)
        features = np.concatenate([np.ones((ROWS, 1)), rows[:, i] * rows[:, j]], axis=1)
        counts = states[:-1].T @ states[1:]
        statistics = inner.collect(Moments(jnp.asarray(counts), jnp.asarray(states.T @ features)))
        start = inner.to_coords(outer.standardise(outer.check_params(params)))
        keys = jax.random.split(jax.random.key(3), 20_000)
        draw = jax.vmap(lambda k: inner.constrain(inner.conjugate_draw(k, start, statistics)))
        reference = outer.standardise(jax.jit(draw)(keys), inverse=True)
    worst = {"mean": 0.0, "sd": 0.0, "ess": np.inf}
    for name, value in reference.items():
        theirs = np.asarray(value).reshape(len(keys), -1).T
        ours = np.moveaxis(fit.posterior[name].to_numpy().reshape(4, -1, len(theirs)), -1, 0)
        for one, other in zip(theirs, ours, strict=True):
            worst["ess"] = min(worst["ess"], effective_sample_size(other))
            worst["mean"] = max(worst["mean"], abs(other.mean() - one.mean()) / one.std())
            worst["sd"] = max(worst["sd"], abs(other.std() / one.std() - 1))
    print(worst)
    assert worst["ess"] > 1000
    assert worst["mean"] < 0.15
    assert worst["sd"] < 0.10
