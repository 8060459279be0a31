"""Bad input raises at the edge, at once, in one line: what was expected, what came, what to do."""

import functools
import re

import numpy as np
import pandas as pd
import pytest

import sojourn as sj
from sojourn.sampling import sampling

Y = np.random.default_rng(0).normal(size=(60, 2))
EYE = np.eye(2)
HMM = sj.GaussianHMM(num_states=2, emission_dim=2)
ARHMM = sj.ARHMM(num_states=2, emission_dim=2, num_lags=3)
PARAMS = {
    "transition_matrix": np.full((2, 2), 0.5),
    "means": np.array([[0.0, 0.0], [1.0, 1.0]]),
    "covariances": np.stack([EYE, EYE]),
}
AR_PARAMS = {
    "transition_matrix": np.full((2, 2), 0.5),
    "A": np.zeros((2, 2, 6)),
    "Q": np.stack([EYE, EYE]),
}


def raises(error, fragment, call, *args, **kwargs):
    """Check that a call raises this error, with this piece of text, in one line."""
    with pytest.raises(error, match=re.escape(fragment)) as caught:
        call(*args, **kwargs)
    assert caught.type is error
    assert "\n" not in str(caught.value)


@functools.cache
def coords_of(model):
    return model.to_coords(PARAMS if model is HMM else AR_PARAMS)


def params_of(model):
    return PARAMS if model is HMM else AR_PARAMS


sample = functools.partial(sj.sample, progress=False)

# Everything that takes data.
ENTRANCES = {
    "sample": lambda model, data: sample(model, data),
    "initialize": lambda model, data: model.initialize(data),
    "log_likelihood": lambda model, data: sj.log_likelihood(model, params_of(model), data),
    "gradient": lambda model, data: sj.gradient(model, coords_of(model), data),
    "decode": lambda model, data: sj.decode(model, params_of(model), data),
    "smooth": lambda model, data: sj.smooth(model, params_of(model), data),
}
entrances = pytest.mark.parametrize("enter", ENTRANCES.values(), ids=ENTRANCES)


@pytest.fixture
def at_once(monkeypatch):
    """Fail if `sample` starts to work before it has looked at its arguments."""

    def work(*args, **kwargs):
        pytest.fail("work began before the arguments were checked")

    monkeypatch.setattr(sampling, "find_start", work)


def with_value(value, row=7, column=1):
    data = Y.copy()
    data[row, column] = value
    return data


def frame(**columns):
    return pd.DataFrame({"a": [1.0, 2.0, 3.0], **columns})


@pytest.mark.usefixtures("at_once")
@entrances
@pytest.mark.parametrize(
    ("data", "error", "fragment"),
    [
        pytest.param([], ValueError, "data has no rows; expected at least two", id="[]"),
        pytest.param(Y[:0], ValueError, "data has no rows", id="no rows"),
        pytest.param(Y[:1], ValueError, "data has one row; expected at least two", id="one row"),
        pytest.param([Y, Y[:1]], ValueError, "series 1 has one row", id="one row of several"),
        pytest.param(Y[:, :0], ValueError, "data has no columns", id="no columns"),
        pytest.param(Y[:, 0], ValueError, "data has 1 column; the model expects", id="one column"),
        pytest.param(
            np.zeros((9, 3)),
            ValueError,
            "3 columns; the model expects emission_dim=2",
            id="columns",
        ),
        pytest.param([Y, Y[:, :1]], ValueError, "same columns; got widths [1, 2]", id="widths"),
        pytest.param(
            [Y[:, 0], Y[:, 1]], ValueError, "pass a list of (T_i, 2) arrays", id="list of columns"
        ),
        pytest.param(
            [pd.DataFrame(Y, columns=["a", "b"]), pd.DataFrame(Y, columns=["b", "a"])],
            ValueError,
            "same columns; got ('a', 'b'), ('b', 'a')",
            id="order of columns",
        ),
        pytest.param(
            pd.DataFrame(Y, columns=["a", "a"]),
            ValueError,
            "column names must differ; got 'a' twice",
            id="columns of one name",
        ),
        pytest.param(Y[None, None], ValueError, "must have shape (T,) or (T, D)", id="dimensions"),
        pytest.param([[[1, 2], [3]], Y], ValueError, "unequal lengths", id="ragged"),
        pytest.param("data.csv", FileNotFoundError, "data.csv does not exist", id="no such file"),
        pytest.param([["a", "b"], ["c", "d"]], TypeError, "expected real numbers", id="strings"),
        pytest.param(Y.astype(str), TypeError, "expected real numbers", id="array of strings"),
        pytest.param(with_value(1).astype("M8[D]"), TypeError, "expected real numbers", id="dates"),
        pytest.param(None, TypeError, "got NoneType", id="None"),
        pytest.param(print, TypeError, "got builtin_function_or_method", id="function"),
        pytest.param({"a": Y}, TypeError, "got a dict; pass its values", id="dict"),
        pytest.param([Y, None], TypeError, "got NoneType", id="None of several"),
        pytest.param(
            np.full((5, 2), object()), TypeError, "objects that are not numbers", id="objects"
        ),
        pytest.param(
            np.full((5, 2), "1", object), TypeError, "not numbers", id="objects that are strings"
        ),
        pytest.param(Y + 1j, TypeError, "type complex128; expected real", id="complex"),
        pytest.param((Y + 1j).astype(object), TypeError, "not numbers", id="complex objects"),
        pytest.param(
            frame(b=["x", "y", "z"]), TypeError, "column 'b' has type", id="frame of strings"
        ),
        pytest.param(frame(b=[1j, 2, 3]), TypeError, "column 'b' has type", id="complex frame"),
        pytest.param(
            with_value(np.inf),
            ValueError,
            "infinite value in row 7, column 'y1'; replace it by NaN",
            id="inf",
        ),
        pytest.param(
            [Y, with_value(-np.inf, 3, 0)],
            ValueError,
            "series 1 has an infinite value in row 3, column 'y0'",
            id="-inf of several",
        ),
        pytest.param(
            frame(speed=[1, np.inf, 2]), ValueError, "row 1, column 'speed'", id="inf of frame"
        ),
        pytest.param(
            with_value(np.nan, slice(None)), ValueError, "column 'y1' is all NaN; drop it", id="NaN"
        ),
    ],
)
def test_data(enter, data, error, fragment):
    raises(error, fragment, enter, HMM, data)


@pytest.mark.parametrize(
    ("change", "error", "fragment"),
    [
        ({"values": Y.tolist()}, TypeError, "values must be a float64 array of shape (N, D)"),
        ({"values": Y[:, 0]}, TypeError, "values must be a float64 array of shape (N, D)"),
        ({"values": Y.astype("f4")}, TypeError, "as_series(data) makes a Series of anything"),
        ({"lengths": (60, 1)}, ValueError, "sum to the 60 rows of values; got (60, 1)"),
        ({"lengths": (61, -1)}, ValueError, "lengths must be positive and sum to the 60 rows"),
        ({"lengths": ()}, ValueError, "lengths must be positive and sum to the 60 rows"),
        ({"lengths": 60}, TypeError, "lengths must be a tuple of int; got 60"),
        ({"lengths": (60.0,)}, TypeError, "lengths must be a tuple of int; got (60.0,)"),
        ({"columns": ("a",)}, ValueError, "name the 2 columns of values; got ('a',)"),
        ({"columns": ("a", "a")}, ValueError, "column names must differ; got 'a' twice"),
        ({"columns": "ab"}, TypeError, "columns must be a tuple of str; got 'ab'"),
        ({"missing": "some"}, ValueError, "must be 'none', 'rows' or 'entries'; got 'some'"),
        ({"missing": None}, ValueError, "must be 'none', 'rows' or 'entries'; got None"),
    ],
)
def test_series(change, error, fragment):
    good = {"values": Y, "lengths": (20, 40), "columns": ("a", "b"), "missing": "none"}
    sj.Series(**good)
    raises(error, fragment, sj.Series, **{**good, **change})


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("enter", [ENTRANCES["sample"], ENTRANCES["initialize"]])
@pytest.mark.parametrize("value", [0.0, 3.0, 0.1])
def test_constant_column(enter, value):
    """Also where the standard deviation of equal values is not zero by rounding, as for 0.1."""
    raises(ValueError, "column 'y1' is constant", enter, HMM, with_value(value, slice(None)))


@pytest.mark.usefixtures("at_once")
@entrances
@pytest.mark.parametrize(("data", "which"), [(Y[:3], 0), ([Y, Y[:2]], 1)])
def test_series_shorter_than_its_lags(enter, data, which):
    rows = 3 if which == 0 else 2
    fragment = f"series {which} has {rows} rows; num_lags=3 needs at least 4"
    raises(ValueError, fragment, enter, ARHMM, data)


@pytest.mark.parametrize("make", [sj.GaussianHMM, sj.ARHMM])
@pytest.mark.parametrize("method", ["kmeans", "influence"])
def test_fewer_distinct_rows_than_states(make, method):
    data = [1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 3.0]
    fragment = "data has 3 distinct complete rows; num_states=5 needs at least as many"
    raises(ValueError, fragment, make(5, 1).initialize, data, method=method)


def test_only_rows_that_were_looked_at_are_told_of():
    """More rows than k-means looks at, of which the first and the last are alone distinct."""
    data = np.r_[2.0, np.ones(100_000), 3.0]
    fragment = "complete rows among 20000 that were looked at"
    raises(ValueError, fragment, sj.GaussianHMM(5, 1).initialize, data)


def test_no_row_is_complete_with_its_lags():
    data = np.where(np.arange(60) % 2, np.nan, np.arange(60.0))
    raises(ValueError, "0 distinct complete rows", sj.ARHMM(2, 1).initialize, data)


@pytest.mark.usefixtures("at_once")
def test_window_longer_than_the_longest_series():
    windows = sj.Windows(length=61)
    fragment = "length=61 is longer than the longest series (60 rows); use Windows.full()"
    raises(ValueError, fragment, sample, HMM, [Y[:20], Y], windows=windows)
    raises(ValueError, fragment, sj.gradient, HMM, coords_of(HMM), Y, windows=windows)
    fragment = "length=58 is longer than the longest series (57 rows after its 3 lags)"
    raises(ValueError, fragment, sample, ARHMM, Y, windows=sj.Windows(length=58))


SIZES = {
    "num_states": lambda n: sj.GaussianHMM(n, 2),
    "emission_dim": lambda n: sj.GaussianHMM(2, n),
    "num_lags": lambda n: sj.ARHMM(2, 2, num_lags=n),
    "num_samples": lambda n: sample(HMM, Y, num_samples=n),
    "num_chains": lambda n: sample(HMM, Y, num_chains=n),
    "num_warmup": lambda n: sample(HMM, Y, num_warmup=n),
    "thin": lambda n: sample(HMM, Y, thin=n),
    "length": lambda n: sj.Windows(length=n),
    "buffer": lambda n: sj.Windows(length=5, buffer=n),
    "batch": lambda n: sj.Windows(length=5, batch=n),
    "num_timesteps": lambda n: HMM.simulate(PARAMS, n),
}


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("name", SIZES)
def test_sizes(name):
    least = 0 if name in ("buffer", "num_warmup") else 1
    for value in (least - 1, -5):
        fragment = f"{name} must be at least {least}; got {value}"
        raises(ValueError, fragment, SIZES[name], value)
    for value in (1.5, 2.0, True, [3]):
        raises(TypeError, f"{name} must be an integer; got {value!r}", SIZES[name], value)
    error = ValueError if name in ("num_warmup", "thin") else TypeError  # these have "auto"
    raises(error, f"{name} must be", SIZES[name], "many")


@pytest.mark.parametrize(
    "make", [sj.SGRLD, sj.SGLD, sj.Decay, functools.partial(sj.Decay, 0.1)], ids=str
)
@pytest.mark.parametrize("value", [0, 0.0, -0.1, np.nan, np.inf, -np.inf])
def test_step_sizes(make, value):
    raises(ValueError, f"must be positive and finite; got {value}", make, value)


@pytest.mark.parametrize("make", [sj.SGRLD, sj.SGLD])
def test_step_sizes_that_are_not_numbers(make):
    raises(ValueError, "must be a number, a Decay or 'auto'; got 'fast'", make, "fast")
    for value in (None, True, [0.1], 1j, np.complex128(1)):
        raises(TypeError, f"step_size must be a number; got {value!r}", make, value)
    raises(TypeError, "initial must be a number; got 'fast'", sj.Decay, "fast")


@pytest.mark.parametrize("make", [sj.GaussianHMM, sj.ARHMM])
@pytest.mark.parametrize(
    ("name", "value", "error", "fragment"),
    [
        ("scale", -EYE, ValueError, "symmetric and positive definite; got -1 on a diagonal"),
        ("scale", np.ones((2, 2)), ValueError, "positive definite; its correlations"),
        ("scale", [[1, 2], [2, 1]], ValueError, "have the eigenvalue -1"),
        ("scale", [[1, 0.5], [0, 1]], ValueError, "it differs from its transpose"),
        ("scale", np.eye(3), ValueError, "scale must have shape (2, 2); got shape (3, 3)"),
        ("scale", 1.0, ValueError, "scale must have shape (2, 2); got shape ()"),
        ("scale", [1.0, 1.0], ValueError, "scale must have shape (2, 2); got shape (2,)"),
        ("scale", np.nan * EYE, ValueError, "scale must be finite; got nan"),
        ("scale", [[1, 2], [3]], ValueError, "scale has rows of unequal length"),
        ("scale", "wide", TypeError, "scale must hold real numbers; got 'wide'"),
        ("scale", 1j * EYE, TypeError, "got an array of type complex128"),
        ("concentration", 0, ValueError, "concentration must be positive; got 0"),
        ("concentration", [[1, -1], [1, 1]], ValueError, "must be positive; got -1"),
        ("concentration", np.nan, ValueError, "concentration must be finite; got nan"),
        ("concentration", [1, 1], ValueError, "be a number or have shape (2, 2); got shape (2,)"),
        ("concentration", np.ones((3, 3)), ValueError, "got shape (3, 3)"),
        ("concentration", "high", TypeError, "must hold real numbers; got 'high'"),
        ("concentration", None, TypeError, "must hold real numbers; got None"),
        ("dof", 1, ValueError, "dof must exceed emission_dim - 1 = 1; got 1"),
        ("dof", 0, ValueError, "dof must be positive and finite; got 0"),
        ("dof", np.inf, ValueError, "dof must be positive and finite; got inf"),
        ("dof", "many", TypeError, "dof must be a number; got 'many'"),
        ("prior_mean", np.zeros(3), ValueError, "got shape (3,)"),
        ("prior_mean", 0.0, ValueError, "got shape ()"),
        ("prior_mean", "zero", TypeError, "prior_mean must hold real numbers; got 'zero'"),
        ("initial", [0.5, 0.6], ValueError, "probabilities that sum to one; got the sum 1.1"),
        ("initial", [-0.5, 1.5], ValueError, "probabilities that sum to one; got -0.5"),
        ("initial", [1.0], ValueError, "initial must have shape (2,); got shape (1,)"),
        ("initial", [np.nan, 1.0], ValueError, "initial must be finite; got nan"),
        (
            "initial",
            "first",
            ValueError,
            "initial must be probabilities or 'stationary'; got 'first'",
        ),
    ],
)
def test_priors(make, name, value, error, fragment):
    raises(error, fragment, make, 2, 2, **{name: value})


def test_priors_of_one_model():
    raises(ValueError, "prior_mean must have shape (2,)", sj.GaussianHMM, 2, 2, prior_mean=[EYE])
    raises(ValueError, "must be finite; got inf", sj.GaussianHMM, 2, 2, prior_mean=[0, np.inf])
    raises(ValueError, "prior_mean must have shape (2, 4)", sj.ARHMM, 2, 2, 2, prior_mean=EYE)
    for value in (0, -1, np.nan):
        raises(ValueError, "mean_precision must be", sj.GaussianHMM, 2, 2, mean_precision=value)
    raises(TypeError, "mean_precision must be", sj.GaussianHMM, 2, 2, mean_precision="small")
    for value, fragment in (
        (np.eye(3), "column_covariance must have shape (2, 2)"),
        (np.zeros((2, 2)), "column_covariance must be symmetric and positive definite"),
        (-EYE, "column_covariance must be symmetric and positive definite"),
    ):
        raises(ValueError, fragment, sj.ARHMM, 2, 2, column_covariance=value)


# Everything that takes parameters.
TAKERS = {
    "sample": lambda params: sample(HMM, Y, init=params),
    "log_likelihood": lambda params: sj.log_likelihood(HMM, params, Y),
    "to_coords": HMM.to_coords,
    "simulate": lambda params: HMM.simulate(params, 5),
    "decode": lambda params: sj.decode(HMM, params, Y),
    "smooth": lambda params: sj.smooth(HMM, params, Y),
}


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("take", TAKERS.values(), ids=TAKERS)
@pytest.mark.parametrize(
    ("change", "error", "fragment"),
    [
        ({"means": np.zeros((2, 3))}, ValueError, "means must have shape (2, 2); got shape (2, 3)"),
        ({"means": 0.0}, ValueError, "means must have shape (2, 2); got shape ()"),
        ({"means": [[1, 2], [3]]}, ValueError, "means has rows of unequal length"),
        ({"means": np.full((2, 2), np.nan)}, ValueError, "means must be finite; got nan"),
        ({"means": [["a", "b"], ["c", "d"]]}, TypeError, "means must hold real numbers"),
        ({"means": None}, TypeError, "means must hold real numbers; got None"),
        ({"means": np.zeros((2, 2)) + 1j}, TypeError, "type complex128"),
        ({"mean": 0.0}, ValueError, "; unknown ['mean']"),
        ({3: 0.0, "mean": 0.0}, ValueError, "; unknown [3, 'mean']"),
        ({"means": ...}, ValueError, "['covariances', 'means', 'transition_matrix']; missing"),
        ({"transition_matrix": np.full((2, 2), 0.6)}, ValueError, "sum to one; got 1.2 in row 0"),
        ({"transition_matrix": [[0.5, 0.5], [1.5, -0.5]]}, ValueError, "probabilities"),
        ({"covariances": -PARAMS["covariances"]}, ValueError, "got -1 on a diagonal"),
        ({"covariances": np.ones((2, 2, 2))}, ValueError, "symmetric and positive definite"),
        ({"covariances": [EYE, [[1, 2], [2, 1]]]}, ValueError, "have the eigenvalue -1"),
        ({"covariances": [EYE, [[1, 0.5], [0, 1]]]}, ValueError, "differs from its transpose"),
        (
            {"covariances": [1e-12 * EYE, [[1e-12, 5e-13], [0, 1e-12]]]},
            ValueError,
            "differs from its transpose",
        ),
    ],
)
def test_parameters(take, change, error, fragment):
    changed = {**PARAMS, **change}
    raises(error, fragment, take, {k: v for k, v in changed.items() if v is not ...})


@pytest.mark.parametrize("name", [n for n in TAKERS if n != "sample"])
@pytest.mark.parametrize("params", [None, "kmeans", [1, 2], Y], ids=["None", "text", "list", "Y"])
def test_parameters_that_are_not_a_dict(name, params):
    raises(TypeError, "expected a dict of parameters; got", TAKERS[name], params)


def test_covariances_of_columns_in_very_different_units_are_accepted():
    covariance = np.array([[1e-18, 0.9e-3], [0.9e-3, 1e12]])
    HMM.to_coords({**PARAMS, "covariances": [covariance, covariance]})


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(
    "call",
    [
        lambda seed: sample(HMM, Y, seed=seed),
        lambda seed: HMM.initialize(Y, seed=seed),
        lambda seed: HMM.initialize(Y, method="prior", seed=seed),
        lambda seed: HMM.simulate(PARAMS, 5, seed=seed),
        lambda seed: sj.gradient(HMM, coords_of(HMM), Y, windows=sj.Windows(5), seed=seed),
    ],
    ids=["sample", "kmeans", "prior", "simulate", "gradient"],
)
def test_seeds(call):
    for seed in (1.5, "a", None, True, [1]):
        raises(TypeError, f"seed must be an integer; got {seed!r}", call, seed)
    for seed in (-1, 2**63):
        raises(ValueError, f"seed must lie between 0 and 2**63 - 1; got {seed}", call, seed)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(
    ("name", "value", "error", "fragment"),
    [
        (
            "init",
            "random",
            ValueError,
            "init must be 'kmeans', 'prior' or a dict of parameters; got",
        ),
        (
            "init",
            None,
            TypeError,
            "init must be 'kmeans', 'prior' or a dict of parameters; got None",
        ),
        ("init", Y, TypeError, "a dict of parameters; got array([["),
        ("windows", "short", ValueError, "windows must be 'auto' or a Windows; got 'short'"),
        ("windows", 5, TypeError, "windows must be 'auto' or a Windows; got 5"),
        ("windows", None, TypeError, "windows must be 'auto' or a Windows; got None"),
        ("windows", Y, TypeError, "windows must be 'auto' or a Windows; got array([["),
        (
            "sampler",
            "SGLD",
            TypeError,
            "one of SGRLD(), SGLD(), SGHMC(), SGNHT(), Gibbs(); got 'SGLD'",
        ),
        (
            "sampler",
            sj.SGLD,
            TypeError,
            "one of SGRLD(), SGLD(), SGHMC(), SGNHT(), Gibbs(); got <class",
        ),
        (
            "sampler",
            sj.Gibbs,
            TypeError,
            "one of SGRLD(), SGLD(), SGHMC(), SGNHT(), Gibbs(); got <class",
        ),
        ("control_variate", "on", ValueError, "must be 'auto' or True or False; got 'on'"),
        ("control_variate", None, TypeError, "control_variate must be 'auto' or True or False"),
        ("control_variate", 1, TypeError, "control_variate must be 'auto' or True or False"),
        ("num_warmup", Y, TypeError, "num_warmup must be an integer; got array([["),
    ],
)
def test_arguments_of_sample(name, value, error, fragment):
    raises(error, fragment, sample, HMM, Y, **{name: value})


@pytest.mark.usefixtures("at_once")
def test_gibbs_refuses_what_it_would_ignore():
    gibbs = functools.partial(sample, HMM, Y, sj.Gibbs())
    raises(ValueError, "Gibbs() sweeps over all rows", gibbs, windows=sj.Windows(10))
    raises(ValueError, "Gibbs() has no gradients", gibbs, control_variate=True)


@pytest.mark.usefixtures("at_once")
def test_all_rows_leave_nothing_to_a_control_variate():
    how = {"windows": sj.Windows.full(), "control_variate": True}
    raises(ValueError, "Windows.full() has no noise", sample, HMM, Y, **how)


@pytest.mark.usefixtures("at_once")
def test_more_states_than_rows():
    fragment = f"num_states={len(Y) + 1} is more than the {len(Y)} rows of the data"
    raises(ValueError, fragment, sample, sj.GaussianHMM(len(Y) + 1, 2), Y)


@pytest.mark.usefixtures("at_once")
def test_monte_carlo_averages_have_no_control_variate():
    fragment = "a control variate needs exact statistics at its centre, which SLDS does not have"
    raises(ValueError, fragment, sample, sj.SLDS(1, 1, 2), Y, control_variate=True)


def test_unknown_methods_and_schemes():
    for value in ("em", None, ["kmeans"]):
        fragment = f"method must be 'kmeans', 'influence' or 'prior'; got {value!r}"
        raises(ValueError, fragment, HMM.initialize, Y, method=value)
        fragment = f"method must be 'viterbi', 'marginal' or 'sample'; got {value!r}"
        raises(ValueError, fragment, sj.decode, HMM, PARAMS, Y, method=value)
        fragment = f"scheme must be 'uniform' or 'partition'; got {value!r}"
        raises(ValueError, fragment, sj.Windows, 5, scheme=value)
