"""Runs killed many times, and samplers that take long to compile."""

import signal

import pytest

import sojourn as sj
from test_runs import check_resume, kill_until_done

pytestmark = pytest.mark.slow


def test_twenty_kills_lose_nothing(tmp_path):
    kill_until_done(tmp_path, [signal.SIGKILL] * 20)


def test_switching_models_resume(tmp_path):
    model = sj.SLDS(num_states=2, state_dim=1, emission_dim=1)
    check_resume(tmp_path / "run", model, sj.Gibbs())
