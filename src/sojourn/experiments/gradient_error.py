"""Error of buffered gradients against subsequence length and buffer, with rates beside the theory's."""

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import pandas
import xarray
from matplotlib.figure import Figure

import sojourn as sj
from sojourn._cores import num_cores
from sojourn.experiments._session import Session
from sojourn.synthetic import (
    alternating_rotations,
    reversed_cycles,
    rotating_state,
    switching_rotations,
)

# Errors under this share of that without a buffer are rounding, and do not enter a fitted rate.
_FLOOR = 1e-8


class _Case(NamedTuple):
    """A model, and which curves the paper shows of it.

    Attributes:
        title: Name.
        synthetic: Model and parameters.
        buffer: Buffer beside none, against subsequence length.
        lengths: Short and long subsequences, against buffer.
    """

    title: str
    synthetic: Any
    buffer: int
    lengths: tuple[int, int]


_CASES = (
    _Case("ARHMM", alternating_rotations, 10, (4, 64)),
    _Case("LGSSM", rotating_state, 10, (4, 64)),
    _Case("HMM", reversed_cycles, 5, (2, 50)),
    _Case("SLDS", switching_rotations, 4, (2, 32)),
)


def run(session: Session) -> None:
    """Measure, fit rates, draw."""
    num_sets = session.pick(4, 100)
    num_rows = session.pick(2_000, 10_000)
    session.settings.update({"data_sets": num_sets, "rows": num_rows})
    figure = Figure(figsize=(10, 2.8 * len(_CASES)), layout="constrained")
    axes = figure.subplots(len(_CASES), 2, squeeze=False)
    rates, curves = [], []
    for case, row in zip(_CASES, axes, strict=True):
        errors = _measure(case, num_sets, num_rows, session)
        rates.append(_rates(case, errors, num_rows))
        long = errors["norm"].to_dataframe().reset_index().assign(model=case.title)
        curves.append(long)
        _draw(case, errors["norm"], row)
        session.say(f"{case.title}: error × {rates[-1]['measured_rate']:.3f} per row of buffer")
        # What is known so far, should it be stopped: at paper scale all of it takes long.
        session.table("rates", pandas.DataFrame(rates))
        session.rows("errors", pandas.concat(curves))
        session.figure("errors", figure)


def _measure(case: _Case, num_sets: int, num_rows: int, session: Session) -> xarray.Dataset:
    """Return errors over data set, length and buffer."""
    model, truth = case.synthetic()
    short, long = case.lengths
    lengths = sorted({short, long, *session.pick((), (1, 2, 4, 8, 16, 32, 64, 128))})
    buffers = sorted({0, case.buffer, *session.pick((1, 2, 4, 8), (*range(9), 10, 12, 16, 20))})

    def measure(seed: int) -> xarray.Dataset:
        _, y = model.simulate(truth, num_rows, seed=seed)
        how: dict[str, Any] = {"reference": 60, "num_windows": 64, "seed": seed}
        return sj.gradient_error(model, truth, y, lengths, buffers, **how)

    first = measure(0)  # compiles for all
    with ThreadPoolExecutor(num_cores()) as pool:
        found = [first, *pool.map(measure, range(1, num_sets))]
    return xarray.concat(found, dim="data_set")


def _rates(case: _Case, errors: xarray.Dataset, num_rows: int) -> dict[str, Any]:
    """Return fitted rates beside the theoretical ones."""
    model, truth = case.synthetic()
    short = case.lengths[0]
    mean = errors["norm"].mean("data_set")
    _, y = model.simulate(truth, num_rows, seed=0)
    theory = math.nan
    if not isinstance(model, sj.SLDS):  # no theory gives a rate there
        theory = sj.choose_buffer(model, truth, y, length=short, max_buffer=30).rate
    at_short = mean.sel(length=short)
    return {
        "model": case.title,
        "measured_rate": _decay(at_short),
        "theoretical_rate": theory,
        "power_of_length": _power(mean.sel(buffer=0)),
        "theoretical_power": -1.0,
        "error_without_buffer": float(at_short.sel(buffer=0)),
        "error_with_buffer": float(at_short.sel(buffer=case.buffer)),
        "buffer": case.buffer,
        "length": short,
    }


def _decay(errors: xarray.DataArray) -> float:
    """Return the factor by which a row of buffer multiplies the error, least squares of logarithms."""
    buffers = errors["buffer"].to_numpy()
    values = np.maximum(errors.to_numpy(), np.finfo(float).tiny)
    kept = values > _FLOOR * values[0]
    kept[:2] = True  # one row may leave nothing but rounding
    return float(np.exp(np.polyfit(buffers[kept], np.log(values[kept]), 1)[0]))


def _power(errors: xarray.DataArray) -> float:
    """Return a in error ∝ S^a."""
    return float(np.polyfit(np.log(errors["length"]), np.log(errors), 1)[0])


def _draw(case: _Case, norm: xarray.DataArray, axes: Any) -> None:
    """Draw errors against length (left) and against buffer (right), bars over data sets."""
    left, right = axes
    for buffer, color in ((0, "tab:orange"), (case.buffer, "tab:blue")):
        _bars(left, norm.sel(buffer=buffer), "length", color, f"buffer {buffer}")
    for length, color in zip(case.lengths, ("tab:purple", "tab:green"), strict=True):
        _bars(right, norm.sel(length=length), "buffer", color, f"{length} rows")
    left.set_xscale("log", base=2)
    left.set_ylabel(f"{case.title}: gradient error")
    left.set_xlabel("rows that count")
    right.set_xlabel("buffer")


def _bars(axis: Any, norm: xarray.DataArray, over: str, color: str, label: str) -> None:
    mean, sd = norm.mean("data_set"), norm.std("data_set")
    axis.errorbar(
        norm[over], mean, np.minimum(sd, 0.9 * mean), fmt="o-", ms=3, c=color, label=label
    )
    axis.set_yscale("log")
    axis.legend(frameon=False, fontsize=8)
    axis.spines[["top", "right"]].set_visible(False)
