"""Imports point one way."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "sojourn"

# What each part may import, beside itself and the private helpers.
SHARED = {
    "_compile",
    "_cores",
    "_files",
    "_linalg",
    "_precision",
    "_progress",
    "_random",
    "_validation",
    "batch",
}
ALLOWED = {
    "blocks": set(),
    "messages": set(),
    "series": set(),
    "models": {"blocks", "messages", "series"},
    "synthetic": {"models"},
    "passes": {"models", "series"},
    "gradients": {"models", "series", "passes"},
    "gibbs": {"models", "series", "passes"},
    "dynamics": {"blocks", "models"},
    "runs": {"models", "series", "gibbs", "dynamics"},
    "tuning": {"blocks", "models", "series", "passes", "gradients", "dynamics"},
    # Plots and reports are imported when one is asked for.
    "results": {"models", "series", "passes", "gradients", "gibbs", "runs", "plots", "reports"},
    "sampling": {
        *("blocks", "models", "series", "passes", "gradients", "gibbs", "dynamics"),
        *("runs", "tuning", "results"),
    },
    "plots": {"series", "results"},
    "reports": {"gradients", "models", "plots", "results", "series"},
    "demo": {"plots", "results", "sampling", "synthetic"},
    "cli": {
        *("demo", "dynamics", "experiments", "gibbs", "models", "reports", "results", "runs"),
        *("sampling", "series", "synthetic"),
    },
    "__main__": {"cli"},
    # Beside these, what `import sojourn` offers.
    "experiments": {"sojourn", "synthetic", "plots", "series"},
}
OUTSIDE = {"__main__", "plots", "reports", "cli", "demo", "experiments"}


def imports(path: Path, *, lazy: bool) -> set[str]:
    """Return the parts of the package that a file imports, optionally inside functions too."""
    tree = ast.parse(path.read_text())
    nodes = ast.walk(tree) if lazy else tree.body
    names = []
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import hides where it points"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    own = [name.split(".") for name in names if f"{name}.".startswith("sojourn.")]
    return {_part_of(parts) for parts in own} - {"__version__"}


def _part_of(parts: list[str]) -> str:
    """Return the part that a dotted name lies in; "sojourn" for what `import sojourn` offers."""
    known = {part(path) for path in PACKAGE.rglob("*.py")} | {"__version__"}
    return parts[1] if len(parts) > 1 and parts[1] in known else "sojourn"


def part(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("from sojourn.plots import plot_trace", {"plots"}),
        ("from sojourn.experiments._traces import AUTO", {"experiments"}),
        ("from sojourn import plots, series", {"plots", "series"}),
        ("import sojourn.cli.data, json", {"cli"}),
        ("import sojourn.plots as p", {"plots"}),
        ("import sojourn as sj", {"sojourn"}),
        ("from sojourn import sample, __version__", {"sojourn"}),
        ("from sojourn import __version__", set()),
        ("import sojourner, numpy", set()),
        ("def f():\n    import sojourn.cli", {"cli"}),
    ],
)
def test_every_way_to_import_is_seen(tmp_path, line, found):
    (tmp_path / "x.py").write_text(line)
    assert imports(tmp_path / "x.py", lazy=True) == found
    assert imports(tmp_path / "x.py", lazy=False) == (set() if "def" in line else found)


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: p.stem)
def test_imports_follow_the_layers(path):
    own = part(path)
    found = imports(path, lazy=True) - {own} - SHARED
    if own != "__init__":
        assert found <= (set() if own in SHARED else ALLOWED[own])
    if own not in OUTSIDE | {"results"}:
        assert not found & OUTSIDE
    assert not imports(path, lazy=False) & OUTSIDE or own in OUTSIDE


def test_importing_changes_no_jax_setting():
    import subprocess
    import sys

    program = (
        "import jax; before = dict(jax.config.values); import sojourn; "
        "assert before == dict(jax.config.values)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
