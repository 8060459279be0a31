"""One row per model: model, parameters, short data with missing values, two series."""

from typing import Any, NamedTuple

import numpy as np

import sojourn as sj


class Case(NamedTuple):
    name: str
    model: Any
    params: dict[str, np.ndarray]
    data: list[np.ndarray]


def _hmm() -> Case:
    model = sj.GaussianHMM(num_states=3, emission_dim=2)
    params = {
        "transition_matrix": np.array([[0.7, 0.2, 0.1], [0.05, 0.9, 0.05], [0.3, 0.3, 0.4]]),
        "means": np.array([[0.0, 0.0], [1.5, -1.0], [-1.0, 2.0]]),
        "covariances": np.array(
            [[[1.0, 0.3], [0.3, 0.8]], [[0.5, -0.1], [-0.1, 0.6]], [[0.7, 0.0], [0.0, 1.2]]]
        ),
    }
    return _with_missing("hmm", model, params, partial=True)


def _scalar_hmm() -> Case:
    model = sj.GaussianHMM(num_states=2, emission_dim=1, initial=[0.8, 0.2])
    params = {
        "transition_matrix": np.array([[0.95, 0.05], [0.2, 0.8]]),
        "means": np.array([[-1.0], [1.0]]),
        "covariances": np.array([[[0.5]], [[2.0]]]),
    }
    return _with_missing("scalar_hmm", model, params, partial=False)


def _stationary_hmm() -> Case:
    model = sj.GaussianHMM(num_states=3, emission_dim=2, initial="stationary")
    return _with_missing("stationary_hmm", model, _hmm().params, partial=True)


def _arhmm() -> Case:
    model = sj.ARHMM(num_states=2, emission_dim=2, num_lags=2)
    params = {
        "transition_matrix": np.array([[0.3, 0.7], [0.6, 0.4]]),
        "A": np.array(
            [
                [[0.5, -0.3, 0.2, 0.0], [0.3, 0.5, 0.0, 0.1]],
                [[0.5, 0.4, -0.1, 0.0], [-0.4, 0.5, 0.1, -0.2]],
            ]
        ),
        "Q": np.array([[[0.3, 0.1], [0.1, 0.4]], [[0.5, 0.0], [0.0, 0.2]]]),
    }
    return _with_missing("arhmm", model, params, partial=True)


def _one_state() -> Case:
    model = sj.GaussianHMM(num_states=1, emission_dim=2)
    params = {
        "transition_matrix": np.ones((1, 1)),
        "means": np.array([[0.5, -0.5]]),
        "covariances": np.array([[[1.0, 0.4], [0.4, 0.9]]]),
    }
    return _with_missing("one_state", model, params, partial=True)


def _lgssm() -> Case:
    model = sj.LGSSM(state_dim=2, emission_dim=2)
    return _with_missing("lgssm", model, LGSSM_PARAMS, partial=True)


def _wide_lgssm() -> Case:
    """More columns than states, so that C has a free part."""
    model = sj.LGSSM(state_dim=2, emission_dim=3, initial=np.array([[2.0, 0.3], [0.3, 1.0]]))
    R = np.array([[0.4, 0.1, 0.0], [0.1, 0.5, -0.1], [0.0, -0.1, 0.3]])
    C = np.array([[1.0, 0.0], [0.0, 1.0], [0.7, -0.4]])
    return _with_missing("wide_lgssm", model, {**LGSSM_PARAMS, "C": C, "R": R}, partial=True)


def _free_lgssm() -> Case:
    """A state of more dimensions than columns, C free, stationary start."""
    model = sj.LGSSM(2, 1, emission_matrix="free", initial="stationary")
    params = {"A": LGSSM_PARAMS["A"], "Q": LGSSM_PARAMS["Q"]}
    params |= {"C": np.array([[1.0, 0.5]]), "R": np.array([[0.5]])}
    return _with_missing("free_lgssm", model, params, partial=False)


LGSSM_PARAMS = {
    "A": np.array([[0.7, -0.3], [0.2, 0.6]]),
    "Q": np.array([[0.5, 0.1], [0.1, 0.3]]),
    "R": np.array([[0.4, -0.1], [-0.1, 0.6]]),
}


def _with_missing(name: str, model: Any, params: dict[str, np.ndarray], *, partial: bool) -> Case:
    data = [model.simulate(params, T, seed=seed)[1] for seed, T in enumerate((9, 6))]
    data[0][4] = np.nan
    if partial:
        data[0][6, 1] = np.nan
        data[1][5, 0] = np.nan
    return Case(name, model, params, data)


REGIMES = [_hmm(), _scalar_hmm(), _stationary_hmm(), _arhmm(), _one_state()]
LINEAR = [_lgssm(), _wide_lgssm(), _free_lgssm()]
CASES = REGIMES + LINEAR
