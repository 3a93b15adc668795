"""Syne Tune's schedulers on the same curves, arrival order and virtual workers, driven through their own interface.

Only the scheduler classes of Syne Tune run (`pip install syne-tune --no-deps`); its backend and its sampling do not, so
that nothing but the decisions differs: configurations arrive in the order given, a trial reports every evaluation,
and a freed worker takes the next configuration at once. Equal times: the last worker first, as in our simulator.
"""

import heapq
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace_services.scheduler.simulator.recorded import RecordedCurve

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from syne_tune.backend.trial_status import Trial
    from syne_tune.config_space import uniform
    from syne_tune.optimizer.baselines import RandomSearch
    from syne_tune.optimizer.scheduler import SchedulerDecision
    from syne_tune.optimizer.schedulers.asha import AsynchronousSuccessiveHalving
    from syne_tune.optimizer.schedulers.median_stopping_rule import MedianStoppingRule

from datetime import UTC, datetime

METRIC, RESOURCE = "value", "evaluation"
SPACE = {"x": uniform(0, 1)}


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerRun:
    """What a peer came to, in the same terms as our `Summary`."""

    slot_s: float
    wall_s: float
    regret: float
    to_target_s: float | None
    to_target_slot_s: float | None
    trace: tuple[tuple[float, float], ...]
    """Slot-seconds spent at each improvement, and the regret from then on."""


def asha(*, maximize: bool, max_t: int, eta: int, seed: int) -> Any:
    """Syne Tune 0.16's asynchronous successive halving, which is the stopping variant."""
    return AsynchronousSuccessiveHalving(
        SPACE,
        metric=METRIC,
        do_minimize=not maximize,
        time_attr=RESOURCE,
        max_t=max_t,
        grace_period=1,
        reduction_factor=eta,
        random_seed=seed,
    )


def median(*, maximize: bool, max_t: int, eta: int, seed: int) -> Any:
    """Its median stopping rule over random search, with its defaults."""
    del max_t, eta
    random_search = RandomSearch(SPACE, metrics=[METRIC], do_minimize=not maximize, random_seed=seed)
    return MedianStoppingRule(
        random_search, time_attr=RESOURCE, metric=METRIC, do_minimize=not maximize, random_seed=seed
    )


def random(*, maximize: bool, max_t: int, eta: int, seed: int) -> Any:
    """Its random search, which stops nothing: as our run-all, so that the two event loops check each other."""
    del max_t, eta
    return RandomSearch(SPACE, metrics=[METRIC], do_minimize=not maximize, random_seed=seed)


RANDOM = "syne_tune random"
PEERS: dict[str, Callable[..., Any]] = {
    "syne_tune asha": asha,
    "syne_tune median": median,
    RANDOM: random,
}


def run(
    make: Callable[..., Any],
    order: tuple[RecordedCurve, ...],
    *,
    workers: int,
    maximize: bool,
    max_t: int,
    eta: int = 3,
    seed: int = 0,
    within: float = 0.01,
) -> PeerRun:
    """Run a peer's scheduler to the end of the study."""
    scheduler = make(maximize=maximize, max_t=max_t, eta=eta, seed=seed)
    sign = -1.0 if maximize else 1.0
    ends = (curve.values[min(len(curve.values), max_t) - 1] for curve in order)
    finals = [math.inf if end is None or math.isnan(end) else sign * end for end in ends]
    best_final = min(finals)
    target = best_final + within * abs(best_final)
    heap: list[tuple[float, int, int, int]] = []  # (when, tie, trial, index of the report)
    trials: dict[int, Trial] = {}
    stays: list[tuple[float, float]] = []
    began: dict[int, float] = {}
    reports: list[tuple[float, int, float]] = []
    following = iter(range(len(order)))

    def start(worker: int, now: float) -> None:
        number = next(following, None)
        if number is None:
            return
        # What it proposes is passed over: the configuration is the next one of the order.
        suggestion = scheduler.suggest()
        trials[number] = Trial(
            trial_id=number, config=suggestion.config, creation_time=datetime(2000, 1, 1, tzinfo=UTC)
        )
        scheduler.on_trial_add(trials[number])
        began[number] = now
        heapq.heappush(heap, (now + order[number].seconds[0], -worker, number, 0))

    for worker in range(workers):
        start(worker, 0.0)
    now = 0.0
    while heap:
        now, tie, number, at = heapq.heappop(heap)
        curve = order[number]
        value = curve.values[at]
        assert value is not None
        reports.append((now, number, sign * value))
        result = {METRIC: value, RESOURCE: at + 1}
        over = at + 1 == min(len(curve.values), max_t)
        if over:
            scheduler.on_trial_complete(trials[number], result)
            decision = SchedulerDecision.STOP
        else:
            decision = scheduler.on_trial_result(trials[number], result)
        if decision == SchedulerDecision.CONTINUE:
            heapq.heappush(heap, (now + curve.seconds[at + 1] - curve.seconds[at], tie, number, at + 1))
        else:
            stays.append((began[number], now))
            start(-tie, now)

    def spent(until: float) -> float:
        return sum(min(end, until) - start for start, end in stays if start < until)

    trace: list[tuple[float, float]] = []
    best = math.inf
    for at, _, value in sorted(reports):
        if value < best:
            best = value
            trace.append((spent(at), max(0.0, value - best_final)))
    reached = min((at for at, _, value in reports if value <= target), default=None)
    return PeerRun(
        slot_s=sum(end - start for start, end in stays),
        wall_s=now,
        regret=max(0.0, best - best_final),
        to_target_s=reached,
        to_target_slot_s=None if reached is None else spent(reached),
        trace=tuple(trace),
    )
