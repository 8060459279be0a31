"""Side by side with peers, in one run, on one core: prints a table and writes it to results.md.

`python benchmarks/run.py passes gibbs` prints some sections and writes nothing.

Both sides take turns, so that a busy machine hits them alike; results are checked to agree before they
are timed. Times depend on the machine, ratios far less.
"""

import sys
from pathlib import Path

from timing import core_seconds, import_seconds, keep_memory, least_seconds, pin

if __name__ == "__main__":
    pin()
    keep_memory()

import dataclasses
import functools
import importlib.metadata
import platform
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from peers import (
    dynamax_gradients,
    dynamax_linear,
    dynamax_linear_gradients,
    dynamax_log_likelihood,
    dynamax_marginals,
    hmmlearn_models,
    statsmodels_linear,
)

import sojourn as sj
from sojourn.batch import Batch
from sojourn.dynamics import State
from sojourn.gibbs import Sweep, make_sweep
from sojourn.gradients import Estimator, Source, windowed
from sojourn.passes.passes import state_marginals, total_score
from sojourn.sampling.chains import _advance
from sojourn.synthetic import (
    alternating_rotations,
    reversed_cycles,
    rotating_state,
    switching_rotations,
)
from sojourn.tuning.modes import place

ROWS = 1_000_000
LONG_ROWS = 10_000_000

# Steps per timed call: long against the call itself.
STEPS = 2000


class Line(NamedTuple):
    """One line of the table; `ratio` is the peer's time over ours, or None."""

    what: str
    ours: str
    peer: str
    ratio: float | None
    target: str
    met: bool | None


def main() -> None:
    """Run all comparisons, print the table and write it beside this file; or print those asked for."""
    asked, names = sys.argv[1:], [section.__name__ for section in SECTIONS]
    if not set(asked) <= set(names):
        sys.exit(f"unknown section; choose from {', '.join(names)}")
    lines = ["| what | sojourn | best peer | ratio | target | met? |", "|---|---|---|---|---|---|"]
    _show(*lines)
    with jax.enable_x64(True):
        for section in SECTIONS if not asked else [s for s in SECTIONS if s.__name__ in asked]:
            for line in section():
                lines.append(_format(line))
                _show(lines[-1])
    if not asked:
        text = "\n".join([*lines, "", _machine(), ""])
        (Path(__file__).parent / "results.md").write_text(text)
    _show("", _machine())


def passes() -> Iterator[Line]:
    """Log-likelihood and smoothing of the eight-state HMM, over 10⁶ rows."""
    model, params = reversed_cycles()
    y = model.simulate(params, ROWS, seed=1)[1]
    series, coords, resident = sj.as_series(y), model.to_coords(params), jnp.asarray(y)
    hmmlearn = hmmlearn_models(params)
    what = "log-likelihood, HMM K=8, T=10⁶"
    ours = {
        "public": lambda: sj.log_likelihood(model, params, y),
        "pass": lambda: total_score(model, coords, series)[0],
    }
    peers = {n: (lambda m=m: m.score(y)) for n, m in hmmlearn.items()}
    peers["dynamax"] = dynamax_log_likelihood(params, resident)
    _agree(what, ours | peers, relative=1e-6)
    yield from _compare(what, ours, peers, rows=ROWS, target=4)
    what = "smoothing, HMM K=8, T=10⁶"
    ours = {
        "public": lambda: sj.smooth(model, params, y)["probability"].to_numpy(),
        "pass": lambda: state_marginals(model, coords, series)[0],
    }
    peers = {n: (lambda m=m: m.predict_proba(y)) for n, m in hmmlearn.items()}
    peers |= dynamax_marginals(params, resident)
    _agree(what, ours | peers, absolute=1e-6)
    yield from _compare(what, ours, peers, rows=ROWS, target=8)


def linear_passes() -> Iterator[Line]:
    """Log-likelihood and smoothing of the paper's linear Gaussian model, over 10⁶ rows."""
    model, params = rotating_state()
    y = model.simulate(params, ROWS, seed=1)[1]
    score, smooth = dynamax_linear(params, jnp.asarray(y))
    peer_score, peer_smooth = statsmodels_linear(params, y)

    def states() -> tuple[np.ndarray, np.ndarray]:
        found = sj.smooth(model, params, y)
        return found["x"].to_numpy(), found["covariance"].to_numpy()

    what = "log-likelihood, LGSSM n=m=2, T=10⁶"
    ours = {"public": lambda: sj.log_likelihood(model, params, y)}
    peers = {"dynamax": score, "statsmodels": peer_score}
    _agree(what, ours | peers, relative=1e-6)
    yield from _compare(what, ours, peers, rows=ROWS, target=20)
    what = "smoothing, LGSSM n=m=2, T=10⁶"
    peers = {"dynamax": smooth, "statsmodels": peer_smooth}
    _agree(what, {"public": states} | peers, absolute=1e-6)
    yield from _compare(what, {"public": states}, peers, rows=ROWS, target=40)


def linear_gradients() -> Iterator[Line]:
    """Gradient of 64 LGSSM windows of 40 rows."""
    model, params = rotating_state()
    series = sj.as_series(model.simulate(params, 100_000, seed=1)[1])
    coords = {name: jnp.asarray(u) for name, u in model.to_coords(params).items()}
    estimator, source = windowed(model, series, sj.Windows(length=20, buffer=10, batch=64))
    key = jax.random.key(0)
    drawn = jax.jit(estimator.batch)(source, key)
    batch = Batch(drawn.y, jnp.ones_like(drawn.weight), jnp.ones_like(drawn.first))

    @jax.jit
    def gradient(coords: Any, batch: Batch) -> Any:
        return model.gradient(coords, model.statistics(key, coords, batch, estimator.missing))

    what, rows = "gradient, LGSSM n=m=2, 64 windows of 40 rows", batch.weight.size
    ours = {"gradient": lambda: gradient(coords, batch)}
    peers = dynamax_linear_gradients(model, coords, batch.y)
    _agree(what, ours | peers, relative=1e-6)
    seconds = least_seconds(ours | peers)
    for peer in peers:
        yield _line(what, peer, seconds[peer], seconds["gradient"], rows, target=5)


def long_passes() -> Iterator[Line]:
    """Smoothing over 10⁷ rows, once: HMM and LGSSM, each beside its fastest peer at 10⁶."""
    model, params = reversed_cycles()
    y = model.simulate(params, LONG_ROWS, seed=1)[1]
    peer = hmmlearn_models(params)["hmmlearn, scaling"]
    yield _once(
        "smoothing, HMM K=8, T=10⁷",
        lambda: sj.smooth(model, params, y),
        ("hmmlearn", lambda: peer.predict_proba(y)),
        target=8,
    )
    model, params = rotating_state()
    y = model.simulate(params, LONG_ROWS, seed=1)[1]
    _, smooth = dynamax_linear(params, jnp.asarray(y))
    yield _once(
        "smoothing, LGSSM n=m=2, T=10⁷",
        lambda: sj.smooth(model, params, y),
        ("dynamax", smooth),
        target=40,
    )


def _once(
    what: str,
    ours: Callable[[], Any],
    peer: tuple[str, Callable[[], Any]],
    *,
    target: float,
) -> Line:
    """Compare single calls, ours after one that compiles; compilation is lost in a peer's minutes."""
    ours()
    seconds = []
    for function in (ours, peer[1]):
        start = time.process_time()
        jax.block_until_ready(function())
        seconds.append(time.process_time() - start)
    return _line(what, peer[0], seconds[1], seconds[0], LONG_ROWS, target)


def switching() -> Iterator[Line]:
    """An SLDS gradient of one sweep beside the ARHMM's on windows alike; a sweep over all rows."""
    windows, key = sj.Windows(length=10, buffer=10, batch=64), jax.random.key(0)
    model, params = switching_rotations()
    one = dataclasses.replace(model, num_particles=1, num_burnin=0, num_draws=1)
    calls = {}
    for name, own in {"ARHMM": None, "one sweep": one, "default": model}.items():
        own, truth = alternating_rotations() if own is None else (own, params)
        series = sj.as_series(own.simulate(truth, 100_000, seed=1)[1])
        coords = {n: jnp.asarray(u) for n, u in own.to_coords(truth).items()}
        estimator, source = windowed(own, series, windows)
        calls[name] = functools.partial(_estimate_gradient, estimator, source, key, coords)
    seconds = least_seconds(calls)
    what, rows = "gradient, SLDS K=n=m=2, 64 windows of 30 rows, ", 64 * 30
    for name, target in {"one sweep": 0.1, "default": None}.items():
        own = seconds[name]
        yield _line(f"{what}{name}", "our ARHMM", seconds["ARHMM"], own, rows, target)
    series = sj.as_series(model.simulate(params, ROWS, seed=1)[1])
    sweep, coords = make_sweep(model, series), model.to_coords(params)
    sweep(key, coords)  # compiles, and draws the states that later sweeps begin from
    own = least_seconds({"sweep": lambda: sweep(key, coords)}, budget=20.0)["sweep"]
    yield Line("Gibbs sweep, SLDS K=n=m=2, T=10⁶", f"{own:.1f} s", "", None, "< 10 s", own < 10)


@functools.partial(jax.jit, static_argnums=0)
def _estimate_gradient(estimator: Estimator, source: Source, key: Any, coords: Any) -> Any:
    return estimator.model.gradient(coords, estimator(source, key, coords))


def buffers() -> Iterator[Line]:
    """Choosing a buffer on 10⁶ rows, compiled before."""
    cases = {"HMM K=8": reversed_cycles, "LGSSM": rotating_state, "SLDS": switching_rotations}
    for name, make in cases.items():
        model, params = make()
        y = model.simulate(params, ROWS, seed=1)[1]
        choose = lambda m=model, p=params, y=y: sj.choose_buffer(m, p, y)  # noqa: E731
        own = least_seconds({"ours": choose}, budget=5.0)["ours"]
        what = f"choose_buffer, {name}, T=10⁶"
        yield Line(what, f"{own:.2f} s", "", None, "< 5 s", own < 5)


def scaling() -> Iterator[Line]:
    """Smoothing of the eight-state HMM on two cores, against one; elapsed times."""
    seconds = core_seconds(_SMOOTH, (1, 2))
    if seconds is None:
        return
    one, two = seconds[1], seconds[2]
    ratio = one / two
    what = "smoothing, HMM K=8, T=2·10⁶, two cores against one"
    yield Line(what, f"{two:.2f} s", f"{one:.2f} s (one core)", ratio, "≥ 1.6×", ratio >= 1.6)


_SMOOTH = """
import sojourn as sj
from sojourn.synthetic import reversed_cycles
model, params = reversed_cycles()
y = model.simulate(params, 2_000_000, seed=1)[1]
def run():
    sj.smooth(model, params, y)
"""


def gradients() -> Iterator[Line]:
    """Gradient of 128 ARHMM windows of 120 rows; then a whole step on as many."""
    windows = sj.Windows(length=100, buffer=10, batch=128)
    estimator, source, coords, pilot = _arhmm(windows, rows=100_000)
    model, key = estimator.model, jax.random.key(0)
    drawn = jax.jit(estimator.batch)(source, key)
    # Every row counts and every window starts from the initial law: what the peer computes.
    batch = Batch(drawn.y, jnp.ones_like(drawn.weight), jnp.ones_like(drawn.first))

    @jax.jit
    def gradient(coords: Any, batch: Batch) -> Any:
        return model.gradient(coords, model.statistics(key, coords, batch, estimator.missing))

    what, rows = "gradient, ARHMM K=2, 128 windows of 120 rows", batch.weight.size
    ours = {"gradient": lambda: gradient(coords, batch)}
    peers = dynamax_gradients(model, coords, batch.y)
    _agree(what, ours | peers, relative=1e-6)
    ours["step"] = _stepper(estimator, source, coords, pilot, count=100)
    seconds = least_seconds(ours | peers)
    for peer in peers:
        yield _line(what, peer, seconds[peer], seconds["gradient"], rows, target=4)
    what, peer = "a whole SGRLD step on such windows, to the peer's gradient", next(iter(peers))
    yield _line(what, peer, seconds[peer], seconds["step"] / 100, rows)


def steps() -> Iterator[Line]:
    """Steps of SGRLD at the paper's settings, T = 10⁶ in memory, plain windows."""
    limits = {1: 40, 16: None, 64: 80}
    loops = {}
    for batch in limits:
        windows = sj.Windows(length=2, buffer=2, batch=batch)
        loops[str(batch)] = _stepper(*_arhmm(windows, rows=ROWS), count=STEPS)
    seconds = least_seconds(loops)
    for batch, limit in limits.items():
        micros = seconds[str(batch)] / STEPS * 1e6
        what = f"SGRLD step, ARHMM K=2, T=10⁶, S=2 B=2, {batch} window{'s' * (batch > 1)}"
        target, met = ("", None) if limit is None else (f"< {limit} µs", micros < limit)
        yield Line(what, f"{micros:.1f} µs ({1e6 / micros:,.0f}/s)", "", None, target, met)


def gibbs() -> Iterator[Line]:
    """A Gibbs sweep against a smoothing pass of the same model."""
    model, params = reversed_cycles()
    series = sj.as_series(model.simulate(params, ROWS, seed=1)[1])
    coords, sweep, key = model.to_coords(params), Sweep(model, series), jax.random.key(0)
    seconds = least_seconds(
        {
            "sweep": lambda: sweep(key, coords),
            "smoothing": lambda: state_marginals(model, coords, series)[0],
        }
    )
    times = seconds["sweep"] / seconds["smoothing"]
    yield Line(
        "Gibbs sweep, HMM K=8, T=10⁶, to our smoothing pass",
        _per_row(seconds["sweep"], ROWS),
        f"{_per_row(seconds['smoothing'], ROWS)} (own pass)",
        1 / times,
        "≥ 0.5×",
        times <= 2,
    )


def imports() -> Iterator[Line]:
    """Seconds that `import sojourn` takes beyond `import jax`."""
    seconds = import_seconds(("jax", "sojourn"))
    extra = seconds["sojourn"] - seconds["jax"]
    what = "`import sojourn` beyond `import jax`"
    yield Line(what, f"{extra:.2f} s", f"{seconds['jax']:.2f} s (jax)", None, "", None)


SECTIONS = (
    *(passes, linear_passes, long_passes, gradients, linear_gradients, switching, steps, gibbs),
    *(buffers, scaling, imports),
)


def _arhmm(windows: sj.Windows, rows: int) -> tuple[Estimator, Source, Any, Any]:
    """Return an estimator on simulated rows, its source, true coordinates and their metric."""
    model, params = alternating_rotations()
    series = sj.as_series(model.simulate(params, rows, seed=1)[1])
    coords = {name: jnp.asarray(u) for name, u in model.to_coords(params).items()}
    return *windowed(model, series, windows), coords, place(model, series, coords).metric


def _stepper(
    estimator: Estimator, source: Source, coords: Any, metric: Any, *, count: int
) -> Callable[[], Any]:
    """Return a call that takes `count` steps inside one compiled loop."""

    def run() -> Any:
        return _advance(
            source,
            metric,
            jax.random.key(0),
            State(coords, {}),
            *map(jnp.asarray, (0, 1e-3, 1, count, 0.0)),
            estimator=estimator,
            sampler=sj.SGRLD(),
            decay=None,
            capacity=1,
        )

    moved = run()[0].coords
    if not all(np.isfinite(u).all() for u in moved.values()):
        raise RuntimeError(f"the chain diverged: {moved}")
    return run


def _agree(
    what: str,
    functions: dict[str, Callable[[], Any]],
    relative: float = 0.0,
    absolute: float = 0.0,
) -> None:
    """Raise unless all functions return what the first does."""
    (first, *names) = functions
    expected = jax.tree.map(np.asarray, functions[first]())
    for name in names:
        found = jax.tree.map(np.asarray, functions[name]())
        for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
            gap = np.abs(a - b).max()
            if not gap <= absolute + relative * np.abs(a).max():
                raise RuntimeError(f"{what}: {name} and {first} differ by {gap}")


def _compare(
    what: str,
    ours: dict[str, Callable[[], Any]],
    peers: dict[str, Callable[[], Any]],
    *,
    rows: int,
    target: float,
) -> Iterator[Line]:
    # The two fastest peers of a first look; the others would only take up time.
    first = least_seconds(peers, budget=0.0)
    peers = {name: peers[name] for name in sorted(peers, key=first.__getitem__)[:2]}
    seconds = least_seconds(ours | peers, budget=40.0)
    best = min(peers, key=lambda name: seconds[name])
    for name in ours:
        yield _line(f"{what}, {name}", best, seconds[best], seconds[name], rows, target)


def _line(
    what: str, peer: str, theirs: float, own: float, rows: int, target: float | None = None
) -> Line:
    ratio = theirs / own
    goal, met = ("", None) if target is None else (f"≥ {target:g}×", ratio >= target)
    shown = f"{_per_row(theirs, rows)} ({peer})"
    return Line(what, _per_row(own, rows), shown, ratio, goal, met)


def _per_row(seconds: float, rows: int) -> str:
    return f"{seconds / rows * 1e9:.0f} ns/row"


def _format(line: Line) -> str:
    ratio = "" if line.ratio is None else f"{line.ratio:.1f}×"
    met = "" if line.met is None else ("yes" if line.met else "no")
    cells = (line.what, line.ours, line.peer, ratio, line.target, met)
    return f"| {' | '.join(cells)} |"


def _machine() -> str:
    """Describe processor and versions, in one line."""
    names = ("sojourn", "jax", "jaxlib", "numpy", "dynamax", "hmmlearn", "statsmodels")
    versions = ", ".join(f"{n} {_version(n)}" for n in names)
    python = platform.python_version()
    return f"Processor time on one core of {_processor()}; Python {python}, {versions}; float64."


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def _version(name: str) -> str:
    return sj.__version__ if name == "sojourn" else importlib.metadata.version(name)


def _show(*lines: str) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
