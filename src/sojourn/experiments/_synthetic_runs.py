"""Metrics against runtime, box plots of draws and KSD tables on synthetic data."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import sojourn as sj
from sojourn.experiments import _figures, _traces
from sojourn.experiments._session import Session
from sojourn.experiments._traces import Method


@dataclass(frozen=True)
class Study:
    """A model of the paper with its samplers.

    Attributes:
        synthetic: Returns model and true parameters.
        methods: Methods by the number of rows, `10_000` or `1_000_000`, at the paper's settings.
        start: How the start is made, as in `initialize`, by scale.
        boxes: Entries for box plots: title, parameter and index.
        curves: Metrics in the figure and their titles.
        test_rows: Held-out rows, by scale.
        has_ksd: Whether the paper has a KSD table.
        small: Methods that run at small scale; all if none are named.
    """

    synthetic: Callable[[], tuple[Any, dict[str, np.ndarray]]]
    methods: Mapping[int, Sequence[Method]]
    boxes: Mapping[str, tuple[str, tuple[int, ...]]]
    curves: Mapping[str, str]
    start: tuple[str, str] = ("kmeans", "kmeans")
    test_rows: tuple[int, int] = (10_000, 10_000)
    has_ksd: bool = True
    small: tuple[str, ...] = ()


def run_study(session: Session, study: Study) -> None:
    """Compare the methods on training series of both lengths of the paper; one at small scale."""
    model, truth = study.synthetic()
    states, test = model.simulate(truth, session.pick(*study.test_rows), seed=1)
    _, validation = model.simulate(truth, len(test), seed=2)
    sizes = session.pick((10_000,), (10_000, 1_000_000))
    session.settings.update({"rows": sizes, "test_rows": len(test)})
    for num_rows in sizes:
        _, train = model.simulate(truth, num_rows, seed=0)
        methods = study.methods[num_rows]
        if session.scale == "paper":
            methods = _traces.with_search(methods, (0.1, 1.0, 10.0))
        elif study.small:
            methods = [method for method in methods if method.name in study.small]
        session.say(f"{num_rows:,} rows")
        comparison = _traces.compare(
            *(session, model, methods, train),
            _metrics(test, states),
            model.initialize(train, session.pick(*study.start), seed=0),
            truth=truth,
            validation=validation,
            share=1 / len(sizes),
        )
        _write(session, study, truth, train, comparison, f"T{num_rows}")


def _metrics(test: np.ndarray, states: Mapping[str, np.ndarray]) -> _traces.Metrics:
    def measure(model: Any, params: dict[str, np.ndarray]) -> dict[str, float]:
        found = {"score": sj.log_likelihood(model, params, test) / len(test)}
        decoded = sj.decode(model, params, test)
        if "z" in states:
            found["nmi"] = sj.nmi(decoded["state"].to_numpy(), states["z"])
        if "x" in states:
            found["rmse"] = sj.rmse(decoded["x"].to_numpy(), states["x"])
        return found

    return measure


def _write(
    session: Session,
    study: Study,
    truth: Mapping[str, np.ndarray],
    train: np.ndarray,
    comparison: _traces.Comparison,
    name: str,
) -> None:
    session.table(f"metrics_{name}", comparison.table)
    session.rows(f"curves_{name}", comparison.curves)
    session.figure(f"curves_{name}", _figures.draw_curves(comparison, study.curves))
    boxes = {t: (p, i, float(truth[p][i])) for t, (p, i) in study.boxes.items()}
    session.figure(f"boxes_{name}", _figures.draw_boxes(comparison.traces, boxes))
    session.rows(f"boxes_{name}", _figures.quantiles(comparison.traces))
    if study.has_ksd:
        windows = sj.Windows(10_000, buffer=100) if len(train) > 10_000 else None
        num_draws = session.pick(50, 200)
        table = _figures.ksd_table(comparison.traces, train, windows, num_draws)
        session.table(f"ksd_{name}", table)
