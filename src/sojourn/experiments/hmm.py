"""Reversed-cycles HMM: metrics against runtime, box plots of draws, KSD table."""

import sojourn as sj
from sojourn.experiments._session import Session
from sojourn.experiments._synthetic_runs import Study, run_study
from sojourn.experiments._traces import batch_and_default, langevin
from sojourn.synthetic import reversed_cycles

_WINDOWS = {
    "no buffer": sj.Windows(length=2, buffer=0),
    "buffer": sj.Windows(length=2, buffer=2),
    "full": sj.Windows.full(),
}
_STUDY = Study(
    reversed_cycles,
    methods={
        10_000: [
            *langevin((1e-3, 1e-3, 1e-1), (1e-3, 1e-3, 1.0), _WINDOWS),
            *batch_and_default(),
        ],
        1_000_000: [
            *langevin((1e-3, 1e-3, 1e-1), (1e-3, 1e-2, 1e-1), _WINDOWS),
            *batch_and_default(),
        ],
    },
    boxes={
        "Π[0, 1]": ("transition_matrix", (0, 1)),
        "Π[2, 0]": ("transition_matrix", (2, 0)),
        "Π[4, 4]": ("transition_matrix", (4, 4)),
    },
    curves={
        "score": "held-out log-likelihood per row",
        "mse_transition_matrix": "MSE of Π",
        "mse_means": "MSE of μ",
        "mse_covariances": "MSE of Σ",
        "nmi": "NMI of states",
    },
)


def run(session: Session) -> None:
    """Compare the samplers of the paper and the default."""
    run_study(session, _STUDY)
