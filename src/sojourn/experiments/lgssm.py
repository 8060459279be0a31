"""LGSSM: metrics against runtime, box plots of draws, KSD table."""

import sojourn as sj
from sojourn.experiments._session import Session
from sojourn.experiments._synthetic_runs import Study, run_study
from sojourn.experiments._traces import batch_and_default, langevin
from sojourn.synthetic import rotating_state

_WINDOWS = {
    "no buffer": sj.Windows(length=20, buffer=0),
    "buffer": sj.Windows(length=20, buffer=10),
    "full": sj.Windows.full(),
}
_STUDY = Study(
    rotating_state,
    methods={
        rows: [
            *langevin((0.01, 0.01, full), (0.01, 0.01, full), _WINDOWS),
            *batch_and_default(),
        ]
        for rows, full in ((10_000, 0.1), (1_000_000, 1.0))
    },
    boxes={"A[0, 0]": ("A", (0, 0)), "A[0, 1]": ("A", (0, 1)), "Q[0, 0]": ("Q", (0, 0))},
    curves={
        "score": "held-out log-likelihood per row",
        "mse_A": "MSE of A",
        "mse_Q": "MSE of Q",
        "mse_R": "MSE of R",
        "rmse": "RMSE of x",
    },
    # Short runs from the prior, as in the paper, would show their way to the mode and nothing else.
    start=("kmeans", "prior"),
)


def run(session: Session) -> None:
    """Compare the samplers of the paper and the default."""
    run_study(session, _STUDY)
