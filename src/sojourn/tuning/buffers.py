"""How long a buffer must be: the search for the shortest that leaves a small error.

Errors are measured (`buffer_errors.py`); rates and bounds of the theory, which stand in
`models/forgetting.py`, are reported beside them.
"""

import dataclasses
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax import Array

from sojourn._compile import compiled
from sojourn._precision import double
from sojourn._validation import check_positive, check_seed, check_size
from sojourn.dynamics import SGRLD, Metric
from sojourn.gradients import Estimator, Source, fetch, windowed
from sojourn.models.base import Coords, Model, Params, check_data
from sojourn.series import Series, Windows
from sojourn.tuning.buffer_errors import Errors
from sojourn.tuning.curvature import information

if TYPE_CHECKING:
    import xarray

# Buffers tried, each against one twice the longest.
LADDER = (1, 2, 4, 8, 16, 32, 64, 128)

# Root-mean-square error of a window's gradient that a buffer may leave, relative to its noise.
TOLERANCE = 0.01

# Rows of a window and number of windows that errors are measured on, unless told.
_LENGTH, _WINDOWS = 200, 64

# Most windows that the shift of a posterior mean is measured on: noise hides it among few.
_MANY = 1024

# Squared shift, over that of noise alone, from which it is more than that.
_SEEN = 4.0

# Errors below this share of the noise are rounding, or what Monte Carlo averages leave.
_FLOOR = 1e-10


@dataclass(frozen=True)
class BufferChoice:
    """A buffer for windows, and how good it is.

    Attributes:
        buffer: Rows on each side of the rows that count.
        error: Root-mean-square error of a window's gradient with this buffer, over the root-mean-square
            sampling noise of a window's gradient, both in the metric.
        bound: What theory guarantees of `error` on the windows it was measured on: products of
            contraction coefficients along their buffers. NaN where there is no theory (SLDS).
        rate: Factor by which one more row of buffer multiplies the error of a typical window in the long
            run: the Lyapunov gap of a discrete chain, the spectral radius of the steady Kalman filter;
            `measured_rate` where there is no theory. Among discrete chains the mean error falls more
            slowly, as the few windows whose rows tell little of the state make most of it: what one more
            row buys on average is `measured_rate`.
        measured_rate: That factor as measured.
        bias: Estimated shift of the posterior mean, in posterior sds; zero where it is within twice its
            Monte Carlo error.
        bias_error: Monte Carlo error of `bias`: a shift of twice this size could not be seen.
        tolerance: Error that was asked for.
        message: What was found, in words.
    """

    buffer: int
    error: float
    bound: float
    rate: float
    measured_rate: float
    bias: float
    bias_error: float
    tolerance: float
    message: str

    @property
    def reached(self) -> bool:
        """Whether the error is within the tolerance."""
        return self.error <= self.tolerance


@double
def choose_buffer(
    model: Model,
    params: Params,
    data: Any,
    tolerance: float = TOLERANCE,
    *,
    length: int | None = None,
    max_buffer: int = LADDER[-1],
    num_windows: int = _WINDOWS,
    seed: int = 0,
) -> BufferChoice:
    """Find the smallest buffer whose gradient error is small beside the gradient's own noise.

    Errors are differences to a buffer twice as long as the longest tried, on windows drawn at random. A
    buffer passes if it and all longer ones that were tried do. Where none does, the longest is
    returned, and a warning says what error remains and what it would cost to remove it.

    Args:
        model: The model.
        params: Parameters.
        data: The series, as in `sample`.
        tolerance: Root-mean-square error of a window's gradient that the buffer may leave, relative to
            the root-mean-square sampling noise of a window's gradient.
        length: Rows that count in a window; if not given 200, at most a quarter of the longest series.
        max_buffer: Longest buffer to try.
        num_windows: Windows that errors are measured on.
        seed: Which windows.
    """
    check_positive("tolerance", tolerance)
    check_size("max_buffer", max_buffer)
    check_size("num_windows", num_windows, least=2)
    raw, series, coords = _enter(model, params, data)
    windows = _measuring_windows(raw, series, length, 2 * max_buffer, num_windows)
    key_metric, key = jax.random.split(jax.random.key(check_seed(seed)))
    metric = _metric(raw, series, coords, key_metric)
    errors = Errors(raw, series, windows, SGRLD(), coords, metric, key)
    buffer, tried = _search(errors, tolerance, max_buffer)
    error = tried[buffer]
    measured = _decay(tried)
    rate = errors.rate()
    bias, bias_error = _shift(errors, buffer, raw, series, windows)
    message = _describe(buffer, error, measured, tolerance, windows)
    if error > tolerance:
        warnings.warn(message, UserWarning, stacklevel=3)
    return BufferChoice(
        buffer=buffer,
        error=error,
        bound=errors.bound(buffer),
        rate=measured if math.isnan(rate) else rate,
        measured_rate=measured,
        bias=bias,
        bias_error=bias_error,
        tolerance=tolerance,
        message=message,
    )


@double
def gradient_error(
    model: Model,
    params: Params,
    data: Any,
    lengths: Sequence[int] = (2, 20, 200),
    buffers: Sequence[int] = (0, 1, 2, 4, 8, 16, 32),
    *,
    reference: int | None = None,
    num_windows: int = _WINDOWS,
    seed: int = 0,
) -> "xarray.Dataset":
    """Measure what buffers leave of a gradient's error, for windows of several lengths.

    `sojourn.plots.plot_gradient_error` draws the curves.

    Args:
        model: The model.
        params: Parameters.
        data: The series, as in `sample`.
        lengths: Rows that count in a window.
        buffers: Rows on each side.
        reference: Buffer that errors are differences to; 100 rows or, if that is more, twice the
            longest of `buffers`.
        num_windows: Windows that errors are measured on.
        seed: Which windows.

    Returns:
        A dataset over `length` and `buffer`: `error`, as in `choose_buffer`, relative to `noise`, in the
        metric and of the gradient that one window estimates; its `bound`; and `norm`, the mean
        Euclidean norm of the error in the coordinates of `model.to_coords`, as in the paper's figures.
    """
    import xarray

    check_size("num_windows", num_windows, least=2)
    for name, values, least in (("lengths", lengths, 1), ("buffers", buffers, 0)):
        if len(values) == 0:
            raise ValueError(f"{name} is empty; expected at least one")
        for value in values:
            check_size(name, value, least=least)
    longest = max(buffers)
    reference = max(100, 2 * longest) if reference is None else reference
    check_size("reference", reference)
    if reference <= longest:
        raise ValueError(f"reference={reference} must be longer than all buffers; got {longest}")
    raw, series, coords = _enter(model, params, data)
    key_metric, key = jax.random.split(jax.random.key(check_seed(seed)))
    metric = _metric(raw, series, coords, key_metric)
    shape = (len(lengths), len(buffers))
    error, bound, norm = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    noise = np.zeros(len(lengths))
    for i, length in enumerate(lengths):
        windows = _measuring_windows(raw, series, length, reference, num_windows)
        errors = Errors(raw, series, windows, SGRLD(), coords, metric, key)
        noise[i] = num_windows * errors.noise
        for j, buffer in enumerate(buffers):
            error[i, j], bound[i, j] = errors(buffer), errors.bound(buffer)
            differences = num_windows * errors.plain_differences(buffer)
            norm[i, j] = np.linalg.norm(differences, axis=1).mean()
    dims = ("length", "buffer")
    return xarray.Dataset(
        {
            "error": (dims, error),
            "bound": (dims, bound),
            "norm": (dims, norm),
            "noise": ("length", noise),
        },
        coords={"length": list(lengths), "buffer": list(buffers)},
        attrs={"reference": reference, "num_windows": num_windows, "seed": seed},
    )


def reference_windows(windows: Windows) -> Windows:
    """Return the windows that errors of buffers are measured on: these, with a far longer buffer."""
    buffer = 2 * max(LADDER[-1], windows.buffer)
    return dataclasses.replace(windows, buffer=buffer, batch=_WINDOWS)


def choose(
    model: Model, series: Series, reference: Windows, coords: Coords, metric: Metric, key: Array
) -> tuple[int, float]:
    """Return the smallest buffer, of a few, whose error is small beside the noise, and that error.

    If none is, the longest, with an error above the tolerance.
    """
    errors = Errors(model, series, reference, SGRLD(), coords, metric, key)
    return _shortest(errors, TOLERANCE, LADDER, {})


def check(
    model: Model,
    series: Series,
    reference: Windows,
    buffer: int,
    coords: Coords,
    metric: Metric,
    key: Array,
) -> tuple[float, float, float]:
    """Return the error of a buffer, the shift of the posterior mean, in sds, and what hides it."""
    if model.is_exact:
        assert reference.length is not None
        batch = int(np.clip(model.num_rows(series) // reference.length, reference.batch, _MANY))
        reference = dataclasses.replace(reference, batch=batch)
    errors = Errors(model, series, reference, SGRLD(), coords, metric, key)
    return errors(buffer), *_shift(errors, buffer, model, series, reference)


def _shortest(
    errors: Errors, tolerance: float, ladder: Sequence[int], tried: dict[int, float]
) -> tuple[int, float]:
    """Return the first buffer of a ladder that passes, as all longer ones do, and its error."""
    chosen = ladder[-1]
    tried[chosen] = error = errors(chosen)
    for buffer in reversed(ladder[:-1]):
        if error > tolerance:
            break
        tried[buffer] = shorter = errors(buffer)
        if shorter > tolerance:
            break
        chosen, error = buffer, shorter
    return chosen, error


def _search(errors: Errors, tolerance: float, max_buffer: int) -> tuple[int, dict[int, float]]:
    """Return the smallest buffer within the tolerance, or the longest, and the errors of all tried.

    Powers of two from the longest down, then halving between the last that failed and the first that
    passed.
    """
    ladder = [
        0,
        *(2**k for k in range(int(max_buffer).bit_length()) if 2**k < max_buffer),
        max_buffer,
    ]
    tried: dict[int, float] = {}
    passed, _ = _shortest(errors, tolerance, ladder, tried)
    failed = max((b for b in tried if b < passed), default=-1)
    while failed >= 0 and passed - failed > 1:
        middle = (passed + failed) // 2
        tried[middle] = errors(middle)
        if tried[middle] <= tolerance:
            passed = middle
        else:
            failed = middle
    if len(tried) == 1:  # the decay takes two
        half = max_buffer // 2
        tried[half] = errors(half)
    return passed, tried


def _decay(tried: Mapping[int, float]) -> float:
    """Return the factor per row at which errors fell, from a line through their logarithms."""
    seen = sorted((b, e) for b, e in tried.items() if e > _FLOOR and math.isfinite(e))
    if len(seen) < 2:
        return 0.0
    buffers, errors = np.array(seen).T
    return float(np.exp(np.polyfit(buffers, np.log(errors), 1)[0]))


def _shift(
    errors: Errors, buffer: int, model: Model, series: Series, windows: Windows
) -> tuple[float, float]:
    """Return the shift of the posterior mean that the buffer causes, in sds, and its Monte Carlo error.

    A gradient that is wrong by b moves the mean by Σ b, and by √(bᵀ Σ b) sds in the direction where that
    is most. In the metric Σ⁻¹ = T Λ, where Λ, the share of the information of complete data that is
    observed, is estimated from the scores of the windows.
    """
    assert windows.length is not None
    T = model.num_rows(series)
    differences = errors.differences(buffer)
    W = len(differences)
    scores = errors.reference / math.sqrt(T)
    precision = T * information(scores, scores, windows.length, T)
    total = differences.sum(0)
    spread = differences - differences.mean(0)
    squared = total @ np.linalg.solve(precision, total)
    noise = W / (W - 1) * np.einsum("wd,dw->", spread, np.linalg.solve(precision, spread.T))
    shift = math.sqrt(squared - noise) if squared > _SEEN * noise else 0.0
    return shift, math.sqrt(max(noise, 0.0))


def _describe(buffer: int, error: float, rate: float, tolerance: float, windows: Windows) -> str:
    said = f"buffer={buffer} leaves an error of {error:.2g} of a gradient's noise"
    if error <= tolerance:
        return f"{said}, within the tolerance of {tolerance:.2g}"
    assert windows.length is not None
    said = f"{said}, more than the tolerance of {tolerance:.2g}, and no shorter one less"
    if rate < 1:
        # B = B̂ + log(ε̂ / ε) / log(1 / L), `MATH.md` §12.3
        needed = buffer + math.ceil(math.log(error / tolerance) / math.log(1 / rate))
        ratio = (windows.length + 2 * needed) / (windows.length + 2 * buffer)
        if ratio < 100:
            return (
                f"{said}: errors fall by the factor {rate:.4g} a row, so that {needed} rows would do, "
                f"at {ratio:.1f} times the cost of a step; or use Windows.full()"
            )
    return f"{said}: errors hardly fall with longer ones; use Windows.full() or Gibbs()"


def _enter(model: Model, params: Params, data: Any) -> tuple[Model, Series, dict[str, Array]]:
    series = check_data(model, data)
    raw = model.raw()
    return raw, series, raw.to_coords(params)


def _measuring_windows(
    model: Model, series: Series, length: int | None, buffer: int, num_windows: int
) -> Windows:
    if length is None:  # a part of short series, so that there is something on either side
        longest = max(series.lengths) - model.num_lags
        length = min(_LENGTH, max(1, longest // 4))
    return Windows(length, buffer, num_windows)


def _metric(model: Model, series: Series, coords: Coords, key: Array) -> Metric:
    """Return the complete-data metric from a sample of rows."""
    windows = _measuring_windows(model, series, None, 32, _WINDOWS)
    estimator, source = windowed(model, series, windows)
    T = float(model.num_rows(series))
    source = fetch(estimator, source, jax.random.split(key)[0])
    return _metric_at(estimator, source, key, coords, T)


@compiled(static_argnums=(0, 4), quick=True)
def _metric_at(
    estimator: Estimator, source: Source, key: Array, coords: Coords, T: float
) -> Metric:
    return Metric(estimator.model.pilot(estimator(source, key, coords), T), {}, T)
