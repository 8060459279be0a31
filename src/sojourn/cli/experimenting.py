"""`sojourn experiment`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from sojourn.cli import options


def experiment(
    name: Annotated[
        str | None, typer.Argument(help="Which experiment; see --list.", show_default=False)
    ] = None,
    list_all: Annotated[bool, typer.Option("--list", help="List the experiments.")] = False,
    scale: Annotated[
        Literal["small", "paper"], typer.Option(help="Minutes, or the paper's lengths.")
    ] = "small",
    budget: Annotated[
        float | None, typer.Option(help="Minutes that samplers may run in all.")
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder of the real series, or set SOJOURN_DATA.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder to write; results/NAME if not given."),
    ] = None,
    quiet: options.Quiet = False,
) -> None:
    """Run an experiment of the paper: figures, the data behind them, a table.

    Example: sojourn experiment gradient-error
    """
    from sojourn.experiments import list_experiments, run_experiment

    if list_all:
        for known, about in list_experiments().items():
            print(f"{known:16} {about}")
        return
    if name is None:
        raise ValueError("which experiment? sojourn experiment --list shows them")
    run_experiment(name, scale, budget=budget, data_dir=data_dir, out=out, quiet=quiet)


COMMANDS = (experiment,)
