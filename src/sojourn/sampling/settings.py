"""What can be asked of `sample`, checked at the edge."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sojourn._validation import check_seed, check_size, shown
from sojourn.dynamics import Sampler
from sojourn.gibbs import Gibbs
from sojourn.series import Windows


@dataclass(frozen=True)
class Settings:
    """The arguments of `sample` besides model and data; their meaning stands there."""

    sampler: Sampler | Gibbs | None
    windows: Windows | str
    num_samples: int
    num_chains: int
    num_warmup: int | str
    thin: int | str
    control_variate: bool | str
    init: str | Mapping[str, Any]
    seed: int

    def __post_init__(self) -> None:
        sampler, windows = self.sampler, self.windows
        is_gibbs = isinstance(sampler, Gibbs)
        known = sampler is None or is_gibbs or hasattr(sampler, "step")
        if isinstance(sampler, type) or not known:
            raise TypeError(
                "sampler must be one of SGRLD(), SGLD(), SGHMC(), SGNHT(), Gibbs(); got "
                f"{shown(sampler)}"
            )
        if not isinstance(windows, Windows):
            _check_choice("windows", windows, ("auto",), "a Windows")
        check_size("num_samples", self.num_samples)
        check_size("num_chains", self.num_chains)
        for name, least in (("num_warmup", 0), ("thin", 1)):
            value = getattr(self, name)
            if isinstance(value, str):
                _check_choice(name, value, ("auto",), "an integer")
            else:
                check_size(name, value, least)
        if not isinstance(self.control_variate, bool):
            _check_choice("control_variate", self.control_variate, ("auto",), "True or False")
        if is_gibbs:
            if isinstance(windows, Windows) and not windows.is_full:
                raise ValueError("Gibbs() sweeps over all rows: leave windows='auto'")
            if self.control_variate is True:
                raise ValueError("Gibbs() has no gradients: leave control_variate='auto'")
        elif self.control_variate is True and isinstance(windows, Windows) and windows.is_full:
            raise ValueError("Windows.full() has no noise to lower: leave control_variate='auto'")
        if not isinstance(self.init, Mapping):
            _check_choice("init", self.init, ("kmeans", "prior"), "a dict of parameters")
        check_seed(self.seed)


def _check_choice(name: str, value: Any, words: tuple[str, ...], other: str) -> None:
    """Raise unless `value` is one of the words; `other` says what else would do."""
    expected = f"{name} must be {', '.join(map(repr, words))} or {other}"
    if not isinstance(value, str):
        raise TypeError(f"{expected}; got {shown(value)}")
    if value not in words:
        raise ValueError(f"{expected}; got {shown(value)}")
