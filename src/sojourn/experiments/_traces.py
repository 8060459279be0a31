"""Samplers side by side: draws with the time they took, and their worth on held-out rows."""

import dataclasses
import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas

import sojourn as sj
from sojourn.experiments._session import Session

# Draws of the first round; later ones go up to four times as far, as long as time is left. The second is
# always run, as it takes two to tell set-up from draws; where the first took many times the time that
# there is, it is short.
_FIRST, _GROWTH = 20, 4
_SLOW = 10

# Draws that are evaluated, spread evenly over the logarithm of time.
_EVALUATED = 10

AUTO = "default"


@dataclass(frozen=True)
class Method:
    """A way to sample.

    Attributes:
        name: Name in figures and tables.
        sampler: The sampler.
        windows: Windows, "auto" for Gibbs and for the default.
        thin: Steps per draw that is kept.
        steps: Step sizes to choose among by the validation series; none for Gibbs and the default.
        model: A model in place of the experiment's.
        share: Share of the training series that it sees.
    """

    name: str
    sampler: Any
    windows: Any = "auto"
    thin: Any = 1
    steps: tuple[float, ...] = ()
    model: Any = None
    share: float = 1.0


class Trace(NamedTuple):
    """Draws of a method.

    Attributes:
        method: The method, with the step size that was chosen.
        fit: The draws.
        seconds: Time of each draw. The default's begins when it is called, that of methods with given
            settings and start when compilation and set-up are behind them.
        setup: Seconds of compilation, start and tuning.
        diverged: Whether a chain did, which ends a run.
    """

    method: Method
    fit: sj.Fit
    seconds: np.ndarray
    setup: float
    diverged: bool


def langevin(
    sgld: tuple[float, ...],
    sgrld: tuple[float, ...],
    windows: Mapping[str, sj.Windows],
    thin: int = 100,
) -> list[Method]:
    """Return SGLD and SGRLD, in the metric of the paper, on each kind of windows.

    Args:
        sgld: The step sizes of the paper, one for each kind of windows.
        sgrld: The same for SGRLD.
        windows: Windows by name; full ones make LD and RLD.
        thin: Steps per draw on windows.
    """
    methods = []
    for name, sampler, steps in (
        ("SGLD", sj.SGLD(), sgld),
        ("SGRLD", sj.SGRLD(metric="complete"), sgrld),
    ):
        for (kind, shape), step in zip(windows.items(), steps, strict=True):
            title = name.removeprefix("SG") if shape.is_full else f"{name} {kind}".strip()
            every = 1 if shape.is_full else thin
            own = dataclasses.replace(sampler, step_size=step)
            methods.append(Method(title, own, shape, every, (step,)))
    return methods


def batch_and_default() -> tuple[Method, Method]:
    """Return Gibbs and, beside it, the library's default."""
    return Method("Gibbs", sj.Gibbs()), Method(AUTO, None, thin="auto")


def with_search(methods: Sequence[Method], factors: Sequence[float]) -> list[Method]:
    """Let methods choose among multiples of their step size."""
    return [
        dataclasses.replace(m, steps=tuple(f * s for f in factors for s in m.steps))
        for m in methods
    ]


def trace(
    model: Any,
    data: Any,
    method: Method,
    init: Mapping[str, Any],
    seconds: float,
    *,
    num_chains: int,
    seed: int = 0,
) -> Trace | None:
    """Sample for some time after set-up; None if chains diverge before they have drawn enough.

    Rounds of one run, each resumed from the last, so that the times of draws are measured and the run
    ends when time is up, however fast it is.
    """
    model, given = method.model or model, method.name != AUTO
    how: dict[str, Any] = {"num_warmup": 0, "init": init} if given else {}
    if given and not isinstance(method.sampler, sj.Gibbs):
        how |= {"windows": method.windows, "control_variate": False}
    counts, times, diverged = [0], [0.0], False
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        began = time.perf_counter()
        call: Callable[[int], sj.Fit] = lambda n: sj.sample(  # noqa: E731
            *(model, data, method.sampler),
            num_samples=n,
            num_chains=num_chains,
            thin=method.thin,
            seed=seed,
            out=path,
            progress=False,
            **how,
        )
        count, fit = _FIRST, None
        while count:
            try:
                fit = call(count)
            except sj.DivergenceError as error:
                fit = error.fit if error.fit is not None else fit
                diverged = True
                break
            counts.append(count)
            times.append(time.perf_counter() - began)
            count = _next(counts, times, seconds)
            call = lambda n: sj.resume(path, data, n, progress=False)  # noqa: E731
    if fit is None or len(counts) < 2:
        return None
    rate, setup = _rate(counts, times)
    draws = np.arange(1, fit.posterior.sizes["draw"] + 1)
    clock = np.interp(draws, counts[1:], times[1:])
    clock[: counts[1]] = times[1] - rate * np.arange(counts[1])[::-1]
    # The round in which chains diverged has no time of its own.
    clock += rate * np.maximum(draws - counts[-1], 0)
    return Trace(method, fit, np.maximum(clock - given * setup, rate), setup, diverged)


def _rate(counts: list[int], times: list[float]) -> tuple[float, float]:
    """Return seconds per draw and those before the first."""
    if len(counts) < 3:
        return times[1] / counts[1], 0.0
    rate = (times[-1] - times[1]) / (counts[-1] - counts[1])
    return rate, max(0.0, times[1] - rate * counts[1])


def _next(counts: list[int], times: list[float], seconds: float) -> int:
    """Return the number of draws to go to, zero if time is up."""
    if len(counts) == 2:
        return counts[1] * (_GROWTH if times[1] < _SLOW * seconds else 2)
    rate, setup = _rate(counts, times)
    left = seconds - (times[-1] - setup)
    more = min((_GROWTH - 1) * counts[-1], int(left / max(rate, 1e-9)))
    return counts[-1] + more if more > counts[-1] // 10 else 0


Metrics = Callable[[Any, dict[str, np.ndarray]], dict[str, float]]


class Comparison(NamedTuple):
    """Methods on one data set.

    Attributes:
        traces: Draws, by method.
        curves: Metrics of some draws: columns method, chain, draw, seconds and one for each metric.
        table: One row for each method.
    """

    traces: list[Trace]
    curves: pandas.DataFrame
    table: pandas.DataFrame


def compare(
    session: Session,
    model: Any,
    methods: Sequence[Method],
    train: Any,
    metrics: Metrics,
    init: Mapping[str, Any],
    *,
    truth: Mapping[str, Any] | None = None,
    validation: Any = None,
    share: float = 1.0,
) -> Comparison:
    """Run methods one after the other and evaluate them.

    Args:
        session: The session; its budget is divided evenly.
        model: The model.
        methods: The methods.
        train: Rows they see.
        metrics: Maps a model and parameters to numbers, `score` first: that of held-out rows.
        init: Where all but the default start.
        truth: True parameters, whose mean squared error is added to the metrics.
        validation: Rows that step sizes are chosen by.
        share: Share of the budget for this data set.
    """
    session.settings["clocks"] = (
        f"{AUTO}: from its call, compilation and tuning included; others: from their first draw"
    )
    seconds = share * session.budget / len(methods)
    num_chains = session.pick(2, 4)
    traces, curves, rows = [], [], []
    for method in methods:
        data = _part(train, method.share)
        chosen = _search(model, data, method, init, validation, seconds)
        one = trace(model, data, chosen, init, seconds, num_chains=num_chains)
        if one is None:
            rows.append({"method": method.name, "step_size": _step(chosen), "diverged": True})
            session.say(f"{method.name}: diverged")
            continue
        found = _evaluate(one, metrics, truth)
        curves.append(found)
        traces.append(one)
        rows.append(_summary(one, found))
        session.say(f"{method.name}: {rows[-1]['steps']} steps, score {rows[-1]['score']:.4f}")
    if not traces:
        raise RuntimeError(
            "every method diverged; give more time with --budget, or look at the data"
        )
    return Comparison(traces, pandas.concat(curves), pandas.DataFrame(rows))


def _part(train: Any, share: float) -> Any:
    return train if share == 1 else train[: max(1, round(share * len(train)))]


def _step(method: Method) -> float:
    step = getattr(method.sampler, "step_size", math.nan)
    return math.nan if isinstance(step, str) else step


def _search(
    model: Any, data: Any, method: Method, init: Any, validation: Any, seconds: float
) -> Method:
    """Return the method with the step size whose short run predicts the validation series best."""
    if len(method.steps) < 2 or validation is None:
        return method
    best = (-math.inf, method)
    for step in method.steps:
        own = dataclasses.replace(method.sampler, step_size=step)
        tried = dataclasses.replace(method, sampler=own)
        one = trace(model, data, tried, init, seconds / 10, num_chains=1, seed=1)
        if one is not None:
            score = sj.log_likelihood(one.fit.model, second_half(one.fit).mean, validation)
            best = max(best, (score, tried), key=lambda pair: pair[0])
    return best[1]


def second_half(fit: sj.Fit) -> sj.Fit:
    """Return a fit of the draws after burn-in: the second half of each chain."""
    half = fit.posterior.sizes["draw"] // 2
    return dataclasses.replace(fit, posterior=fit.posterior.isel(draw=slice(half, None)))


def _evaluate(one: Trace, metrics: Metrics, truth: Mapping[str, Any] | None) -> pandas.DataFrame:
    posterior = one.fit.posterior
    num = posterior.sizes["draw"]
    wanted = np.geomspace(one.seconds[0], one.seconds[-1], _EVALUATED)
    picked = np.unique(np.minimum(np.searchsorted(one.seconds, wanted), num - 1))
    errors = one.fit.mse(dict(truth)) if truth is not None else None
    rows = []
    for chain in range(posterior.sizes["chain"]):
        for draw in picked:
            at = posterior.isel(chain=chain, draw=int(draw))
            params = {str(n): np.asarray(v) for n, v in at.items()}
            row = {"method": one.method.name, "chain": chain, "draw": int(draw)}
            row |= {"seconds": one.seconds[draw], **metrics(one.fit.model, params)}
            if errors is not None:
                part = errors.isel(chain=chain, draw=int(draw))
                row |= {f"mse_{name}": float(v) for name, v in part.items()}
            rows.append(row)
    return pandas.DataFrame(rows)


def _summary(one: Trace, curves: pandas.DataFrame) -> dict[str, Any]:
    """Return one row: what the chains reached in the second half of their draws."""
    num = one.fit.posterior.sizes["draw"]
    late = curves[curves["draw"] >= num // 2]
    measured = late.drop(columns=["method", "chain", "draw", "seconds"]).mean()
    return {
        "method": one.method.name,
        "step_size": one.fit.choices.get("step_size", math.nan),
        "steps": num * int(one.fit.choices["thin"]),
        "seconds": float(one.seconds[-1]),
        "setup_seconds": one.setup,
        **{str(k): float(v) for k, v in measured.items()},
        **({"diverged": True} if one.diverged else {}),
    }
