"""Weather of US cities: SLDS of daily and hourly rows, Gibbs against SGRLD, the fits of Houston."""

from typing import Any

import numpy as np

import sojourn as sj
from sojourn.experiments import _figures, _traces
from sojourn.experiments._session import Session

_RECORDING = "weather_hourly/weather_36x45253x3_f32.npz"
_COUNTRY = "United States"
_CITIES = 20

# Sea-level pressures outside these, in hPa, do not occur: misreadings, taken as missing.
_PRESSURES = (900.0, 1060.0)

_WINDOWS = {"buffer": sj.Windows(length=50, buffer=10)}

# The paper's step sizes of SGLD; SGRLD has 0.1 for both.
_SGLD = {"daily": 0.1, "hourly": 0.01}


def run(session: Session) -> None:
    """Compare samplers on sixteen cities, scored on four others."""
    path = session.data(_RECORDING, "Historical Hourly Weather Data 2012-2017, on Kaggle")
    with np.load(path) as file:
        hourly, names = _select(file)
    test_names = names[4::5]
    session.settings.update({"cities": names, "test": test_names})
    kinds = {"daily": _daily(hourly)} | session.pick({}, {"hourly": hourly})
    for kind, rows in kinds.items():
        series = dict(zip(names, _standardised(rows), strict=True))
        if session.scale == "small":
            series = {name: y[:365] for name, y in series.items()}
        _compare(session, kind, series, test_names, 1 / len(kinds))


def _select(file: Any) -> tuple[np.ndarray, list[str]]:
    """Return the most complete US cities, Houston among them, with gross outliers missing."""
    values = file["X"].astype(float)
    pressure = values[:, :, list(file["variables"]).index("pressure_hPa")]
    low, high = _PRESSURES
    pressure[(pressure < low) | (pressure > high)] = np.nan
    own = np.flatnonzero(file["country"] == _COUNTRY)
    gaps = np.isnan(values[own]).any(2).sum(1)
    gaps = np.where(file["cities"][own] == "Houston", -1, gaps)
    kept = own[np.argsort(gaps, kind="stable")[:_CITIES]]
    return values[kept], [str(name) for name in file["cities"][kept]]


def _daily(hourly: np.ndarray) -> np.ndarray:
    """Return means of days; a day without a reading is missing."""
    cities, hours, columns = hourly.shape
    days = hourly[:, : hours // 24 * 24].reshape(cities, -1, 24, columns)
    seen = ~np.isnan(days)
    total, count = np.where(seen, days, 0.0).sum(2), seen.sum(2)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _standardised(rows: np.ndarray) -> np.ndarray:
    """Return rows in sds of their city and column around the mean: the model has no intercept."""
    mean, sd = (f(rows, axis=1, keepdims=True) for f in (np.nanmean, np.nanstd))
    return (rows - mean) / sd


def _compare(
    session: Session, kind: str, series: dict[str, np.ndarray], test_names: list[str], share: float
) -> None:
    train = [y for name, y in series.items() if name not in test_names]
    test = [series[name] for name in test_names]
    test = test[: session.pick(2, len(test))]
    held_out = sum(map(len, test))

    def metrics(model: Any, params: dict[str, np.ndarray]) -> dict[str, float]:
        return {"score": sj.log_likelihood(model, params, test) / held_out}

    # The default is Gibbs, here a draw every five sweeps after hundreds from another start: too long for
    # the small scale and for hourly rows.
    model = sj.SLDS(num_states=4, state_dim=3, emission_dim=3)
    has_default = session.scale == "paper" and kind == "daily"
    methods = [
        *_traces.langevin((_SGLD[kind],), (0.1,), _WINDOWS, thin=10)[session.pick(1, 0) :],
        *_traces.batch_and_default()[: 1 + has_default],
    ]
    session.say(f"{kind}: {len(train)} cities")
    start = model.initialize(train, seed=0)
    found = _traces.compare(session, model, methods, train, metrics, start, share=share)
    session.table(f"metrics_{kind}", found.table)
    session.rows(f"curves_{kind}", found.curves)
    titles = {"score": "held-out log-likelihood per row"}
    session.figure(f"curves_{kind}", _figures.draw_curves(found, titles))
    for one in found.traces:
        if one.method.name in ("SGRLD buffer", "Gibbs"):
            fit = _traces.second_half(one.fit)
            label = one.method.name.lower().replace(" ", "_")
            houston = fit.plot_segmentation(series["Houston"], 0, min(730, len(series["Houston"])))
            session.figure(f"houston_{kind}_{label}", houston)
