"""What experiments share: scale, time, data, and the files they write."""

import json
import os
import platform
import time
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import pandas
from matplotlib.figure import Figure

import sojourn as sj
from sojourn._cores import num_cores

Scale = Literal["small", "paper"]
Value = TypeVar("Value")

# Minutes that samplers run in all, by scale.
_BUDGET = {"small": 0.3, "paper": 6.0}


@dataclass(frozen=True)
class Session:
    """One run of an experiment.

    Attributes:
        name: Which experiment.
        scale: "small" or "paper".
        budget: Seconds that samplers may run in all.
        data_dir: Folder of the real series, None if it was not told.
        out: Folder that is written to.
        quiet: Print nothing.
        began: When it began, on the clock of `time.perf_counter`.
        settings: What is written beside the results, filled as they are made.
    """

    name: str
    scale: Scale
    budget: float
    data_dir: Path | None
    out: Path
    quiet: bool
    began: float
    settings: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def begin(
        cls,
        name: str,
        scale: Scale,
        minutes: float | None,
        data_dir: Path | None,
        out: Path,
        quiet: bool,
    ) -> "Session":
        """Start the clock and make the folder."""
        if scale not in _BUDGET:
            raise ValueError(f"scale must be 'small' or 'paper'; got {scale!r}")
        minutes = _BUDGET[scale] if minutes is None else minutes
        if not minutes > 0:
            raise ValueError(f"budget must be a positive number of minutes; got {minutes}")
        told = os.environ.get("SOJOURN_DATA")
        found = data_dir or (Path(told) if told else None)
        out.mkdir(parents=True, exist_ok=True)
        return cls(name, scale, 60 * minutes, found, out, quiet, time.perf_counter())

    def pick(self, small: Value, paper: Value) -> Value:
        """Return a setting by scale."""
        return small if self.scale == "small" else paper

    def say(self, text: str) -> None:
        """Print a line of progress, with the time."""
        if not self.quiet:
            print(f"[{time.perf_counter() - self.began:6.1f} s] {text}", flush=True)

    def data(self, path: str, source: str) -> Path:
        """Return a file of the data folder.

        Args:
            path: The file, within the folder.
            source: Where it can be had, in words.
        """
        wanted = f"{self.name} needs {path} ({source})"
        if self.data_dir is None:
            raise ValueError(f"{wanted}: say where it is with --data-dir or SOJOURN_DATA")
        found = self.data_dir / path
        if not found.is_file():
            raise ValueError(f"{wanted}, and {self.data_dir} does not have it: download it there")
        return found

    def figure(self, name: str, figure: Figure) -> None:
        """Write a figure."""
        figure.savefig(self.out / f"{name}.png", dpi=110)

    def table(self, name: str, table: pandas.DataFrame) -> None:
        """Write a table as CSV, in full, and as Markdown, with four digits."""
        table.to_csv(self.out / f"{name}.csv", index=False)
        (self.out / f"{name}.md").write_text(markdown(table), encoding="utf-8")

    def rows(self, name: str, table: pandas.DataFrame) -> None:
        """Write the data behind a figure."""
        table.to_csv(self.out / f"{name}.csv", index=False)

    def finish(self) -> None:
        """Write settings, time and versions."""
        about = {
            "experiment": self.name,
            "scale": self.scale,
            "budget_seconds": self.budget,
            "seconds": round(time.perf_counter() - self.began, 1),
            "cores": num_cores(),
            "processor": _processor(),
            "versions": {
                "python": platform.python_version(),
                "sojourn": sj.__version__,
                **{name: version(name) for name in ("jax", "numpy")},
            },
            "settings": self.settings,
        }
        text = json.dumps(about, indent=2, default=_plain)
        (self.out / "about.json").write_text(text + "\n", encoding="utf-8")
        self.say(f"wrote {self.out}")


def markdown(table: pandas.DataFrame) -> str:
    """Return a table in Markdown, numbers with four digits."""
    lines = [table.columns, ["---"] * len(table.columns), *table.itertuples(index=False)]
    return "".join(f"| {' | '.join(map(_shown, line))} |\n" for line in lines)


def _shown(value: Any) -> str:
    if isinstance(value, float | np.floating):
        return "–" if np.isnan(value) else f"{value:.4g}"
    return str(value)


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else str(value)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())
