"""Imports point one way."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "sojourn"

# What each part may import, beside itself and the private helpers.
SHARED = {"_cores", "_linalg", "_precision", "_random", "_validation", "batch"}
ALLOWED = {
    "blocks": set(),
    "messages": set(),
    "series": set(),
    "models": {"blocks", "messages", "series"},
    "tiles": {"models", "series"},
    "passes": {"models", "series", "tiles"},
    "gradients": {"models", "series", "tiles", "passes"},
    "dynamics": {"blocks", "models"},
    "gibbs": {"models", "series", "tiles", "passes"},
    "metrics": {"models", "series", "passes", "align"},
    "outputs": {"models", "series", "passes", "metrics", "storage"},
    "states": {"models", "series", "passes", "metrics", "gibbs", "outputs"},
    "forecasts": {"models", "series", "passes", "metrics", "states"},
    "buffer_errors": {"models", "series", "gradients", "dynamics"},
    "buffers": {"models", "series", "gradients", "dynamics", "curvature", "buffer_errors"},
    "starts": {"models", "series", "gradients"},
    "curvature": {"blocks", "models", "gradients", "dynamics"},
    "modes": {"models", "series", "tiles", "passes", "gradients", "dynamics", "curvature"},
    "tuning": {
        *("models", "series", "gradients", "dynamics", "curvature", "buffer_errors"),
        *("buffers", "modes"),
    },
    "align": set(),
    "datasets": {"models", "align"},
    "diagnostics": set(),
    "progress": set(),
    "synthetic": {"models"},
    # Plots are imported when one is asked for.
    "fit": {
        *("models", "series", "metrics", "states", "datasets", "diagnostics", "plots", "report"),
        *("gradients", "forecasts", "outputs", "records", "runs", "storage"),
    },
    "storage": set(),
    "draw_store": {"storage"},
    "settings": {"dynamics", "gibbs", "series"},
    "records": {"dynamics", "gibbs", "models", "series", "storage"},
    "runs": {"draw_store", "models", "records", "storage"},
    "restoring": {
        *("blocks", "models", "series", "tiles", "gradients", "dynamics", "tuning"),
        *("records", "runs", "settings", "storage"),
    },
    "traces": {"draw_store", "runs"},
    "chains": {
        *("models", "series", "gradients", "dynamics", "gibbs", "starts", "tuning"),
        *("draw_store", "progress", "runs", "traces"),
    },
    "sampling": {
        *("models", "series", "dynamics", "gibbs", "buffers", "modes", "starts", "tuning"),
        *("chains", "fit", "progress", "restoring", "runs", "settings", "storage", "traces"),
    },
    "plots": {"series", "states", "diagnostics", "fit"},
    "demo": {"align", "fit", "plots", "sampling", "synthetic"},
    "report_figures": {"diagnostics", "fit", "gradients", "models", "plots", "series"},
    "report": {"diagnostics", "fit", "plots", "report_figures", "series", "storage"},
    "cli": {
        *("demo", "dynamics", "fit", "gibbs", "metrics", "models", "outputs", "report"),
        *("experiments", "restoring", "runs", "sampling", "series", "storage", "synthetic"),
    },
    "__main__": {"cli"},
    # Beside these, what `import sojourn` offers.
    "experiments": {"synthetic", "plots"},
}
OUTSIDE = {"__main__", "plots", "report", "report_figures", "cli", "demo", "experiments"}


def imports(path: Path, *, lazy: bool) -> set[str]:
    """Return the parts of the package that a file imports, optionally inside functions too."""
    tree = ast.parse(path.read_text())
    nodes = ast.walk(tree) if lazy else tree.body
    found = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("sojourn."):
            found.add(node.module.split(".")[1])
    return found


def part(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: p.stem)
def test_imports_follow_the_layers(path):
    own = part(path)
    found = imports(path, lazy=True) - {own} - SHARED
    if own != "__init__":
        assert found <= (set() if own in SHARED else ALLOWED[own])
    if own not in OUTSIDE | {"fit"}:
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
