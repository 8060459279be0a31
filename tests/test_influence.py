"""Windows drawn by what they leave of a control variate: unbiased, and quiet where few rows matter."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sojourn as sj
from sojourn.dynamics import SGRLD
from sojourn.gradients import Center, windowed
from sojourn.series import Chances, Drawn, gather, tile
from sojourn.synthetic import reversed_cycles
from sojourn.tuning.influence import influence
from sojourn.tuning.modes import place
from sojourn.tuning.noise import disperse


@pytest.fixture(scope="module")
def made():
    """Clear states, but for three missing rows, and a control variate at the truth."""
    with jax.enable_x64(True):
        model, params = reversed_cycles()
        rare = 0.99 * params["transition_matrix"] + 0.01 / 8  # no transition is impossible
        params = {**params, "transition_matrix": rare}
        y = model.simulate(params, 20_000, seed=1)[1]
        y[10_000:10_003] = np.nan
        series = sj.as_series(y)
        model = model.scaled_to(series)
        coords = {n: jnp.asarray(u) for n, u in model.to_coords(params).items()}
        inner, own = model.enter(series)
        mode = place(inner, own, coords)
        estimator, source = windowed(inner, own, sj.Windows(32, 4, 16, "partition"))
        source = source._replace(center=Center(mode.coords, mode.statistics, {}))
        at = (estimator, SGRLD(), source, own, coords, mode.metric, jax.random.key(0))
        yield estimator, source, coords, influence(*at), mode.metric, model, y


def test_influence_is_what_a_window_leaves(made, x64):
    """The same from statistics of single windows, at the centre and at each place."""
    estimator, source, coords, squares, metric, _, _ = made
    inner, values = estimator.model, source.values
    key = jax.random.key(0)
    places = [disperse(inner, coords, metric, k, 1.0, 2.0) for k in jax.random.split(key, 2)]
    every, rows = tile((20_000,), 0, 32, 4)
    for block in (0, 312, int(np.argmax(squares)), len(squares) - 1):
        drawn = Drawn(*(jnp.asarray(x[[block]]) for x in every))
        batch = gather(values, drawn, rows, num_lags=0, windows=None, pad=False)
        found = []
        for at in places:
            here, there = (inner.statistics(key, c, batch, "rows") for c in (coords, at))
            left = jax.tree.map(jnp.subtract, there, here)
            white = SGRLD().whiten(inner, at, inner.gradient(at, left), metric)
            found.append(float(jnp.square(white).sum()))
        np.testing.assert_allclose(squares[block], np.mean(found), rtol=1e-6, atol=1e-12)


def test_draws_by_influence_are_unbiased_and_quiet(made, x64):
    estimator, source, coords, squares, _, model, y = made
    near = {n: u + 0.01 for n, u in coords.items()}
    share = np.sqrt(squares) / np.sqrt(squares).sum()
    by_influence = source._replace(chances=Chances.of((share + 1 / len(share)) / 2))
    inner = estimator.model
    run = jax.jit(lambda source, key: inner.gradient(near, estimator(source, key, near)))
    full = sj.gradient(model, near, y)
    keys = jax.random.split(jax.random.key(1), 400)
    name = "transition_matrix"
    found = np.stack([run(by_influence, k)[name] for k in keys])
    usual = np.stack([run(source, k)[name] for k in keys])
    # Where nothing is in doubt windows leave nothing, and rounding remains.
    error = found.std(0) / np.sqrt(len(keys)) + 1e-9 * np.abs(full[name]).max()
    assert np.max(np.abs(found.mean(0) - full[name]) / error) < 4.5
    assert found.var(0).sum() < 0.1 * usual.var(0).sum()
