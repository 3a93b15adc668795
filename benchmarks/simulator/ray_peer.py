"""Ray Tune's ASHA, driven through its own interface. Only the scheduler class runs.

Its MedianStoppingRule is left out: at each report it sums every trial's history again, which takes minutes for an
order of long curves. The rule is Vizier's, which we have as `median:variant=vizier`.
"""

from types import SimpleNamespace
from typing import Any

from peer_loop import Make, Peer, Task
from ray.tune.schedulers import ASHAScheduler, TrialScheduler

METRIC, RESOURCE = "value", "evaluation"


class Ray(Peer):
    """One of its schedulers."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._trials: dict[int, Any] = {}

    def begins(self, number: int) -> None:
        self._trials[number] = SimpleNamespace(trial_id=str(number))
        self._scheduler.on_trial_add(None, self._trials[number])

    def goes_on(self, number: int, at: int, value: float, *, over: bool) -> bool:
        result = {METRIC: value, RESOURCE: at}
        if over:
            self._scheduler.on_trial_complete(None, self._trials[number], result)
            return False
        said = self._scheduler.on_trial_result(None, self._trials[number], result)
        return bool(said == TrialScheduler.CONTINUE)

    def resumes(self, *, more: bool) -> int | None:
        del more
        return None


def asha(task: Task) -> Peer:
    """Ray Tune's asynchronous successive halving, which is the stopping variant, with its defaults."""
    return Ray(
        ASHAScheduler(
            time_attr=RESOURCE,
            metric=METRIC,
            mode="max" if task.maximize else "min",
            max_t=task.max_t,
        )
    )


PEERS: dict[str, Make] = {"ray asha": asha}
