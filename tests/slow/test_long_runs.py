"""Runs killed many times, and samplers that take long to compile."""

import signal

from test_runs import MODEL, SETTINGS, Y, check_resume, kill_until_done, same

import sojourn as sj
from sojourn import chains


def test_twenty_kills_lose_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(chains, "_LP_EVERY", 100)
    kill_until_done(tmp_path, [signal.SIGKILL] * 20)
    unbroken = sj.sample(MODEL, Y, num_samples=1500, **SETTINGS)
    assert same(sj.load(tmp_path / "run"), unbroken)


def test_switching_models_resume(tmp_path):
    model = sj.SLDS(num_states=2, state_dim=1, emission_dim=1)
    check_resume(tmp_path / "run", model, sj.Gibbs())
