"""Gradients against finite differences of an oracle, and windows against full passes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sojourn as sj
from cases import CASES
from oracles import (
    enumerate_paths,
    finite_differences,
    law_before,
    linear_law,
    regime_log_densities,
)
from sojourn.gradients import Center, measure_slopes, windowed
from sojourn.passes.passes import full_statistics
from sojourn.synthetic import alternating_rotations

by_name = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def oracle_log_likelihood(case, params):
    if not case.model.has_discrete_states:
        return sum(linear_law(case.model, params, y).log_likelihood for y in case.data)
    total = 0.0
    for y in case.data:
        log_f = regime_log_densities(case.model, params, y)
        Pi = params["transition_matrix"]
        initial = law_before(case.model, params)
        total += enumerate_paths(Pi, initial, log_f).log_likelihood
    return total


@by_name
def test_log_likelihood_equals_enumeration(case):
    ours = sj.log_likelihood(case.model, case.params, case.data)
    np.testing.assert_allclose(ours, oracle_log_likelihood(case, case.params), rtol=1e-12)


@by_name
def test_gradient_equals_finite_differences_of_the_oracle(case):
    coords = case.model.to_coords(case.params)
    ours = sj.gradient(case.model, coords, case.data)
    truth = finite_differences(
        lambda u: oracle_log_likelihood(case, case.model.to_params(u)), coords
    )
    for name in coords:
        np.testing.assert_allclose(ours[name], truth[name], rtol=1e-6, atol=1e-7)


@by_name
@pytest.mark.parametrize("scheme", ["uniform", "partition"])
def test_average_over_all_windows_is_the_full_gradient(case, scheme, x64):
    """With a buffer beyond the series, for windows shorter and longer than the shorter series."""
    from sojourn.series import draw, gather, layout
    from sojourn.series.windows import window_rows

    model = case.model
    coords = model.to_coords(case.params)
    full = sj.gradient(model, coords, case.data)
    series = sj.as_series(case.data)
    for length in (2, 5):
        windows = sj.Windows(length, buffer=20, batch=2000, scheme=scheme)
        estimator, source = windowed(model, series, windows)
        where = layout(series, model.num_lags, windows)
        rows = window_rows(series, model.num_lags, windows)
        drawn = draw(jax.random.key(0), where, windows, rows)
        # Keep one copy of each window there is.
        picked = np.stack([np.asarray(drawn.sequence), np.asarray(drawn.start)])
        _, unique = np.unique(picked, axis=1, return_index=True)
        total = int(where.last_window[-1])
        assert len(unique) == total
        each = jax.tree.map(lambda x, u=unique: x[u], drawn)._replace(scale=jnp.ones(total))
        batch = gather(
            source.values,
            each,
            rows,
            num_lags=model.num_lags,
            windows=windows,
            pad=estimator.pad,
        )
        gradient = jax.jit(
            lambda batch, kind=estimator.missing: model.gradient(
                coords, model.statistics(jax.random.key(0), coords, batch, kind)
            )
        )(batch)
        for name in coords:
            np.testing.assert_allclose(gradient[name], full[name], rtol=1e-9, atol=1e-10)


def test_missing_rows_are_integrated_out():
    """A series with a gap scores as the sum over what could have stood there: by enumeration above;
    and rows missing at the end change nothing at all."""
    case = CASES[0]
    y = case.data[1]
    longer = np.concatenate([y, np.full((3, 2), np.nan)])
    np.testing.assert_allclose(
        sj.log_likelihood(case.model, case.params, longer),
        sj.log_likelihood(case.model, case.params, y),
        rtol=1e-12,
    )


def test_one_seed_draws_the_same_windows_whatever_the_buffer():
    model, params = alternating_rotations()
    _, y = model.simulate(params, 500, seed=1)
    coords = model.to_coords(params)
    exact = sj.gradient(model, coords, y, sj.Windows(4, buffer=200, batch=8), seed=3)
    near = sj.gradient(model, coords, y, sj.Windows(4, buffer=30, batch=8), seed=3)
    for name in coords:
        np.testing.assert_allclose(near[name], exact[name], rtol=1e-6, atol=1e-4)


def mean_gradient(model, coords, y, buffer, edge=None, num=40):
    """Average windowed gradient of the transition block and its standard error."""
    windows = sj.Windows(2, buffer=buffer, batch=2000)
    found = np.stack(
        [
            sj.gradient(model, coords, y, windows, seed=seed)["transition_matrix"]
            for seed in range(num)
        ]
    )
    return found.mean(0), found.std(0) / np.sqrt(num)


def test_buffers_cure_the_bias_of_the_naive_estimator():
    """Away from the truth, B = 0 is many standard errors off; B = 10 is where B = 100 is.

    Buffers that reach the ends are unbiased: another test averages over all windows.
    """
    model, params = alternating_rotations()
    _, y = model.simulate(params, 10_000, seed=2)
    away = {**params, "transition_matrix": np.array([[0.4, 0.6], [0.5, 0.5]])}
    away["A"] = params["A"] + 0.1
    coords = model.to_coords(away)
    full = sj.gradient(model, coords, y)["transition_matrix"]
    naive, error = mean_gradient(model, coords, y, buffer=0)
    assert np.max(np.abs(naive - full) / error) > 10
    buffered, error = mean_gradient(model, coords, y, buffer=10)
    exact, _ = mean_gradient(model, coords, y, buffer=100)  # on the same windows
    assert np.max(np.abs(buffered - exact) / error) < 0.01
    assert np.max(np.abs(buffered - full) / error) < 5


def test_stationary_edge_law_beats_the_uniform_one(monkeypatch):
    """At B = 0 the uniform law of the paper leaves a far larger bias (`MATH.md` §12.1)."""
    from sojourn.messages import discrete

    model = sj.GaussianHMM(num_states=2, emission_dim=1)
    params = {
        "transition_matrix": np.array([[0.98, 0.02], [0.18, 0.82]]),
        "means": np.array([[0.0], [1.0]]),
        "covariances": np.ones((2, 1, 1)),
    }
    _, y = model.simulate(params, 10_000, seed=5)
    coords = model.to_coords(params)
    full = sj.gradient(model, coords, y)["transition_matrix"]
    stationary, _ = mean_gradient(model, coords, y, buffer=0)
    monkeypatch.setattr(discrete, "stationary", lambda Pi: jnp.full(2, 0.5))
    jax.clear_caches()
    uniform, _ = mean_gradient(model, coords, y, buffer=0)
    monkeypatch.undo()
    jax.clear_caches()
    assert np.abs(uniform - full).max() > 10 * np.abs(stationary - full).max()


@pytest.mark.parametrize(("order", "noise"), [(0, 0.05), (1, 0.001)])
def test_control_variate_is_unbiased_and_quiet(x64, order, noise):
    """Its mean is the full gradient; its variance is a small part of the plain one's."""
    model, params = alternating_rotations()
    _, y = model.simulate(params, 20_000, seed=3)
    series = sj.as_series(y)
    coords = {n: jnp.asarray(u) for n, u in model.to_coords(params).items()}
    near = {n: u + 0.01 for n, u in coords.items()}
    estimator, plain = windowed(model, series, sj.Windows(50, buffer=20, batch=16))
    statistics, _ = full_statistics(model, coords, series)
    slopes = measure_slopes(model, series, coords, statistics) if order else {}
    center = plain._replace(center=Center(coords, statistics, slopes))
    run = jax.jit(lambda source, key: model.gradient(near, estimator(source, key, near)))
    full = sj.gradient(model, near, y)
    keys = jax.random.split(jax.random.key(0), 300)
    for name in coords:
        varied = np.stack([run(center, k)[name] for k in keys])
        usual = np.stack([run(plain, k)[name] for k in keys[:100]])
        error = varied.std(0) / np.sqrt(len(keys))
        assert np.max(np.abs(varied.mean(0) - full[name]) / error) < 4.5
        assert np.max(varied.var(0) / usual.var(0)) < noise
