"""Syne Tune's schedulers, driven through their own interface.

Only the scheduler classes of Syne Tune run (`pip install syne-tune --no-deps`); its backend and its sampling do not.
"""

import warnings
from datetime import UTC, datetime
from typing import Any

from peer_loop import Make, Peer, Task

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from syne_tune.backend.trial_status import Trial
    from syne_tune.config_space import uniform
    from syne_tune.optimizer.baselines import RandomSearch
    from syne_tune.optimizer.scheduler import SchedulerDecision
    from syne_tune.optimizer.schedulers.asha import AsynchronousSuccessiveHalving
    from syne_tune.optimizer.schedulers.median_stopping_rule import MedianStoppingRule

METRIC, RESOURCE = "value", "evaluation"
SPACE = {"x": uniform(0, 1)}


class SyneTune(Peer):
    """One of its schedulers. Its proposals are ignored: the configuration is the next one in the order."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._trials: dict[int, Trial] = {}

    def begins(self, number: int) -> None:
        suggestion = self._scheduler.suggest()
        self._trials[number] = Trial(
            trial_id=number, config=suggestion.config, creation_time=datetime(2000, 1, 1, tzinfo=UTC)
        )
        self._scheduler.on_trial_add(self._trials[number])

    def goes_on(self, number: int, at: int, value: float, *, over: bool) -> bool:
        result = {METRIC: value, RESOURCE: at}
        if over:
            self._scheduler.on_trial_complete(self._trials[number], result)
            return False
        return bool(
            self._scheduler.on_trial_result(self._trials[number], result) == SchedulerDecision.CONTINUE
        )

    def resumes(self, *, more: bool) -> int | None:
        del more
        return None  # these never pause


def asha(task: Task) -> Peer:
    """Syne Tune 0.16's asynchronous successive halving, which is the stopping variant."""
    return SyneTune(
        AsynchronousSuccessiveHalving(
            SPACE,
            metric=METRIC,
            do_minimize=not task.maximize,
            time_attr=RESOURCE,
            max_t=task.max_t,
            grace_period=1,
            reduction_factor=task.eta or 3,
            random_seed=task.seed,
        )
    )


def median(task: Task) -> Peer:
    """Its median stopping rule over random search, with its defaults."""
    return SyneTune(
        MedianStoppingRule(
            _random_search(task),
            time_attr=RESOURCE,
            metric=METRIC,
            do_minimize=not task.maximize,
            random_seed=task.seed,
        )
    )


def random(task: Task) -> Peer:
    """Its random search, which stops nothing, like our run-all, so that the two event loops check each other."""
    return SyneTune(_random_search(task))


def _random_search(task: Task) -> Any:
    return RandomSearch(SPACE, metrics=[METRIC], do_minimize=not task.maximize, random_seed=task.seed)


RANDOM = "syne_tune random"
PEERS: dict[str, Make] = {
    "syne_tune asha": asha,
    "syne_tune median": median,
    RANDOM: random,
}
