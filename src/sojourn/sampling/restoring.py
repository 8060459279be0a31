"""What a run was asked and what it was tuned to, written to its directory and read again."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from sojourn._files import RunError, brief, damaged, fill, flatten
from sojourn.blocks import Pilot
from sojourn.dynamics import Metric
from sojourn.gradients import Center, fetch, full, windowed
from sojourn.models.base import Model
from sojourn.passes import make_tiles
from sojourn.runs import Run, decode, encode
from sojourn.sampling.settings import Settings
from sojourn.series import Chances, Series, as_series, reopen
from sojourn.tuning import Tuned, tabulate


class Prepared(NamedTuple):
    """What is fixed before sampling.

    Attributes:
        center: Coordinates near the mode.
        metric: The metric, from which chains find their starts.
        choices: What was chosen, by name, for the user.
        tuned: What gradient samplers need besides; None for Gibbs.
    """

    center: dict[str, Array]
    metric: Metric
    choices: dict[str, Any]
    tuned: Tuned | None


def config_of(model: Model, series: Series, settings: Settings) -> dict[str, Any]:
    """Return the configuration of a run: enough to begin it anew."""
    asked = {f.name: encode(getattr(settings, f.name)) for f in dataclasses.fields(settings)}
    return {
        "model": encode(model),
        **asked,
        "columns": list(series.columns),
        "data": {
            "description": series.describe(),
            "treatment": dict(series.treatment),
            "units": None if series.units is None else [part.tolist() for part in series.units],
            "fingerprint": series.fingerprint,
            "rows": series.num_rows,
            "series": len(series.lengths),
        },
    }


def settings_of(run: Run) -> Settings:
    """Return what a run was asked.

    Raises:
        RunError: The run has no settings: it was saved from memory.
    """
    names = [f.name for f in dataclasses.fields(Settings)]
    if run.is_cut_short:
        raise RunError(f"{run.path} holds no fit: saving was cut short; save again")
    if run.is_saved:
        raise RunError(
            f"{run.path} was saved from memory and cannot be continued; sample again with `out`"
        )
    try:
        return Settings(**{name: decode(run.config[name], name) for name in names})
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(
            f"{run.path / 'config.json'} has settings that cannot be used ({brief(error)})"
        ) from None


def series_of(run: Run, data: Any) -> Series:
    """Return the data of a run, given or opened again.

    Raises:
        RunError: The data were in memory and are not given, or are other data.
    """
    about = run.config.get("data") or {}
    if "fingerprint" not in about:
        raise RunError(f"{run.path} was saved from memory and does not know its data: give them")
    model = run.model
    if data is not None:
        series = as_series(data, model.emission_dim, tuple(run.config["columns"]))
    elif about["description"] is None:
        raise RunError(f"the data of {run.path} were in memory: give them again, with data=")
    else:
        series = reopen(about["description"])
    if series.fingerprint != about["fingerprint"]:
        raise RunError(
            f"the data are not those of {run.path}, which has {about['rows']} rows in "
            f"{about['series']} series of columns {run.config['columns']}; give the same data, or "
            "sample anew in another directory"
        )
    return series


def write_prepared(run: Run, prepared: Prepared) -> None:
    """Keep what was tuned."""
    facts: dict[str, Any] = {"choices": encode(prepared.choices)}
    arrays = flatten("center", prepared.center) | flatten("metric", prepared.metric)
    tuned = prepared.tuned
    if tuned is not None:
        facts |= {
            "sampler": encode(tuned.sampler),
            "buffer": tuned.buffer,
            "reference": encode(tuned.reference),
            "epsilon": float(tuned.epsilon),
            "windows": encode(tuned.estimator.windows),
        }
        if tuned.source.center is not None:
            arrays |= flatten("control", tuned.source.center)
            facts["tabulated"] = tuned.source.table is not None
        if tuned.source.chances is not None:
            arrays["chances"] = np.asarray(tuned.source.chances.each)
    run.write_tuned(facts, arrays)


def read_prepared(run: Run, model: Model, series: Series) -> Prepared:
    """Return what was tuned; model and series are in the model's own units."""
    facts, arrays = run.read_tuned()
    pilots = {block.names[0]: Pilot(jnp.zeros(()), jnp.zeros(())) for block in model.blocks}
    metric = fill("metric", Metric(pilots, {}, 0.0), arrays)
    metric = jax.tree.map(jnp.asarray, metric)._replace(num_rows=float(metric.num_rows))
    center = jax.tree.map(jnp.asarray, fill("center", {}, arrays))
    choices = facts["choices"]
    if "epsilon" not in facts:
        return Prepared(center, metric, choices, None)
    for name in ("sampler", "windows", "buffer", "reference"):
        if name not in facts:
            raise damaged(f"{run.path / 'tuned.json'} lacks {name!r}")
    windows = decode(facts["windows"], "windows")
    if windows.is_full:
        tiles = make_tiles(model, series, facts["buffer"])
        estimator, source = full(model, series, tiles)
    else:
        estimator, source = windowed(model, series, windows)
        if any(name.startswith("control/") for name in arrays):
            key = jax.random.key(0)
            given = fetch(estimator, source, jax.random.split(key)[0])
            like = jax.eval_shape(estimator, given, key, center)
            slopes = like if any(name.startswith("control/slopes/") for name in arrays) else {}
            control = fill("control", Center({}, like, slopes), arrays)
            source = source._replace(center=jax.tree.map(jnp.asarray, control))
        if "chances" in arrays:
            each = arrays["chances"]
            assert source.where is not None
            if each.shape != (int(source.where.last_window[-1]),) or not (each > 0).all():
                raise damaged(f"{run.path / 'tuned.npz'} has chances of other windows")
            source = source._replace(chances=Chances.of(each))
        if facts.get("tabulated"):  # made again rather than kept: larger than all else of a run
            if source.center is None or windows.scheme != "partition":
                raise damaged(f"{run.path / 'tuned.json'} has a table of other windows")
            source = source._replace(table=tabulate(estimator, source.center, series))
    tuned = Tuned(
        sampler=decode(facts["sampler"], "sampler"),
        estimator=estimator,
        source=source,
        metric=metric,
        buffer=facts["buffer"],
        reference=decode(facts["reference"]),
        epsilon=facts["epsilon"],
        center=center,
        choices=choices,
    )
    return Prepared(center, metric, choices, tuned)
