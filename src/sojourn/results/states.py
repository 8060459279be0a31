"""The hidden states of a series at one value of the parameters."""

from typing import TYPE_CHECKING, Any, Literal, get_args

import jax
import numpy as np
from jax import Array

from sojourn._random import child_seed, random_key
from sojourn._validation import check_seed, check_size
from sojourn.gibbs import AlternatingSweep, make_sweep
from sojourn.models.base import Coords, Model, Params, check_data
from sojourn.passes import best_states, state_marginals
from sojourn.results.datasets import row_coords
from sojourn.results.metrics import raw_units
from sojourn.results.outputs import write_states
from sojourn.series import Series, as_series

if TYPE_CHECKING:
    from pathlib import Path

    import xarray

Method = Literal["viterbi", "marginal", "sample"]

# Gibbs sweeps before a path of discrete and continuous states is taken: they begin from a path chosen
# among particles, already close to the law it should have.
_SWEEPS = 5

# Rows of copies of the data that are drawn together.
_COPIED_ROWS = 200_000


def smooth(
    model: Model,
    params: Params,
    data: Any,
    *,
    out: "str | Path | None" = None,
    progress: bool = False,
) -> Any:
    """Return the law of the state at each row given the whole series.

    Args:
        model: The model.
        params: Parameters.
        data: The series, as in `sample`.
        out: Where to write the result as it is made, a name that ends in .zarr or .parquet; memory then
            does not grow with what is written, and the path is returned.
        progress: Whether to show a bar while writing.

    Returns:
        A dataset over `time`, all series one after the other, with the coordinates `series`, its name
        or number, and `t`, the row within its series, and `probability` (time, label) of discrete
        states, mean `x` (time, dim) and `covariance` (time, dim, dim_bis) of continuous ones. Rows that
        only serve as lags are NaN. For an SLDS all of these are averages over 50 Gibbs sweeps, or
        `num_draws` of the model if that is more, and off by some hundredths, at times a tenth. The
        attribute `discrepancy` is the largest difference of messages where windows meet; NaN for an
        SLDS, whose averages cannot be compared there.
    """
    if out is not None:
        series = check_data(model, data)
        return write_states(model, [dict(params)], series, out, progress=progress)
    series, marginals, gap = _marginals(model, params, data)
    return _dataset(model, series, model.describe_states(marginals), gap)


def decode(
    model: Model,
    params: Params,
    data: Any,
    method: Method = "viterbi",
    *,
    num_paths: int = 1,
    seed: int = 0,
    out: "str | Path | None" = None,
    progress: bool = False,
) -> Any:
    """Return the most probable path, the most probable state of each row, or paths drawn at random.

    Args:
        model: The model.
        params: Parameters.
        data: The series, as in `sample`.
        method: "viterbi" for the most probable path; "marginal" for each row on its own; "sample" for
            draws of all states together, given all rows.
        num_paths: Paths to draw.
        seed: Which paths.
        out: As in `smooth`; not for paths drawn at random.
        progress: As in `smooth`; paths are drawn without one.

    Returns:
        The dataset of `smooth` with `state` (time), -1 for rows that only serve as lags. Without
        discrete states there is no more to decode: the smoothed means are the most probable path. For
        "sample", a dataset of the paths alone, `state` (path, time) and `x` (path, time, dim).
    """
    check_method(method, out)
    if out is not None:
        series, one = check_data(model, data), dict(params)
        return write_states(model, [one], series, out, path=method, at=one, progress=progress)
    if method == "sample":
        check_size("num_paths", num_paths)
        series, raw, coords = _enter(model, params, data)
        key = random_key(seed)
        return _paths_dataset(model, series, draw_paths(raw, coords, series, key, num_paths))
    series, marginals, gap = _marginals(model, params, data)
    results = model.describe_states(marginals)
    if not model.has_discrete_states:
        return _dataset(model, series, results, gap)
    if method == "marginal":
        path = results["probability"][1].argmax(1)
    else:
        raw, coords = raw_units(model, params)
        path, path_gap = best_states(raw, coords, series)
        gap = max(gap, path_gap)
    return _dataset(model, series, results | {"state": (("time",), path)}, gap)


def sample_paths(
    model: Model, draws: list[dict[str, np.ndarray]], data: Any, seed: int
) -> "xarray.Dataset":
    """Return the dataset of `decode` with one path drawn for each of several parameters."""
    series = as_series(data, model.emission_dim)
    paths = []
    for i, params in enumerate(draws):
        _, raw, coords = _enter(model, params, series)
        key = random_key(child_seed(check_seed(seed), i))
        paths.append(draw_paths(raw, coords, series, key, 1))
    joined = {name: np.concatenate([path[name] for path in paths]) for name in paths[0]}
    return _paths_dataset(model, series, joined)


def draw_paths(
    model: Model,
    coords: Coords,
    series: Series,
    key: Array,
    count: int,
    keep: np.ndarray | slice = slice(None),
) -> dict[str, np.ndarray]:
    """Return `count` draws of all states, (count, N', …); short series are copied and drawn at once.

    Args:
        model: The model.
        coords: Coordinates.
        series: The series.
        key: Random key.
        count: How many draws.
        keep: Which of the N' rows after the lags to return.
    """
    size = min(count, max(1, _COPIED_ROWS // series.num_rows))
    copies = Series(
        np.tile(series.to_numpy(), (size, 1)), series.lengths * size, series.columns, series.missing
    )
    drawn = []
    for one in jax.random.split(key, -(-count // size)):
        states = draw_states(model, coords, copies, one)
        drawn.append({n: v.reshape(size, -1, *v.shape[1:])[:, keep] for n, v in states.items()})
    return {name: np.concatenate([d[name] for d in drawn])[:count] for name in drawn[0]}


def draw_states(model: Model, coords: Coords, series: Series, key: Array) -> dict[str, np.ndarray]:
    """Draw all states given all rows after the lags: `state` (N',) and `x` (N', n), those there are.

    Windows share the random numbers of rows, so that paths cross seams as if there were none (docstring
    of `passes.passes`). Where discrete and continuous states cannot be drawn at once, some Gibbs sweeps.
    """
    sweep = make_sweep(model, series)
    if isinstance(sweep, AlternatingSweep):
        for one in jax.random.split(key, _SWEEPS):
            _, z, x = sweep.states(one, coords)
        return {"state": z.astype(np.int64), "x": x}
    _, states = sweep.states(key, coords)
    return {"state": states.astype(np.int64)} if model.has_discrete_states else {"x": states}


def _paths_dataset(model: Model, series: Series, paths: dict[str, np.ndarray]) -> "xarray.Dataset":
    import xarray

    dims = {"state": ("time",), "x": ("time", "dim")}
    one = [
        _dataset(model, series, {n: (dims[n], v[i]) for n, v in paths.items()}, 0.0)
        for i in range(len(next(iter(paths.values()))))
    ]
    return xarray.concat(one, "path").drop_attrs()


def best_path(model: Model, params: Params, data: Any) -> "xarray.Dataset":
    """Return the dataset of `decode` with the most probable path alone, without probabilities."""
    series, raw, coords = _enter(model, params, data)
    path, gap = best_states(raw, coords, series)
    return _dataset(model, series, {"state": (("time",), path)}, gap)


def check_method(method: str, out: Any = None) -> None:
    if method not in get_args(Method):
        raise ValueError(f"method must be 'viterbi', 'marginal' or 'sample'; got {method!r}")
    if method == "sample" and out is not None:
        raise ValueError("paths drawn at random are not written as they are made; leave out `out`")


def _marginals(model: Model, params: Params, data: Any) -> tuple[Series, np.ndarray, float]:
    series, raw, coords = _enter(model, params, data)
    marginals, gap = state_marginals(raw, coords, series)
    return series, marginals, gap


def _enter(model: Model, params: Params, data: Any) -> tuple[Series, Model, dict[str, Array]]:
    series = check_data(model, data)
    return series, *raw_units(model, params)


def _dataset(
    model: Model,
    series: Series,
    results: dict[str, tuple[tuple[str, ...], np.ndarray]],
    gap: float,
) -> "xarray.Dataset":
    import xarray

    coords = row_coords(series)
    t = coords["t"][1]
    variables = {}
    for name, (dims, values) in results.items():
        whole = values
        if model.num_lags > 0:
            fill = -1 if values.dtype.kind == "i" else np.nan
            whole = np.full((len(t), *values.shape[1:]), fill, dtype=values.dtype)
            whole[t >= model.num_lags] = values
        variables[name] = (dims, whole)
    return xarray.Dataset(
        variables,
        coords=coords,
        # Monte Carlo averages cannot be compared where windows meet.
        attrs={"discrepancy": gap if model.is_exact else float("nan")},
    )
