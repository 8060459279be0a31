"""Rows that were not seen: those to come, and those missing in between.

A row to come is a missing row behind the last. Its state is drawn, with all others, from the law of the
states given the rows that were seen; the row itself is then drawn given its state. The law of the last
state forgets early rows: as many of the last are read as it takes for fewer to give the same law.
"""

import dataclasses
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from sojourn._precision import double
from sojourn._random import child_seed, random_key
from sojourn._validation import check_seed, check_size
from sojourn.batch import Batch
from sojourn.models import completion
from sojourn.models.base import Coords, Model, Params, check_data, check_lags, check_model
from sojourn.passes import first_buffer, state_marginals
from sojourn.results.datasets import row_coords
from sojourn.results.gaps import fill_gaps
from sojourn.results.metrics import raw_units
from sojourn.results.states import draw_paths
from sojourn.series import Series, as_series

if TYPE_CHECKING:
    import xarray

# Rows read of the end of a series before more are tried.
_TAIL = 64

# Draws of a fit that tell how many rows of the end its draws need.
_LOOKED_AT = 8

# Laws of the last state that differ by less than this, of probabilities or sds, are the same.
_SAME_LAW = 1e-10

# What tails may keep of the state before them.
_FORGOTTEN = 1e-6

# Gibbs sweeps for the missing entries of an autoregression: at one parameter, and at each of many.
_SWEEPS = 200
_FEW_SWEEPS = 5

# Buffers that the end of a series is read with, where its law is out of reach and cannot be compared.
_UNCHECKED_BUFFERS = 4


def forecast(
    model: Model,
    params: Params,
    data: Any,
    horizon: int,
    *,
    num_draws: int = 1000,
    seed: int = 0,
) -> "xarray.Dataset":
    """Draw states and rows that follow each series, given the parameters and all its rows.

    Args:
        model: The model.
        params: Parameters.
        data: The series, as in `sample`.
        horizon: How many rows ahead.
        num_draws: Number of futures drawn.
        seed: Which draws.

    Returns:
        A dataset over `draw`, `series` and `ahead` (1, …, horizon), with rows `y` (…, column) and states
        `state` and `x` (…, dim), whichever the model has.
    """
    check_size("horizon", horizon)
    check_size("num_draws", num_draws)
    check_seed(seed)
    series = check_data(model, data)
    raw, coords = raw_units(model, params)
    _check_end(raw, series)
    tails = _tails(raw, coords, series)
    drawn = _draw_ahead(raw, params, coords, tails, horizon, seed, num_draws)
    return futures(series, [drawn], num_draws)


def forecast_draws(
    model: Model, draws: list[dict[str, np.ndarray]], data: Series, horizon: int, seed: int
) -> "xarray.Dataset":
    """Return `forecast` with one future for each of several parameters."""
    check_size("horizon", horizon)
    check_lags(model, data)
    _check_end(model, data)
    # Draws differ little in how far back they look, and the rows found are four times those needed.
    some = draws[:: -(-len(draws) // _LOOKED_AT)]
    found, tails = [], max((_tails(*raw_units(model, params), data) for params in some), key=_size)
    for i, params in enumerate(draws):
        raw, coords = raw_units(model, params)
        found.append(
            _draw_ahead(raw, params, coords, tails, horizon, child_seed(check_seed(seed), i), 1)
        )
    return futures(data, found, len(draws))


def _size(tails: list[np.ndarray]) -> int:
    return sum(map(len, tails))


def futures(series: Series, drawn: list[dict[str, np.ndarray]], num_draws: int) -> "xarray.Dataset":
    """Assemble futures (draw · series, ahead, …) in one dataset."""
    import xarray

    dims = {"state": (), "x": ("dim",), "y": ("column",)}
    joined = {name: np.concatenate([d[name] for d in drawn]) for name in drawn[0]}
    horizon = joined["y"].shape[1]
    shape = (num_draws, len(series.lengths), horizon)
    coords = {"ahead": np.arange(1, horizon + 1), "column": list(series.columns)}
    if series.names is not None:
        coords["series"] = series.labels
    return xarray.Dataset(
        {
            name: (("draw", "series", "ahead", *dims[name]), v.reshape(*shape, *v.shape[2:]))
            for name, v in joined.items()
        },
        coords=coords,
    )


@double
def _draw_ahead(
    model: Model,
    params: Params,
    coords: Coords,
    tails: list[np.ndarray],
    horizon: int,
    seed: int,
    count: int,
) -> dict[str, np.ndarray]:
    """Draw states and rows behind each of several series `count` times, (count · series, horizon, …)."""
    D = model.emission_dim
    nothing = np.full((horizon, D), np.nan)
    extended = [np.concatenate([tail, nothing]) for tail in tails]
    lengths = tuple(len(rows) for rows in extended)
    values = np.concatenate(extended)
    whole = np.isnan(values).any(1) == np.isnan(values).all(1)
    names = tuple(f"y{d}" for d in range(D))
    series = Series(values, lengths, names, "rows" if whole.all() else "entries")
    last = np.cumsum(np.asarray(lengths) - model.num_lags)[:, None] - np.arange(horizon, 0, -1)
    paths = draw_paths(model, coords, series, random_key(seed), count, last.ravel())
    ahead = {name: value.reshape(-1, horizon, *value.shape[2:]) for name, value in paths.items()}
    lags = np.tile([tail[len(tail) - model.num_lags :] for tail in tails], (count, 1, 1))
    rng = np.random.default_rng(seed)
    y = model.rows_ahead(rng, _values(model, params), ahead, lags)
    return {**ahead, "y": y}


def _values(model: Model, params: Params) -> dict[str, np.ndarray]:
    """Return the parameters with what is fixed."""
    return {**model.constants, **{name: np.asarray(v) for name, v in params.items()}}


@double
def _tails(model: Model, coords: Coords, series: Series) -> list[np.ndarray]:
    """Return as many of the last rows of each series as the law of the last state depends on."""
    longest, found = max(series.lengths), None
    rows = _TAIL + model.num_lags
    if not model.is_exact:
        rows = _UNCHECKED_BUFFERS * first_buffer(model, coords, series)
    while rows < longest:
        tails = _last_rows(series, rows)
        if not all(map(_says_enough, tails, series.lengths)):
            rows *= 4
            continue
        if not model.is_exact:
            return tails
        cut = Series(np.concatenate(tails), tuple(map(len, tails)), series.columns, series.missing)
        marginals, _ = state_marginals(model, coords, cut)
        ends = np.cumsum(np.asarray(cut.lengths) - model.num_lags) - 1
        law = {name: of[1] for name, of in model.describe_states(marginals[ends]).items()}
        same = found is not None and _gap(law, found) < _SAME_LAW
        if same and all(_forgets(model, coords, tail, series) for tail in tails):
            return tails
        rows, found = 4 * rows, law
    return _last_rows(series, longest)


def _forgets(model: Model, coords: Coords, tail: np.ndarray, series: Series) -> bool:
    """Whether the law of the last state is the same whatever the state before these rows.

    Two tails of different lengths agree, too, where neither tells states apart that only rows before
    them could.
    """
    L = len(tail) - model.num_lags
    batch = Batch(jnp.asarray(tail)[..., None], jnp.ones((L, 1)), jnp.zeros(1, bool))
    rate = model.forgetting_rate(coords, batch, model.missing_kind(series.missing))
    return rate is None or float(rate) ** L < _FORGOTTEN


def _says_enough(tail: np.ndarray, length: int) -> bool:
    """Whether rows of the end of a series are all of it, or each column has enough entries there.

    A state that only a missing column tells of may be known from far before.
    """
    return len(tail) == length or int((~np.isnan(tail)).sum(0).min()) >= _TAIL


def _last_rows(series: Series, rows: int) -> list[np.ndarray]:
    """Return so many rows of the end of each series, or all it has."""
    ends = np.cumsum(series.lengths)
    return [
        series.rows(int(end) - min(rows, length), int(end))
        for end, length in zip(ends, series.lengths, strict=True)
    ]


def _gap(law: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> float:
    """Return the largest difference of laws: of probabilities, of moments in standard deviations."""
    gaps = [np.abs(law[name] - other[name]) for name in law]
    if "covariance" in law:
        sd = np.sqrt(np.einsum("maa->ma", law["covariance"]))
        scales = {"x": sd, "covariance": sd[:, :, None] * sd[:, None]}
        gaps = [gap / scales.get(name, 1.0) for name, gap in zip(law, gaps, strict=True)]
    return float(max(gap.max() for gap in gaps))


def _check_end(model: Model, series: Series) -> None:
    """Raise where rows to come depend on rows that are missing."""
    for i, part in enumerate(_last_rows(series, model.num_lags) if model.num_lags else []):
        if np.isnan(part).any():
            raise ValueError(
                f"rows after series {i} depend on its last {model.num_lags} rows, of which some are "
                "missing; cut the series behind its last complete rows"
            )


@double
def impute(
    model: Model, params: Params, data: Any, *, num_draws: int = 0, seed: int = 0
) -> "xarray.Dataset":
    """Return the law of missing entries given all that was seen.

    Where rows depend on earlier rows, as in an ARHMM, moments are averages over Gibbs sweeps, each a
    pass over all rows, and good to some 7% of an sd.

    Args:
        model: The model.
        params: Parameters.
        data: The series, as in `sample`.
        num_draws: Draws of the missing entries, all of one draw together; none by default.
        seed: Which draws.

    Returns:
        A dataset over `time` and `column` with `mean` and `sd`, those of entries that were seen being
        the entry and zero. If draws are asked for, `draw` (sample, entry), with the `entry_time` and the
        `entry_column` of each missing entry.
    """
    check_model(model)
    check_size("num_draws", num_draws, least=0)
    check_seed(seed)
    series = _read_imputable(model, as_series(data, model.emission_dim))
    found = _impute(model, params, series, seed, num_draws, max(_SWEEPS, num_draws))
    return imputed(series, *found)


def impute_draws(
    model: Model,
    draws: list[dict[str, np.ndarray]],
    series: Series,
    *,
    with_draws: bool,
    seed: int,
) -> "xarray.Dataset":
    """Return `impute` averaged over several parameters, with one draw for each if asked for."""
    series = _read_imputable(model, series)
    hidden = np.isnan(series.to_numpy()).sum()
    total, second = np.zeros(hidden), np.zeros(hidden)
    drawn = [np.zeros((0, hidden))]
    for i, params in enumerate(draws):
        own = child_seed(check_seed(seed), i)
        mean, variance, draw = _impute(model, params, series, own, int(with_draws), _FEW_SWEEPS)
        total, second = total + mean, second + variance + np.square(mean)
        drawn.append(draw)
    mean = total / len(draws)
    variance = np.maximum(second / len(draws) - np.square(mean), 0.0)
    return imputed(series, mean, variance, np.concatenate(drawn))


def _read_imputable(model: Model, series: Series) -> Series:
    """Return the series in memory, where its missing entries are looked up many times."""
    check_lags(model, series)
    p, read = model.num_lags, dataclasses.replace(series, values=series.to_numpy())
    first = 0
    for i, length in enumerate(series.lengths):
        if np.isnan(read.to_numpy()[first : first + p]).any():
            raise ValueError(
                f"series {i} misses entries among its first {p} rows, which {type(model).__name__} "
                "takes as given; begin it behind them"
            )
        first += length
    return read


def imputed(
    series: Series, mean: np.ndarray, variance: np.ndarray, draws: np.ndarray
) -> "xarray.Dataset":
    """Assemble moments of the missing entries, in order of rows, and draws (sample, entry) of them."""
    import xarray

    hidden = np.isnan(series.to_numpy())
    full, sd = np.array(series.to_numpy()), np.zeros(hidden.shape)
    full[hidden], sd[hidden] = mean, np.sqrt(variance)
    found = xarray.Dataset(
        {"mean": (("time", "column"), full), "sd": (("time", "column"), sd)},
        coords={**row_coords(series), "column": list(series.columns)},
    )
    if len(draws) == 0:
        return found
    row, column = np.nonzero(hidden)
    return found.assign(draw=(("sample", "entry"), draws)).assign_coords(
        entry_time=("entry", row), entry_column=("entry", np.asarray(series.columns)[column])
    )


@double
def _impute(
    model: Model, params: Params, series: Series, seed: int, num_draws: int, num_sweeps: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return mean and variance of the missing entries, in order of rows, and draws (draw, entry).

    Where rows depend on earlier ones, all are averages over sweeps.
    """
    if model.num_lags == 0:
        return *_moments(model, params, series), _fill(model, params, series, seed, num_draws)
    raw, coords = raw_units(model, params)
    filled = fill_gaps(raw, params, coords, series, seed, num_sweeps)
    spread = np.linspace(0, num_sweeps, num_draws, endpoint=False).astype(int)
    return *filled.moments(), filled.draws[spread]


@double
def _moments(model: Model, params: Params, series: Series) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and variance of the missing entries, in order of rows."""
    raw, coords = raw_units(model, params)
    hidden = np.isnan(series.to_numpy())
    rows = hidden.any(1)
    values = _values(raw, params)
    marginals, _ = state_marginals(raw, coords, series) if rows.any() else (None, 0)
    if marginals is None:
        return np.zeros(0), np.zeros(0)
    states = {name: of[1][rows] for name, of in raw.describe_states(marginals).items()}
    mean, covariance = raw.complete_rows(values, states, series.to_numpy()[rows])
    variance = np.einsum("mdd->md", covariance)
    return mean[hidden[rows]], variance[hidden[rows]]


@double
def _fill(model: Model, params: Params, series: Series, seed: int, count: int) -> np.ndarray:
    """Draw the missing entries, in order of rows, given draws of the states: (count, entries)."""
    raw, coords = raw_units(model, params)
    hidden = np.isnan(series.to_numpy())
    rows = hidden.any(1)
    if count == 0 or not rows.any():
        return np.zeros((count, hidden.sum()))
    values = _values(raw, params)
    paths = draw_paths(raw, coords, series, random_key(seed), count)
    rng = np.random.default_rng(seed)
    drawn = np.empty((count, hidden.sum()))
    for i in range(count):
        known = raw.known_states({name: value[i][rows] for name, value in paths.items()})
        mean, covariance = raw.complete_rows(values, known, series.to_numpy()[rows])
        drawn[i] = completion.draw(rng, mean, covariance)[hidden[rows]]
    return drawn
