"""How far a run can be trusted, in numbers and in words."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import pandas
    import xarray


# Figures that tuning measured, those of a buffer now and then during sampling too.
_MEASURED = (
    "noise_fraction",
    "discretisation",
    "buffer_error",
    "buffer_bias",
    "start_gap",
)


# Nats between starts that mean more than labels and what is left of a climb.
_APART = 10.0

# Fewest independent draws whose discrepancy tells anything.
_FEWEST_DRAWS = 50

# Spread, relative to the mean, of entries that are held fixed and were brought to the user's units.
_ROUNDING = 1e-13


def summarize(posterior: "xarray.Dataset", prob: float = 0.94) -> "pandas.DataFrame":
    """Return a table with one row per parameter entry."""
    import pandas

    if not 0 < prob < 1:
        raise ValueError(f"prob must lie between 0 and 1; got {prob}")
    tail = (1 - prob) / 2
    rows, index = [], []
    for variable in posterior.values():
        for label, entry in entries(variable):
            low, high = np.quantile(entry, [tail, 1 - tail])
            ess = effective_sample_size(entry)
            sd = entry.std(ddof=1) if entry.size > 1 else np.nan
            if sd < _ROUNDING * abs(entry.mean()):
                sd, ess = 0.0, np.nan
            rows.append(
                {
                    "mean": entry.mean(),
                    "sd": sd,
                    f"eti_{100 * tail:g}%": low,
                    f"eti_{100 * (1 - tail):g}%": high,
                    "r_hat": r_hat(entry) if sd != 0 else np.nan,
                    "ess": ess,
                    "mcse": sd / np.sqrt(ess) if ess > 0 else np.nan,
                }
            )
            index.append(label)
    return pandas.DataFrame(rows, index=pandas.Index(index, name="parameter"))


def entries(variable: "xarray.DataArray") -> Iterator[tuple[str, np.ndarray]]:
    """Yield label and draws (chain, draw) of each entry of a parameter."""
    values = variable.to_numpy()
    labels = [variable[d].to_numpy() for d in variable.dims[2:]]
    for where in np.ndindex(values.shape[2:]):
        said = ", ".join(str(axis[i]) for axis, i in zip(labels, where, strict=True))
        label = f"{variable.name}[{said}]" if where else str(variable.name)
        yield label, values[(slice(None), slice(None), *where)]


def varying(variable: "xarray.DataArray") -> Iterator[tuple[int, str, np.ndarray]]:
    """Yield number, label and draws of the entries that tell anything: no constants, none twice.

    Of a symmetric matrix one half is left, of a constrained one what is not held fixed. Of a parameter
    that is fixed as a whole the first entry stands for all.
    """
    told: set[bytes] = set()
    for index, (label, chains) in enumerate(entries(variable)):
        if np.ptp(chains) > 0 and chains.tobytes() not in told:
            told.add(chains.tobytes())
            yield index, label, chains
    if not told:
        yield 0, *next(entries(variable))


def r_hat(chains: np.ndarray) -> float:
    """Return the rank-normalised split R-hat of draws (chain, draw); NaN for a single chain."""
    if len(chains) < 2:
        return float("nan")
    return _arviz("rhat", chains)


def effective_sample_size(chains: np.ndarray) -> float:
    """Return the bulk effective sample size of draws (chain, draw)."""
    return _arviz("ess", chains)


def _arviz(function: str, chains: np.ndarray) -> float:
    """Call ArviZ; NaN where it is not defined: too few draws, or a constant."""
    if chains.shape[1] < 4 or np.ptp(chains) == 0:
        return float("nan")
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        import arviz
    return float(getattr(arviz, function)(np.asarray(chains)))


def readable(table: "pandas.DataFrame") -> "pandas.DataFrame":
    """Return a summary as texts: means and intervals to two digits of the sd, a dash for NaN."""
    shown = table.map(lambda value: "–" if np.isnan(value) else f"{value:.4g}")
    to_sd = [i for i, name in enumerate(table) if name == "mean" or str(name).startswith("eti_")]
    for row, sd in enumerate(np.asarray(table["sd"], dtype=float)):
        digits = 1 - math.floor(math.log10(sd)) if sd > 0 else -1
        for column in to_sd if 0 <= digits <= 6 else ():
            value = float(table.to_numpy()[row, column])
            if abs(value) >= 1e-3:
                shown.iat[row, column] = f"{value:.{digits}f}"
    return shown


class Check(NamedTuple):
    """A figure, what it should stay under (or, if `least`, over), and what to say of it."""

    name: str
    value: float
    limit: float
    meaning: str
    advice: str
    least: bool = False

    @property
    def ok(self) -> bool:
        """Whether the figure is in range; a figure that is not known is."""
        if math.isnan(self.value):
            return True
        return self.value >= self.limit if self.least else self.value <= self.limit

    @property
    def is_judged(self) -> bool:
        """Whether the figure is known and has a range."""
        return not math.isnan(self.value) and math.isfinite(self.limit)

    def judge(self) -> str:
        """Return the figure in plain words, and the limit where it is out of range."""
        if math.isnan(self.value):
            return f"{self.meaning}: not measured"
        line = f"{self.meaning}: {self.value:.4g}"
        if self.ok:
            return line
        return f"{line}, {'below' if self.least else 'above'} {self.limit:g}"

    def say(self) -> str:
        """Return one line in plain words: the figure and, where it is out of range, what to do."""
        return self.judge() if self.ok else f"{self.judge()}; {self.advice}"


def mixing(posterior: "xarray.Dataset") -> list[Check]:
    """Return the figures of how well chains mixed: R-hat, effective draws, Monte Carlo error."""
    table = summarize(posterior)
    # Entries that are held fixed have no spread, and nothing to say of it.
    table = table[table["sd"] > 0]
    table = table.assign(mcse=table["mcse"] / table["sd"])
    worst = table.agg({"r_hat": "max", "ess": "min", "mcse": "max"})
    largest, ess, relative = map(float, worst)
    return [
        Check(
            "r_hat",
            largest,
            1.01 if ess > 1000 else 1.05,
            "largest R-hat of a parameter",
            "chains have not met: raise num_warmup and num_samples, or look for several modes in "
            "fit.plot_trace()",
        ),
        Check(
            "ess",
            ess,
            400,
            "smallest effective number of draws",
            "raise num_samples or thin",
            least=True,
        ),
        Check(
            "mcse",
            relative,
            0.05,
            "largest Monte Carlo error of a mean, in posterior sds",
            "raise num_samples or thin",
        ),
    ]


def diagnose(
    posterior: "xarray.Dataset",
    statistics: "xarray.Dataset",
    choices: Mapping[str, Any],
    discrepancy: Callable[[float], float] | None = None,
) -> list[Check]:
    """Return the figures that tell how far a run can be trusted.

    Args:
        posterior: The draws.
        statistics: What was measured with them.
        choices: What was chosen and measured before sampling.
        discrepancy: Measures the Stein discrepancy of as many draws as are effective, in sds of that of
            draws of the posterior; None without data.
    """
    mixed = mixing(posterior)
    effective = next(check.value for check in mixed if check.name == "ess")
    own = {name: float(choices.get(name, math.nan)) for name in _MEASURED}
    if "buffer_error" in statistics:
        own["buffer_error"] = float(statistics["buffer_error"].max())
    unseen = 2 * float(choices.get("buffer_bias_error", 0.0))
    made_up_for = bool(choices.get("noise_made_up_for", False))
    buffers = " (all rows are used)" if choices.get("windows") == "full" else ""
    few = discrepancy is not None and not effective >= _FEWEST_DRAWS
    found = math.nan if discrepancy is None or few else discrepancy(effective)
    return [
        *mixed,
        Check(
            "noise_fraction",
            own["noise_fraction"],
            0.16 if made_up_for else 0.051,
            "variance that gradient noise adds, relative to the posterior's"
            + " (made up for)" * made_up_for,
            "lower step_size or raise the batch",
        ),
        Check(
            "discretisation",
            own["discretisation"],
            0.06,
            "variance that the step size adds, relative to the posterior's",
            "lower step_size",
        ),
        Check(
            "buffer_error",
            own["buffer_error"],
            0.01,
            "error of a window's gradient from its buffer, relative to its noise" + buffers,
            "means and widths of the draws may be off: use a longer buffer",
        ),
        Check(
            "buffer_bias",
            own["buffer_bias"],
            0.1,
            f"shift of the posterior mean from the buffer, in sds{buffers}"
            + (f" (one of {unseen:.2g} could not be seen)" if unseen > 0.1 else ""),
            "use a longer buffer or a control variate",
        ),
        Check(
            "ksd",
            found,
            5.0,
            "Stein discrepancy, in sds of that of draws of the posterior"
            + (" (of too few effective draws)" if few else ""),
            "the draws are of another law: use a longer buffer, a smaller step_size or more num_warmup",
        ),
        Check(
            "start_gap",
            own["start_gap"],
            math.inf,
            "nats between the best start, which was kept, and the worst"
            + (
                " (several modes, or climbs that had not ended)"
                if own["start_gap"] > _APART
                else ""
            ),
            "",
        ),
    ]
