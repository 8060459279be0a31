"""ARHMM: metrics against runtime, box plots of draws, KSD table."""

import sojourn as sj
from sojourn.experiments._session import Session
from sojourn.experiments._synthetic_runs import Study, run_study
from sojourn.experiments._traces import batch_and_default, langevin
from sojourn.synthetic import alternating_rotations

_WINDOWS = {
    "no buffer": sj.Windows(length=2, buffer=0),
    "buffer": sj.Windows(length=2, buffer=2),
    "full": sj.Windows.full(),
}
_STUDY = Study(
    alternating_rotations,
    methods={
        10_000: [
            *langevin((1e-4, 1e-4, 1e-2), (1e-3, 1e-3, 1e-1), _WINDOWS),
            *batch_and_default(),
        ],
        1_000_000: [
            *langevin((1e-4, 1e-4, 1e-1), (1e-4, 1e-4, 1e-1), _WINDOWS),
            *batch_and_default(),
        ],
    },
    boxes={
        "Π[0, 0]": ("transition_matrix", (0, 0)),
        "A[0][0, 0]": ("A", (0, 0, 0)),
        "Q[0][0, 0]": ("Q", (0, 0, 0)),
    },
    curves={
        "score": "held-out log-likelihood per row",
        "mse_transition_matrix": "MSE of Π",
        "mse_A": "MSE of A",
        "mse_Q": "MSE of Q",
        "nmi": "NMI of states",
    },
    # Clusters of rows do not tell rotations apart: from there even Gibbs stays in a poor mode.
    start=("influence", "influence"),
)


def run(session: Session) -> None:
    """Compare the samplers of the paper and the default."""
    run_study(session, _STUDY)
