"""How well fitted constants predict rows that were not fitted, and whether they order plans as measurements do."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

from headrace_services.planner.calibration import fit
from headrace_services.planner.cluster import Cluster
from headrace_services.planner.measured import Rows, predicted_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """Relative errors of predictions."""

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
    """How much slower the plan that was predicted to be fastest was than the fastest one."""
    accuracy: Accuracy


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A model of which no row was fitted."""

    model: str
    accuracy: Accuracy
    groups: tuple[Ranking, ...]
    """One for each number of devices and batch."""

    @property
    def spearman(self) -> float:
        """The mean over its rows of their groups' coefficients."""
        return float(np.average([g.spearman for g in self.groups], weights=[g.rows for g in self.groups]))

    @property
    def regret(self) -> float:
        """The largest regret of its groups."""
        return max(one.regret for one in self.groups)


def accuracy(predicted: NDArray[np.float64], measured: NDArray[np.float64]) -> Accuracy:
    """How far predictions are off."""
    miss = np.abs(predicted / measured - 1)
    return Accuracy(
        rows=len(miss), median=float(np.median(miss)), mean=float(miss.mean()), largest=float(miss.max())
    )


def cross_validated_s(
    rows: Rows, cluster: Cluster, *, folds: int = 10, on_fold: Callable[[int], None] | None = None
) -> NDArray[np.float64]:
    """Predictions of every row by constants that were fitted without its fold. Folds are drawn once, with a fixed
    seed."""
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


def leave_one_model_out(rows: Rows, cluster: Cluster, *, least: int) -> list[LeftOut]:
    """For each model: constants fitted without any of its rows, and how they order its plans.

    Only plans on the same devices with the same batch compete, so each such group with at least `least` rows has
    its own order.
    """
    shape = ("hidden", "layers", "heads", "seq")
    keys = np.stack([rows[name] for name in shape], axis=1)
    found = []
    for key in np.unique(keys, axis=0):
        own = np.all(keys == key, axis=1)
        held = rows.where(own)
        predicted = predicted_s(held, cluster.with_efficiencies(fit(rows.where(~own), cluster)))
        found.append(
            LeftOut(
                model=f"h={key[0]:g} L={key[1]:g}",
                accuracy=accuracy(predicted, held.seconds),
                groups=tuple(groups(held, predicted, ("gpus", "global_batch"), least=least)),
            )
        )
    return found


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
    """The ranking within every group of rows that agree in these columns, if the group has at least this many."""
    keys = np.stack([rows[name] for name in names], axis=1)
    found = []
    for key in np.unique(keys, axis=0):
        own = np.all(keys == key, axis=1)
        if own.sum() >= least:
            label = " ".join(f"{name}={value:g}" for name, value in zip(names, key, strict=True))
            found.append(ranking(label, predicted[own], rows.seconds[own]))
    return found
