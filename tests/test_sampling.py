"""`sample`: known posteriors, reproducibility, divergence, units."""

import dataclasses
import threading
import time
import warnings
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import sojourn as sj
from sojourn._cores import num_cores
from sojourn._progress import Progress
from sojourn.dynamics import dimension, posterior_gradient, pull, push
from sojourn.passes import full_statistics
from sojourn.results.diagnostics import effective_sample_size
from sojourn.sampling import centring, chains, sampling, traces
from sojourn.synthetic import rotating_state
from sojourn.tuning import find_start, modes, starts, tuning
from sojourn.tuning.buffers import TOLERANCE, choose, reference_windows
from sojourn.tuning.curvature import complete_root
from sojourn.tuning.noise import Noise
from sojourn.tuning.steps import Steps, tiles_with

QUICK = {"progress": False, "num_chains": 2}


@pytest.fixture(scope="module")
def gaussian():
    """Rows of one Gaussian, whose posterior is normal–inverse-Wishart, and that posterior."""
    model = sj.GaussianHMM(
        num_states=1,
        emission_dim=2,
        prior_mean=[0.0, 0.0],
        mean_precision=0.5,
        dof=4.0,
        scale=[[2.0, 0.3], [0.3, 1.0]],
    )
    rng = np.random.default_rng(3)
    y = rng.multivariate_normal([1.0, -2.0], [[1.0, 0.5], [0.5, 2.0]], size=100)
    kappa, nu = 0.5 + len(y), 4.0 + len(y)
    mean = y.sum(0) / kappa
    Psi = np.array([[2.0, 0.3], [0.3, 1.0]]) + y.T @ y - kappa * np.outer(mean, mean)
    exact = stats.invwishart(nu, Psi)
    scale = Psi / (nu - 1)  # of the marginal Student law of the mean
    student_sd = np.sqrt(np.diag(scale) / kappa * (nu - 1) / (nu - 3))
    diagonal_mean = np.diag(Psi) / (nu - 3)
    truth = {
        "means": (mean, student_sd),
        "variances": (diagonal_mean, np.sqrt(np.diag(exact.var()))),
    }
    return model, y, truth


@pytest.mark.parametrize(
    ("sampler", "windows", "num_samples"),
    [
        (sj.SGRLD(), sj.Windows.full(), 1500),
        (sj.SGLD(), sj.Windows.full(), 3000),
        (sj.SGRLD(), sj.Windows(20, buffer=0, batch=32), 3000),
        (sj.SGLD(), sj.Windows(20, buffer=0, batch=32), 3000),
        (sj.Gibbs(), "auto", 1000),
    ],
    ids=["RLD", "LD", "SGRLD", "SGLD", "Gibbs"],
)
def test_samplers_reach_a_known_posterior(gaussian, sampler, windows, num_samples):
    """Mean and spread of every parameter, within Monte Carlo error and the 5% that steps may add."""
    model, y, truth = gaussian
    fit = sj.sample(
        model,
        y,
        sampler,
        windows=windows,
        num_samples=num_samples,
        thin=1 if isinstance(sampler, sj.Gibbs) else 10,
        control_variate=False,
        seed=1,
        **QUICK,
    )
    draws = {
        "means": fit.posterior["means"].to_numpy()[:, :, 0],
        "variances": np.diagonal(
            fit.posterior["covariances"].to_numpy()[:, :, 0], axis1=2, axis2=3
        ),
    }
    for name, (mean, sd) in truth.items():
        for d in range(2):
            chains = draws[name][:, :, d]
            ess = effective_sample_size(chains)
            assert ess > 200
            assert abs(chains.mean() - mean[d]) / sd[d] < 4 / np.sqrt(ess) + 0.05
            assert abs(np.log(chains.std() / sd[d])) < 4 / np.sqrt(2 * ess) + 0.05


@pytest.fixture(scope="module")
def switching():
    model = sj.GaussianHMM(num_states=2, emission_dim=2)
    params = {
        "transition_matrix": np.array([[0.9, 0.1], [0.2, 0.8]]),
        "means": np.array([[0.0, 0.0], [2.0, 1.0]]),
        "covariances": np.stack([np.eye(2), 0.5 * np.eye(2)]),
    }
    return model, params, model.simulate(params, 400, seed=1)[1]


@pytest.mark.parametrize("holes", [False, True], ids=["complete", "missing"])
@pytest.mark.parametrize(
    ("sampler", "windows"),
    [(sj.SGRLD(), sj.Windows(20, buffer=5, batch=4)), (sj.Gibbs(), "auto")],
    ids=["SGRLD", "Gibbs"],
)
def test_draws_depend_on_the_seed_alone(switching, sampler, windows, holes):
    """Not on how many chains run, nor on how draws fall into chunks."""
    model, _, y = switching
    if holes:
        y = y.copy()
        y[50:60], y[100:300:7, 0] = np.nan, np.nan
    settings = {"windows": windows, "num_warmup": 20, "thin": 2, "progress": False}

    def draw(num_samples, num_chains, seed):
        fit = sj.sample(
            model, y, sampler, num_samples=num_samples, num_chains=num_chains, seed=seed, **settings
        )
        return {name: values.to_numpy() for name, values in fit.posterior.items()}

    one, two, longer, other = draw(30, 1, 5), draw(30, 2, 5), draw(47, 1, 5), draw(30, 1, 6)
    for name, first in one.items():
        np.testing.assert_array_equal(first[0], two[name][0])
        np.testing.assert_array_equal(first[0], longer[name][0, :30])
        assert not np.array_equal(first, other[name])
        assert not np.array_equal(first[0], two[name][1])


def test_gibbs_chains_start_apart_and_meet(switching, monkeypatch):
    """Starts are further apart than the posterior is wide, so that R-hat can tell if chains meet."""
    model, params, y = switching
    settings = {"num_chains": 4, "num_warmup": 0, "seed": 3, "progress": False}
    fit = sj.sample(model, y, sj.Gibbs(), num_samples=400, **settings)
    sd = fit.posterior["means"].std(("chain", "draw")).to_numpy()
    assert fit.summary()["r_hat"].max() < 1.05

    class Stay:
        memory: ClassVar = {}

        def __init__(self, model, series):
            pass

        def __call__(self, key, coords):
            return coords

    monkeypatch.setattr(chains, "make_sweep", Stay)
    fit = sj.sample(model, y, sj.Gibbs(), num_samples=4, **settings)
    starts = fit.posterior["means"].to_numpy()[:, 0]
    assert np.sqrt(np.mean(starts.var(0, ddof=1) / sd**2)) > 1
    given = sj.sample(model, y, sj.Gibbs(), num_samples=4, init=params, **settings)
    for chain in given.posterior["means"].to_numpy()[:, 0]:
        np.testing.assert_allclose(chain, params["means"], atol=1e-12)


@pytest.mark.parametrize("sampler", [sj.SGRLD(), sj.Gibbs()], ids=["SGRLD", "Gibbs"])
def test_an_interrupt_ends_all_chains_soon(switching, sampler, monkeypatch):
    """In warm-up too: other chains end at their next look at the clock."""
    model, _, y = switching
    calls = []

    def interrupt(self, steps, log_posterior=None):
        calls.append(steps)
        raise KeyboardInterrupt

    monkeypatch.setattr(Progress, "advance", interrupt)
    with pytest.raises(KeyboardInterrupt):
        sj.sample(model, y, sampler, num_samples=10, num_warmup=500, num_chains=8, progress=False)
    assert len(calls) <= 2 * num_cores()


def test_other_chains_stop_in_warmup(monkeypatch):
    """A chain that only warms up sees that another one failed."""
    ready = threading.Event()

    def chain(index, key, trace):
        if index == 0:
            ready.wait(10)
            raise traces.Diverged(0, 1, "means")
        for _ in range(1000):
            ready.set()
            trace.check()
            time.sleep(0.01)
        pytest.fail("the chain was not stopped")

    monkeypatch.setattr(traces, "num_cores", lambda: 2)
    kept, failure = traces.run_chains(chain, 2, jax.random.key(0))
    assert failure is not None
    assert [trace.num_draws for trace in kept] == [0, 0]


@pytest.mark.parametrize("factor", [1e-6, 1e6])
@pytest.mark.parametrize("kind", ["hmm", "arhmm"])
def test_answer_does_not_depend_on_units(switching, factor, kind):
    """Scaling every column scales means and covariances, and changes nothing else."""
    model, _, y = switching
    if kind == "arhmm":
        model = sj.ARHMM(num_states=2, emission_dim=2)
    settings = {"num_samples": 20, "num_warmup": 20, "num_chains": 1, "progress": False}
    fit = sj.sample(model, y, seed=2, **settings)
    scaled = sj.sample(model, y * factor, seed=2, **settings)
    powers = {"means": 1, "covariances": 2, "transition_matrix": 0, "A": 0, "Q": 2}
    for name, values in fit.posterior.items():
        expected = values.to_numpy() * factor ** powers[name]
        np.testing.assert_allclose(scaled.posterior[name], expected, rtol=1e-4)


def test_explicit_priors_are_taken_as_they_are(switching):
    """A prior given in raw units has the same density at the same parameters, whatever the units."""
    _, params, y = switching
    model = sj.GaussianHMM(
        num_states=2, emission_dim=2, prior_mean=[1.0, 1.0], scale=np.diag([2.0, 3.0])
    )
    scaled = model.scaled_to(100 + 10 * y)
    difference = []
    for shift in (0.0, 0.7):
        at = {**params, "means": params["means"] + shift}
        at["covariances"] = params["covariances"] * (1 + shift)
        difference.append(
            model.log_prior(model.to_coords(at)) - scaled.log_prior(scaled.to_coords(at))
        )
    # Coordinates differ by constant factors, so log-densities differ by a constant.
    np.testing.assert_allclose(difference[0], difference[1], rtol=1e-8)


def test_divergence_in_warmup_halves_the_step(switching):
    model, _, y = switching
    fit = sj.sample(
        model,
        y,
        sj.SGLD(step_size=4.0),
        windows=sj.Windows(20, 5, 4),
        num_samples=10,
        num_warmup=400,
        thin=1,
        **QUICK,
    )
    assert np.isfinite(fit.posterior["means"]).all()
    assert (fit.sample_stats["step_size"].to_numpy() < 4.0).any()


def test_divergence_later_stops_and_keeps_what_was_drawn(switching):
    model, params, y = switching
    growing = sj.Decay(initial=0.05, offset=1.0, power=0.01)
    object.__setattr__(growing, "power", -2.5)  # a step size that grows until the chain breaks
    with pytest.raises(sj.DivergenceError, match=r"chain \d diverged at step \d+: \w+ is not") as e:
        sj.sample(
            model,
            y,
            sj.SGLD(step_size=growing),
            windows=sj.Windows(20, 5, 4),
            num_samples=2000,
            num_warmup=1,
            thin=1,
            init=params,
            **QUICK,
        )
    kept = e.value.fit
    assert kept is not None
    assert np.isfinite(kept.posterior["means"]).all()


def test_decreasing_step_sizes_are_recorded(switching):
    model, _, y = switching
    decay = sj.Decay(initial=0.1, offset=10.0, power=0.6)
    fit = sj.sample(
        model, y, sj.SGRLD(decay), num_samples=50, num_warmup=10, thin=2, seed=0, **QUICK
    )
    sizes = fit.sample_stats["step_size"].to_numpy()[0]
    np.testing.assert_allclose(sizes[0], 0.1 * (1 + 11 / 10) ** -0.6)
    assert (np.diff(sizes) < 0).all()


def test_missing_values_and_several_series(switching):
    model, _, y = switching
    data = [y[:150].copy(), y[150:400].copy(), y[:5].copy()]
    data[0][10:20] = np.nan
    data[1][30, 0] = np.nan
    for sampler in (sj.SGRLD(), sj.Gibbs()):
        fit = sj.sample(model, data, sampler, num_samples=200, num_warmup=100, seed=1, **QUICK)
        mean = np.sort(fit.mean["means"][:, 0])
        np.testing.assert_allclose(mean, [0.0, 2.0], atol=0.4)


def test_a_control_variate_that_is_asked_for_is_used(switching):
    """Where all rows would be taken otherwise, as of short series."""
    model, _, y = switching
    fit = sj.sample(model, y[:1000], control_variate=True, num_samples=5, num_warmup=5, **QUICK)
    assert fit.choices["control_variate"] is True
    assert fit.choices["batch"] > 0


def test_prior_start_and_control_variate_run(switching):
    model, _, y = switching
    fit = sj.sample(
        model,
        y,
        windows=sj.Windows(50, 10, 8, scheme="partition"),
        control_variate=True,
        init="prior",
        num_samples=20,
        num_warmup=50,
        **QUICK,
    )
    assert fit.choices["control_variate"] is True
    assert np.isfinite(fit.posterior["means"]).all()


def test_one_window_that_is_the_whole_series_has_no_noise(switching):
    model, _, y = switching
    fit = sj.sample(
        model, y[:60], windows=sj.Windows(60, 0, 4), num_samples=5, num_warmup=5, **QUICK
    )
    assert fit.choices["noise_fraction"] == 0


@pytest.mark.parametrize("sampler", [sj.SGRLD(), sj.Gibbs()], ids=["SGRLD", "Gibbs"])
def test_no_warmup(switching, sampler):
    model, _, y = switching
    fit = sj.sample(model, y, sampler, num_samples=5, num_warmup=0, **QUICK)
    assert fit.posterior.sizes["draw"] == 5
    assert fit.choices["num_warmup"] == 0


@pytest.mark.usefixtures("x64")
def test_buffers_that_are_all_too_short_say_so():
    """A chain that forgets slower than the longest buffer leaves an error, which is returned."""
    model = sj.GaussianHMM(num_states=2, emission_dim=1)
    params = {
        "transition_matrix": np.array([[0.9995, 0.0005], [0.0005, 0.9995]]),
        "means": np.array([[-0.05], [0.05]]),
        "covariances": np.ones((2, 1, 1)),
    }
    for change, reached in ({}, False), ({"means": np.array([[-3.0], [3.0]])}, True):
        at = {**params, **change}
        series = sj.as_series(model.simulate(at, 4000, seed=0)[1])
        coords = model.to_coords(at)
        pilot = modes.place(model, series, coords).metric
        windows, key = sj.Windows(50, 0, 64), jax.random.key(0)
        buffer, error = choose(model, series, reference_windows(windows), coords, pilot, key)
        assert (error <= TOLERANCE) == reached
        assert (buffer < 128) == reached


@pytest.mark.parametrize("error", [0.034, 0.01])
def test_a_buffer_that_is_too_short_gives_a_warning(switching, monkeypatch, error):
    model, _, y = switching

    def tune(*args):
        tuned = centring.tune_where_chains_are(*args)
        about = {"length": 200, "buffer": 128, "batch": 64, "buffer_error": error}
        return dataclasses.replace(tuned, choices=tuned.choices | about)

    monkeypatch.setattr(sampling, "tune_where_chains_are", tune)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sj.sample(model, y, num_samples=5, num_warmup=5, **QUICK)
    if error <= TOLERANCE:
        assert not caught
    else:
        assert str(caught[0].message) == (
            "buffer=128 leaves an error of 3.4% of a gradient's noise, more than 1%: set a longer "
            "one, windows=Windows(200, buffer=512, batch=64), or Windows.full()"
        )
        assert caught[0].filename == __file__


def test_data_far_from_zero_give_a_warning_where_there_is_no_intercept(switching):
    hmm, _, y = switching
    settings = {"num_samples": 5, "num_warmup": 5, **QUICK}
    far = y + np.array([0.0, 100.0])
    with pytest.warns(UserWarning, match=r"ARHMM has no intercept.* of 'y1' is more") as caught:
        sj.sample(sj.ARHMM(num_states=2, emission_dim=2), far, **settings)
    assert "\n" not in str(caught[0].message)
    assert caught[0].filename == __file__
    sj.sample(hmm, far, **settings)


def test_choices_are_shown_in_few_digits_and_only_with_progress(switching, capsys):
    model, _, y = switching
    settings = {"num_samples": 5, "num_warmup": 5, "num_chains": 1}
    fit = sj.sample(model, y, sj.SGLD(), **settings)
    out, err = capsys.readouterr()
    assert out == ""
    assert "step_size=" in err
    assert ": :" not in err
    assert len(repr(fit.choices["step_size"])) <= 11
    sj.sample(model, y, sj.SGLD(), progress=False, **settings)
    assert capsys.readouterr() == ("", "")


def test_how_chains_mixed_is_said_at_the_end(switching, capsys):
    model, params, y = switching
    sj.sample(model, y, sj.SGLD(step_size=1e-9), init=params, num_samples=20, num_warmup=0)
    said = capsys.readouterr().err
    assert "largest R-hat of a parameter: " in said
    assert ", above 1.05; smallest effective number" in said
    sj.sample(model, y, sj.SGLD(), init=params, num_samples=1, num_chains=1)
    assert "R-hat" not in capsys.readouterr().err  # not measured


def test_no_complete_row(switching):
    """k-means has nothing to start from and says what has."""
    model, _, y = switching
    y = y.copy()
    y[::2, 0] = y[1::2, 1] = np.nan
    settings = {"num_samples": 5, "num_warmup": 20, **QUICK}
    with pytest.raises(ValueError, match=r'0 distinct complete rows.* or init="prior"'):
        sj.sample(model, y, **settings)
    fit = sj.sample(model, y, init="prior", **settings)
    assert np.isfinite(fit.posterior["means"]).all()


def test_many_series_shorter_than_any_window(switching):
    """More rows in all than are taken whole, in series of fewer rows than the shortest window."""
    model, _, y = switching
    rows = np.tile(y, (13, 1))[: 250 * 20].reshape(250, 20, -1)
    fit = sj.sample(model, rows, num_samples=5, num_warmup=5, **QUICK)
    assert fit.choices.get("length", 20) <= 20
    assert np.isfinite(fit.posterior["means"]).all()


def test_slopes_let_a_linear_model_do_with_few_windows():
    """Without them, noise would ask for more rows than there are."""
    model, params = rotating_state()
    y = model.simulate(params, 60_000, seed=3)[1]
    fit = sj.sample(model, y, num_samples=5, num_warmup=5, **QUICK)
    assert fit.choices["control_variate"]
    assert fit.choices["batch"] * fit.choices["length"] < 20_000


def test_noise_far_from_a_centre_limits_steps_too():
    near, far = (Noise(size * np.eye(2), 0.02) for size in (0.01, 40.0))
    quiet, heavy = (Steps(None, None, near, rest) for rest in (near, far))
    assert quiet.excess(sj.SGRLD(), 1.0, 0.05) < 1 < heavy.excess(sj.SGRLD(), 1.0, 0.05)
    lost = Steps(None, None, near, Noise(np.full((2, 2), np.nan), 0.02))
    assert lost.excess(sj.SGRLD(), 1.0, 0.05) == np.inf
    unseen = Steps(None, None, near, near, unseen=100.0)
    assert unseen.excess(sj.SGRLD(), 1.0, 0.05) == pytest.approx(
        100 * quiet.excess(sj.SGRLD(), 1.0, 0.05)
    )


def test_a_chain_lost_at_the_first_draw_of_a_piece_says_so():
    y = np.random.default_rng(0).normal(size=(200, 1))
    with pytest.raises(sj.DivergenceError, match="diverged"):
        sj.sample(
            sj.GaussianHMM(2, 1),
            y,
            sj.SGLD(step_size=1e300),
            num_samples=20,
            num_warmup=0,
            thin=5,
            **QUICK,
        )


@pytest.mark.parametrize("sample_rows", [65_536, 1000])
def test_the_centre_is_a_mode_in_all_blocks(monkeypatch, sample_rows):
    """Transitions too, that move in their own metric; and of all rows where a sample misleads."""
    monkeypatch.setattr(modes, "_SAMPLE_ROWS", sample_rows)
    model = sj.GaussianHMM(num_states=3, emission_dim=1)
    params = {
        "transition_matrix": [[0.6, 0.4, 0.0], [0.38, 0.6, 0.02], [0.0, 0.1, 0.9]],
        "means": [[0.0], [1.0], [6.0]],
        "covariances": np.ones((3, 1, 1)),
    }
    y = np.concatenate([model.simulate(params, 3000, seed=s)[1] * (1 + s) for s in range(2)])
    with jax.enable_x64(True):
        series = sj.as_series(y)
        inner, own = model.scaled_to(series).enter(series)
        start = modes.place(
            inner, own, find_start(inner, own, "auto", jax.random.key(0), refine=True)[0]
        )
        windows = sj.Windows(50, 16, 16)
        found = modes.find_mode(inner, own, sj.SGRLD(), windows, start, jax.random.key(1))
        assert modes.constant_blocks(inner, sj.SGRLD(), found) == ("means",)

        def left(at):
            every = tuple(block.names[0] for block in inner.blocks)
            root = complete_root(inner, at.coords, at.metric.pilots, every, at.metric.num_rows)
            gradient = posterior_gradient(inner, at.coords, at.statistics)
            return float(np.square(pull(root, gradient)).sum())

        assert left(found) < 0.05
        assert left(start) > 0.2  # where the search for a start stops is not yet it


class Displaced:
    """Finds the mode, and says for some calls that it is forty sds away, each time farther."""

    def __init__(self, calls):
        self.found, self.calls, self.modes, self.starts = tuning.find_mode, calls, [], []

    def __call__(self, model, series, *args):
        mode = self.found(model, series, *args)
        self.modes.append(mode)
        self.starts.append(args[2].coords)
        if len(self.modes) > self.calls:
            return mode
        d = dimension(mode.metric.root)
        sds = 40 * len(self.modes) / np.sqrt(d * mode.metric.num_rows)
        away = push(mode.coords, mode.metric.root, sds * np.ones(d))
        there = modes.place(model, series, away)
        return there._replace(metric=mode.metric, shape=mode.shape)


@pytest.mark.parametrize(("calls", "kept"), [(0, True), (1, True), (2, False)])
def test_a_centre_that_chains_leave_is_moved_or_left_off(switching, monkeypatch, calls, kept):
    """To the mode nearest where a chain runs ahead; where it does not stay there, there is none."""
    model, params, _ = switching
    y = model.simulate(params, 6000, seed=1)[1]
    displaced = Displaced(calls)
    monkeypatch.setattr(tuning, "find_mode", displaced)
    windows = sj.Windows(20, buffer=8, batch=32)
    fit = sj.sample(model, y, init=params, windows=windows, num_samples=200, **QUICK)
    assert len(displaced.modes) == 1 + calls
    assert fit.choices["control_variate"] is kept
    # What the second search starts from is where the chain went, not what the first one did.
    assert len({float(start["means"].ravel()[0]) for start in displaced.starts}) == 1 + calls
    monkeypatch.undo()
    usual = sj.sample(model, y, init=params, windows=windows, num_samples=200, **QUICK)
    for name, value in usual.mean.items():
        sd = usual.posterior[name].to_numpy().std((0, 1))
        np.testing.assert_allclose(fit.mean[name], value, atol=(0.5 * sd).max())


def always_leaves(monkeypatch, end):
    """Let chains that run ahead end at these multiples of the centre; return the calls of `tune`."""
    calls, own = [], centring.tune

    def counted(*args):
        calls.append(args)
        return own(*args)

    def run_ahead(tuned, *_):
        return {name: np.asarray(u) + end for name, u in tuned.center.items()}

    monkeypatch.setattr(centring, "tune", counted)
    monkeypatch.setattr(centring, "run_ahead", run_ahead)
    return calls


@pytest.mark.parametrize(("end", "times"), [(0.5, 3), (np.nan, 2)])
def test_the_same_mode_again_is_not_a_better_centre(switching, monkeypatch, end, times):
    """Climbing again from where a chain ended; not if that is nowhere."""
    model, params, _ = switching
    y = model.simulate(params, 6000, seed=1)[1]
    calls = always_leaves(monkeypatch, end)
    windows = sj.Windows(20, buffer=8, batch=32)
    fit = sj.sample(model, y, init=params, windows=windows, num_samples=20, **QUICK)
    assert fit.choices["control_variate"] is False
    assert len(calls) == times
    with pytest.warns(UserWarning, match="chains leave the centre") as caught:
        fit = sj.sample(
            model,
            y,
            init=params,
            windows=windows,
            control_variate=True,
            num_samples=20,
            **QUICK,
        )
    assert caught[0].filename == __file__
    assert fit.choices["control_variate"] is True


@pytest.mark.parametrize(("buffer", "is_felt"), [(2, True), (24, False)])
def test_full_passes_are_on_short_tiles_where_the_posterior_does_not_feel_it(
    switching, buffer, is_felt
):
    model, params, _ = switching
    y = model.simulate(params, 6000, seed=1)[1]
    outer = model.scaled_to(sj.as_series(y))
    with jax.enable_x64(True):
        inner, own = outer.enter(sj.as_series(y))
        mode = modes.place(inner, own, outer.to_coords(params))
        assert mode.tiles.buffer > buffer
        found = tiles_with(inner, own, mode, buffer)
    assert found.buffer == (mode.tiles.buffer if is_felt else buffer)


def test_starts_whose_scores_are_not_finite_are_not_taken(switching, monkeypatch):
    model, _, y = switching
    outer = model.scaled_to(sj.as_series(y))
    scores = np.array([np.nan, -np.inf, -10.0, -30.0])
    monkeypatch.setattr(starts, "_compare", lambda *args: scores[: len(args[-1])])
    with jax.enable_x64(True):
        inner, own = outer.enter(sj.as_series(y))
        found, gap = find_start(inner, own, "kmeans", jax.random.key(0), refine=True)
    assert all(np.isfinite(u).all() for u in found.values())
    assert gap == np.inf


def test_short_steps_do_not_look_like_leaving(monkeypatch):
    """A chain that could not get anywhere in the steps it runs ahead is where it began."""
    model = sj.GaussianHMM(num_states=8, emission_dim=2)
    y = np.concatenate([np.random.default_rng(k).normal(9 * k, 1, (40, 2)) for k in range(8)] * 40)
    calls, own = [], centring.tune
    monkeypatch.setattr(centring, "tune", lambda *args: calls.append(args) or own(*args))
    windows = sj.Windows(50, 8, 64)
    sj.sample(model, y, sj.SGRLD(1e-4), windows=windows, num_samples=5, num_warmup=5, **QUICK)
    assert len(calls) == 1


def test_all_rows_are_passed_over_exactly_where_no_buffer_is_long_enough():
    """Twice a buffer that leaves a small error is enough; twice one that does not is not."""
    model = sj.LGSSM(1, 1, Q_dof=3.0, Q_scale=[[3e-4]])
    params = {"A": [[0.9995]], "Q": [[1e-4]], "R": [[1.0]]}
    y = model.simulate(params, 6000, seed=1)[1]
    with jax.enable_x64(True):
        inner, own = model.scaled_to(y).enter(sj.as_series(y))
        center = model.scaled_to(y).standardise(model.check_params(params))
        coords = {n: jnp.asarray(u) for n, u in inner.to_coords(center).items()}
        tuned = tuning.tune(inner, own, None, "auto", "auto", coords, jax.random.key(0))
        assert tuned.choices["windows"] == "full"
        found = tuned.estimator(tuned.source, jax.random.key(1), tuned.center)
        exact, _ = full_statistics(inner, tuned.center, own)
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(exact), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)


def test_steps_of_a_given_size_do_not_move_the_centre(switching, monkeypatch):
    """Where they lead says nothing of the posterior: the windows chosen are those of the mode."""
    model, params, _ = switching
    y = model.simulate(params, 6000, seed=1)[1]
    usual = sj.sample(model, y, init=params, windows=sj.Windows(20, 8, 32), num_samples=5, **QUICK)
    calls, own = [], centring.tune
    monkeypatch.setattr(centring, "tune", lambda *args: calls.append(args) or own(*args))
    with pytest.raises(sj.DivergenceError, match="or the sampler Gibbs"):
        sj.sample(
            model,
            y,
            sj.SGRLD(30 * usual.choices["step_size"]),
            init=params,
            num_samples=200,
            num_warmup=0,
            **QUICK,
        )
    centers = [np.asarray(args[5]["means"]) for args in calls]
    assert len(centers) == 2
    np.testing.assert_allclose(centers[1], centers[0], atol=0.5)
