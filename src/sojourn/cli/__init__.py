"""The command line."""

import os
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from sojourn._files import WriteError
from sojourn.cli import experimenting, fitting, showing, using
from sojourn.cli.shell_words import in_shell
from sojourn.sampling import DivergenceError

app = typer.Typer(
    help="Bayesian state space models for time series of any length.\n\n"
    "A first run: [bold]sojourn fit data.csv --model hmm --states 3 --out run/[/bold], then "
    "[bold]sojourn report run/[/bold]. Every command explains itself with --help.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
for module in (fitting, using, showing, experimenting):
    for command in module.COMMANDS:
        app.command()(command)

# What the parser returns after Ctrl-C.
_INTERRUPTED = 130

# What the parser raises: click's, which versions of Typer keep in different modules.
_ClickException: Any = typer.BadParameter.__mro__[2]


def _version(value: bool) -> None:
    if value:
        from sojourn import __version__

        print(f"sojourn {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    _keep_compiled_programs()


def main() -> None:
    """Run the command line.

    Exit codes: 0 if all went well, 1 if a run failed or was stopped, 2 if it cannot be done as asked.
    With SOJOURN_TRACEBACK=1 in the environment, errors of the library come with their traceback.
    """
    # One line each, and no place in the library's code.
    warnings.showwarning = lambda message, *_, **__: _tell(message)
    try:
        code = app(prog_name="sojourn", standalone_mode=False)
    except (DivergenceError, WriteError, fitting.RunStopped, typer.Abort) as error:
        _fail(error, 1)
    except _ClickException as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error.format_message())
            sys.exit(2)
        _fail(error.format_message(), 2)
    except (ValueError, TypeError, OSError, RuntimeError, ImportError) as error:
        if os.environ.get("SOJOURN_TRACEBACK") == "1":
            raise
        _fail(error, 2)
    else:
        if code == _INTERRUPTED:
            _fail("stopped", 1)
        sys.exit(code)


def _tell(message: object) -> None:
    print(f"sojourn: {in_shell(message)}", file=sys.stderr)


def _fail(error: object, code: int) -> NoReturn:
    _tell(error)
    sys.exit(code)


def _keep_compiled_programs() -> None:
    """Let JAX keep what it compiled on disk, so that the next run starts at once."""
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    import jax

    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    jax.config.update("jax_compilation_cache_dir", str(Path(base) / "sojourn" / "jax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
