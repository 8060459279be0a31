"""Ion channel: Gaussian HMMs of a patch-clamp recording, full and down-sampled, and labelled traces."""

from collections import Counter
from typing import Any

import numpy as np
import pandas

import sojourn as sj
from sojourn.experiments import _figures, _traces
from sojourn.experiments._session import Session

_RECORDING = "ion_sctrace/test2_current_pA_1479978_f32.npy"
_LABELLED = "ion_deepchannel/deepchannel_traces.npz"
_HORIZON = 10

# Neighbouring samples are correlated by the amplifier's filter; every fifth is close to white noise.
_EVERY = 5

_WINDOWS = {
    "no buffer": sj.Windows(length=10, buffer=0),
    "buffer": sj.Windows(length=10, buffer=10),
}


def run(session: Session) -> None:
    """Choose the number of states, compare samplers, check segmentations against labels.

    The paper takes the logarithm of its currents. These cross zero, so that they are standardised only.
    """
    path = session.data(_RECORDING, "test2.abf of DCPROGS/SCTRACE as an array of pA")
    recording = np.load(path).astype(float)
    recording = ((recording - recording.mean()) / recording.std())[:, None]
    sampled = recording[::_EVERY]
    sampled = sampled[: session.pick(40_000, len(sampled))]
    train, test = _split(sampled)
    num_states = _choose_states(session, train, test)
    series = {"down-sampled": sampled} | session.pick({}, {"full": recording})
    session.settings.update({"rows": {name: len(y) for name, y in series.items()}})
    steps = {"down-sampled": (1e-3, 1e-3), "full": (1e-4, 1e-2)}  # SGLD, SGRLD
    for name, y in series.items():
        sgld, sgrld = steps[name]
        methods = _traces.langevin((sgld,) * 2, (sgrld,) * 2, _WINDOWS)
        rest = _traces.batch_and_default()
        methods += list(rest) if name == "down-sampled" else [rest[1]]
        _compare(session, name, y, num_states, methods, 1 / len(series))
    _check_labels(session)


def _split(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the first nine tenths and the rest."""
    cut = int(0.9 * len(y))
    return y[:cut], y[cut:]


def _choose_states(session: Session, train: np.ndarray, test: np.ndarray) -> int:
    """Return the number of states with the best held-out score, and write the scores."""
    rows = []
    for num_states in session.pick((2, 3), (2, 3, 4, 5, 6, 7, 8)):
        model = sj.GaussianHMM(num_states=num_states, emission_dim=1)
        fit = sj.sample(model, train, num_samples=100, num_chains=2, progress=False)
        rows.append({"states": num_states, "score": fit.score(test, 20) / len(test)})
        session.say(f"{num_states} states: held-out score {rows[-1]['score']:.4f} per row")
    table = pandas.DataFrame(rows)
    session.table("number_of_states", table)
    return int(table["states"].iloc[int(table["score"].argmax())])


def _compare(
    session: Session,
    name: str,
    y: np.ndarray,
    num_states: int,
    methods: list[_traces.Method],
    share: float,
) -> None:
    train, test = _split(y)
    model = sj.GaussianHMM(num_states=num_states, emission_dim=1)

    def metrics(model: Any, params: dict[str, np.ndarray]) -> dict[str, float]:
        return {
            "score": sj.log_likelihood(model, params, test) / len(test),
            "ahead": sj.predictive_score(model, params, test, _HORIZON) / len(test),
        }

    session.say(f"{name}: {len(y):,} rows")
    start = model.initialize(train, seed=0)
    found = _traces.compare(session, model, methods, train, metrics, start, share=share)
    session.table(f"metrics_{name}", found.table)
    session.rows(f"curves_{name}", found.curves)
    titles = {
        "score": "held-out log-likelihood per row",
        "ahead": f"{_HORIZON}-step predictive log-likelihood per row",
    }
    session.figure(f"curves_{name}", _figures.draw_curves(found, titles))
    for one in found.traces:
        if one.method.name in ("Gibbs", "SGRLD buffer"):
            fit = _traces.second_half(one.fit)
            label = one.method.name.lower().replace(" ", "_")
            session.figure(f"segmentation_{name}_{label}", fit.plot_segmentation(test, 0, 2_000))


def _check_labels(session: Session) -> None:
    """Compare decoded states with the number of open channels, on synthetic traces."""
    path = session.data(_LABELLED, "csv files of RichardBJ/Deep-Channel, see its README")
    rows = []
    with np.load(path) as traces:
        records = sorted(key[:-2] for key in traces.files if key.endswith("_y"))
        for record in session.pick(["rec10"], records):
            stop = session.pick(36_000, None)
            y, labels = traces[f"{record}_y"][:stop], traces[f"{record}_k"][:stop].astype(int)
            num_states = len(np.unique(labels))
            model = sj.GaussianHMM(num_states=num_states, emission_dim=1)
            fit = sj.sample(model, y, num_samples=100, num_chains=2, progress=False)
            states = fit.decode(y, num_draws=1)["state"].to_numpy()
            rows.append(
                {
                    "record": record,
                    "rows": len(y),
                    "states": num_states,
                    "nmi": sj.nmi(states, labels),
                    "accuracy": _accuracy(states, labels),
                }
            )
            session.say(f"{record}: accuracy {rows[-1]['accuracy']:.3f}")
    session.table("labelled", pandas.DataFrame(rows))


def _accuracy(states: np.ndarray, labels: np.ndarray) -> float:
    """Return the share of rows whose state stands, by majority, for their label."""
    hits = (Counter(labels[states == k]).most_common(1)[0][1] for k in np.unique(states))
    return float(sum(hits) / len(labels))
