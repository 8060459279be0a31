"""`Fit`: draws from the posterior and what follows from them."""

import functools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from sojourn._files import RunError
from sojourn._progress import track
from sojourn._validation import check_size
from sojourn.models.base import Model
from sojourn.results.datasets import (
    arrays_of,
    chain_of,
    largest_block,
    posterior_of,
    statistics_of,
)
from sojourn.results.diagnostics import diagnose, summarize
from sojourn.results.forecasts import forecast_draws, impute_draws
from sojourn.results.metrics import log_likelihood, nmi, predictive_score, rmse, running_mse
from sojourn.results.outputs import average, write_states
from sojourn.results.states import Method, best_path, check_method, sample_paths, smooth
from sojourn.results.stein import ksd_of_posterior, standardised_discrepancy
from sojourn.runs import Arrays, create_run, encode, open_run
from sojourn.series import Series, Windows, as_series, open_series

if TYPE_CHECKING:
    from os import PathLike
    from pathlib import Path

    import pandas
    import xarray
    from matplotlib.figure import Figure

# Draws that averages over the posterior use: the error of a mean is then a tenth of its spread.
_AVERAGED_DRAWS = 100

# Draws that their covariance is taken from.
_DRAWS_OF_SPREAD = 1000

_OTHER_UNITS = (
    "the data are not in the units of the fit's ({}); give them as they stand in the file, or a part of "
    "the series that was fitted"
)


@dataclass(frozen=True, eq=False)
class Fit:
    """Draws from the posterior of a model's parameters.

    Attributes:
        model: The model, with the units and priors that were used.
        posterior: Draws of the parameters, dims (chain, draw, …), states aligned across chains.
        sample_stats: Step size and log-posterior of each draw (`lp`, up to a constant, estimated at
            every tenth draw from as many windows as a step has, the same for all draws: few windows give
            a rough picture of where chains are); on windows also the buffer and its error where the
            chain was when that was last measured; empty for Gibbs.
        choices: What was chosen before sampling: windows, buffer, step size and so on.
        columns: Names of the data's columns. Data frames given to the methods are matched by them.
        treatment: What `open_series` did to the data, as in `Series`. It does the same to data given to
            the methods, but for a `Series`, which has had its treatment.
        units: Location and scale that were taken out of each column, as in `Series`. Data given to the
            methods are measured in them; what the methods return is in them too.
    """

    model: Model
    posterior: "xarray.Dataset"
    sample_stats: "xarray.Dataset"
    choices: dict[str, Any]
    columns: tuple[str, ...]
    treatment: Mapping[str, Any] = field(default_factory=dict)
    units: tuple[np.ndarray, np.ndarray] | None = None

    def __repr__(self) -> str:
        chains, draws = self.posterior.sizes["chain"], self.posterior.sizes["draw"]
        what = f"{type(self.model).__name__}, {self.choices['sampler']}"
        return f"Fit({what}, {chains} chain{'s' * (chains != 1)} of {draws} draws)"

    @functools.cached_property
    def mean(self) -> dict[str, np.ndarray]:
        """Posterior means of the parameters."""
        means = self.posterior.mean(("chain", "draw"))
        return {str(name): np.asarray(values) for name, values in means.items()}

    def summary(self, prob: float = 0.94) -> "pandas.DataFrame":
        """Return mean, sd, an equal-tailed interval, R-hat, ESS and MCSE of every parameter."""
        return summarize(self.posterior, prob)

    def diagnostics(self, data: Any = None) -> "pandas.DataFrame":
        """Return the figures that tell how far the run can be trusted, each with a line of words.

        Mixing of the chains, and the errors from gradient noise, step size and buffers, as measured
        before and during sampling. Warns of every figure that is out of range, and says what to do.

        Args:
            data: The series that the fit was made from. With it, the kernel Stein discrepancy is
                measured too, by a hundred gradients on all rows; not for an SLDS, whose gradients are
                averages.
        """
        import pandas

        discrepancy = None
        if data is not None and self.model.is_exact:
            discrepancy = functools.partial(self._discrepancy, self.as_series(data))
        checks = diagnose(self.posterior, self.sample_stats, self.choices, discrepancy)
        for check in checks:
            if not check.ok:
                warnings.warn(check.say(), UserWarning, stacklevel=2)
        return pandas.DataFrame(
            {
                "value": [check.value for check in checks],
                "ok": [check.ok for check in checks],
                "says": [check.say() for check in checks],
            },
            index=pandas.Index([check.name for check in checks], name="figure"),
        )

    def _discrepancy(self, series: Series, effective: float) -> float:
        """Return the discrepancy of draws far enough apart to be almost independent."""
        some = self.draws(min(_AVERAGED_DRAWS, int(effective)))
        return standardised_discrepancy(self.model, some, series, self.draws(_DRAWS_OF_SPREAD))

    def to_arviz(self) -> Any:
        """Return the draws as ArviZ's object: `InferenceData`, or a `DataTree` from ArviZ 1.0 on."""
        import arviz
        import xarray

        groups = {"posterior": self.posterior, "sample_stats": self.sample_stats}
        if self.model.constants:
            groups["constant_data"] = xarray.Dataset(
                {
                    name: ([f"{name}_dim_{axis}" for axis in range(value.ndim)], value)
                    for name, value in self.model.constants.items()
                }
            )
        if hasattr(arviz, "InferenceData"):
            return arviz.InferenceData(**groups)  # type: ignore[arg-type]
        return xarray.DataTree.from_dict(groups)

    def score(
        self, data: Any, num_draws: int = _AVERAGED_DRAWS, *, progress: bool = False
    ) -> float:
        """Return log p(data | fit): the likelihood of (held-out) data averaged over the posterior.

        Args:
            data: The series, as in `sample`.
            num_draws: Draws that the likelihood is averaged over.
            progress: Whether to show a bar of draws.
        """
        series = self.as_series(data)
        draws = track(self.draws(num_draws), "draw", enabled=progress)
        values = [log_likelihood(self.model, params, series) for params in draws]
        top = max(values)
        return float(top + np.log(np.mean(np.exp(np.asarray(values) - top))))

    def predictive_score(
        self,
        data: Any,
        horizon: int = 10,
        num_draws: int = _AVERAGED_DRAWS,
        *,
        progress: bool = False,
    ) -> float:
        """Return `sojourn.predictive_score` of (held-out) data, averaged over the posterior.

        The average is over the sums of log-densities, as in the paper's figures.

        Args:
            data: The series, as in `sample`.
            horizon: How many rows ahead.
            num_draws: Draws that scores are averaged over.
            progress: Whether to show a bar of draws.
        """
        series = self.as_series(data)
        draws = track(self.draws(num_draws), "draw", enabled=progress)
        values = [predictive_score(self.model, params, series, horizon) for params in draws]
        return float(np.mean(values))

    def smooth(
        self,
        data: Any,
        num_draws: int = _AVERAGED_DRAWS,
        *,
        out: "str | Path | None" = None,
        progress: bool = False,
    ) -> Any:
        """Return the law of the state at each row, averaged over the posterior.

        Args:
            data: The series, as in `sample`.
            num_draws: Draws that laws are averaged over.
            out: Where to write the laws as they are made, a name that ends in .zarr or .parquet.
            progress: Whether to show a bar, of draws or of rows written.

        Returns:
            The dataset of `sojourn.smooth`, or the path it was written to.
        """
        series = self.as_series(data)
        if out is not None:
            draws = self.draws(num_draws)
            return write_states(self.model, draws, series, out, progress=progress)
        draws = track(self.draws(num_draws), "draw", enabled=progress)
        first = smooth(self.model, next(draws), series)
        gaps = [first.attrs["discrepancy"]]

        def laws() -> Iterator[dict[str, np.ndarray]]:
            yield arrays_of(first)
            for params in draws:
                one = smooth(self.model, params, series)
                gaps.append(one.attrs["discrepancy"])
                yield arrays_of(one)

        found = {name: (first[name].dims, value) for name, value in average(laws()).items()}
        return first.assign(found).assign_attrs(discrepancy=float(np.max(gaps)))  # NaN stays NaN

    def decode(
        self,
        data: Any,
        method: Method = "viterbi",
        num_draws: int = _AVERAGED_DRAWS,
        *,
        seed: int = 0,
        out: "str | Path | None" = None,
        progress: bool = False,
    ) -> Any:
        """Return states and their probabilities.

        Args:
            data: The series, as in `sample`.
            method: "viterbi" for the most probable path at the posterior mean; "marginal" for the
                state of highest probability at each row; "sample" for paths of states drawn at random,
                one for each draw of the parameters.
            num_draws: Draws that the probabilities are averaged over.
            seed: Which paths are drawn.
            out: Where to write the result as it is made, a name that ends in .zarr or .parquet; not for
                paths drawn at random.
            progress: As in `smooth`; of no effect for paths drawn at random.

        Returns:
            The dataset of `sojourn.decode`, or the path it was written to.
        """
        check_method(method, out)
        series = self.as_series(data)
        if out is not None:
            draws = self.draws(num_draws)
            return write_states(
                self.model, draws, series, out, path=method, at=self.mean, progress=progress
            )
        if method == "sample":
            return sample_paths(self.model, self.draws(num_draws), series, seed)
        result = self.smooth(series, num_draws, progress=progress)
        if not self.model.has_discrete_states:
            return result
        if method == "viterbi":
            path = best_path(self.model, self.mean, series)
            gap = np.maximum(result.attrs["discrepancy"], path.attrs["discrepancy"])
            return result.assign(state=path["state"]).assign_attrs(discrepancy=float(gap))
        lags = result["t"] < self.model.num_lags
        best = result["probability"].fillna(0).argmax("label")
        return result.assign(state=best.where(~lags, -1))

    def forecast(
        self, data: Any, horizon: int, num_draws: int = 10 * _AVERAGED_DRAWS, *, seed: int = 0
    ) -> "xarray.Dataset":
        """Return draws of the states and rows that follow each series, over the posterior.

        Args:
            data: The series, as in `sample`.
            horizon: How many rows ahead.
            num_draws: Draws of the parameters, with one future each.
            seed: Which futures.

        Returns:
            The dataset of `sojourn.forecast`.
        """
        return forecast_draws(
            self.model, self.draws(num_draws), self.as_series(data), horizon, seed
        )

    def impute(
        self,
        data: Any,
        num_draws: int = _AVERAGED_DRAWS,
        *,
        with_draws: bool = False,
        seed: int = 0,
    ) -> "xarray.Dataset":
        """Return the law of missing entries given all that was seen, averaged over the posterior.

        Args:
            data: The series, as in `sample`.
            num_draws: Draws of the parameters.
            with_draws: Draw the missing entries as well, once for each draw of the parameters.
            seed: Which draws of the entries.

        Returns:
            The dataset of `sojourn.impute`.
        """
        series = self.as_series(data)
        return impute_draws(
            self.model, self.draws(num_draws), series, with_draws=with_draws, seed=seed
        )

    def ksd(
        self,
        data: Any,
        num_draws: int = _AVERAGED_DRAWS,
        *,
        windows: Windows | None = None,
        standardize: bool = True,
        unbiased: bool = False,
        seed: int = 0,
    ) -> "pandas.Series":
        """Return the kernel Stein discrepancy of the draws to the posterior, by parameter and in total.

        Coordinates are those of the samplers; log-ratios to its last entry for each row of a transition
        matrix, whose scale is redundant.

        Args:
            data: The series that the fit was made from.
            num_draws: Draws, spread evenly over all chains.
            windows: Windows to estimate gradients from, fresh ones for each draw; all rows if not given.
                The paper takes `Windows(10_000, buffer=100)` for more than 10,000 rows. The noise of
                such gradients adds to the result unless it is `unbiased`.
            standardize: Measure each coordinate in sds of its draws, so that the kernel's length of one
                suits it.
            unbiased: As in `ksd`.
            seed: Which windows.
        """
        return ksd_of_posterior(
            self.model,
            self.draws(num_draws),
            self.as_series(data),
            windows,
            standardize=standardize,
            unbiased=unbiased,
            seed=seed,
        )

    def nmi(self, data: Any, truth: Any) -> float:
        """Return the normalised mutual information of the decoded states and the true ones.

        Args:
            data: The series.
            truth: True states of all rows, an array or one for each series.
        """
        if not self.model.has_discrete_states:
            raise ValueError(f"{type(self.model).__name__} has no discrete states; use rmse")
        found = best_path(self.model, self.mean, self.as_series(data))["state"]
        return nmi(found.to_numpy(), _joined(truth))

    def rmse(self, data: Any, truth: Any, num_draws: int = _AVERAGED_DRAWS) -> float:
        """Return the root mean squared error of smoothed continuous states to the true ones.

        Args:
            data: The series.
            truth: True states of all rows, (T, n), an array or one for each series.
            num_draws: Draws that states are averaged over.
        """
        if not self.model.has_continuous_states:
            raise ValueError(f"{type(self.model).__name__} has no continuous states; use nmi")
        return rmse(self.smooth(data, num_draws)["x"].to_numpy(), _joined(truth))

    def mse(self, truth: dict[str, Any]) -> "xarray.Dataset":
        """Return the mean squared error of running averages of the draws, over (chain, draw).

        Args:
            truth: True parameters; states are matched to them chain by chain.
        """
        import xarray

        draws = {str(name): np.asarray(values) for name, values in self.posterior.items()}
        errors = running_mse(draws, truth, self.model.param_dims)
        coords = {dim: self.posterior[dim] for dim in ("chain", "draw")}
        return xarray.Dataset(
            {name: (("chain", "draw"), values) for name, values in errors.items()}, coords=coords
        )

    def as_series(self, data: Any) -> Series:
        """Return data as a `Series` with the columns and in the units of the fit.

        Data frames are matched by name. What was done to the data of the fit is done to data that are
        not a `Series`, and one that is not standardised becomes so if they were.

        Raises:
            ValueError: A `Series` is in other units.
        """
        series = as_series(data, self.model.emission_dim, self.columns)
        if not isinstance(data, Series):
            series = open_series(series, **self.treatment)
        if bool(series.treatment.get("log")) != bool(self.treatment.get("log")):
            raise ValueError(_OTHER_UNITS.format("logarithms"))
        if series.units is None and self.units is not None:
            return series.standardized(*self.units)
        if not _same_units(series.units, self.units):
            raise ValueError(_OTHER_UNITS.format("standardize="))
        return series

    def draws(self, num_draws: int) -> list[dict[str, np.ndarray]]:
        """Return parameters of `num_draws` draws, spread evenly over all chains."""
        check_size("num_draws", num_draws)
        flat = self.posterior.stack(sample=("chain", "draw")).transpose("sample", ...)
        total = flat.sizes["sample"]
        picked = np.unique(np.linspace(0, total - 1, min(num_draws, total)).astype(int))
        arrays = {str(n): np.asarray(v) for n, v in flat.items()}
        return [{n: v[i] for n, v in arrays.items()} for i in picked]

    def save(self, path: "str | PathLike[str]") -> None:
        """Write the draws to a new directory, for `load`; to `resume` a run, sample with `out`.

        If this is cut short, saving to the same directory begins anew.
        """
        config = {
            "model": encode(self.model),
            "columns": list(self.columns),
            "num_samples": self.posterior.sizes["draw"],
            "num_chains": self.posterior.sizes["chain"],
            "seed": self.posterior.attrs["seed"],
            "data": {"treatment": encode(self.treatment), "units": encode(self.units)},
            # Which chains these are, and every how many-th draw.
            "chains": self.posterior["chain"].to_numpy().tolist(),
            "every": int(self.posterior["draw"][:2].diff("draw").sum()) or 1,
        }
        with create_run(path, config) as run:
            run.make_room([str(name) for name in self.sample_stats])
            for index, chain in enumerate(run.chains):
                chain.append(
                    chain_of(self.posterior, index), chain_of(self.sample_stats, index), None
                )
            run.write_tuned({"choices": encode(self.choices)}, {})

    def report(self, path: "str | PathLike[str]", data: Any = None) -> None:
        """Write one HTML file that opens offline: diagnostics in words, settings, summary, plots.

        Args:
            path: The file to write.
            data: The series, as in `sample`, for their overview and decoded states.
        """
        from sojourn.reports import write_report

        write_report(self, path, data)

    def plot_trace(self, var_names: str | Sequence[str] | None = None) -> "Figure":
        """Plot densities and traces of the parameters, one row per entry, one colour per chain."""
        from sojourn.plots import plot_trace

        return plot_trace(self.posterior, var_names)

    def plot_segmentation(
        self, data: Any, start: int = 0, stop: int | None = None, *, series: int | str = 0
    ) -> "Figure":
        """Plot a stretch of a series with its decoded states.

        Args:
            data: The series, as in `sample`.
            start: First row shown.
            stop: Row after the last; 500 rows are shown if it is not given.
            series: Which of several series, its name or number.
        """
        from sojourn.plots import plot_segmentation

        return plot_segmentation(self, data, start, stop, series=series)

    def plot_states(
        self, data: Any, start: int = 0, stop: int | None = None, *, series: int | str = 0
    ) -> "Figure":
        """Plot the smoothed continuous states of a stretch of a series; arguments as above."""
        from sojourn.plots import plot_states

        return plot_states(self, data, start, stop, series=series)


def load(path: "str | PathLike[str]", thin: int = 1) -> Fit:
    """Read a run that was kept with `out` or by `Fit.save`, finished or not.

    Of a run that is not, the chains and draws that make most: all chains up to where the shortest is, or
    fewer and longer ones.

    Args:
        path: The directory of the run.
        thin: Every how many-th draw is read, for runs that are larger than memory.

    Raises:
        RunError: There is no run, it is damaged, newer than this version, or has no draws yet.
    """
    check_size("thin", thin)
    run = open_run(path)
    if run.is_cut_short:
        raise RunError(f"{path} holds no fit: saving was cut short; save again")
    chains = run.chains
    chosen = largest_block([chain.num_draws for chain in chains])
    if not run.is_tuned or not chosen:
        raise RunError(f"{path} has no draws yet; continue it with sojourn.resume")
    choices = run.read_tuned()[0]["choices"]
    numbers = run.config.get("chains", range(len(chains)))
    kept = {numbers[i]: chains[i].read(thin) for i in chosen}
    return make_fit(
        run.model,
        tuple(run.config["columns"]),
        kept,
        choices=choices,
        seed=run.config["seed"],
        every=thin * run.config.get("every", 1),
        treatment=run.treatment,
        units=run.units,
    )


def _joined(truth: Any) -> np.ndarray:
    """Return the states of all series in one array."""
    if isinstance(truth, list | tuple) and len(truth) and np.ndim(truth[0]):
        return np.concatenate([np.asarray(part) for part in truth])
    return np.asarray(truth)


def make_fit(
    model: Model,
    columns: tuple[str, ...],
    chains: Mapping[int, tuple[Arrays, Arrays]],
    *,
    choices: dict[str, Any],
    seed: int,
    every: int = 1,
    treatment: Mapping[str, Any] | None = None,
    units: tuple[np.ndarray, np.ndarray] | None = None,
) -> Fit:
    """Assemble the draws and statistics of chains, by number, cut to the shortest and aligned.

    The draws are every so many-th of their chains; `treatment` and `units` are those of the data.
    """
    draws, statistics = zip(*chains.values(), strict=True)
    posterior = posterior_of(model, columns, draws)
    stats = statistics_of(statistics, posterior.sizes["draw"])
    index = {"chain": list(chains), "draw": every * np.arange(posterior.sizes["draw"])}
    posterior, stats = posterior.assign_coords(index), stats.assign_coords(index)
    posterior.attrs |= {"sampler": choices["sampler"], "seed": seed}
    return Fit(model, posterior, stats, choices, columns, dict(treatment or {}), units)


def _same_units(one: tuple[np.ndarray, ...] | None, other: tuple[np.ndarray, ...] | None) -> bool:
    if one is None or other is None:
        return one is other
    return all(np.allclose(a, b, rtol=1e-12) for a, b in zip(one, other, strict=True))
