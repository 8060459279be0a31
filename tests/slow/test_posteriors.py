"""All samplers agree on the posterior of every parameter; Gibbs passes Geweke's test."""

import jax
import numpy as np
import pytest
from scipy import stats

import sojourn as sj
from sojourn.gibbs import Sweep
from sojourn.results.align import match_states, permute
from sojourn.results.diagnostics import effective_sample_size, r_hat
from sojourn.synthetic import alternating_rotations, reversed_cycles

pytestmark = pytest.mark.slow


def hmm_case():
    model = sj.GaussianHMM(num_states=2, emission_dim=2)
    return model, {
        "transition_matrix": np.array([[0.9, 0.1], [0.2, 0.8]]),
        "means": np.array([[0.0, 0.0], [2.0, 1.0]]),
        "covariances": np.array([[[1.0, 0.3], [0.3, 0.8]], [[0.5, -0.1], [-0.1, 0.6]]]),
    }


CASES = {"hmm": hmm_case, "arhmm": alternating_rotations}


def entries(fit):
    """Return every entry of every parameter but the mirrored ones, (name, chains)."""
    found = {}
    for name, variable in fit.posterior.items():
        values = variable.to_numpy()
        for where in np.ndindex(values.shape[2:]):
            mirrored = name in ("covariances", "Q") and where[-1] > where[-2]
            if not mirrored:
                found[(name, *where)] = values[(slice(None), slice(None), *where)]
    return found


def relabelled(fit, reference):
    """Return the entries of a fit under the labels of the reference."""
    name = "means" if "means" in fit.mean else "A"
    theirs, ours = (f.mean[name].reshape(len(f.mean[name]), -1) for f in (reference, fit))
    order = match_states(theirs, ours)
    dims = fit.model.param_dims
    for variable in fit.posterior:
        values = fit.posterior[variable]
        fit.posterior[variable] = (
            values.dims,
            permute(values.to_numpy(), dims[variable], order, leading=2),
        )
    return entries(fit)


def compare(found, expected):
    """Return the largest difference of means, in sds, and of sds, and the smallest effective size."""
    worst = {"mean": 0.0, "sd": 0.0, "ess": np.inf}
    for entry, chains in found.items():
        sd = expected[entry].std()
        worst["mean"] = max(worst["mean"], abs(chains.mean() - expected[entry].mean()) / sd)
        worst["sd"] = max(worst["sd"], abs(chains.std() / sd - 1))
        worst["ess"] = min(worst["ess"], effective_sample_size(chains))
    return worst


@pytest.fixture(scope="module", params=CASES)
def reference(request):
    """A long Gibbs run whose own error is small: R-hat near one, a thousand effective draws."""
    model, params = CASES[request.param]()
    _, y = model.simulate(params, 2000, seed=11)
    fit = sj.sample(model, y, sj.Gibbs(), num_samples=4000, num_chains=4, seed=0, progress=False)
    for chains in entries(fit).values():
        assert r_hat(chains) < 1.01
        assert effective_sample_size(chains) > 1000
    return model, y, fit


# Without a metric, rows of the transition matrix take hundreds of steps to move by one sd.
SLOWLY = {"num_samples": 4000, "thin": 100, "num_warmup": 5000}

SETTINGS = {
    "RLD": (sj.SGRLD(), sj.Windows.full(), {"num_samples": 4000}),
    "LD": (sj.SGLD(), sj.Windows.full(), SLOWLY),
    "SGRLD": (sj.SGRLD(), sj.Windows(100, buffer=20, batch=64), {"num_samples": 4000}),
    "SGLD": (sj.SGLD(), sj.Windows(100, buffer=20, batch=64), SLOWLY),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_samplers_agree_with_gibbs(reference, name):
    """Means within 0.15 posterior sds, sds within 10%, for every parameter."""
    model, y, gibbs = reference
    sampler, windows, lengths = SETTINGS[name]
    fit = sj.sample(model, y, sampler, windows=windows, seed=1, progress=False, **lengths)
    worst = compare(relabelled(fit, gibbs), entries(gibbs))
    print(f"{type(model).__name__} {name}: {worst}, step size {fit.choices['step_size']:.3g}")
    assert worst["ess"] > 400
    assert worst["mean"] < 0.15
    assert worst["sd"] < 0.10


@pytest.mark.parametrize("make", [alternating_rotations, reversed_cycles])
def test_default_agrees_with_gibbs_on_ten_thousand_rows(make):
    """The paper's models with no argument but the data; transitions never seen among the entries."""
    model, params = make()
    y = model.simulate(params, 10_000, seed=11)[1]
    gibbs = sj.sample(model, y, sj.Gibbs(), init=params, num_samples=4000, seed=0, progress=False)
    expected = entries(gibbs)
    for chains in expected.values():
        assert r_hat(chains) < 1.01
        assert effective_sample_size(chains) > 4000
    fit = sj.sample(model, y, num_samples=4000, seed=1, progress=False)
    worst = compare(relabelled(fit, gibbs), expected)
    print(f"{type(model).__name__}: {worst}, {fit.choices}")
    assert worst["ess"] > 2000
    assert worst["mean"] < 0.15
    assert worst["sd"] < 0.10


@pytest.mark.parametrize("case", ["hmm", "arhmm"])
def test_gibbs_passes_gewekes_joint_test(case):
    """Alternating data | parameters and parameters | data leaves the prior of the parameters."""
    K, T, num = 2, 30, 20_000
    if case == "hmm":
        model = sj.GaussianHMM(K, 1, dof=6.0, scale=[[6.0]], mean_precision=0.5, prior_mean=[0.0])
    else:
        # Coefficients stay well below one, or series of 30 rows would explode now and then.
        model = sj.ARHMM(K, 1, dof=6.0, scale=[[6.0]], column_covariance=[[0.02]])
    with jax.enable_x64(True):
        key = jax.random.key(0)
        prior = [
            model.to_params(model.initial_coords(sj.as_series(np.arange(4.0)), "prior", i))
            for i in range(1)
        ]
        params, kept = prior[0], []
        for i in range(num):
            _, y = model.simulate(params, T, seed=i)
            if case == "arhmm":
                y = np.concatenate([np.zeros((1, 1)), y])
            missing = np.random.default_rng(i).uniform(size=len(y)) < 0.1
            if case == "hmm":
                y[missing] = np.nan
                if np.isfinite(y).sum() < 2:
                    continue
            series = sj.Series(y, (len(y),), ("y0",), "rows" if case == "hmm" else "none")
            coords = Sweep(model, series)(jax.random.fold_in(key, i), model.to_coords(params))
            params = model.to_params(coords)
            kept.append(
                [
                    params["transition_matrix"][0, 0],
                    params["transition_matrix"][1, 0],
                    params["means" if case == "hmm" else "A"].ravel()[0],
                    np.log(params["covariances" if case == "hmm" else "Q"].ravel()[0]),
                ]
            )
    kept = np.asarray(kept)
    rng = np.random.default_rng(1)
    variance = stats.invwishart(6, 6).rvs(200_000, random_state=rng)
    column = 1 / 0.5 if case == "hmm" else 0.02
    location = rng.normal(size=200_000) * np.sqrt(variance * column)
    exact = np.stack(
        [rng.uniform(size=200_000), rng.uniform(size=200_000), location, np.log(variance)], axis=1
    )
    for column in range(4):
        chain = kept[:, column][None]
        ess = effective_sample_size(chain)
        for power in (1, 2):
            ours, theirs = chain[0] ** power, exact[:, column] ** power
            z = (ours.mean() - theirs.mean()) / (theirs.std() / np.sqrt(ess))
            assert abs(z) < 4, (column, power, z, ess)
