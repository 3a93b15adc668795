"""Optuna's pruners, driven through its ask and tell with a report after each evaluation."""

import math
from typing import Any

import optuna
from optuna.trial import TrialState
from peer_loop import Make, Peer, Task


class Optuna(Peer):
    """A study with one of its pruners. It samples nothing: the configuration is the next one in the order."""

    def __init__(self, pruner: Any, task: Task) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._study = optuna.create_study(
            study_name=f"order-{task.seed}",  # Hyperband draws brackets by it
            sampler=optuna.samplers.RandomSampler(seed=task.seed),
            pruner=pruner,
            direction="maximize" if task.maximize else "minimize",
        )
        self._trials: dict[int, optuna.Trial] = {}

    def begins(self, number: int) -> None:
        self._trials[number] = self._study.ask()

    def goes_on(self, number: int, at: int, value: float, *, over: bool) -> bool:
        trial = self._trials[number]
        trial.report(value, at)
        if over:
            sound = math.isfinite(value)
            self._study.tell(trial, value if sound else None, state=None if sound else TrialState.FAIL)
            return False
        if trial.should_prune():
            self._study.tell(trial, state=TrialState.PRUNED)
            return False
        return True

    def resumes(self, *, more: bool) -> int | None:
        del more
        return None  # a pruned trial stays pruned


def successive_halving(task: Task) -> Peer:
    """Its asynchronous successive halving, with its defaults."""
    return Optuna(optuna.pruners.SuccessiveHalvingPruner(), task)


def hyperband(task: Task) -> Peer:
    """Its Hyperband, given the full budget."""
    return Optuna(optuna.pruners.HyperbandPruner(max_resource=task.max_t), task)


def median(task: Task) -> Peer:
    """Its median pruner, with its defaults."""
    return Optuna(optuna.pruners.MedianPruner(), task)


PEERS: dict[str, Make] = {
    "optuna successive halving": successive_halving,
    "optuna hyperband": hyperband,
    "optuna median": median,
}
