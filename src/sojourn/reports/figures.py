"""Figures of a report that stand nowhere else: the data, posterior against prior, transitions."""

from itertools import islice
from typing import TYPE_CHECKING

import jax
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

from sojourn._precision import double
from sojourn.models.base import prior_draw
from sojourn.plots import state_color
from sojourn.results import varying

if TYPE_CHECKING:
    import xarray

    from sojourn.results import Fit

# Draws from the prior: enough for a histogram.
_PRIOR_DRAWS = 2000

# Entries of one parameter that are shown, and points of a curve.
_ENTRIES = 8
_POINTS = 2000

# Transitions that are a smaller part of those that leave a state are not drawn.
_RARE = 0.02


def plot_data(rows: np.ndarray, columns: tuple[str, ...], title: str) -> Figure:
    """Plot the columns of one stretch, one panel each, thinned to what a screen can show."""
    step = max(1, len(rows) // _POINTS)
    shown = rows[::step]
    figure = Figure(figsize=(10, 0.6 + 1.1 * len(columns)), layout="constrained")
    axes = figure.subplots(len(columns), 1, sharex=True, squeeze=False)[:, 0]
    for axis, column, name in zip(axes, shown.T, columns, strict=True):
        axis.plot(np.arange(len(shown)) * step, column, color="black", lw=0.5)
        axis.set_ylabel(name)
        axis.margins(x=0)
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1].set_xlabel("row")
    figure.suptitle(title, x=0.01, ha="left", fontsize=10)
    return figure


@double
def prior_draws(fit: "Fit") -> dict[str, np.ndarray]:
    """Draw parameters from the prior of a fit, in the units of the user."""
    model = fit.model.unitless()
    keys = jax.random.split(jax.random.key(0), _PRIOR_DRAWS)
    drawn = jax.vmap(lambda key: model.constrain(prior_draw(model, key)))(keys)
    params = fit.model.standardise(drawn, inverse=True)
    return {name: np.asarray(value) for name, value in params.items()}


def plot_prior(posterior: "xarray.Dataset", prior: dict[str, np.ndarray]) -> Figure:
    """Plot the posterior of the first entries of each parameter over the prior, near the posterior."""
    panels = []
    for name, variable in posterior.items():
        of_prior = prior[str(name)].reshape(len(prior[str(name)]), -1)
        for index, label, draws in islice(varying(variable), _ENTRIES):
            panels.append((label, draws.ravel(), of_prior[:, index]))
    columns = 4
    figure = Figure(figsize=(10, 1.7 * -(-len(panels) // columns)), layout="constrained")
    axes = figure.subplots(-(-len(panels) // columns), columns, squeeze=False).ravel()
    for axis, (label, draws, prior_values) in zip(axes, panels, strict=False):
        low, high = np.quantile(draws, [0.005, 0.995])
        margin = 1.5 * (high - low) or 0.5 * abs(low) or 0.5
        grid = np.linspace(low - margin, high + margin, 61)
        width = grid[1] - grid[0]
        axis.hist(draws, grid, density=True, color=state_color(0), alpha=0.7)
        # Prior draws outside the panel count in the density, too.
        counts = np.histogram(prior_values, grid)[0] / len(prior_values) / width
        axis.stairs(counts, grid, color="black", lw=1)
        axis.set_title(_cut(label), loc="left", fontsize=8)
        axis.set_yticks([])
        axis.tick_params(labelsize=7)
        axis.locator_params(axis="x", nbins=4)
        axis.spines[["top", "right", "left"]].set_visible(False)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    return figure


def _cut(label: str, size: int = 34) -> str:
    """Leave out the middle of names that are wider than a panel."""
    return label if len(label) <= size else f"{label[: size // 2]}…{label[-size // 2 :]}"


def plot_transitions(matrix: np.ndarray) -> Figure:
    """Draw states as nodes and transitions as arrows, as wide as they are likely."""
    K = len(matrix)
    angle = np.pi / 2 - 2 * np.pi * np.arange(K) / K
    places = np.column_stack([np.cos(angle), np.sin(angle)]) * (K > 1)
    figure = Figure(figsize=(5.5, 5.5), layout="constrained")
    axis = figure.subplots()
    for i in range(K):
        for j in range(K):
            if i == j or matrix[i, j] < _RARE * (1 - matrix[i, i]):
                continue
            arrow = FancyArrowPatch(
                tuple(places[i]),
                tuple(places[j]),
                connectionstyle="arc3,rad=0.15",
                arrowstyle="-|>,head_length=6,head_width=3",
                shrinkA=20,
                shrinkB=20,
                lw=0.5 + 4 * matrix[i, j],
                color=state_color(i),
                alpha=0.8,
            )
            axis.add_patch(arrow)
            # A third of the way along, on the arrow's side, so that both directions can be read.
            step = places[j] - places[i]
            x, y = places[i] + 0.35 * step + 0.09 * np.array([step[1], -step[0]])
            axis.text(x, y, f"{matrix[i, j]:.2g}", fontsize=8, ha="center", va="center")
    for k, (x, y) in enumerate(places):
        axis.scatter([x], [y], s=1300, color=state_color(k), zorder=2)
        text = f"{k}\n{matrix[k, k]:.3g}"
        axis.text(x, y, text, ha="center", va="center", fontsize=8, color="white", zorder=3)
    axis.set_xlim(-1.3, 1.3)
    axis.set_ylim(-1.3, 1.3)
    axis.set_aspect("equal")
    axis.axis("off")
    return figure
