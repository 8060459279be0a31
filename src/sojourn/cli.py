"""The command line."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="Bayesian state space models for time series of any length.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


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


@app.command()
def demo(
    rows: Annotated[int, typer.Option(min=10_000, help="Rows to simulate.")] = 1_000_000,
    out: Annotated[Path, typer.Option("--out", "-o", help="Figure to write.")] = Path("demo.png"),
    seed: Annotated[int, typer.Option(min=0, help="Seed of data and sampler.")] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Simulate a million rows of a switching autoregression and recover its parameters."""
    if not out.parent.is_dir():
        raise ValueError(f"cannot write {out}: the folder {out.parent} does not exist")
    from sojourn.demo import run_demo

    run_demo(rows, out, seed, progress=not quiet)


def main() -> None:
    """Run the command line: one line and exit code 2 for errors in what was asked."""
    try:
        app()
    except (ValueError, TypeError, OSError, RuntimeError) as error:
        print(f"sojourn: {error}", file=sys.stderr)
        sys.exit(2)


def _keep_compiled_programs() -> None:
    """Let JAX keep what it compiled on disk, so that the next run starts at once."""
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    import jax

    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    jax.config.update("jax_compilation_cache_dir", str(Path(base) / "sojourn" / "jax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
