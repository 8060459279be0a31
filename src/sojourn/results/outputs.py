"""States written to disk as they are made, so that memory does not grow with the series.

Windows are run in order, a few groups ahead of what is written; each group's rows are appended to a Zarr
group or a Parquet file. If seams disagree, buffers grow and writing begins anew. What is written has
its name when it is whole.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from sojourn._files import RunError, read_json, replacing
from sojourn._validation import shown
from sojourn.batch import Batch, Edges, Missing
from sojourn.models.base import Model, Params, check_lags, check_model
from sojourn.passes import PATH_TOLERANCE, apply_to_rows, first_buffer, stream
from sojourn.results.metrics import raw_units
from sojourn.series import Drawn, Series

Rows = dict[str, np.ndarray]

# Rows of a chunk of a Zarr array.
_CHUNK = 65_536

_DIMS = {
    "probability": ("time", "label"),
    "x": ("time", "dim"),
    "covariance": ("time", "dim", "dim_bis"),
    "state": ("time",),
    "series": ("time",),
    "t": ("time",),
}


def write_states(
    model: Model,
    draws: list[dict[str, Any]],
    series: Series,
    out: str | Path,
    *,
    path: str | None = None,
    at: Params | None = None,
    progress: bool = False,
) -> Path:
    """Write smoothed laws of states, averaged over parameters, and a path to `out`.

    Args:
        model: The model.
        draws: Parameters that laws are averaged over.
        series: The series.
        out: A name that ends in .zarr or .parquet; what is there is replaced.
        path: Which path to add as `state`, if any.
        at: Parameters of the most probable path.
        progress: Whether to show a bar of rows.

    Returns:
        The path written to. The largest difference at a seam is its attribute (Zarr) or metadata
        (Parquet) `discrepancy`.
    """
    check_model(model)
    check_lags(model, series)
    target, make = _target(out, series)
    every = [raw_units(model, params) for params in draws]
    raw = every[0][0]
    best = None
    if path == "viterbi" and at is not None and raw.has_discrete_states:
        best = raw_units(model, at)[1]

    def kernel(batch: Batch, drawn: Drawn, core: int, missing: Missing) -> tuple[Rows, Edges]:
        edges: list[Any] = []

        def laws() -> Iterator[Rows]:
            for _, coords in every:
                rows, compared = apply_to_rows(
                    raw, "window_marginals", coords, batch, drawn, core, missing
                )
                edges.append(compared)
                yield _described(raw, np.asarray(rows))

        found = average(laws())
        if path == "marginal" and "probability" in found:
            found["state"] = found["probability"].argmax(-1)
        if best is not None:
            rows, compared = apply_to_rows(raw, "window_paths", best, batch, drawn, core, missing)
            found["state"] = np.asarray(rows).astype(np.int64)
            # Scores of paths have a tolerance of their own.
            scale = raw.seam_tolerance / PATH_TOLERANCE
            edges.append(jax.tree.map(lambda part: part * scale, compared))
        return found, jax.tree.map(lambda *parts: np.concatenate(parts), *edges)

    buffer = max(first_buffer(raw, coords, series) for _, coords in every)
    with replacing(target) as temporary, make(temporary, series, model.num_lags) as writer:
        gap = stream(raw, series, kernel, writer, buffer=buffer, progress=progress)
        writer.note(float("nan") if not raw.is_exact else gap)
    return target


def average(laws: Iterable[Rows]) -> Rows:
    """Return the mean of laws of states, by name.

    Second moments average, covariances do not: laws differ in their means too.
    """
    total: Rows = {}
    count = 0
    for law in laws:
        total = {n: total.get(n, 0.0) + value for n, value in _add_outer(law, 1).items()}
        count += 1
    return _add_outer({name: value / count for name, value in total.items()}, -1)


def _add_outer(law: Rows, sign: int) -> Rows:
    """Add x xᵀ to the covariances, or take it away."""
    if "covariance" not in law:
        return law
    x = law["x"]
    return {**law, "covariance": law["covariance"] + sign * x[..., :, None] * x[..., None, :]}


def _described(model: Model, rows: np.ndarray) -> Rows:
    """Return laws by name, (W, core, …), from rows (W, core, J)."""
    flat = model.describe_states(rows.reshape(-1, rows.shape[-1]))
    return {n: v.reshape(*rows.shape[:2], *v.shape[1:]) for n, (_, v) in flat.items()}


def columns_of(rows: Rows) -> Rows:
    """Return states as columns of a table, with names.

    series, t, state, p_0, …, x_0, …, sd_0, …, and covariance_0_1, … for each pair, whichever there are.
    """
    found = {name: rows[name] for name in ("series", "t", "state") if name in rows}
    for name, short in (("probability", "p"), ("x", "x")):
        found |= {f"{short}_{i}": c for i, c in enumerate(rows.get(name, np.zeros((0, 0))).T)}
    if "covariance" in rows:
        covariance = rows["covariance"]
        every = range(covariance.shape[1])
        found |= {f"sd_{i}": np.sqrt(covariance[:, i, i]) for i in every}
        pairs = [(i, j) for i in every for j in every if i < j]
        found |= {f"covariance_{i}_{j}": covariance[:, i, j] for i, j in pairs}
    return found


class Writer:
    """Rows in order of time to a store, rows that only serve as lags left blank.

    Subclasses open, append and close.
    """

    def __init__(self, target: Path, series: Series, num_lags: int) -> None:
        self.target, self._series, self._lags = target, series, num_lags
        self._labels = series.labels
        self._ends = np.cumsum(np.asarray(series.lengths) - num_lags)
        self._starts = np.concatenate([[0], np.cumsum(series.lengths)[:-1]])
        self._counted = self._whole = 0

    def restart(self) -> None:
        """Forget what was written."""
        self._counted = self._whole = 0

    def write(self, rows: Rows) -> None:
        """Append rows that count, in order, all series one after the other."""
        count = len(next(iter(rows.values())))
        index = np.arange(self._counted, self._counted + count)
        which = np.searchsorted(self._ends, index, side="right")
        place = index + self._lags * (which + 1)
        first, last = self._whole, int(place[-1]) + 1
        span = np.arange(first, last)
        series = np.searchsorted(self._starts, span, side="right") - 1
        whole: Rows = {"series": self._labels[series], "t": span - self._starts[series]}
        for name, value in rows.items():
            if len(span) == count:
                whole[name] = value
                continue
            fill = -1 if value.dtype.kind == "i" else np.nan
            whole[name] = np.full((len(span), *value.shape[1:]), fill, dtype=value.dtype)
            whole[name][place - first] = value
        self._counted += count
        self._whole = last
        self.append(first, whole)

    def append(self, first: int, rows: Rows) -> None:
        raise NotImplementedError

    def note(self, gap: float) -> None:
        """Note the largest difference at a seam."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


class ZarrWriter(Writer):
    """One array for each variable, which xarray opens as a dataset.

    `series` are numbers; where they have names, these are the attribute `series_names`.
    """

    _group: Any = None

    def __init__(self, target: Path, series: Series, num_lags: int) -> None:
        super().__init__(target, series, num_lags)
        self._labels = np.arange(len(series.lengths))

    def restart(self) -> None:
        super().restart()
        self.close()

    def append(self, first: int, rows: Rows) -> None:
        import zarr

        total = self._series.num_rows
        if self._group is None:
            self._group = zarr.open_group(self.target, mode="w")
            for name, value in rows.items():
                self._group.create_array(
                    name,
                    shape=(total, *value.shape[1:]),
                    chunks=(min(_CHUNK, total), *value.shape[1:]),
                    dtype=value.dtype,
                    dimension_names=_DIMS[name],
                )
        for name, value in rows.items():
            self._group[name][first : first + len(value)] = value

    def note(self, gap: float) -> None:
        self._group.attrs["discrepancy"] = None if np.isnan(gap) else gap
        if self._series.names is not None:
            self._group.attrs["series_names"] = list(self._series.names)

    def close(self) -> None:
        self._group = None


class ParquetWriter(Writer):
    """One row for each row, with the columns of `columns_of`."""

    _file: Any = None

    def restart(self) -> None:
        super().restart()
        self.close()

    def append(self, first: int, rows: Rows) -> None:
        import pyarrow
        import pyarrow.parquet

        del first
        table = pyarrow.table(columns_of(rows))
        if self._file is None:
            self._file = pyarrow.parquet.ParquetWriter(self.target, table.schema)
        self._file.write_table(table)

    def note(self, gap: float) -> None:
        self._file.add_key_value_metadata({"discrepancy": str(gap)})

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None


def _target(out: str | Path, series: Series) -> tuple[Path, Callable[..., Writer]]:
    """Return where to write and what makes the writer."""
    if not isinstance(out, str | Path):
        raise TypeError(f"out must be a path that ends in .zarr or .parquet; got {shown(out)}")
    target = Path(out).expanduser()
    kinds: dict[str, Callable[..., Writer]] = {".zarr": ZarrWriter, ".parquet": ParquetWriter}
    if target.suffix.lower() not in kinds:
        raise ValueError(f"out must end in .zarr or .parquet; got {shown(str(out))}")
    check_replaceable(target, series.describe())
    target.parent.mkdir(parents=True, exist_ok=True)
    return target, kinds[target.suffix.lower()]


def check_replaceable(target: Path, data: Mapping[str, Any] | None) -> None:
    """Raise if what has this name is the data, or a directory of something else than states.

    Args:
        target: Where something is to be written.
        data: What `Series.describe` says of the data.
    """
    read = (data or {}).get("path", [])
    if any(_is_same(target, path) for path in ([read] if isinstance(read, str) else read)):
        raise ValueError(f"{target} holds the data; choose another name for what is written")
    if not target.is_dir():
        return
    try:
        about = read_json(target / "zarr.json")
    except RunError:
        about = {}
    if "discrepancy" not in about.get("attributes", {}):
        raise ValueError(f"{target} is a directory of something else; choose another name")


def _is_same(target: Path, path: str) -> bool:
    """Return whether a file is the data, or would be read as a part of them."""
    data = Path(path.removeprefix("file://"))
    if not data.exists():
        return False
    if target.exists() and target.samefile(data):
        return True
    return target.suffix.lower() == ".parquet" and data.resolve() in target.resolve().parents
