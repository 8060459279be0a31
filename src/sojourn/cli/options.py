"""Options that commands share, and configuration files."""

import json
import tomllib
from pathlib import Path
from typing import Annotated, Any

import typer

from sojourn.series import suggestion

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
RunPath = Annotated[Path, typer.Argument(help="Directory of a run.", show_default=False)]
OwnData = Annotated[
    list[str] | None,
    typer.Argument(
        help="Files or addresses of data; the run's own if none are given.", show_default=False
    ),
]
Columns = Annotated[
    list[str] | None,
    typer.Option("--column", help="A column to use; give it once for each. All by default."),
]
Sequence = Annotated[
    str | None,
    typer.Option(help="Column that tells series apart; its rows stand together. '' for none."),
]
Variable = Annotated[
    str | None, typer.Option(help="Which array, of a file that holds several. '' for none.")
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        "-o",
        help="File to write, .csv, .tsv, .parquet, .json or .jsonl; else CSV is printed.",
    ),
]
NumDraws = Annotated[int, typer.Option("--draws", min=1, help="Draws to average over.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of everything random.")]


def _read_config(context: typer.Context, value: Path | None) -> Path | None:
    """Take a configuration file as defaults, so that options given on the line win."""
    if value is None:
        return None
    try:
        content = tomllib.loads(value.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{value} does not exist; --print-config writes one") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{value} is not TOML: {error}") from None
    known = _keys(context)
    for key, setting in content.items():
        if key not in known:
            raise ValueError(f"there is no key {key!r} in {value}; {suggestion(key, list(known))}")
        if isinstance(setting, dict):
            raise ValueError(f"key {key!r} in {value} is a table; expected a value or a list")
    context.default_map = {known[key]: setting for key, setting in content.items()}
    return value


Config = Annotated[
    Path | None,
    typer.Option(
        help="TOML file with any of these options; what is given on the line wins.",
        callback=_read_config,
        is_eager=True,
    ),
]
PrintConfig = Annotated[
    bool, typer.Option("--print-config", help="Print these settings as TOML and do nothing.")
]

_NOT_SETTINGS = ("config", "print_config", "help", "quiet", "json")


def _keys(context: typer.Context) -> dict[str, str]:
    """Return the keys of a configuration file and the names of the options they stand for."""
    found = {}
    for parameter in context.command.params:
        longest = max(parameter.opts, key=len).removeprefix("--").replace("-", "_")
        if longest not in _NOT_SETTINGS and parameter.name is not None:
            found[longest] = parameter.name
    return found


def print_config(context: typer.Context) -> None:
    """Print the settings of a command as TOML; those that are not set, as comments."""
    helps = {p.name: getattr(p, "help", None) for p in context.command.params}
    for key, name in _keys(context).items():
        value = context.params.get(name)
        if helps.get(name):
            print(f"# {helps[name]}")
        print(f"{key} = {_toml(value)}" if value not in (None, (), []) else f"# {key} =")


def _toml(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, bool | int | float):
        return str(value).lower()
    return json.dumps(str(value), ensure_ascii=False)  # strings of JSON are strings of TOML
