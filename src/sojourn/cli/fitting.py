"""`sojourn fit`, `sojourn resume`."""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from sojourn.cli import options
from sojourn.cli.data import read, read_for, records, say
from sojourn.cli.shell_words import in_shell
from sojourn.results import Fit, diagnose, readable
from sojourn.runs import open_run
from sojourn.sampling import Interrupted, sample
from sojourn.sampling import resume as resume_run
from sojourn.series import suggestion

Data = Annotated[
    list[str] | None,
    typer.Argument(help="Files or addresses of data, one series each.", show_default=False),
]
Auto = "auto, or a number"


def fit(
    context: typer.Context,
    data: Data = None,
    model: Annotated[str, typer.Option(help="hmm, arhmm, lgssm or slds.")] = "hmm",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="New directory for the run.")
    ] = None,
    states: Annotated[int, typer.Option(min=1, help="Discrete states, of hmm, arhmm, slds.")] = 2,
    state_dim: Annotated[
        int | None,
        typer.Option(min=1, help="Size of x, of lgssm and slds; 2, or 1 for one column."),
    ] = None,
    lags: Annotated[int, typer.Option(min=1, help="Rows that an arhmm regresses on.")] = 1,
    column: options.Columns = None,
    sequence: options.Sequence = None,
    variable: options.Variable = None,
    missing: Annotated[float | None, typer.Option(help="Number that means missing.")] = None,
    log: Annotated[bool, typer.Option("--log", help="Take logarithms.")] = False,
    standardize: Annotated[
        bool, typer.Option("--standardize", help="Subtract means, divide by standard deviations.")
    ] = False,
    every: Annotated[int, typer.Option(min=1, help="Keep every so many-th row.")] = 1,
    sampler: Annotated[
        str, typer.Option(help="auto, sgrld, sgld, sghmc, sgnht or gibbs.")
    ] = "auto",
    step_size: Annotated[str, typer.Option(help=f"Step size ε: {Auto}.")] = "auto",
    length: Annotated[
        str, typer.Option(help="Rows of a window that count: auto, full, or a number.")
    ] = "auto",
    buffer: Annotated[
        int | None, typer.Option(min=0, help="Buffer rows of a window, if a length is given.")
    ] = None,
    batch: Annotated[
        int | None, typer.Option(min=1, help="Windows of a step, if a length is given.")
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="Draws kept of each chain.")] = 1000,
    chains: Annotated[int, typer.Option(min=1, help="Chains.")] = 4,
    warmup: Annotated[str, typer.Option(help=f"Steps before the first draw: {Auto}.")] = "auto",
    thin: Annotated[str, typer.Option(help=f"Steps per draw: {Auto}.")] = "auto",
    control_variate: Annotated[str, typer.Option(help="auto, yes or no.")] = "auto",
    init: Annotated[str, typer.Option(help="Where chains start: kmeans or prior.")] = "kmeans",
    seed: options.Seed = 0,
    config: options.Config = None,
    print_config: options.PrintConfig = False,
    quiet: options.Quiet = False,
    json: options.AsJson = False,
) -> None:
    """Sample the posterior of a model and keep the run in a directory.

    What is "auto" is chosen from the data and said. A run that was stopped, by Ctrl-C or by anything
    else, goes on with [bold]sojourn resume[/bold].

    Example: sojourn fit data.csv --model arhmm --states 5 --out run/
    """
    if print_config:
        options.print_config(context)
        return
    if not data:
        raise ValueError("give a file of data, as in sojourn fit data.csv --out run/")
    if out is None:
        raise ValueError("give a new directory for the run, with --out")
    _check_options(context, model)
    made = _sampler(sampler, step_size)
    windows = _windows(length, buffer, batch)
    choice = {"auto": "auto", "yes": True, "true": True, "no": False, "false": False}
    series = read(
        data,
        variable=variable or None,
        sequence=sequence or None,
        columns=column or None,
        missing=missing,
        log=log,
        standardize=standardize,
        every=every,
    )
    with _stoppable():
        found = sample(
            _model(model, series.dim, states, state_dim, lags),
            series,
            made,
            windows=windows,
            num_samples=samples,
            num_chains=chains,
            num_warmup=_auto("warmup", warmup, int),
            thin=_auto("thin", thin, int),
            control_variate=_one_of("control-variate", control_variate.lower(), choice),
            init=init,
            seed=seed,
            out=out,
            progress=not quiet and not json,
        )
    _show(found, out, as_json=json)


def resume(
    run: options.RunPath,
    data: options.OwnData = None,
    samples: Annotated[
        int | None, typer.Option(min=1, help="Draws of each chain to reach; as asked if not given.")
    ] = None,
    quiet: options.Quiet = False,
    json: options.AsJson = False,
) -> None:
    """Continue a run that was stopped, or extend it; the draws are those of an unbroken run.

    Example: sojourn resume run/ --samples 5000
    """
    series = read_for(open_run(run), data, {}) if data else None
    with _stoppable():
        found = resume_run(run, series, samples, progress=not quiet and not json)
    _show(found, run, as_json=json)


COMMANDS = (fit, resume)


class RunStopped(Exception):
    """The user stopped a run; the parser would hide an interrupt."""


@contextlib.contextmanager
def _stoppable() -> Iterator[None]:
    """Let an interrupt of the user through the parser."""
    try:
        yield
    except Interrupted as interrupt:
        raise RunStopped(str(interrupt)) from None


def _show(fit: Fit, run: Path, *, as_json: bool) -> None:
    table = fit.summary()
    checks = diagnose(fit.posterior, fit.sample_stats, fit.choices)
    if as_json:
        told = [
            {"figure": c.name, "value": c.value, "ok": c.ok, "says": in_shell(c.say())}
            for c in checks
        ]
        found = {"run": run, "choices": fit.choices, "summary": records(table)}
        say({**found, "diagnostics": told}, as_json=True)
        return
    print(readable(table).to_string())
    for check in checks:
        if not check.ok:
            print(f"warning: {in_shell(check.say())}", file=sys.stderr)
    chains, draws = fit.posterior.sizes["chain"], fit.posterior.sizes["draw"]
    counted = "1 chain" if chains == 1 else f"{chains} chains"
    print(f"{counted} of {draws} draws in {run}; next: sojourn report {run}")


def _model(name: str, dim: int, states: int, state_dim: int | None, lags: int) -> Any:
    from sojourn.models import ARHMM, LGSSM, SLDS, GaussianHMM

    state_dim = min(2, dim) if state_dim is None else state_dim
    makers = {
        "hmm": lambda: GaussianHMM(states, dim),
        "arhmm": lambda: ARHMM(states, dim, num_lags=lags),
        "lgssm": lambda: LGSSM(state_dim, dim),
        "slds": lambda: SLDS(states, state_dim, dim),
    }
    return makers[name.lower()]()


# Models, and options that belong to some of them.
_MODELS = ("hmm", "arhmm", "lgssm", "slds")
_OPTIONS = {"states": ("hmm", "arhmm", "slds"), "lags": ("arhmm",), "state_dim": ("lgssm", "slds")}


def _check_options(context: typer.Context, model: str) -> None:
    """Raise where an option was given that the model has no use for, or there is no such model."""
    _one_of("model", model.lower(), dict.fromkeys(_MODELS))  # before the data are read
    for name, models in _OPTIONS.items():
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE" and model.lower() not in models:
            option = name.replace("_", "-")
            raise ValueError(f"--{option} is for --model {' or '.join(models)}; leave it out")


def _sampler(name: str, step_size: str) -> Any:
    from sojourn.dynamics import SGHMC, SGLD, SGNHT, SGRLD
    from sojourn.gibbs import Gibbs

    kinds = {"sgrld": SGRLD, "sgld": SGLD, "sghmc": SGHMC, "sgnht": SGNHT, "gibbs": Gibbs}
    size = _auto("step-size", step_size, float)
    if name.lower() == "auto":
        return None if size == "auto" else SGRLD(step_size=size)
    kind = _one_of("sampler", name.lower(), kinds)
    if kind is Gibbs:
        if size != "auto":
            raise ValueError("gibbs has no step size: leave out --step-size")
        return Gibbs()
    return kind(step_size=size)


def _windows(length: str, buffer: int | None, batch: int | None) -> Any:
    from sojourn.series import Windows

    if length in ("auto", "full"):
        if buffer is not None or batch is not None:
            raise ValueError("--buffer and --batch need the --length of a window, a number")
        return "auto" if length == "auto" else Windows.full()
    return Windows(_auto("length", length, int, "auto, full"), buffer or 0, batch or 1)


def _auto(name: str, value: str, kind: type, words: str = "auto") -> Any:
    """Return "auto" or the number that a text says; `words` are what it may be besides a number."""
    if value == "auto":
        return value
    try:
        return kind(value)
    except ValueError:
        raise ValueError(f"--{name} must be {words} or a number; got {value!r}") from None


def _one_of(name: str, value: str, known: dict[str, Any]) -> Any:
    if value in known:
        return known[value]
    raise ValueError(f"--{name} cannot be {value!r}; {suggestion(value, list(known))}")
