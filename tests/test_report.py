"""Reports: one file, nothing from outside, safe with any name."""

import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import sojourn as sj
from sojourn.reports.figures import prior_draws
from sojourn.results.diagnostics import diagnose
from sojourn.results.fit import make_fit

HOSTILE = ("<script>document.title='owned'</script>", r'$\frac{$" onload="x 温度')
MODEL = sj.GaussianHMM(num_states=2, emission_dim=2)
TRUTH = {
    "transition_matrix": np.array([[0.9, 0.1], [0.2, 0.8]]),
    "means": np.array([[0.0, 0.0], [3.0, 1.0]]),
    "covariances": np.stack([np.eye(2)] * 2),
}
Y = MODEL.simulate(TRUTH, 300, seed=0)[1]
Y[10, 1] = np.nan
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


def fake_fit(model, truth, data, spread=0.01) -> sj.Fit:
    """Return draws about the truth, without a sampler."""
    rng = np.random.default_rng(0)
    draws = []
    for _ in range(2):
        drawn = {n: v + spread * rng.normal(size=(50,) + (1,) * v.ndim) for n, v in truth.items()}
        if "transition_matrix" in drawn:
            drawn["transition_matrix"] /= drawn["transition_matrix"].sum(-1, keepdims=True)
        draws.append(drawn)
    series = sj.as_series(data)
    choices = {"sampler": "SGRLD", "buffer_error": 0.004, "noise_fraction": 0.02, "thin": 3}
    chains = {i: (one, {}) for i, one in enumerate(draws)}
    return make_fit(model.scaled_to(series), series.columns, chains, choices=choices, seed=0)


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.words += data


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    frame = pd.DataFrame(Y, columns=list(HOSTILE))
    path = tmp_path_factory.mktemp("report") / "report.html"
    fake_fit(MODEL, TRUTH, frame).report(path, frame)
    return path


def test_a_report_stands_alone(report):
    page = Page(report.read_text())
    assert {tag for tag, _ in page.tags}.isdisjoint({"script", "link", "iframe", "object"})
    images = [about["src"] for tag, about in page.tags if tag == "img"]
    assert len(images) == 5
    assert all(src.startswith("data:image/png;base64,") for src in images)
    for _, about in page.tags:
        assert not any(name.startswith("on") or name == "href" for name in about)


def test_a_report_says_what_was_asked_first(report):
    words = Page(report.read_text()).words
    for said in (
        *HOSTILE,
        "300 rows in 1 series",
        "0.33%",
        "means[1, ",
        "steps from one draw to the next",
        "Posterior against prior",
        "Transitions",
        "Decoded states",
    ):
        assert said in words, said
    fit = fake_fit(MODEL, TRUTH, pd.DataFrame(Y, columns=list(HOSTILE)))
    for check in diagnose(fit.posterior, fit.sample_stats, fit.choices):
        assert check.say() in words


def test_a_report_opens_in_a_browser(report):
    browser = next((path for path in map(shutil.which, BROWSERS) if path), None)
    if browser is None:
        pytest.skip(f"no browser among {', '.join(BROWSERS)} is installed")
    done = subprocess.run(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", report.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    page = Page(done.stdout)
    assert "<title>GaussianHMM: report</title>" in done.stdout
    assert "Decoded states" in page.words
    assert HOSTILE[0] in page.words


def test_without_data_and_without_discrete_states(tmp_path):
    model = sj.LGSSM(state_dim=1, emission_dim=1)
    truth = {"A": np.array([[0.8]]), "Q": np.array([[0.5]]), "R": np.array([[1.0]])}
    fit = fake_fit(model, truth, model.simulate(truth, 50)[1])
    fit.report(tmp_path / "report.html")
    words = Page((tmp_path / "report.html").read_text()).words
    assert "not given to the report" in words
    assert "Transitions" not in words


def test_prior_draws_follow_the_prior():
    """Rows of a Dirichlet(1, 1) are uniform; the prior of a mean is about the centre of the data."""
    fit = fake_fit(MODEL, TRUTH, Y)
    drawn = prior_draws(fit)
    stay = drawn["transition_matrix"][:, 0, 0]
    assert abs(stay.mean() - 0.5) < 4 * np.sqrt(1 / 12 / len(stay))
    assert abs(stay.var() - 1 / 12) < 4 * np.sqrt(1 / 180 / len(stay))
    center, scale = fit.model.units
    quartiles = (np.quantile(drawn["means"][:, 0], [0.25, 0.5, 0.75], axis=0) - center) / scale
    assert np.all(np.abs(quartiles[1]) < 1.5)
    assert np.all(quartiles[2] > 5)  # κ₀ = 0.01: ten scales of a row


def test_a_report_that_cannot_be_written(tmp_path):
    fit = fake_fit(MODEL, TRUTH, Y)
    with pytest.raises(
        sj.RunError, match=r"cannot write .*: the folder .* does not exist; make it"
    ):
        fit.report(tmp_path / "no" / "report.html")
