"""A report: one HTML file with everything a reader asks first, readable offline."""

import base64
import io
import warnings
from collections.abc import Iterable, Sequence
from html import escape
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from sojourn._files import write_text
from sojourn.plots import plot_segmentation, plot_states, plot_trace
from sojourn.reports.figures import plot_data, plot_prior, plot_transitions, prior_draws
from sojourn.results import Check, diagnose, readable

if TYPE_CHECKING:
    from sojourn.results import Fit
    from sojourn.series import Series

# Rows that the overview of the data is made from.
_OVERVIEW_ROWS = 100_000

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 1000px; margin: 2em auto;
       padding: 0 1em; }
h1 { margin-bottom: 0; } h2 { border-bottom: 1px solid #ccc; margin-top: 2em; }
table { border-collapse: collapse; font-size: 13px; } th, td { padding: 2px 10px; text-align: right; }
th:first-child, td:first-child { text-align: left; } tr:nth-child(even) { background: #f5f5f5; }
td.words { text-align: left; } img { max-width: 100%; } .wide { overflow-x: auto; }
li.good::marker { content: "✓ "; color: #009E73; } li.look::marker { content: "! "; color: #D55E00; }
li.plain::marker { content: "– "; color: #777; }
""".strip()

# What the choices mean; those that are not named here are shown without words.
_REASONS = {
    "windows": "all rows at every step: the data are short enough, or this was asked for",
    "length": "rows of a window that count",
    "buffer": "rows on each side of a window that only carry information in",
    "buffer_error": "error that the buffer leaves, relative to the noise of a gradient",
    "batch": "windows drawn at each step; more lower the noise and cost time",
    "scheme": "how windows are drawn",
    "chances": "which windows are drawn more often; equal if not named",
    "control_variate": "whether windows only estimate the change since a centre near the mode; taken "
    "where it lowers the noise",
    "metric": "the metric that steps are taken in",
    "step_size": "ε: the largest that keeps the errors of discretisation and noise to a few percent",
    "discretisation": "relative error of variances from the step size, near enough",
    "noise_made_up_for": "whether steps inject less noise to make up for that of the gradients",
    "buffer_bias": "shift of the posterior mean that the buffer causes, in sds",
    "buffer_bias_error": "its Monte Carlo error: a shift of twice that could not be seen",
    "noise_fraction": "share that gradient noise adds to the variance of the draws",
    "start_gap": "nats between the best start and the worst: other modes, or climbs that had not ended",
    "num_warmup": "steps of each chain before its first draw",
    "thin": "steps from one draw to the next",
    "sampler": "how draws are made",
}


def write_report(fit: "Fit", path: "str | PathLike[str]", data: Any = None) -> None:
    """Write a report as one HTML file without references to anything outside.

    Args:
        fit: The fit.
        path: The file to write.
        data: The series, as in `sample`, for their overview and decoded states.
    """
    series = None if data is None else fit.as_series(data)
    # Names of columns are not formulas.
    with matplotlib.rc_context({"text.parse_math": False}):
        sections = [
            ("Diagnostics", _diagnostics(fit)),
            ("Data", _data(series)),
            ("Settings", _settings(fit)),
            ("Posterior", _summary(fit)),
            ("Traces", _image(plot_trace(fit.posterior), "Densities and traces")),
            ("Posterior against prior", _prior(fit)),
            *_states(fit, series),
        ]
    write_text(
        Path(path).expanduser(), _page(f"{type(fit.model).__name__}: report", repr(fit), sections)
    )


def _page(title: str, subtitle: str, sections: Iterable[tuple[str, str]]) -> str:
    body = "\n".join(f"<h2>{escape(name)}</h2>\n{content}" for name, content in sections)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'\">\n"
        f"<title>{escape(title)}</title>\n<style>\n{_STYLE}\n</style>\n</head>\n<body>\n"
        f"<h1>{escape(title)}</h1>\n<p>{escape(subtitle)}</p>\n{body}\n</body>\n</html>\n"
    )


def _diagnostics(fit: "Fit") -> str:
    checks = diagnose(fit.posterior, fit.sample_stats, fit.choices)
    lines = (f'<li class="{_mark(check)}">{escape(check.say())}</li>' for check in checks)
    return "<ul>\n" + "\n".join(lines) + "\n</ul>"


def _mark(check: Check) -> str:
    """Return the class of a line: in range, out of it, or neither."""
    if not check.is_judged:
        return "plain"
    return "good" if check.ok else "look"


def _data(series: "Series | None") -> str:
    if series is None:
        return "<p>The rows were not given to the report, nor found where they were opened.</p>"
    count = min(series.num_rows, _OVERVIEW_ROWS)
    rows = series.windows(np.linspace(0, series.num_rows - 1, count).astype(np.int64), 1)[:, 0]
    said = f"{series.num_rows:,} rows in {len(series.lengths):,} series"
    if count < series.num_rows:
        said += f"; numbers from {count:,} rows, evenly spread"
    table = [
        (
            name,
            f"{np.isnan(column).mean():.2%}",
            *_moments(column[~np.isnan(column)]),
        )
        for name, column in zip(series.columns, rows.T, strict=True)
    ]
    head = ("column", "missing", "mean", "sd", "least", "largest")
    first = series.rows(0, min(series.lengths[0], _OVERVIEW_ROWS))
    figure = plot_data(first, series.columns, f"first {len(first):,} rows")
    return f"<p>{said}</p>\n{_table(head, table)}\n{_image(figure, 'The data')}"


def _moments(seen: np.ndarray) -> list[str]:
    if not len(seen):  # in the rows that were looked at
        return ["not seen"] * 4
    return [f"{f(seen):.6g}" for f in (np.mean, np.std, np.min, np.max)]


def _settings(fit: "Fit") -> str:
    chosen = [
        (name, f"{value:.6g}" if isinstance(value, float) else str(value), _REASONS.get(name, ""))
        for name, value in fit.choices.items()
    ]
    fields = [
        (name, " ".join(str(value).split())[:200])
        for name, value in vars(fit.model).items()
        if not name.startswith("_") and isinstance(value, int | float | str | tuple)
    ]
    model = _table((type(fit.model).__name__, "value"), fields)
    return f"{_table(('setting', 'value', 'what it is'), chosen, words=2)}\n<p></p>\n{model}"


def _summary(fit: "Fit") -> str:
    table = readable(fit.summary())
    rows = [(label, *row) for label, row in zip(table.index, table.to_numpy(), strict=True)]
    return _table(("parameter", *table.columns), rows)


def _prior(fit: "Fit") -> str:
    figure = plot_prior(fit.posterior, prior_draws(fit))
    words = "Blue, the posterior; black, the prior, where the posterior is. First entries of each."
    return f"<p>{words}</p>\n{_image(figure, 'Posterior against prior')}"


def _states(fit: "Fit", series: "Series | None") -> list[tuple[str, str]]:
    sections = []
    if fit.model.has_discrete_states:
        graph = _image(plot_transitions(fit.mean["transition_matrix"]), "Transition graph")
        words = "Posterior means of transition probabilities; in a node, the chance to stay."
        sections.append(("Transitions", f"<p>{words}</p>\n{graph}"))
        if series is not None:
            figure = plot_segmentation(fit, series)
            sections.append(("Decoded states", _image(figure, "Decoded states of the first rows")))
    if fit.model.has_continuous_states and series is not None:
        words = "Means given all rows, and two standard deviations, at the posterior mean."
        figure = _image(plot_states(fit, series), "Smoothed states of the first rows")
        sections.append(("Smoothed states", f"<p>{words}</p>\n{figure}"))
    return sections


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]], words: int | None = None) -> str:
    """Return a table; column `words` holds sentences."""
    titles = "".join(f"<th>{escape(str(title))}</th>" for title in head)
    lines = []
    for row in rows:
        cells = (
            f"<td{' class=words' if index == words else ''}>{escape(str(cell))}</td>"
            for index, cell in enumerate(row)
        )
        lines.append(f"<tr>{''.join(cells)}</tr>")
    body = "\n".join(lines)
    return f'<div class="wide"><table>\n<tr>{titles}</tr>\n{body}\n</table></div>'


def _image(figure: Figure, alternative: str) -> str:
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        # Names in scripts that the font lacks become boxes.
        warnings.simplefilter("ignore", UserWarning)
        figure.savefig(buffer, format="png", dpi=110)
    content = base64.b64encode(buffer.getvalue()).decode()
    return f'<img alt="{escape(alternative)}" src="data:image/png;base64,{content}">'
