"""`Fit`: shapes, alignment, tables, plots."""

import numpy as np
import pytest

import sojourn as sj
from sojourn.align import align_chains


@pytest.fixture(scope="module")
def fitted():
    model = sj.ARHMM(num_states=2, emission_dim=2)
    params = {
        "transition_matrix": np.array([[0.95, 0.05], [0.1, 0.9]]),
        "A": np.array([[[0.8, 0.1], [0.0, 0.7]], [[-0.5, 0.0], [0.2, 0.3]]]),
        "Q": np.stack([0.5 * np.eye(2), np.eye(2)]),
    }
    states, y = model.simulate(params, 800, seed=3)
    fit = sj.sample(model, y, num_samples=100, num_chains=2, num_warmup=100, progress=False)
    return fit, params, states["z"], y


def test_posterior_has_named_dims_and_coords(fitted):
    fit, _, _, _ = fitted
    assert fit.posterior["A"].dims == ("chain", "draw", "state", "column", "lag_column")
    assert fit.posterior.sizes["chain"] == 2
    assert list(fit.posterior["lag_column"].to_numpy()) == ["y0[-1]", "y1[-1]"]
    assert fit.sample_stats["lp"].shape == (2, 100)


def test_summary_and_arviz(fitted):
    fit, params, _, _ = fitted
    table = fit.summary()
    assert {"mean", "sd", "r_hat", "ess", "mcse"} <= set(table.columns)
    assert len(table) == sum(np.size(v) for v in params.values())
    tree = fit.to_arviz()
    np.testing.assert_array_equal(tree.posterior["A"], fit.posterior["A"])
    with pytest.raises(ValueError, match="prob must lie between 0 and 1"):
        fit.summary(prob=94)


def test_score_averages_likelihoods(fitted):
    fit, _, _, y = fitted
    values = [sj.log_likelihood(fit.model, p, y) for p in fit.draws(5)]
    expected = np.log(np.mean(np.exp(np.asarray(values) - max(values)))) + max(values)
    np.testing.assert_allclose(fit.score(y, num_draws=5), expected)


def test_decoding_recovers_the_states(fitted):
    fit, _, z, y = fitted
    for method in ("viterbi", "marginal"):
        decoded = fit.decode(y, method=method, num_draws=10)
        states = decoded["state"].to_numpy()
        assert states[0] == -1
        agreement = np.mean(states[1:] == z[1:])
        assert max(agreement, 1 - agreement) > 0.85
        total = decoded["probability"].sum("label").to_numpy()[1:]
        np.testing.assert_allclose(total, 1)


def test_chains_are_aligned_to_one_labelling(rng):
    """A chain with its states exchanged is turned back, transition matrix included."""
    dims = {"means": ("state", "column"), "transition_matrix": ("state", "to_state")}
    means = np.array([[0.0], [5.0], [9.0]]) + 0.1 * rng.normal(size=(2, 50, 3, 1))
    Pi = np.broadcast_to(
        np.array([[0.8, 0.2, 0.0], [0.1, 0.6, 0.3], [0.3, 0.3, 0.4]]), (2, 50, 3, 3)
    ).copy()
    order = [2, 0, 1]
    mixed = {"means": means.copy(), "transition_matrix": Pi.copy()}
    mixed["means"][1] = means[1][:, order]
    mixed["transition_matrix"][1] = Pi[1][:, order][:, :, order]
    aligned = align_chains(mixed, dims)
    np.testing.assert_array_equal(aligned["means"], means)
    np.testing.assert_array_equal(aligned["transition_matrix"], Pi)


def test_plots_draw(fitted, tmp_path):
    fit, _, _, y = fitted
    fit.plot_trace().savefig(tmp_path / "trace.png")
    fit.plot_trace(["Q"]).savefig(tmp_path / "one.png")
    figure = fit.plot_segmentation(y, start=100, stop=300)
    figure.savefig(tmp_path / "segments.png")
    assert figure.axes[0].get_ylabel() == "y0"
    with pytest.raises(ValueError, match="no parameter 'B'"):
        fit.plot_trace(["B"])
    with pytest.raises(ValueError, match="start < stop"):
        fit.plot_segmentation(y, start=900)
