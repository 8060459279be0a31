"""Expansions that are looked up: the same estimates as by passing over windows, kept and made again."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sojourn as sj
from cases import CASES
from sojourn.gradients import Center, windowed
from sojourn.passes import full_statistics
from sojourn.series import Chances
from sojourn.synthetic import rotating_state
from sojourn.tuning import tables
from sojourn.tuning.tables import fits, summed_slopes, tabulate

by_name = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def sources(case, data):
    """Return an estimator, sources with slopes and with the table, and coordinates near the centre."""
    series = sj.as_series(data)
    model = case.model.scaled_to(series)
    coords = {n: jnp.asarray(u) for n, u in model.to_coords(case.params).items()}
    model, series = model.enter(series)
    estimator, source = windowed(model, series, sj.Windows(4, 2, 5, "partition"))
    statistics, _ = full_statistics(model, coords, series)
    source = source._replace(center=Center(coords, statistics, {}))
    table = tabulate(estimator, source, series)
    looked_up = source._replace(table=table)
    center = source.center._replace(slopes=summed_slopes(looked_up))
    source, looked_up = (s._replace(center=center) for s in (source, looked_up))
    near = {n: u + 0.02 for n, u in coords.items()}
    return estimator, source, looked_up, near


@by_name
@pytest.mark.parametrize("by_influence", [False, True])
def test_looking_up_gives_what_passing_over_windows_does(case, by_influence, x64, monkeypatch):
    """Series of several windows, and of less than one; missing entries; all windows likely or not."""
    monkeypatch.setattr(tables, "SLOPE_STEP", 1e-5)  # curvature shows in longer differences
    data = [np.concatenate([y, y[::-1], y]) for y in case.data] + [case.data[0][:3]]
    estimator, passed, looked_up, near = sources(case, data)
    if by_influence:
        each = np.random.default_rng(0).dirichlet(np.ones(len(looked_up.table)))
        passed, looked_up = (s._replace(chances=Chances.of(each)) for s in (passed, looked_up))
    run = jax.jit(lambda source, key: estimator(source, key, near))
    for key in jax.random.split(jax.random.key(1), 4):
        one, other = run(passed, key), run(looked_up, key)
        expanded = passed.center.expand(near)
        for a, b, at in zip(*map(jax.tree.leaves, (one, other, expanded)), strict=True):
            np.testing.assert_allclose(a, b, atol=5e-6 * (1 + np.abs(at).max()))


@by_name
def test_a_table_adds_up_to_the_statistics_of_all_rows(case, x64):
    """With buffers beyond the series."""
    series = sj.as_series(case.data)
    model = case.model.scaled_to(series)
    coords = {n: jnp.asarray(u) for n, u in model.to_coords(case.params).items()}
    model, series = model.enter(series)
    estimator, source = windowed(model, series, sj.Windows(2, 10, 1, "partition"))
    statistics, _ = full_statistics(model, coords, series)
    source = source._replace(center=Center(coords, statistics, {}))
    total = tabulate(estimator, source, series)[:, 0].sum(0)
    found = jax.flatten_util.ravel_pytree(statistics)[0]
    np.testing.assert_allclose(total, found, rtol=1e-9, atol=1e-9)


def test_tables_larger_than_memory_should_hold_are_not_made(monkeypatch, x64):
    estimator, source, looked_up, _ = sources(CASES[0], CASES[0].data)
    assert fits(source)
    monkeypatch.setattr(tables, "_TABLE_BYTES", looked_up.table.nbytes - 1)
    assert not fits(source)


def test_runs_that_look_up_resume_to_the_same_bits(tmp_path):
    model, params = rotating_state()
    y = model.simulate(params, 100_000, seed=1)[1]
    settings = {"num_chains": 2, "num_warmup": 10, "init": params, "progress": False}
    whole = sj.sample(model, y, num_samples=8, **settings)
    assert whole.choices["scheme"] == "partition"
    sj.sample(model, y, num_samples=3, out=tmp_path / "run", **settings)
    assert '"tabulated": true' in (tmp_path / "run" / "tuned.json").read_text()
    again = sj.resume(tmp_path / "run", y, 8, progress=False)
    assert all(np.array_equal(again.posterior[name], whole.posterior[name]) for name in params)
