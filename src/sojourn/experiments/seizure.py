"""Seizure EEG: ARHMM and SLDS of channels around an onset, held-out likelihood and segmentations."""

from typing import Any

import numpy as np

import sojourn as sj
from sojourn.experiments import _figures, _traces
from sojourn.experiments._session import Session

_RECORDING = "eeg_seizure_michigan/eeg_50000x31_i16.npz"

# Electrodes that the source says not to use: two corrupted ones and the reference.
_UNUSED = (10, 11, 19)
_NAMED = 21

_WINDOWS = {"buffer": sj.Windows(length=100, buffer=10)}
_SUBSET = 0.1


def run(session: Session) -> None:
    """Compare samplers on both models; channels are independent series, a fifth of them held out."""
    path = session.data(_RECORDING, "scalp EEG of a seizure, A-EL-YAAGOUBI/Dynamic-TDA")
    with np.load(path) as file:
        channels = np.delete(file["X"][:, :_NAMED], _UNUSED, axis=1).astype(float)
        onset = int(file["seizure_onset_sample"])
    first, stop = session.pick((onset - 2_000, onset + 2_000), (0, len(channels)))
    channels = channels[first:stop]
    channels = (channels - np.median(channels, axis=0)) / channels.std(axis=0)
    series = [column[:, None] for column in channels.T]
    # Every fifth channel is held out, so that both sides have all regions of the head.
    test, train = series[2::5], [y for i, y in enumerate(series) if i % 5 != 2]
    test = test[: session.pick(1, len(test))]
    session.settings.update({"train": len(train), "test": len(test), "rows": stop - first})
    models: dict[str, tuple[Any, float, float]] = {
        "arhmm": (sj.ARHMM(num_states=5, emission_dim=1, num_lags=5), 0.01, 0.1),
        "slds": (sj.SLDS(num_states=5, state_dim=1, emission_dim=1), 0.1, 0.1),
    }
    # To compile the programs of the SLDS takes longer than a short run of it.
    for name in session.pick(("arhmm",), ("arhmm", "slds")):
        model, sgld, sgrld = models[name]
        _compare(session, name, model, train, test, onset - first, sgld=sgld, sgrld=sgrld)


def _compare(
    session: Session,
    name: str,
    model: Any,
    train: list[np.ndarray],
    test: list[np.ndarray],
    onset: int,
    *,
    sgld: float,
    sgrld: float,
) -> None:
    held_out = sum(map(len, test))

    def metrics(model: Any, params: dict[str, np.ndarray]) -> dict[str, float]:
        return {"score": sj.log_likelihood(model, params, test) / held_out}

    # At small scale without the default, whose choices take longer than the others' whole runs.
    methods = [
        *_traces.langevin((sgld,), (sgrld,), _WINDOWS, thin=10),
        _traces.Method("Subset Gibbs", sj.Gibbs(), share=_SUBSET),
        *_traces.batch_and_default()[: session.pick(1, 2)],
    ]
    session.say(f"{name}: {len(train)} channels")
    start = model.initialize(train, seed=0)
    found = _traces.compare(
        session, model, methods, train, metrics, start, share=session.pick(1.0, 0.5)
    )
    session.table(f"metrics_{name}", found.table)
    session.rows(f"curves_{name}", found.curves)
    titles = {"score": "held-out log-likelihood per row"}
    session.figure(f"curves_{name}", _figures.draw_curves(found, titles))
    for one in found.traces:
        if one.method.name in ("SGRLD buffer", _traces.AUTO):
            figure = _traces.second_half(one.fit).plot_segmentation(
                test, max(0, onset - 1_000), onset + 2_000
            )
            for axis in figure.axes:
                axis.axvline(onset, color="black", lw=1.5, ls="--")
            label = one.method.name.lower().replace(" ", "_")
            session.figure(f"segmentation_{name}_{label}", figure)
