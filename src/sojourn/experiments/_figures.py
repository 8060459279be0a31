"""Figures and tables of samplers side by side."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas
from matplotlib.figure import Figure

import sojourn as sj
from sojourn.experiments._traces import AUTO, Comparison, Trace, second_half

_COLORS = {
    "Gibbs": "tab:red",
    "Subset Gibbs": "goldenrod",
    AUTO: "black",
    "no buffer": "tab:orange",
    "buffer": "tab:blue",
    "LD": "tab:green",
    "RLD": "tab:green",
    "X": "tab:green",
    "XZ": "tab:orange",
    "Z": "tab:blue",
}


def style(name: str) -> dict[str, Any]:
    """Return the look of a method: colour by windows, dashed without a metric, as in the paper."""
    kind = name if name in _COLORS else name.split(" ", 1)[-1]
    dashed = name.startswith("SGLD") or name == "LD"
    return {"color": _COLORS.get(kind, "tab:purple"), "ls": "--" if dashed else "-"}


def draw_curves(comparison: Comparison, columns: Mapping[str, str]) -> Figure:
    """Draw metrics against time, averaged over chains.

    Args:
        comparison: What was compared.
        columns: Metrics and their titles; errors, whose names begin with mse, on a logarithmic axis.
    """
    figure = Figure(figsize=(4 * len(columns), 3.4), layout="constrained")
    axes = figure.subplots(1, len(columns), squeeze=False)[0]
    for axis, (column, title) in zip(axes, columns.items(), strict=True):
        for name, own in comparison.curves.groupby("method", sort=False):
            by_draw = own.groupby("draw")
            seconds, values = (np.asarray(by_draw[of].mean()) for of in ("seconds", column))
            axis.plot(seconds, values, marker="o", ms=2, label=name, **style(str(name)))
        axis.set_xscale("log")
        if column.startswith("mse"):
            axis.set_yscale("log")
        else:
            _zoom(axis, comparison.curves[column].to_numpy(), small_is_good=column == "rmse")
        axis.set_xlabel("seconds")
        axis.set_title(title, fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", frameon=False, fontsize=8)
    return figure


def _zoom(axis: Any, values: np.ndarray, *, small_is_good: bool) -> None:
    """Leave out the worst tenth of values, which would flatten the rest."""
    low, high = np.nanquantile(values, (0.0, 0.9) if small_is_good else (0.1, 1.0))
    margin = 0.08 * (high - low) or 1.0
    axis.set_ylim(low - margin, high + margin)


def draw_boxes(
    traces: Sequence[Trace], entries: Mapping[str, tuple[str, tuple[int, ...], float]]
) -> Figure:
    """Draw box plots of the draws after burn-in, a line at the true value.

    Args:
        traces: Draws.
        entries: Titles, each with a parameter, an index into it and the true value.
    """
    figure = Figure(figsize=(3.2 * len(entries), 3.8), layout="constrained")
    axes = figure.subplots(1, len(entries), squeeze=False)[0]
    names = [one.method.name for one in traces]
    for axis, (title, (name, index, true)) in zip(axes, entries.items(), strict=True):
        draws = [
            second_half(t.fit).posterior[name].to_numpy()[(..., *index)].ravel() for t in traces
        ]
        axis.boxplot(draws, tick_labels=names, sym="", whis=(2.5, 97.5))
        axis.axhline(true, color="gray", lw=0.8, ls=":")
        axis.tick_params(axis="x", rotation=90, labelsize=8)
        axis.set_title(title, fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
    return figure


def quantiles(traces: Sequence[Trace]) -> pandas.DataFrame:
    """Return quantiles of all entries after burn-in: the data behind box plots."""
    levels = (0.025, 0.25, 0.5, 0.75, 0.975)
    parts = []
    for one in traces:
        for name, values in second_half(one.fit).posterior.items():
            flat = values.to_numpy().reshape(-1, int(np.prod(values.shape[2:])))
            table = pandas.DataFrame(np.quantile(flat, levels, axis=0).T, columns=list(levels))
            table.insert(0, "entry", np.arange(len(table)))
            parts.append(table.assign(method=one.method.name, parameter=str(name)))
    return pandas.concat(parts)


def ksd_table(
    traces: Sequence[Trace], data: Any, windows: sj.Windows | None, num_draws: int
) -> pandas.DataFrame:
    """Return log10 of kernel Stein discrepancies by parameter: mean and sd over chains."""
    rows = []
    for one in traces:
        kept = second_half(one.fit)
        chains = []
        for chain in range(kept.posterior.sizes["chain"]):
            own = dataclasses.replace(kept, posterior=kept.posterior.isel(chain=[chain]))
            chains.append(own.ksd(data, num_draws, windows=windows, standardize=False))
        logs = np.log10(pandas.DataFrame(chains))
        mean, sd = logs.mean(), logs.std()
        rows.append(
            {"method": one.method.name}
            | {name: mean[name] for name in logs}
            | {f"sd_{name}": sd[name] for name in logs}
        )
    return pandas.DataFrame(rows)
