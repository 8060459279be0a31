"""The command line: one line and exit code 2 for what cannot be done."""

import subprocess
import sys
from pathlib import Path

import sojourn

COMMAND = [sys.executable, "-c", "from sojourn.cli import main; main()"]


def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, cwd=cwd, check=False
    )


def test_version_and_help():
    assert run("--version").stdout.strip() == f"sojourn {sojourn.__version__}"
    assert "demo" in run("--help").stdout


def test_demo_runs_small(tmp_path):
    done = run("demo", "--rows", "20000", "--quiet", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "true values within 2 posterior sds" in done.stdout
    assert (tmp_path / "demo.png").stat().st_size > 10_000


def test_errors_are_one_line(tmp_path):
    done = run("demo", "--out", "no/such/folder/demo.png", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "does not exist" in done.stderr
    assert run("demo", "--rows", "-5").returncode == 2
