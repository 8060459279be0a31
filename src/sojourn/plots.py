"""Plots of a fit. Figures are made without pyplot, so that no global state changes."""

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes

    from sojourn.fit import Fit

# Colour-blind safe (Okabe and Ito), in an order that keeps neighbours apart.
COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")

# Rows shown when no stop is given: more would hide the switches.
_STRETCH = 500


def state_color(state: int) -> str:
    """Return the colour of a state, the same in all plots."""
    return COLORS[state % len(COLORS)]


def plot_trace(posterior: "xarray.Dataset", var_names: list[str] | None = None) -> Figure:
    """Plot densities (left) and traces (right), one row per parameter, one colour per entry."""
    known = [str(name) for name in posterior.data_vars]
    names = known if var_names is None else var_names
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise ValueError(f"no parameter {unknown[0]!r} in the posterior; it has {known}")
    figure = Figure(figsize=(10, 2.2 * len(names)), layout="constrained")
    axes = figure.subplots(len(names), 2, squeeze=False, width_ratios=(1, 2))
    for row, name in zip(axes, names, strict=True):
        variable = posterior[name]
        values = variable.to_numpy().reshape(*variable.shape[:2], -1)
        for entry in range(values.shape[2]):
            for chain in values[:, :, entry]:
                color = state_color(entry)
                row[0].hist(chain, bins=40, density=True, histtype="step", color=color, lw=0.8)
                row[1].plot(chain, color=color, lw=0.4, alpha=0.7)
        row[0].set_yticks([])
        row[0].set_title(str(name), loc="left", fontsize=10)
        row[0].spines[["top", "right", "left"]].set_visible(False)
        row[1].spines[["top", "right"]].set_visible(False)
    axes[-1, 0].set_xlabel("value")
    axes[-1, 1].set_xlabel("draw")
    return figure


def plot_segmentation(fit: "Fit", data: Any, start: int = 0, stop: int | None = None) -> Figure:
    """Plot rows `start` to `stop` of the first series over the colours of their states."""
    from sojourn.series import Series, as_series

    series = as_series(data, fit.model.emission_dim)
    length = series.lengths[0]
    stop = min(start + _STRETCH, length) if stop is None else stop
    if not 0 <= start < stop <= length:
        raise ValueError(f"expected 0 <= start < stop <= {length}; got {start} and {stop}")
    # Rows around the stretch inform its states; further ones do not change the picture.
    first, last = max(0, start - _STRETCH), min(length, stop + _STRETCH)
    rows = series.values[first:last]
    around = Series(rows, (len(rows),), series.columns, series.missing)
    decoded = fit.decode(around, num_draws=10)
    states = decoded["state"].to_numpy()[start - first : stop - first]
    values = series.values[start:stop]
    D = values.shape[1]
    figure = Figure(figsize=(10, 1 + 1.4 * D), layout="constrained")
    axes = figure.subplots(D, 1, sharex=True, squeeze=False)[:, 0]
    for axis, column, name in zip(axes, values.T, series.columns, strict=True):
        draw_segments(axis, np.arange(start, stop), column, states)
        axis.set_ylabel(name)
    axes[-1].set_xlabel("row")
    shown = np.unique(states[states >= 0])
    handles = [Patch(color=state_color(k), alpha=0.35, label=f"state {k}") for k in shown]
    figure.legend(handles=handles, loc="outside upper right", ncols=8, frameon=False)
    return figure


def draw_segments(axis: "Axes", time: np.ndarray, values: np.ndarray, states: np.ndarray) -> None:
    """Draw one column over a background coloured by state."""
    span = float(np.nanmax(values) - np.nanmin(values)) or 1.0
    low, high = np.nanmin(values) - 0.05 * span, np.nanmax(values) + 0.05 * span
    number = int(max(states.max(), 0)) + 1
    axis.imshow(
        np.ma.masked_less(states, 0)[None],
        aspect="auto",
        extent=(time[0] - 0.5, time[-1] + 0.5, low, high),
        cmap=ListedColormap([state_color(k) for k in range(number)]),
        vmin=-0.5,
        vmax=number - 0.5,
        alpha=0.35,
        interpolation="nearest",
    )
    axis.plot(time, values, color="black", lw=0.7)
    axis.set_ylim(low, high)
    axis.spines[["top", "right"]].set_visible(False)
