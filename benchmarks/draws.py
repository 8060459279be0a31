"""Effective draws per second by length of the series, after warm-up: `python benchmarks/draws.py`.

The smallest bulk effective sample size over all parameters, per second of sampling on all cores. Two
runs with the same seed differ only in their number of draws; the difference of their times leaves out
compilation, start and warm-up. The width of draws is the geometric mean of the sds of all parameters,
beside that of the default's: draws come fast to a sampler whose gradients' noise spreads them.
"""

import argparse
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from scipy import stats

import sojourn as sj
from sojourn._cores import num_cores
from sojourn.synthetic import alternating_rotations, reversed_cycles, rotating_state

MODELS = {"ARHMM": alternating_rotations, "LGSSM": rotating_state, "HMM K=8": reversed_cycles}


# Draws of a short and a long run. Both fill arrays of one size: the long run compiles nothing anew.
DEFAULT = (2600, 20_800)


# Steps of plain SGRLD: the longest with little noise, and longer ones, however wide draws then are.
STEPS = ("auto", 0.001, 0.01, 0.1)


class Rate(NamedTuple):
    """Effective draws per second, seconds before the first draw without compilation, sds of draws."""

    draws: float
    warmup: float
    sds: np.ndarray


def measure(model: sj.ARHMM, y: np.ndarray, few: int, many: int, **settings: Any) -> Rate:
    """Return the rate of effective draws from runs of few and of many draws."""
    seconds = {}
    jax.clear_caches()  # those of models before, or they might be forgotten within a timed run
    sj.sample(model, y, num_samples=few, progress=False, **settings)  # compiles
    for count in (few, many):
        began = time.perf_counter()
        fit = sj.sample(model, y, num_samples=count, progress=False, **settings)
        seconds[count] = time.perf_counter() - began
    table = fit.summary()
    sampling = (seconds[many] - seconds[few]) * many / (many - few)
    rate = float(table["ess"].min()) / sampling
    return Rate(rate, seconds[many] - sampling, table["sd"].to_numpy())


def main() -> None:
    """Print a table and write it beside this file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=float, nargs="+", default=[1e4, 1e5, 1e6, 1e7])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--peers-at", type=float, default=1e6, help="rows for Gibbs and SGRLD")
    asked = parser.parse_args()
    lines = [
        "| model | T | sampler | effective draws / s | s to warm up | width of draws, default = 1 |",
        "|---|---|---|---|---|---|",
    ]
    print(*lines, sep="\n", flush=True)

    def add(name: str, rows: float, sampler: str, rate: Rate, sds: np.ndarray) -> None:
        width = stats.gmean(rate.sds[rate.sds > 0]) / stats.gmean(sds[sds > 0])
        cells = (name, f"{rows:.0e}", sampler, f"{rate.draws:.3g}", f"{rate.warmup:.1f}")
        lines.append(f"| {' | '.join(cells)} | {width:.2f} |")
        print(lines[-1], flush=True)

    for name in asked.models:
        model, params = MODELS[name]()
        for rows in asked.rows:
            y = model.simulate(params, int(rows), seed=1)[1]
            default = measure(model, y, *DEFAULT)
            add(name, rows, "default", default, default.sds)
            if rows == asked.peers_at:
                plain = {"windows": sj.Windows(200, buffer=16, batch=64), "control_variate": False}
                for step in STEPS:
                    plain |= {"sampler": sj.SGRLD(step, metric="complete"), "init": params}
                    rate = measure(model, y, 50, 250, **plain)
                    add(name, rows, f"plain SGRLD, ε {step}", rate, default.sds)
                gibbs = {"sampler": sj.Gibbs(), "num_warmup": 5, "init": params}
                add(name, rows, "Gibbs", measure(model, y, 10, 60, **gibbs), default.sds)
    about = f"Four chains on {num_cores()} cores; sojourn {sj.__version__}, jax {jax.__version__}."
    (Path(__file__).parent / "draws.md").write_text("\n".join([*lines, "", about, ""]))


if __name__ == "__main__":
    main()
