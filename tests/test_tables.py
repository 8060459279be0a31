"""Expansions that are looked up: the same estimates as by passing over windows, kept and made again."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sojourn as sj
from cases import CASES
from sojourn.gradients import Center, measure_slopes, windowed
from sojourn.passes import full_statistics
from sojourn.series import Chances
from sojourn.synthetic import rotating_state
from sojourn.tuning import tables
from sojourn.tuning.tables import pays, tabulate

by_name = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def entered(case, data, windows):
    """Return model, series, an estimator on these windows, its source and a centre."""
    series = sj.as_series(data)
    model = case.model.scaled_to(series)
    coords = {n: jnp.asarray(u) for n, u in model.to_coords(case.params).items()}
    model, series = model.enter(series)
    statistics, _ = full_statistics(model, coords, series)
    return model, series, *windowed(model, series, windows), Center(coords, statistics, {})


@by_name
@pytest.mark.parametrize("by_influence", [False, True])
def test_looking_up_gives_what_passing_over_windows_does(case, by_influence, x64, monkeypatch):
    """Series of several windows, and of less than one; missing entries; all windows likely or not."""
    monkeypatch.setattr(tables, "SLOPE_STEP", 1e-5)  # curvature shows in longer differences
    data = [np.concatenate([y, y[::-1], y]) for y in case.data] + [case.data[0][:3]]
    windows = sj.Windows(4, 2, 5, "partition")
    model, series, estimator, source, center = entered(case, data, windows)
    slopes = measure_slopes(model, series, center.coords, center.statistics)
    passed = source._replace(center=center._replace(slopes=slopes))
    looked_up = passed._replace(table=tabulate(estimator, center, series))
    near = {n: u + 0.02 for n, u in center.coords.items()}
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
def test_a_table_adds_up_to_the_statistics_of_all_rows(case, x64, monkeypatch):
    """With buffers beyond the series; what is kept is the same, rounded."""
    windows = sj.Windows(2, 10, 1, "partition")
    _, series, estimator, _, center = entered(case, case.data, windows)
    kept = tabulate(estimator, center, series)
    monkeypatch.setattr(tables, "_ITEM", float)
    exact = tabulate(estimator, center, series)
    found = jax.flatten_util.ravel_pytree(center.statistics)[0]
    np.testing.assert_allclose(exact[:, 0].sum(0), found, rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(kept, exact.astype(np.float32))


def test_tables_are_made_where_they_pay(monkeypatch, x64):
    """Not beyond the memory they may take, nor where looking up takes longer than passing over."""
    case = CASES[0]
    _, series, estimator, _, center = entered(case, case.data, sj.Windows(4, 2, 5, "partition"))
    table = tabulate(estimator, center, series)
    monkeypatch.setattr(tables, "_BYTES_PER_ROW", table[0].nbytes)
    assert pays(estimator, center, len(table))
    monkeypatch.setattr(tables, "_TABLE_BYTES", table.nbytes - 1)
    assert not pays(estimator, center, len(table))
    monkeypatch.undo()
    monkeypatch.setattr(tables, "_BYTES_PER_ROW", 1)
    assert not pays(estimator, center, len(table))


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


def test_runs_that_look_up_go_on_from_rows_on_disk(tmp_path, monkeypatch):
    """The same bits but for what the less optimised programs of the tests round differently."""
    model, params = rotating_state()
    y = model.simulate(params, 100_000, seed=1)[1]
    np.save(tmp_path / "y.npy", y)
    settings = {"num_chains": 1, "num_warmup": 5, "init": params, "progress": False}
    whole = sj.sample(model, y, num_samples=6, **settings)
    sj.sample(model, y, num_samples=3, out=tmp_path / "run", **settings)
    monkeypatch.setattr("sojourn.series.series.RESIDENT_BYTES", 0)
    again = sj.resume(tmp_path / "run", tmp_path / "y.npy", 6, progress=False)
    for name in params:
        np.testing.assert_array_equal(again.posterior[name][:, :3], whole.posterior[name][:, :3])
        np.testing.assert_allclose(again.posterior[name], whole.posterior[name], atol=1e-8)


def test_damaged_runs_with_a_table_say_so(tmp_path):
    model, params = rotating_state()
    y = model.simulate(params, 5000, seed=1)[1]
    windows = sj.Windows(50, 8, 8)
    settings = {"windows": windows, "num_chains": 1, "num_warmup": 2, "init": params}
    sj.sample(model, y, num_samples=2, out=tmp_path / "run", progress=False, **settings)
    tuned = tmp_path / "run" / "tuned.json"
    facts = json.loads(tuned.read_text())
    tuned.write_text(json.dumps(facts | {"tabulated": True}))
    with pytest.raises(sj.RunError, match="table of other windows"):
        sj.resume(tmp_path / "run", y, 3, progress=False)
