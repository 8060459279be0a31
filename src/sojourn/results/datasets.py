"""Draws as xarray datasets, and back."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sojourn.models.base import Model
from sojourn.results.align import align_chains
from sojourn.series import Series

if TYPE_CHECKING:
    import xarray


def largest_block(lengths: Sequence[int]) -> list[int]:
    """Return the chains that together have most draws, each cut to the shortest of them."""
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    sizes = [(rank + 1) * lengths[i] for rank, i in enumerate(order)]
    most = max(sizes)
    if most == 0:
        return []
    last = max(rank for rank, size in enumerate(sizes) if size == most)
    return sorted(order[: last + 1])


def posterior_of(
    model: Model, columns: tuple[str, ...], draws: Sequence[dict[str, np.ndarray]]
) -> "xarray.Dataset":
    """Return the draws of all chains, cut to the shortest, their states aligned."""
    import xarray

    from sojourn import __version__

    length = min(len(next(iter(d.values()))) for d in draws)
    dims = model.param_dims
    stacked = {name: np.stack([d[name][:length] for d in draws]) for name in draws[0]}
    aligned = align_chains(stacked, dims)
    return xarray.Dataset(
        {name: (("chain", "draw", *dims[name]), values) for name, values in aligned.items()},
        coords=_coords(model, columns),
        attrs={"sojourn_version": __version__},
    )


def statistics_of(statistics: Sequence[dict[str, np.ndarray]], length: int) -> "xarray.Dataset":
    """Return the statistics of the first `length` draws of all chains."""
    import xarray

    stacked = {name: np.stack([own[name][:length] for own in statistics]) for name in statistics[0]}
    return xarray.Dataset({name: (("chain", "draw"), values) for name, values in stacked.items()})


def row_coords(series: Series) -> dict[str, tuple[str, np.ndarray]]:
    """Return the coordinates of all rows: which series, and which row of it."""
    lengths = series.lengths
    which = np.repeat(series.labels, lengths)
    t = np.concatenate([np.arange(length) for length in lengths])
    return {"series": ("time", which), "t": ("time", t)}


def arrays_of(dataset: "xarray.Dataset") -> dict[str, np.ndarray]:
    """Return the variables of a dataset as arrays, by name."""
    return {str(name): values.to_numpy() for name, values in dataset.items()}


def chain_of(dataset: "xarray.Dataset", index: int) -> dict[str, np.ndarray]:
    """Return one chain's variables as arrays, by name."""
    return {name: values[index] for name, values in arrays_of(dataset).items()}


def _coords(model: Model, columns: tuple[str, ...]) -> dict[str, Any]:
    used = {dim for dims in model.param_dims.values() for dim in dims}
    sizes = {
        dim: size
        for name, dims in model.param_dims.items()
        for dim, size in zip(dims, model.param_shapes[name], strict=True)
    }
    lagged = [f"{c}[-{lag}]" for lag in range(1, model.num_lags + 1) for c in columns]
    names = {"column": list(columns), "column_bis": list(columns), "lag_column": lagged}
    return {dim: names.get(dim, np.arange(sizes[dim])) for dim in used}
