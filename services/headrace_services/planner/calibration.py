"""Fitting a cluster's constants to measured rows, and saying how well they predict rows that were not fitted.

Log-errors are minimised with a soft-L1 loss (a measured run that something else slowed down must not bend the rest)
and a weak pull towards the start values, so that a constant that no row tells about stays where physics puts it. All
constants are positive; shares of a peak stay below 1.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares
from scipy.stats import spearmanr

from headrace_services.planner.cluster import Cluster, Efficiencies
from headrace_services.planner.measured import Rows, predicted_s


@dataclass(frozen=True, slots=True)
class Range:
    """Where a constant may lie, where it starts, and how strongly it is held there."""

    start: float
    low: float
    high: float
    hold: float = 0.1


RANGES: Final[Mapping[str, Range]] = MappingProxyType(
    {
        "gemm": Range(0.75, 0.4, 1.0),
        "gemm_rows": Range(300, 1, 5000),
        "gemm_width": Range(50, 0.1, 3000),
        "attention": Range(0.5, 0.1, 1.0),
        "memory": Range(0.8, 0.3, 1.0),
        "link": Range(0.7, 0.1, 1.0),
        "network": Range(0.5, 0.05, 1.0),
        "gradients": Range(0.5, 0.05, 1.0),
        "gradients_shared": Range(1.0, 0.05, 1.5),
        "transfer": Range(0.6, 0.05, 1.0),
        "launch_s": Range(9e-4, 1e-4, 1e-2),
        "launch_tensor_s": Range(5e-5, 1e-6, 1e-2),
        "launch_rank_s": Range(1e-5, 1e-7, 1e-3),
        "launch_unfused_s": Range(3e-4, 1e-5, 1e-2),
        "launch_backward": Range(1.5, 1.0, 3.0),
        "head_traffic": Range(24, 2, 100),
        "head_s": Range(5e-4, 1e-6, 1e-2),
        "collective_s": Range(1e-5, 1e-6, 1e-3, hold=1.0),
        "transfer_s": Range(5e-4, 1e-6, 1e-2),
        "transfer_network_s": Range(1e-4, 1e-6, 1e-1),
        "iteration_s": Range(5e-3, 1e-5, 0.1),
        "optimizer": Range(0.6, 0.2, 1.0),
    }
)
SCALE: Final = 0.05
"""Log-error from which the loss grows linearly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """Shares by which predictions miss."""

    rows: int
    median: float
    mean: float
    largest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """Whether predictions order the plans of one model (same devices and batch) as the measurements do."""

    model: str
    rows: int
    spearman: float
    regret: float
    """How much slower the plan that is predicted fastest was than the fastest one."""
    accuracy: Accuracy


def start() -> Efficiencies:
    """Constants before any fit: physics and guesses."""
    return Efficiencies(**{name: one.start for name, one in RANGES.items()})


def fit(rows: Rows, cluster: Cluster) -> Efficiencies:
    """The constants that predict the rows best. Deterministic."""
    names = list(RANGES)
    first = np.log([RANGES[name].start for name in names])
    low, high = (np.log([getattr(RANGES[name], end) for name in names]) for end in ("low", "high"))
    hold = np.array([RANGES[name].hold for name in names])
    measured, weight = rows.seconds, weights(rows, cluster)

    def residuals(logs: NDArray[np.float64]) -> Any:
        constants = Efficiencies(**dict(zip(names, np.exp(logs).tolist(), strict=True)))
        miss = np.log(predicted_s(rows, cluster.with_efficiencies(constants)) / measured)
        return np.concatenate([miss * weight, (logs - first) * hold])

    answer = least_squares(
        residuals,
        np.clip(first, low, high),
        bounds=(low - 1e-9, high + 1e-9),
        loss="soft_l1",
        f_scale=SCALE,
        max_nfev=60,
    )
    return Efficiencies(**dict(zip(names, np.exp(answer.x).tolist(), strict=True)))


def weights(rows: Rows, cluster: Cluster) -> NDArray[np.float64]:
    """Rows on one node and on several count alike in sum: each kind tells of constants that the other cannot."""
    across = rows["gpus"] > cluster.device.devices_per_node
    weight = np.ones(len(rows))
    if across.any() and not across.all():
        rarer = across if across.sum() * 2 < len(rows) else ~across
        weight[rarer] = np.sqrt((~rarer).sum() / rarer.sum())
    return weight


def accuracy(predicted: NDArray[np.float64], measured: NDArray[np.float64]) -> Accuracy:
    """How far predictions are off."""
    miss = np.abs(predicted / measured - 1)
    return Accuracy(
        rows=len(miss), median=float(np.median(miss)), mean=float(miss.mean()), largest=float(miss.max())
    )


def cross_validated_s(
    rows: Rows, cluster: Cluster, *, folds: int = 10, on_fold: Callable[[int], None] | None = None
) -> NDArray[np.float64]:
    """Predictions of every row by constants fitted without its fold. Folds are drawn once, with a fixed seed."""
    fold = np.random.default_rng(0).integers(0, folds, len(rows))
    predicted = np.zeros(len(rows))
    for number in range(folds):
        held = fold == number
        if held.any():
            constants = fit(rows.where(~held), cluster)
            predicted[held] = predicted_s(rows.where(held), cluster.with_efficiencies(constants))
        if on_fold is not None:
            on_fold(number + 1)
    return predicted


def leave_one_model_out(rows: Rows, cluster: Cluster, *, devices_above: int) -> list[Ranking]:
    """For each model on more than so many devices: constants fitted without any of its rows, and their ranking."""
    shape = ("hidden", "layers", "heads", "seq")
    models = sorted(
        {tuple(float(rows[name][i]) for name in shape) for i in np.flatnonzero(rows["gpus"] > devices_above)}
    )
    rankings = []
    for model in models:
        own = np.all([rows[name] == value for name, value in zip(shape, model, strict=True)], axis=0)
        held = rows.where(own)
        predicted = predicted_s(held, cluster.with_efficiencies(fit(rows.where(~own), cluster)))
        rankings.append(ranking(f"h={model[0]:g} L={model[1]:g}", predicted, held.seconds))
    return rankings


def ranking(model: str, predicted: NDArray[np.float64], measured: NDArray[np.float64]) -> Ranking:
    """The order of one model's plans."""
    chosen = int(np.argmin(predicted))
    return Ranking(
        model=model,
        rows=len(measured),
        spearman=float(spearmanr(predicted, measured).statistic),
        regret=float(measured[chosen] / measured.min() - 1),
        accuracy=accuracy(predicted, measured),
    )


def groups(rows: Rows, predicted: NDArray[np.float64], names: Sequence[str], *, least: int) -> list[Ranking]:
    """The ranking within every group of rows that agree in these columns and are at least so many."""
    keys = np.stack([rows[name] for name in names], axis=1)
    found = []
    for key in np.unique(keys, axis=0):
        own = np.all(keys == key, axis=1)
        if own.sum() >= least:
            label = " ".join(f"{name}={value:g}" for name, value in zip(names, key, strict=True))
            found.append(ranking(label, predicted[own], rows.seconds[own]))
    return found


def rounded(constants: Efficiencies) -> Efficiencies:
    """Four digits: what a data file holds."""
    return replace(constants, **{name: float(f"{getattr(constants, name):.4g}") for name in RANGES})
