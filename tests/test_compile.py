"""Programs are forgotten before a process runs out of memory maps."""

import numpy as np
import pytest

import sojourn as sj
from sojourn import _compile


@pytest.fixture
def cleared(monkeypatch):
    """Count how often programs are forgotten; every call looks."""
    calls = []
    monkeypatch.setattr(_compile, "_LOOK_EVERY", 0.0)
    monkeypatch.setattr(_compile.jax, "clear_caches", lambda: calls.append(None))
    return calls


def proc(tmp_path, num_maps, most):
    for name, text in {
        "self/maps": "a map\n" * num_maps,
        "sys/vm/max_map_count": str(most),
    }.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path


@pytest.mark.parametrize(("num_maps", "times"), [(400, 0), (600, 1)])
def test_programs_are_forgotten_above_half_the_maps(
    tmp_path, monkeypatch, cleared, num_maps, times
):
    monkeypatch.setattr(_compile, "_PROC", proc(tmp_path, num_maps, 1000))
    model = sj.GaussianHMM(num_states=1, emission_dim=1)
    params = {"transition_matrix": [[1.0]], "means": [[0.0]], "covariances": [[[1.0]]]}
    sj.log_likelihood(model, params, np.arange(5.0))
    assert len(cleared) == times


def test_systems_without_maps_forget_nothing(tmp_path, monkeypatch, cleared):
    monkeypatch.setattr(_compile, "_PROC", tmp_path)
    _compile.forget_programs()
    assert not cleared
