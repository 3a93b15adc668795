"""The event loop that peers' schedulers run in: recorded curves, in a given order of arrival, on virtual workers.

Nothing but the decisions differs between peers and our policies: configurations arrive in the order given, a trial
reports every evaluation, and a freed worker goes on at once. Equal times: the last worker first, as in our simulator.
"""

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from headrace_services.scheduler.simulator.recorded import RecordedCurve


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What a peer is told of a study before it begins."""

    maximize: bool
    max_t: int
    """The full budget, in evaluations."""
    trials: int
    seed: int = 0
    eta: int | None = None
    """None: the peer's own default."""


class Peer(Protocol):
    """A scheduler of somebody else. Evaluations are counted from 1, values are the metric's own."""

    def begins(self, number: int) -> None:
        """A trial starts."""
        ...

    def goes_on(self, number: int, at: int, value: float, *, over: bool) -> bool:
        """Whether a trial goes on after an evaluation. `over`: it was the last one, and the answer does not count."""
        ...

    def resumes(self, *, more: bool) -> int | None:
        """A trial that waits and goes on where a worker is free. `more`: some configurations did not start."""
        ...


Make = Callable[[Task], Peer]


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


def run(
    make: Make, order: tuple[RecordedCurve, ...], task: Task, *, workers: int, within: float = 0.01
) -> PeerRun:
    """Run a peer's scheduler to the end of the study."""
    peer, sign = make(task), -1.0 if task.maximize else 1.0
    lengths = [min(len(curve.values), task.max_t) for curve in order]
    finals = [_signed(curve.values[last - 1], sign) for curve, last in zip(order, lengths, strict=True)]
    best_final = min(finals)
    target = best_final + within * abs(best_final)
    heap: list[tuple[float, int, int, int]] = []  # (when, tie, trial, index of the report)
    idle = list(range(workers))[::-1]
    began: dict[int, float] = {}
    reached: dict[int, int] = {}
    stays: list[tuple[float, float]] = []
    reports: list[tuple[float, int, float]] = []
    started = 0

    def fill(now: float) -> None:
        nonlocal started
        while idle:
            more = started < len(order)
            number = peer.resumes(more=more)
            if number is None and more:
                number, started = started, started + 1
                peer.begins(number)
            if number is None:
                return
            at = reached.get(number, 0)
            began[number] = now
            heapq.heappush(heap, (now + _lasts(order[number], at), -idle.pop(), number, at))

    fill(0.0)
    now = 0.0
    while heap:
        now, tie, number, at = heapq.heappop(heap)
        curve = order[number]
        value = curve.values[at]
        shown = math.nan if value is None else value
        reports.append((now, number, _signed(value, sign)))
        reached[number] = at + 1
        over = at + 1 == lengths[number]
        if peer.goes_on(number, at + 1, shown, over=over) and not over:
            heapq.heappush(heap, (now + _lasts(curve, at + 1), tie, number, at + 1))
        else:
            stays.append((began[number], now))
            idle.append(-tie)
            fill(now)

    def spent(until: float) -> float:
        return sum(min(end, until) - start for start, end in stays if start < until)

    trace: list[tuple[float, float]] = []
    best = math.inf
    for at_s, _, signed in sorted(reports):
        if signed < best:
            best = signed
            trace.append((spent(at_s), max(0.0, signed - best_final)))
    first = min((at_s for at_s, _, signed in reports if signed <= target), default=None)
    return PeerRun(
        slot_s=sum(end - start for start, end in stays),
        wall_s=now,
        regret=max(0.0, best - best_final),
        to_target_s=first,
        to_target_slot_s=None if first is None else spent(first),
        trace=tuple(trace),
    )


def _lasts(curve: RecordedCurve, at: int) -> float:
    """Seconds from the evaluation before to the one of an index."""
    return curve.seconds[at] - (curve.seconds[at - 1] if at else 0.0)


def _signed(value: float | None, sign: float) -> float:
    """A value of which the smaller is the better; none and those that are not finite are the worst."""
    return math.inf if value is None or not math.isfinite(value) else sign * value
