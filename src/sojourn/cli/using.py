"""Commands that apply a run to data."""

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from sojourn.cli import options
from sojourn.cli.data import (
    check_out,
    fit_and_data,
    say,
    units_of,
    write_paths,
    write_states,
    write_table,
)
from sojourn.results import check_replaceable, load
from sojourn.runs import open_run


def score(
    run: options.RunPath,
    data: options.OwnData = None,
    column: options.Columns = None,
    sequence: options.Sequence = None,
    variable: options.Variable = None,
    horizon: Annotated[
        int | None, typer.Option(min=1, help="Score rows this far ahead, given the rows before.")
    ] = None,
    draws: options.NumDraws = 100,
    quiet: options.Quiet = False,
    json: options.AsJson = False,
) -> None:
    """Print the log-likelihood of data, averaged over the posterior.

    Example: sojourn score run/ test.csv
    """
    fit, series = fit_and_data(run, data, column, sequence, variable)
    result: dict[str, Any] = {"rows": series.num_rows}
    if horizon is None:
        result["log_likelihood"] = fit.score(series, num_draws=draws, progress=not quiet)
        result["per_row"] = result["log_likelihood"] / series.num_rows
    else:
        result["horizon"] = horizon
        result["predictive_score"] = fit.predictive_score(
            series, horizon, num_draws=draws, progress=not quiet
        )
    say(result, as_json=json)


def decode(
    run: options.RunPath,
    data: options.OwnData = None,
    out: options.Out = None,
    column: options.Columns = None,
    sequence: options.Sequence = None,
    variable: options.Variable = None,
    method: Annotated[
        str,
        typer.Option(
            help="viterbi: the best path; marginal: the best state of each row; sample: paths at random."
        ),
    ] = "viterbi",
    draws: options.NumDraws = 100,
    seed: options.Seed = 0,
    quiet: options.Quiet = False,
) -> None:
    """Write the most probable states, or paths drawn at random: columns series, t, state, p_0, …

    Paths have a column `path` more, and one for each of the --draws.

    Example: sojourn decode run/ data.csv -o states.parquet
    """
    if method not in ("viterbi", "marginal", "sample"):
        raise ValueError(f"--method must be viterbi, marginal or sample; got {method!r}")
    fit, series = fit_and_data(run, data, column, sequence, variable, out=out)
    if method == "sample":
        write_paths(fit.decode(series, method, num_draws=draws, seed=seed), out)
        return
    write_states(
        lambda to: fit.decode(series, method, num_draws=draws, out=to, progress=not quiet), out
    )


def smooth(
    run: options.RunPath,
    data: options.OwnData = None,
    out: options.Out = None,
    column: options.Columns = None,
    sequence: options.Sequence = None,
    variable: options.Variable = None,
    draws: options.NumDraws = 100,
    quiet: options.Quiet = False,
) -> None:
    """Write the law of the state at each row: series, t, p_0, … or x_0, …, sd_0, …, covariance_0_1, …

    Example: sojourn smooth run/ data.csv -o states.csv
    """
    fit, series = fit_and_data(run, data, column, sequence, variable, out=out)
    write_states(lambda to: fit.smooth(series, draws, out=to, progress=not quiet), out)


def forecast(
    run: options.RunPath,
    data: options.OwnData = None,
    horizon: Annotated[int, typer.Option(min=1, help="How many rows ahead.")] = 10,
    out: options.Out = None,
    column: options.Columns = None,
    sequence: options.Sequence = None,
    variable: options.Variable = None,
    draws: options.NumDraws = 1000,
    seed: options.Seed = 0,
) -> None:
    """Write what follows the data: columns series, ahead, column, mean, sd, low, high (94%).

    Example: sojourn forecast run/ data.csv --horizon 100
    """
    import pandas

    fit, series = fit_and_data(run, data, column, sequence, variable, out=out)
    y = fit.forecast(series, horizon, num_draws=draws, seed=seed)["y"]
    y = y.transpose("draw", "series", "ahead", "column")
    values = units_of(fit).restore(y.to_numpy())
    low, high = np.quantile(values, [0.03, 0.97], axis=0)
    index = np.meshgrid(*(y[d].to_numpy() for d in y.dims[1:]), indexing="ij")
    columns = dict(zip(y.dims[1:], index, strict=True))
    columns |= {"mean": values.mean(0), "sd": values.std(0), "low": low, "high": high}
    write_table(pandas.DataFrame({n: np.ravel(c) for n, c in columns.items()}), out)


def impute(
    run: options.RunPath,
    data: options.OwnData = None,
    out: options.Out = None,
    column: options.Columns = None,
    sequence: options.Sequence = None,
    variable: options.Variable = None,
    draws: options.NumDraws = 100,
) -> None:
    """Write the data with missing entries filled: series, t, the columns, and an sd_ of each.

    Example: sojourn impute run/ data.csv -o filled.csv
    """
    import pandas

    fit, series = fit_and_data(run, data, column, sequence, variable, out=out)
    names = [f"{prefix}{name}" for prefix in ("", "sd_") for name in series.columns]
    _check_distinct(["series", "t", *names])
    units = units_of(fit)
    found = fit.impute(series, num_draws=draws, with_draws=units.log)
    mean, sd = (found[kind].transpose("time", "column").to_numpy() for kind in ("mean", "sd"))
    mean, sd = units.restore(mean), sd if units.standard is None else sd * units.standard[1]
    if units.log:
        # Moments of what has this logarithm follow from draws.
        entry = [series.columns.index(name) for name in found["entry_column"].to_numpy()]
        drawn = units.restore(found["draw"].to_numpy(), entry)
        where = found["entry_time"].to_numpy(), np.asarray(entry, int)
        mean[where], sd[where] = drawn.mean(0), drawn.std(0)
    columns: dict[str, Any] = {name: found[name].to_numpy() for name in ("series", "t")}
    columns |= dict(zip(names, [*mean.T, *sd.T], strict=True))
    write_table(pandas.DataFrame(columns), out)


def simulate(
    run: options.RunPath,
    rows: Annotated[int, typer.Option(min=1, help="How many rows.")] = 1000,
    out: options.Out = None,
    hidden: Annotated[bool, typer.Option("--hidden", help="Write hidden states too.")] = False,
    seed: options.Seed = 0,
) -> None:
    """Draw rows from the model of a run at the posterior mean.

    Example: sojourn simulate run/ --rows 10000 -o simulated.csv
    """
    import pandas

    check_out(out)
    fit, about = load(run), open_run(run).config.get("data") or {}
    if out is not None:
        check_replaceable(out, about.get("description"))
    states, y = fit.model.simulate(fit.mean, rows, seed=seed)
    y = units_of(fit).restore(y)
    columns: dict[str, Any] = dict(zip(fit.columns, y.T, strict=True))
    if hidden:
        for name, values in states.items():
            flat = np.asarray(values)[-rows:]
            names = [name] if flat.ndim == 1 else [f"{name}_{i}" for i in range(flat.shape[1])]
            _check_distinct([*columns, *names])
            columns |= dict(zip(names, np.atleast_2d(flat.T), strict=True))
    write_table(pandas.DataFrame(columns), out)


def report(
    run: options.RunPath,
    data: options.OwnData = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File to write; RUN/report.html by default.")
    ] = None,
) -> None:
    """Write one HTML file about a run that opens offline.

    Example: sojourn report run/
    """
    from sojourn.reports import write_report

    about = open_run(run).config.get("data") or {}
    path = run / "report.html" if out is None else out
    if not path.parent.is_dir():
        raise ValueError(f"cannot write {path}: the folder {path.parent} does not exist")
    if data or about.get("description") is not None:
        fit, series = fit_and_data(run, data)
    else:
        fit, series = load(run), None
    check_replaceable(path, None if series is None else series.describe())
    write_report(fit, path, series)
    print(f"wrote {path}")


def _check_distinct(names: list[str]) -> None:
    """Raise if two columns of a table would have one name."""
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ValueError(
            f"the table would have two columns {twice[0]!r}: rename that of the data and fit again, or "
            "use the library"
        )


COMMANDS = (score, decode, smooth, forecast, impute, simulate, report)
