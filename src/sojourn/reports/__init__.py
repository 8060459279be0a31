"""A fit as one self-contained HTML page."""

from sojourn.reports.report import write_report

__all__ = [
    "write_report",
]
