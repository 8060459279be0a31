"""Models, samplers and windows as JSON, and back; classes are looked up by name, never imported."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from sojourn import dynamics
from sojourn._files import RunError
from sojourn.gibbs import Gibbs
from sojourn.models.base import Model, Units
from sojourn.series import Windows


def encode(value: Any) -> Any:
    """Return configuration as what JSON can hold: a dataclass as its class and fields."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        if _classes().get(type(value).__name__) is not type(value):
            raise TypeError(f"a run cannot keep a {type(value).__name__}; leave out `out`")
        fields = {f.name: encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"class": type(value).__name__, "fields": fields}
    if isinstance(value, Units):
        return {"location": list(value.location), "scale": list(value.scale)}
    if isinstance(value, Mapping):
        return {str(name): encode(part) for name, part in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [encode(part) for part in value]
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if hasattr(value, "__array__"):
        return np.asarray(value).tolist()
    raise TypeError(f"a run cannot keep a {type(value).__name__}; leave out `out`")


def decode(record: Any, what: str = "class") -> Any:
    """Return what `encode` was given, arrays as nested tuples.

    Args:
        record: What `encode` returned.
        what: What it is of a run, for messages.

    Raises:
        RunError: The class is not known, or does not take these fields.
    """
    if isinstance(record, list):
        return tuple(decode(part, what) for part in record)
    if not isinstance(record, dict):
        return record
    if set(record) == {"location", "scale"}:
        return Units(*(tuple(record[name]) for name in ("location", "scale")))
    if set(record) != {"class", "fields"}:
        return {name: decode(part, name) for name, part in record.items()}
    name, known = record["class"], _classes()
    if name not in known:
        raise RunError(
            f"the run names the {what} {name}, which is not known here; import what defines it"
        )
    fields = {f.name for f in dataclasses.fields(known[name])}
    unknown = sorted(set(record["fields"]) - fields)
    if unknown:
        raise RunError(
            f"the run names the {what} {name} with {unknown[0]!r}: it is of another {name}; import "
            "what it was made with"
        )
    try:
        return known[name](**{n: decode(part, n) for n, part in record["fields"].items()})
    except (TypeError, ValueError) as error:
        raise RunError(f"the {what} {name} of the run cannot be made: {error}") from None


def _classes() -> dict[str, type]:
    """Return the classes that a run may name: models that exist, samplers, schedules, windows."""
    samplers = [
        part
        for part in vars(dynamics).values()
        if dataclasses.is_dataclass(part) and part.__module__.startswith(dynamics.__name__)
    ]
    every = [*_below(Model), *samplers, Gibbs, Windows]
    return {part.__name__: part for part in every}  # type: ignore[union-attr]


def _below(kind: type) -> list[type]:
    return [found for sub in kind.__subclasses__() for found in (sub, *_below(sub))]
