"""`sojourn demo`, `sojourn bench`, `sojourn info`."""

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from sojourn.cli import options
from sojourn.cli.data import is_run, read, say


def demo(
    rows: Annotated[int, typer.Option(min=10_000, help="Rows to simulate.")] = 1_000_000,
    out: Annotated[Path, typer.Option("--out", "-o", help="Figure to write.")] = Path("demo.png"),
    seed: options.Seed = 0,
    quiet: options.Quiet = False,
) -> None:
    """Simulate a million rows of a switching autoregression and recover its parameters."""
    if not out.parent.is_dir():
        raise ValueError(f"cannot write {out}: the folder {out.parent} does not exist")
    from sojourn.demo import run_demo

    run_demo(rows, out, seed, progress=not quiet)


def bench(
    rows: Annotated[int, typer.Option(min=20_000, help="Rows to simulate.")] = 200_000,
    json: options.AsJson = False,
) -> None:
    """Measure this machine: full passes and sampling of a switching autoregression.

    Comparisons with other packages are in the repository: make bench.
    """
    from sojourn.results import log_likelihood
    from sojourn.sampling import sample
    from sojourn.synthetic import alternating_rotations

    model, truth = alternating_rotations()
    _, y = model.simulate(truth, rows, seed=0)
    log_likelihood(model, truth, y)
    began = time.perf_counter()
    log_likelihood(model, truth, y)
    passed = time.perf_counter() - began
    settings: dict[str, Any] = {"num_chains": 1, "num_warmup": 200, "thin": 10, "progress": False}
    sample(model, y, num_samples=20, **settings)  # what is compiled is then ready
    began = time.perf_counter()
    short = sample(model, y, num_samples=20, **settings)
    middle = time.perf_counter()
    sample(model, y, num_samples=520, **settings)
    steps = 500 * short.choices["thin"]
    step = ((time.perf_counter() - middle) - (middle - began)) / steps
    say(
        {
            "rows": rows,
            "log_likelihood_ns_per_row": 1e9 * passed / rows,
            "step_microseconds": 1e6 * step,
            "rows_per_step": (short.choices.get("batch") or 0) * (short.choices.get("length") or 0)
            or rows,
        },
        as_json=json,
    )


def info(
    path: Annotated[
        str | None, typer.Argument(help="A run, or a file or address of data.", show_default=False)
    ] = None,
    column: options.Columns = None,
    sequence: options.Sequence = None,
    variable: options.Variable = None,
    json: options.AsJson = False,
) -> None:
    """Describe a run, a file of data, or this installation.

    Example: sojourn info run/
    """
    from sojourn._cores import num_cores
    from sojourn.runs import open_run, versions

    if path is None:
        import jax

        say({**versions(), "cores": num_cores(), "devices": str(jax.devices())}, as_json=json)
    elif is_run(path):
        run = open_run(path)
        about = run.config.get("data") or {}
        choices = run.read_tuned()[0]["choices"] if run.is_tuned else {}
        drawn, asked = run.num_draws, run.config["num_samples"]
        held = [chain.num_draws for chain in run.chains]
        each = str(drawn) if drawn == max(held) else " and ".join(map(str, held))
        state = f"{len(held)} chains of {each} draws"
        if run.is_cut_short:
            state = "saving was cut short; save again"
        elif drawn < asked:
            state += f", {asked} asked for: continue with sojourn resume {path}"
        wrote = run.config.get("versions", {})
        say(
            {
                "model": run.config["model"]["class"] if json else _called(run),
                "sampler": choices.get("sampler", "not chosen yet"),
                "draws": state,
                **(_quality(path) if drawn > 0 and not run.is_cut_short else {}),
                "columns": run.config["columns"] if json else ", ".join(run.config["columns"]),
                "rows": about.get("rows"),
                "data": _origin(about.get("description"), as_json=json),
                "seed": run.config["seed"],
                "written_by": wrote if json else wrote.get("sojourn", "unknown"),
                **choices,
            },
            as_json=json,
        )
    else:
        series = read(
            [path], columns=column or None, sequence=sequence or None, variable=variable or None
        )
        say(
            {
                "rows": series.num_rows,
                "series": len(series.lengths),
                "columns": list(series.columns) if json else ", ".join(series.columns),
                "missing": series.missing,
                "fingerprint": series.fingerprint,
            },
            as_json=json,
        )


def _called(run: Any) -> str:
    """Return the model of a run with its sizes."""
    sizes = {name: value for name, value in vars(run.model).items() if type(value) is int}
    said = ", ".join(f"{name}={value}" for name, value in sizes.items())
    return f"{run.config['model']['class']}({said})"


def _origin(description: dict[str, Any] | None, *, as_json: bool) -> Any:
    """Return where data came from, and how they were read where that was not as they are."""
    if description is None or as_json:
        return description or "in memory"
    paths = description["path"]
    asked = [
        f"{name}={value!r}"
        for name, value in description.items()
        if name != "path" and value not in (None, False, 1)
    ]
    return ", ".join([*(paths if isinstance(paths, list) else [paths]), *asked])


def _quality(path: str) -> dict[str, float]:
    """Return the worst R-hat and effective sample size of the draws of a run."""
    from sojourn.results import load, mixing

    worst = {check.name: check.value for check in mixing(load(path).posterior)}
    return {"largest_r_hat": worst["r_hat"], "smallest_ess": worst["ess"]}


COMMANDS = (demo, bench, info)
