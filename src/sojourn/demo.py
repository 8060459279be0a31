"""The demonstration: a million rows of a switching autoregression, simulated and recovered."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from sojourn.plots import draw_segments, state_color
from sojourn.results import Fit, match_states, permute
from sojourn.sampling import sample
from sojourn.synthetic import alternating_rotations

if TYPE_CHECKING:
    import pandas

_STRETCH = 120


def run_demo(num_rows: int, out: Path, seed: int, *, progress: bool) -> None:
    """Simulate, sample, print a table beside the truth and write a figure."""
    model, truth = alternating_rotations()
    began = time.perf_counter()
    print(f"simulating {num_rows:,} rows of a 2-state autoregressive HMM")
    states, y = model.simulate(truth, num_rows, seed=seed)
    fit = sample(model, y, num_samples=1000, num_chains=4, seed=seed, progress=progress)
    truth = _relabel(fit, truth)
    table = compare(fit, truth)
    print(table.to_string(float_format=lambda x: f"{x:.4g}"))
    decoded = fit.decode(y[:5000], num_draws=20)["state"].to_numpy()[1:]
    order = np.argsort(fit_order(fit, alternating_rotations()[1]))
    agreement = np.mean(order[decoded] == states["z"][1:5000])
    print(f"states of the first 5,000 rows decoded: {agreement:.1%} as simulated")
    demo_figure(fit, truth, y, decoded).savefig(out, dpi=150)
    # Mirrored entries of Q, and rows of two probabilities, are one number each, as far from the truth.
    distances = np.unique(table["z"].abs().round(6))
    print(f"{np.mean(distances < 2):.0%} of true values within 2 posterior sds; wrote {out}")
    print(f"done in {time.perf_counter() - began:.0f} s")


def compare(fit: Fit, truth: dict[str, np.ndarray]) -> "pandas.DataFrame":
    """Return the summary with true values and their distance in posterior sds, z."""
    table = fit.summary()
    true = np.concatenate([np.ravel(truth[str(name)]) for name in fit.posterior.data_vars])
    table.insert(0, "true", true)
    table.insert(3, "z", (table["mean"] - true) / table["sd"])
    return table


def fit_order(fit: Fit, truth: dict[str, np.ndarray]) -> np.ndarray:
    """Return the order of the true states that matches the labels of the fit."""
    return match_states(fit.mean["A"].reshape(2, -1), truth["A"].reshape(2, -1))


def _relabel(fit: Fit, truth: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    order, dims = fit_order(fit, truth), fit.model.param_dims
    return {name: permute(values, dims[name], order) for name, values in truth.items()}


def demo_figure(
    fit: Fit, truth: dict[str, np.ndarray], y: np.ndarray, decoded: np.ndarray
) -> Figure:
    """Draw traces, posteriors against the truth and a decoded stretch."""
    figure = Figure(figsize=(11, 8), layout="constrained")
    parts: Any = figure.subfigures(2, 1, height_ratios=(1.6, 1))
    top, bottom = parts
    axes = top.subplots(2, 3)
    shown = [("transition_matrix", (0, 0)), ("A", (0, 0, 0)), ("Q", (0, 0, 0))]
    for column, (name, where) in enumerate(shown):
        draws = fit.posterior[name].to_numpy()[(slice(None), slice(None), *where)]
        title = f"{name}[{', '.join(map(str, where))}]"
        _trace_and_density(axes[:, column], draws, float(truth[name][where]), title)
    series = bottom.subplots(2, 1, sharex=True)
    for d, axis in enumerate(series):
        rows = slice(1, 1 + _STRETCH)
        draw_segments(axis, np.arange(1, 1 + _STRETCH), y[rows, d], decoded[:_STRETCH])
        axis.set_ylabel(f"y{d}")
    series[0].set_title("decoded states of the first rows", loc="left", fontsize=10)
    series[1].set_xlabel("row")
    return figure


def _trace_and_density(axes: Any, draws: np.ndarray, true: float, title: str) -> None:
    for index, chain in enumerate(draws):
        axes[0].plot(chain, lw=0.5, color=state_color(index))
    axes[0].axhline(true, color="black", lw=1, ls="--")
    axes[0].set_title(title, loc="left", fontsize=10)
    axes[1].hist(draws.ravel(), bins=50, density=True, color=state_color(0), alpha=0.5)
    axes[1].axvline(true, color="black", lw=1, ls="--", label="truth")
    axes[1].set_yticks([])
    axes[1].locator_params(axis="x", nbins=4)
    axes[1].legend(frameon=False, fontsize=8)
    axes[0].set_xlabel("draw")
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
