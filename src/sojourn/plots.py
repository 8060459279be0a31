"""Plots of a fit. Figures are made without pyplot, so that no global state changes."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from sojourn._validation import check_size
from sojourn.results import best_path, smooth, varying
from sojourn.series import Series, check_known

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes

    from sojourn.results import Fit

# Colour-blind safe (Okabe and Ito), in an order that keeps neighbours apart.
_COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")

# Rows shown when no stop is given: more would hide the switches.
_STRETCH = 500

# Entries of one parameter shown in traces.
_ENTRIES = 12


def state_color(state: int) -> str:
    """Return the colour of a state, the same in all plots."""
    return _COLORS[state % len(_COLORS)]


def plot_trace(posterior: "xarray.Dataset", var_names: str | Sequence[str] | None = None) -> Figure:
    """Plot densities (left) and traces (right), one row per entry, one colour per chain.

    Entries that are held fixed, or that repeat another as in symmetric matrices, are left out; of those
    that remain of a parameter, the first twelve are shown.
    """
    known = [str(name) for name in posterior.data_vars]
    asked = [var_names] if isinstance(var_names, str) else var_names
    names = known if asked is None else asked
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise ValueError(f"no parameter {unknown[0]!r} in the posterior; it has {known}")
    every = {
        name: [(label, chains) for _, label, chains in varying(posterior[name])] for name in names
    }
    rows = [entry for own in every.values() for entry in own[:_ENTRIES]]
    figure = Figure(figsize=(10, 0.7 + 1.2 * len(rows)), layout="constrained")
    axes = figure.subplots(len(rows), 2, squeeze=False, width_ratios=(1, 2.5))
    for (left, right), (label, chains) in zip(axes, rows, strict=True):
        bins = _bins(chains)
        for index, chain in enumerate(chains):
            color = state_color(index)
            left.hist(chain, bins=bins, density=True, histtype="step", color=color, lw=1)
            right.plot(chain, color=color, lw=0.5, alpha=0.8)
        left.set_title(label, loc="left", fontsize=9)
        left.set_yticks([])
        left.spines[["top", "right", "left"]].set_visible(False)
        right.margins(x=0.01)
        right.spines[["top", "right"]].set_visible(False)
        for axis, values in ((left, left.xaxis), (right, right.yaxis)):
            axis.tick_params(labelsize=8)
            values.set_major_locator(MaxNLocator(4, min_n_ticks=2))
            values.set_major_formatter(StrMethodFormatter("{x:.6g}"))
        if right is not axes[-1, 1]:
            right.set_xticklabels([])
    axes[-1, 0].set_xlabel("value", fontsize=9)
    axes[-1, 1].set_xlabel("draw", fontsize=9)
    handles = [
        Line2D([], [], color=state_color(index), label=f"chain {chain}")
        for index, chain in enumerate(posterior["chain"].to_numpy())
    ]
    figure.legend(handles=handles, loc="outside upper right", ncols=8, frameon=False, fontsize=9)
    cut = {name: len(own) for name, own in every.items() if len(own) > _ENTRIES}
    if cut:
        said = [f"{name}: first {_ENTRIES} of {count} entries" for name, count in cut.items()]
        figure.suptitle("; ".join(said), x=0.01, ha="left", fontsize=9)
    return figure


def _bins(chains: np.ndarray) -> np.ndarray:
    """Return bins that all chains share; a constant gets one of its own width."""
    low, high = float(chains.min()), float(chains.max())
    if low == high:
        low, high = low - 0.5, high + 0.5
    return np.linspace(low, high, 41)


def plot_gradient_error(errors: "xarray.Dataset") -> Figure:
    """Plot what `gradient_error` found: errors (solid) and bounds (dotted) of buffers, by length."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axis = figure.subplots()
    buffers = errors["buffer"].to_numpy()
    for index, length in enumerate(errors["length"].to_numpy()):
        color, one = state_color(index), errors.sel(length=length)
        axis.plot(buffers, one["error"], "o-", ms=4, color=color, label=f"{length} rows")
        axis.plot(buffers, one["bound"], ":", color=color)
    axis.set_yscale("log")
    axis.set_xlabel("buffer (rows on each side)")
    axis.set_ylabel("error / noise of a window's gradient")
    axis.legend(frameon=False)
    axis.spines[["top", "right"]].set_visible(False)
    return figure


def plot_segmentation(
    fit: "Fit", data: Any, start: int = 0, stop: int | None = None, *, series: int | str = 0
) -> Figure:
    """Plot rows `start` to `stop` of one series over the colours of their states.

    Raises:
        ValueError: The model has no discrete states, or there are no such rows.
    """
    if not fit.model.has_discrete_states:
        raise ValueError(
            f"{type(fit.model).__name__} has no discrete states to colour rows by; use "
            "fit.plot_states(data)"
        )
    stretch = _stretch(fit, data, start, stop, series)
    path = best_path(fit.model, fit.mean, stretch.around)["state"].to_numpy()
    states = path[stretch.inside]
    columns = stretch.around.columns
    figure, axes = _panels(len(columns), stretch)
    for axis, column, name in zip(axes, stretch.rows.T, columns, strict=True):
        draw_segments(axis, stretch.time, column, states)
        axis.set_ylabel(name)
    shown = np.unique(states[states >= 0])
    handles = [Patch(color=state_color(k), alpha=0.35, label=f"state {k}") for k in shown]
    figure.legend(handles=handles, loc="outside upper right", ncols=8, frameon=False)
    return figure


def plot_states(
    fit: "Fit", data: Any, start: int = 0, stop: int | None = None, *, series: int | str = 0
) -> Figure:
    """Plot the smoothed continuous states of rows `start` to `stop` of one series, two sds around them.

    States are those at the posterior mean of the parameters.

    Raises:
        ValueError: The model has no continuous states, or there are no such rows.
    """
    if not fit.model.has_continuous_states:
        raise ValueError(
            f"{type(fit.model).__name__} has no continuous states; use fit.plot_segmentation(data)"
        )
    stretch = _stretch(fit, data, start, stop, series)
    found = smooth(fit.model, fit.mean, stretch.around)
    x = found["x"].to_numpy()[stretch.inside]
    variance = np.diagonal(found["covariance"].to_numpy()[stretch.inside], axis1=1, axis2=2)
    figure, axes = _panels(x.shape[1], stretch)
    for index, (axis, mean, sd) in enumerate(zip(axes, x.T, np.sqrt(variance).T, strict=True)):
        color = state_color(index)
        axis.fill_between(stretch.time, mean - 2 * sd, mean + 2 * sd, color=color, alpha=0.3, lw=0)
        axis.plot(stretch.time, mean, color=color, lw=0.8)
        axis.set_ylabel(f"x[{index}]")
        axis.margins(x=0)
        axis.spines[["top", "right"]].set_visible(False)
    return figure


class _Stretch(NamedTuple):
    """Rows of one series that are shown, and some around them, which inform their states.

    Attributes:
        around: All of these rows.
        inside: Which of them are shown.
        start: Number of the first that is shown, in its series.
        title: Words that say which are shown.
    """

    around: Series
    inside: slice
    start: int
    title: str

    @property
    def rows(self) -> np.ndarray:
        return self.around.to_numpy()[self.inside]

    @property
    def time(self) -> np.ndarray:
        return self.start + np.arange(self.inside.stop - self.inside.start)


def _stretch(fit: "Fit", data: Any, start: int, stop: int | None, series: int | str) -> _Stretch:
    every = fit.as_series(data)
    which = _number(every, series)
    length, offset = every.lengths[which], sum(every.lengths[:which])
    stop = min(start + _STRETCH, length) if stop is None else stop
    if not 0 <= start < stop <= length:
        raise ValueError(f"expected 0 <= start < stop <= {length}; got {start} and {stop}")
    # Rows farther away do not change the picture.
    first, last = max(0, start - _STRETCH), min(length, stop + _STRETCH)
    rows = every.rows(offset + first, offset + last)
    around = Series(rows, (len(rows),), every.columns, every.missing)
    title = f"rows {start:,} to {stop - 1:,} of {length:,}"
    if len(every.lengths) > 1:
        title += f" of series {every.labels[which]}"
    return _Stretch(around, slice(start - first, stop - first), start, title)


def _number(every: Series, series: int | str) -> int:
    """Return the number of a series that is given by its name or number."""
    if isinstance(series, str):
        check_known("series", [series], every.names or ())
        return every.names.index(series) if every.names else 0
    check_size("series", series, 0)
    if series >= len(every.lengths):
        raise ValueError(
            f"series must be below {len(every.lengths)}, the number of series; got {series}"
        )
    return series


def _panels(count: int, stretch: _Stretch) -> tuple[Figure, Any]:
    """Return a figure with a title, and its panels over the rows of a stretch."""
    figure = Figure(figsize=(10, 1 + 1.4 * count), layout="constrained")
    axes = figure.subplots(count, 1, sharex=True, squeeze=False)[:, 0]
    axes[-1].set_xlabel("row")
    figure.suptitle(stretch.title, x=0.01, ha="left", fontsize=10)
    return figure, axes


def draw_segments(axis: "Axes", time: np.ndarray, values: np.ndarray, states: np.ndarray) -> None:
    """Draw one column over a background coloured by state."""
    seen = values[np.isfinite(values)]
    low, high = (seen.min(), seen.max()) if len(seen) else (0.0, 1.0)
    span = float(high - low) or 1.0
    low, high = low - 0.05 * span, high + 0.05 * span
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
