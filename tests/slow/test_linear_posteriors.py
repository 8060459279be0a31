"""Posteriors of linear and switching linear models against references whose own error is small."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, stats

import sojourn as sj
from sojourn.gibbs import Sweep
from sojourn.gradients import full
from sojourn.models.base import Model
from sojourn.passes.passes import full_statistics
from sojourn.results.align import match_states, permute
from sojourn.results.diagnostics import effective_sample_size, r_hat
from sojourn.synthetic import rotating_state, switching_rotations
from sojourn.tuning.objective import log_posterior

pytestmark = pytest.mark.slow

# Entries of every parameter but the mirrored ones.
ENTRIES = [("A", i, j) for i in range(2) for j in range(2)]
ENTRIES += [(name, i, j) for name in "QR" for i in range(2) for j in range(i + 1)]


@functools.cache
def long_run(num_rows: int):
    """Return the paper's model, rows, and moments of its posterior from long Hamiltonian Monte Carlo."""
    model, params = rotating_state()
    y = model.simulate(params, num_rows, seed=11)[1]
    outer = model.scaled_to(y)
    with jax.enable_x64(True):
        inner, own = outer.enter(sj.as_series(y))
        start = inner.to_coords(outer.standardise(outer.check_params(params)))
        start = {name: jnp.asarray(u) for name, u in start.items()}
        _, tiles = full_statistics(inner, start, own)
        estimator, source = full(inner, own, tiles)
        flat, unravel = jax.flatten_util.ravel_pytree(start)
        key = jax.random.key(0)

        @jax.jit
        def log_p(u):
            return log_posterior(estimator, source, key, unravel(u))

        @jax.jit
        def score(u):
            coords = unravel(u)
            gradient = inner.gradient(coords, estimator(source, key, coords))
            prior = jax.grad(lambda c: inner.log_prior(c))(coords)
            return jax.flatten_util.ravel_pytree(jax.tree.map(jnp.add, gradient, prior))[0]

        found = optimize.minimize(
            lambda u: -float(log_p(jnp.asarray(u))),
            np.asarray(flat),
            jac=lambda u: -np.asarray(score(jnp.asarray(u))),
            method="BFGS",
        )
        center, step = found.x, 1e-4
        differences = [
            score(center + step * e) - score(center - step * e) for e in np.eye(flat.size)
        ]
        hessian = np.stack(differences) / (2 * step)
        covariance = np.linalg.inv(-(hessian + hessian.T) / 2)
        draws = hamiltonian(jax.vmap(log_p), jax.vmap(score), center, covariance)
        coords = jax.vmap(jax.vmap(unravel))(draws)
        params = jax.vmap(jax.vmap(inner.constrain))(coords)
        params = outer.standardise(params, inverse=True)
    reference = {}
    for name, i, j in ENTRIES:
        values = np.asarray(params[name])[..., i, j]
        reference[name, i, j] = values.mean(), values.std()
        # Its own error is then 2% of an sd, and 1.5% in the sds.
        assert effective_sample_size(values) > 2500, (name, i, j)
        assert r_hat(values) < 1.01
    return model, y, reference


def hamiltonian(log_ps, scores, center, covariance, num_chains=32, num_draws=1500):
    """Return draws (chain, draw, dimension) of Hamiltonian Monte Carlo with its accept step.

    A first run tells the covariance: the posterior is wider than its mode lets on.
    """
    dimension = len(center)
    key = jax.random.key(1)
    u = center + jax.random.normal(key, (num_chains, dimension)) @ np.linalg.cholesky(covariance).T

    def draw(carry, t):
        u, log_p, root = carry
        key_r, key_step, key_accept = jax.random.split(jax.random.fold_in(key, t), 3)
        start = jax.random.normal(key_r, u.shape)
        step = jax.random.uniform(key_step, (num_chains, 1), minval=0.15, maxval=0.35)

        def leap(_, state):
            x, r, g = state
            r = r + step / 2 * g @ root
            x = x + step * r @ root.T
            g = scores(x)
            return x, r + step / 2 * g @ root, g

        x, r, _ = jax.lax.fori_loop(0, 8, leap, (u, start, scores(u)))
        proposed = log_ps(x)
        gain = proposed - log_p + (jnp.square(start) - jnp.square(r)).sum(1) / 2
        accept = jnp.log(jax.random.uniform(key_accept, (num_chains,))) < gain
        u = jnp.where(accept[:, None], x, u)
        return (u, jnp.where(accept, proposed, log_p), root), u

    @functools.partial(jax.jit, static_argnums=2)
    def run(u, covariance, num):
        carry = (u, log_ps(u), jnp.linalg.cholesky(covariance))
        return jax.lax.scan(draw, carry, jnp.arange(num))[1]

    first = np.asarray(run(u, jnp.asarray(covariance), num_draws // 4))
    wider = np.cov(first[len(first) // 2 :].reshape(-1, dimension).T)
    draws = np.asarray(run(jnp.asarray(first[-1]), jnp.asarray(wider), num_draws))
    return jnp.asarray(np.swapaxes(draws, 0, 1))


@pytest.mark.parametrize(
    ("num_rows", "sampler", "windows", "num_samples"),
    [
        # At 2,000 rows the posterior is wide and bent, and Langevin steps cross it slowly.
        (2000, sj.SGRLD(), sj.Windows.full(), 15_000),
        (2000, sj.SGRLD(), sj.Windows(200, buffer=40, batch=32), 8000),
        (2000, None, "auto", 3000),
        (10_000, None, "auto", 3000),
    ],
    ids=["RLD", "SGRLD", "auto", "auto, longer"],
)
def test_samplers_agree_with_hamiltonian_monte_carlo(num_rows, sampler, windows, num_samples):
    """Means within 0.15 posterior sds, sds within 10%, for every parameter."""
    model, y, reference = long_run(num_rows)
    fit = sj.sample(
        model, y, sampler, windows=windows, num_samples=num_samples, progress=False, seed=3
    )
    worst = {"mean": 0.0, "sd": 0.0, "ess": np.inf}
    for (name, i, j), (mean, sd) in reference.items():
        chains = fit.posterior[name].to_numpy()[:, :, i, j]
        worst["mean"] = max(worst["mean"], abs(chains.mean() - mean) / sd)
        worst["sd"] = max(worst["sd"], abs(chains.std() / sd - 1))
        worst["ess"] = min(worst["ess"], effective_sample_size(chains))
    print(f"{worst}, {fit.choices}")
    # Then the error of the draws is 6% of an sd, and 4% in the sds.
    assert worst["ess"] > 300
    assert worst["mean"] < 0.15
    assert worst["sd"] < 0.10


def test_gibbs_of_linear_models_passes_gewekes_joint_test():
    """Alternating data | parameters and parameters | data leaves the prior; one free row of C."""
    model = sj.LGSSM(
        1,
        2,
        Q_dof=8.0,
        Q_scale=[[8.0]],
        A_column_covariance=[[0.02]],
        R_dof=8.0,
        R_scale=8 * np.eye(2),
        C_variance=0.25,
        initial=np.eye(1),
    )
    T, num = 12, 12_000
    sweep = functools.partial(_sweep, model)
    kept = []
    with jax.enable_x64(True):
        coords = model.prior_coords(0)
        for i in range(num):
            params = model.to_params(coords)
            y = model.simulate(params, T, seed=i)[1]
            y[3, 0] = y[7] = np.nan
            coords = sweep(sj.Series(y, (T,), ("a", "b"), "entries"), jax.random.key(i), coords)
            params = model.to_params(coords)
            kept.append(
                [
                    params["A"][0, 0],
                    np.log(params["Q"][0, 0]),
                    params["C"][1, 0],
                    np.log(params["R"][0, 0]),
                    params["R"][1, 0],
                ]
            )
    kept = np.asarray(kept[100:])
    rng = np.random.default_rng(1)
    size = 200_000
    Q = stats.invwishart(8, 8).rvs(size, random_state=rng)
    R = stats.invwishart(8, 8 * np.eye(2)).rvs(size, random_state=rng)
    exact = np.stack(
        [
            rng.normal(size=size) * np.sqrt(0.02 * Q),
            np.log(Q),
            0.5 * rng.normal(size=size),
            np.log(R[:, 0, 0]),
            R[:, 1, 0],
        ],
        axis=1,
    )
    for column in range(exact.shape[1]):
        for power in (1, 2):
            ours, theirs = kept[:, column] ** power, exact[:, column] ** power
            ess = effective_sample_size(ours[None])
            z = (ours.mean() - theirs.mean()) / (theirs.std() / np.sqrt(ess))
            assert abs(z) < 4, (column, power, z, ess)


def _sweep(model: Model, series: sj.Series, key, coords):
    return Sweep(model, series)(key, coords)


def test_gibbs_and_rld_agree_on_a_switching_model():
    """The paper's switching model in one dimension of state, up to labelling."""
    model = sj.SLDS(num_states=2, state_dim=1, emission_dim=1)
    params = {
        "transition_matrix": np.array([[0.95, 0.05], [0.05, 0.95]]),
        "A": np.array([[[0.9]], [[-0.7]]]),
        "Q": np.array([[[0.3]], [[1.0]]]),
        "R": np.array([[0.1]]),
    }
    y = model.simulate(params, 2000, seed=5)[1]
    gibbs = sj.sample(
        model, y, sj.Gibbs(), init=params, num_samples=4000, thin=2, num_warmup=500, progress=False
    )
    for name, values in gibbs.posterior.items():
        chains = values.to_numpy().reshape(*values.shape[:2], -1)
        for entry in range(chains.shape[2]):
            assert r_hat(chains[:, :, entry]) < 1.05, (name, entry)
    lengths = {"num_samples": 1500, "thin": 20, "num_warmup": 2000}
    fit = sj.sample(model, y, sj.SGRLD(), init=params, **lengths, progress=False, seed=1)
    worst = compare(fit, gibbs)
    print(f"{worst}, {fit.choices}")
    assert worst["ess"] > 400
    assert worst["mean"] < 0.15
    assert worst["sd"] < 0.10


def test_default_of_a_switching_model_agrees_with_long_gibbs():
    """The paper's model at T = 10,000 with no argument but the data, against chains from the truth."""
    model, params = switching_rotations()
    y = model.simulate(params, 10_000, seed=11)[1]
    lengths = {"num_samples": 4000, "thin": 5, "num_warmup": 500}
    gibbs = sj.sample(model, y, sj.Gibbs(), init=params, **lengths, progress=False)
    for name, values in gibbs.posterior.items():
        chains = values.to_numpy().reshape(*values.shape[:2], -1)
        for entry in range(chains.shape[2]):
            assert r_hat(chains[:, :, entry]) < 1.01, (name, entry)
            assert effective_sample_size(chains[:, :, entry]) > 2000, (name, entry)
    fit = sj.sample(model, y, num_samples=2000, seed=1, progress=False)
    order = match_states(gibbs.mean["A"].reshape(2, -1), fit.mean["A"].reshape(2, -1))
    for name, values in fit.posterior.items():
        own = permute(values.to_numpy(), model.param_dims[name], order, leading=2)
        fit.posterior[name] = (values.dims, own)
    worst = compare(fit, gibbs)
    print(f"{worst}, {fit.choices}")
    assert worst["ess"] > 1000
    assert worst["mean"] < 0.15
    assert worst["sd"] < 0.10


def compare(fit: sj.Fit, reference: sj.Fit) -> dict[str, float]:
    """Return the largest difference of means, in sds, and of sds, and the smallest effective size."""
    worst = {"mean": 0.0, "sd": 0.0, "ess": np.inf}
    for name in reference.posterior:
        ours, theirs = (
            f.posterior[name].to_numpy().reshape(*f.posterior[name].shape[:2], -1)
            for f in (fit, reference)
        )
        for entry in range(ours.shape[2]):
            mean, sd = theirs[..., entry].mean(), theirs[..., entry].std()
            worst["mean"] = max(worst["mean"], abs(ours[..., entry].mean() - mean) / sd)
            worst["sd"] = max(worst["sd"], abs(ours[..., entry].std() / sd - 1))
            worst["ess"] = min(worst["ess"], effective_sample_size(ours[..., entry]))
    return worst
