"""SLDS: metrics against runtime of SGRLD with three gradient estimators, Gibbs and the default."""

import dataclasses
from typing import Any

import sojourn as sj
from sojourn.experiments._session import Session
from sojourn.experiments._synthetic_runs import Study, run_study
from sojourn.experiments._traces import AUTO, Method, batch_and_default
from sojourn.synthetic import switching_rotations

# Step sizes of the paper, the same for both lengths.
_STEPS: dict[Any, float] = {"x": 0.5, "z": 0.1, "xz": 0.1}


def _methods() -> list[Method]:
    base, _ = switching_rotations()
    return [
        Method(
            f"SGRLD {estimator.upper()}",
            sj.SGRLD(step, metric="complete"),
            sj.Windows(length=10, buffer=10),
            thin=10,
            steps=(step,),
            model=dataclasses.replace(base, estimator=estimator),
        )
        for estimator, step in _STEPS.items()
    ]


_STUDY = Study(
    switching_rotations,
    methods={rows: [*_methods(), *batch_and_default()] for rows in (10_000, 1_000_000)},
    boxes={
        "Π[0, 0]": ("transition_matrix", (0, 0)),
        "A[0][0, 0]": ("A", (0, 0, 0)),
        "R[0, 0]": ("R", (0, 0)),
    },
    curves={
        "score": "held-out log-likelihood per row",
        "mse_transition_matrix": "MSE of Π",
        "mse_A": "MSE of A",
        "nmi": "NMI of states",
        "rmse": "RMSE of x",
    },
    # Clusters of rows do not tell rotations apart: from there even Gibbs stays in a poor mode.
    start=("influence", "influence"),
    test_rows=(1_000, 10_000),
    has_ksd=False,
    # Each estimator has programs of its own, and to compile them takes most of a short run.
    small=("SGRLD Z", "Gibbs", AUTO),
)


def run(session: Session) -> None:
    """Compare the samplers of the paper and the default."""
    run_study(session, _STUDY)
