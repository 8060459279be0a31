"""The figures and tables of the paper, one module each, from the public interface.

Beside it they use the synthetic series, and count cores as the library does. They stand inside the
package so that `sojourn experiment` finds them wherever it is installed; nothing but the command line
imports them. A module whose name does not begin with an underscore is an experiment: its docstring
says in one line what it shows, `run` takes a `Session` and does it.
"""

import importlib
import pkgutil
from pathlib import Path

from sojourn.experiments._session import Scale, Session
from sojourn.series import suggestion


def list_experiments() -> dict[str, str]:
    """Return the experiments and what each shows, in one line."""
    modules = (module.name for module in pkgutil.iter_modules(__path__))
    return {name.replace("_", "-"): _about(name) for name in modules if not name.startswith("_")}


def run_experiment(
    name: str,
    scale: Scale = "small",
    *,
    budget: float | None = None,
    data_dir: Path | None = None,
    out: Path | None = None,
    quiet: bool = False,
) -> Path:
    """Run an experiment and write what it shows.

    Args:
        name: One of `list_experiments`.
        scale: "small" takes minutes; "paper" has the lengths and settings of the paper.
        budget: Minutes that samplers may run in all; by scale if not given.
        data_dir: Folder of the real series; `SOJOURN_DATA` if not given.
        out: Folder to write to; `results/NAME` if not given.
        quiet: Print nothing.

    Returns:
        The folder.
    """
    known = list_experiments()
    if name not in known:
        raise ValueError(f"there is no experiment {name!r}; {suggestion(name, list(known))}")
    session = Session.begin(name, scale, budget, data_dir, out or Path("results") / name, quiet)
    importlib.import_module(f"{__name__}.{name.replace('-', '_')}").run(session)
    session.finish()
    return session.out


def _about(name: str) -> str:
    module = importlib.import_module(f"{__name__}.{name}")
    return (module.__doc__ or "").strip().splitlines()[0]
