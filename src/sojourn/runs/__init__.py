"""Run directories: what was asked, what was drawn, and where to go on."""

from sojourn.runs.draw_store import Arrays
from sojourn.runs.records import decode, encode
from sojourn.runs.runs import Checkpoint, Run, create_run, open_run, versions

__all__ = [
    "Arrays",
    "Checkpoint",
    "Run",
    "create_run",
    "decode",
    "encode",
    "open_run",
    "versions",
]
