"""Spread of the three Monte Carlo gradients of an SLDS, from draws of x and z, of z, and of x."""

import dataclasses

import numpy as np
import pandas
from matplotlib.figure import Figure

import sojourn as sj
from sojourn.experiments._session import Session
from sojourn.synthetic import switching_rotations

_ESTIMATORS = ("xz", "z", "x")


def run(session: Session) -> None:
    """Draw gradients at the true parameters on one window that is the whole series."""
    num_rows, repeats = session.pick(500, 1_000), session.pick(60, 500)
    session.settings.update({"rows": num_rows, "repeats": repeats, "sweeps": 1, "burn-in": 10})
    base, truth = switching_rotations()
    _, y = base.simulate(truth, num_rows, seed=0)
    coords = base.to_coords(truth)
    whole = sj.Windows(length=num_rows)
    errors: dict[str, dict[str, np.ndarray]] = {}
    # Many sweeps of the steadiest estimator stand for the exact gradient.
    exact = dataclasses.replace(base, num_burnin=10, num_draws=50)
    reference = _mean([sj.gradient(exact, coords, y, whole, seed=s) for s in range(20)])
    for estimator in _ESTIMATORS:
        model = dataclasses.replace(base, estimator=estimator, num_burnin=10, num_draws=1)
        drawn = [sj.gradient(model, coords, y, whole, seed=1000 + s) for s in range(repeats)]
        errors[estimator] = {
            name: np.stack([g[name] - reference[name] for g in drawn]).reshape(repeats, -1)
            for name in reference
        }
        session.say(f"{estimator}: {repeats} gradients of {num_rows} rows")
    names = list(reference)
    table = pandas.DataFrame(
        [
            {"estimator": e, **{n: float(np.sqrt(np.square(errors[e][n]).mean())) for n in names}}
            for e in _ESTIMATORS
        ]
    )
    session.table("root_mean_square_errors", table)
    session.rows("errors", _long(errors))
    session.figure("errors", _draw(errors, names))


def _mean(gradients: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: np.mean([g[name] for g in gradients], axis=0) for name in gradients[0]}


def _long(errors: dict[str, dict[str, np.ndarray]]) -> pandas.DataFrame:
    return pandas.concat(
        pandas.DataFrame(values)
        .rename_axis("repeat")
        .reset_index()
        .melt("repeat", var_name="entry", value_name="error")
        .assign(estimator=estimator, coordinate=name)
        for estimator, by_name in errors.items()
        for name, values in by_name.items()
    )


def _draw(errors: dict[str, dict[str, np.ndarray]], names: list[str]) -> Figure:
    figure = Figure(figsize=(2.6 * len(names), 3.2), layout="constrained")
    for axis, name in zip(figure.subplots(1, len(names)), names, strict=True):
        values = [errors[e][name].ravel() for e in _ESTIMATORS]
        axis.boxplot(values, tick_labels=_ESTIMATORS, sym="", whis=(5, 95))
        axis.axhline(0, color="gray", lw=0.5)
        axis.set_title(f"gradient of {name}", fontsize=9)
        axis.spines[["top", "right"]].set_visible(False)
    return figure
