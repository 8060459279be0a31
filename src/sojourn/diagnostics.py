"""Convergence of chains, in numbers."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas
    import xarray


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
            rows.append(
                {
                    "mean": entry.mean(),
                    "sd": sd,
                    f"eti_{100 * tail:g}%": low,
                    f"eti_{100 * (1 - tail):g}%": high,
                    "r_hat": r_hat(entry),
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
