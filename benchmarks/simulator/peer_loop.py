"""The event loop in which peers' schedulers run: recorded curves, in a given order of arrival, on virtual workers.

Only the decisions differ between peers and our policies: configurations arrive in the given order, a trial reports
every evaluation, and a freed worker continues at once. At equal times the last worker comes first, as in our
simulator. Machines fail when those of our simulator do, worker by worker.
"""

import heapq
import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Protocol

from headrace_services.scheduler.simulator.costs import Failures
from headrace_services.scheduler.simulator.recorded import RecordedCurve


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What a peer knows about a study before it starts."""

    maximize: bool
    max_t: int
    """The full budget, in evaluations."""
    trials: int
    seed: int = 0
    eta: int | None = None
    """None: the peer's own default."""


class Peer(Protocol):
    """Another tool's scheduler. Evaluations are counted from 1; values are the metric's own."""

    def begins(self, number: int) -> None:
        """A trial starts."""
        ...

    def goes_on(self, number: int, at: int, value: float, *, over: bool) -> bool:
        """Returns whether a trial continues after an evaluation. `over`: it was the last one, and the answer does
        not count."""
        ...

    def resumes(self, *, more: bool) -> int | None:
        """Returns a waiting trial that continues when a worker is free. `more`: some configurations have not
        started."""
        ...


Make = Callable[[Task], Peer]


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerRun:
    """A peer's result, in the same terms as our `Summary`."""

    slot_s: float
    wall_s: float
    regret: float
    to_target_s: float | None
    to_target_slot_s: float | None
    trace: tuple[tuple[float, float], ...]
    """Slot-seconds spent at each improvement, and the regret from then on."""


def run(
    make: Make,
    order: tuple[RecordedCurve, ...],
    task: Task,
    *,
    workers: int,
    within: float = 0.01,
    failures: Failures | None = None,
    saves_at: Sequence[int] = (),
) -> PeerRun:
    """Run a peer's scheduler to the end of the study.

    After a machine failure, a trial continues from the last of the evaluations `saves_at` that it reached.
    Repeated evaluations are not shown to the peer.
    """
    sign = -1.0 if task.maximize else 1.0
    loop = _Loop(make(task), order, task, workers, failures or Failures(), saves_at)
    loop.run()
    finals = [_signed(curve.values[last - 1], sign) for curve, last in zip(order, loop.lengths, strict=True)]
    best_final = min(finals)
    target = best_final + within * abs(best_final)

    def spent(until: float) -> float:
        return sum(min(end, until) - start for start, end in loop.stays if start < until)

    reports = sorted((at_s, number, _signed(value, sign)) for at_s, number, value in loop.reports)
    trace: list[tuple[float, float]] = []
    best = math.inf
    for at_s, _, signed in reports:
        if signed < best:
            best = signed
            trace.append((spent(at_s), max(0.0, signed - best_final)))
    first = min((at_s for at_s, _, signed in reports if signed <= target), default=None)
    return PeerRun(
        slot_s=sum(end - start for start, end in loop.stays),
        wall_s=loop.now_s,
        regret=max(0.0, best - best_final),
        to_target_s=first,
        to_target_slot_s=None if first is None else spent(first),
        trace=tuple(trace),
    )


class _Loop:
    """Workers, their work, and the heap of coming events."""

    def __init__(
        self,
        peer: Peer,
        order: tuple[RecordedCurve, ...],
        task: Task,
        workers: int,
        failures: Failures,
        saves_at: Sequence[int],
    ) -> None:
        self.lengths = [min(len(curve.values), task.max_t) for curve in order]
        self.now_s = 0.0
        self.stays: list[tuple[float, float]] = []
        self.reports: list[tuple[float, int, float | None]] = []
        self._peer, self._order, self._failures, self._saves_at = peer, order, failures, saves_at
        self._workers = workers
        self._heap: list[tuple[float, int, int, Callable[[], None]]] = []
        self._events = count()
        self._idle = list(range(workers))[::-1]
        self._down = 0
        self._runs: dict[int, tuple[int, float]] = {}
        """For each worker: the trial, and since when."""
        self._trained: dict[int, int] = {}
        self._shown: dict[int, int] = {}
        self._started = 0
        self._unheard = 0
        """Trials whose machine failed, which nobody knows yet."""
        self._lost: deque[int] = deque()

    def run(self) -> None:
        """Run until nothing is left to do."""
        for worker in range(self._workers):
            self._break_later(worker, self._failures.clock(worker + 1))
        self._fill()
        while self._heap and (self._runs or self._unheard or self._down == self._workers):
            self.now_s, _, _, happen = heapq.heappop(self._heap)
            happen()

    def _fill(self) -> None:
        while self._idle:
            if self._lost:
                number: int | None = self._lost.popleft()
            else:
                more = self._started < len(self._order)
                number = self._peer.resumes(more=more)
                if number is None and more:
                    number, self._started = self._started, self._started + 1
                    self._peer.begins(number)
            if number is None:
                return
            worker = self._idle.pop()
            self._runs[worker] = number, self.now_s
            self._train(worker, self._runs[worker])

    def _train(self, worker: int, run: tuple[int, float]) -> None:
        number = run[0]
        lasts_s = _lasts(self._order[number], self._trained.get(number, 0))
        self._at(self.now_s + lasts_s, -worker, lambda: self._report(worker, run))

    def _report(self, worker: int, run: tuple[int, float]) -> None:
        if self._runs.get(worker) is not run:
            return
        number, since_s = run
        at = self._trained[number] = self._trained.get(number, 0) + 1
        over = at == self.lengths[number]
        if not self._goes_on(number, at, over=over) or over:
            del self._runs[worker]
            self.stays.append((since_s, self.now_s))
            self._idle.append(worker)
            self._fill()
        else:
            self._train(worker, run)

    def _goes_on(self, number: int, at: int, *, over: bool) -> bool:
        if at <= self._shown.get(number, 0):
            return True
        self._shown[number] = at
        value = self._order[number].values[at - 1]
        self.reports.append((self.now_s, number, value))
        return self._peer.goes_on(number, at, math.nan if value is None else value, over=over)

    def _break_later(self, worker: int, clock: random.Random) -> None:
        if self._failures.mean_time_s is not None:
            at_s = self.now_s + clock.expovariate(1.0 / self._failures.mean_time_s)
            self._at(at_s, 1, lambda: self._break(worker, clock))

    def _break(self, worker: int, clock: random.Random) -> None:
        failures = self._failures
        if worker in self._runs:
            number, since_s = self._runs.pop(worker)
            self.stays.append((since_s, self.now_s))
            trained = self._trained.get(number, 0)
            self._trained[number] = max((at for at in self._saves_at if at <= trained), default=0)
            self._unheard += 1
            self._at(self.now_s + failures.detect_s, -worker, lambda: self._hear(number))
        else:
            self._idle.remove(worker)
        self._down += 1
        repaired_s = self.now_s + max(failures.repair_s, failures.detect_s)
        self._at(repaired_s, 2, lambda: self._repair(worker, clock))

    def _hear(self, number: int) -> None:
        self._unheard -= 1
        self._lost.append(number)
        self._fill()

    def _repair(self, worker: int, clock: random.Random) -> None:
        self._down -= 1
        self._idle.append(worker)
        self._break_later(worker, clock)
        self._fill()

    def _at(self, when_s: float, tie: int, happen: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (when_s, tie, next(self._events), happen))


def _lasts(curve: RecordedCurve, at: int) -> float:
    """Seconds from the previous evaluation to the one with an index."""
    return curve.seconds[at] - (curve.seconds[at - 1] if at else 0.0)


def _signed(value: float | None, sign: float) -> float:
    """A value for which smaller is better; missing and non-finite ones are the worst."""
    return math.inf if value is None or not math.isfinite(value) else sign * value
