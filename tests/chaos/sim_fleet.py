"""A fleet of simulated workers: the daemon's own half of the session protocol, with trials that only compute.

`headrace_worker`'s session, core, courier and outbox (in memory here) are real, so reconnects, resends and
acknowledgements are the product's. The trials are simulated: coroutines that report a curve.

Every worker keeps a journal of its own: what it started, what it reported, what was acknowledged and what was
decided. A scenario compares it with the tables (`ledger`), so that the product is not its own witness.
"""

import asyncio
import hashlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from headrace.target import Target
from headrace.v1 import event_pb2, worker_pb2
from headrace_worker.backoff import Backoff
from headrace_worker.courier import Courier
from headrace_worker.effects import Acked, Decide, Effect, Finish, Forget, Kill, Reject, Start, Welcomed
from headrace_worker.outbox import DurableOutbox, Outbox
from headrace_worker.session import Session
from headrace_worker.session_core import Identity, SessionCore


@dataclass(frozen=True, slots=True)
class Said:
    """A report as the worker sent it."""

    lease_id: str
    sequence: int
    step: int
    score: float
    at: float
    """Monotonic seconds."""


@dataclass(slots=True)
class Journal:
    """What one worker knows of its own actions."""

    worker: str
    started: list[str] = field(default_factory=list)
    """Leases, in the order in which their trials were started."""
    reports: dict[int, Said] = field(default_factory=dict)
    acked: dict[int, float] = field(default_factory=dict)
    """Sequences of acknowledged messages, and when each was acknowledged."""
    decided: dict[int, str] = field(default_factory=dict)
    """The action in the answer to each report."""
    contradictions: list[str] = field(default_factory=list)
    """Decisions that arrived twice and differed."""
    fenced: list[str] = field(default_factory=list)
    """Leases whose trial was killed because the scheduler said that they are over."""
    stopped_at: float | None = None
    """Monotonic seconds. From then on the study was being stopped, and its leases end."""
    fenced_before: frozenset[str] = frozenset()
    """The leases that had ended before that."""
    welcomed: list[float] = field(default_factory=list)
    schedulers: list[str] = field(default_factory=list)
    """The replica that answered, for each connection."""


def score(trial: str, step: int) -> float:
    """A falling curve whose floor depends only on the trial, so that it is the same on any worker."""
    floor = int.from_bytes(hashlib.sha256(trial.encode()).digest()[:4], "big") / 2**32
    return floor + math.exp(-step / 3)


class SimWorker:
    """One worker of the fleet. `run` serves until it is cancelled."""

    def __init__(
        self,
        name: str,
        addresses: Sequence[str],
        *,
        slots: int = 1,
        labels: Mapping[str, str] = MappingProxyType({}),
        step_s: Callable[[], float] = lambda: 0.0,
        backoff: Callable[[], Backoff] = Backoff,
    ) -> None:
        self.journal = Journal(name)
        self._step_s = step_s
        self._trials: dict[str, asyncio.Task[None]] = {}
        self._undecided: dict[int, asyncio.Future[event_pb2.Decision]] = {}
        devices = tuple(
            worker_pb2.Device(index=index, kind=worker_pb2.DEVICE_KIND_CPU, model="simulated")
            for index in range(slots)
        )
        identity = Identity(
            worker=name, incarnation="1", devices=devices, labels=labels, version="", log_dir="/simulated"
        )
        self.core = SessionCore(identity)
        self._outbox = DurableOutbox(Outbox(Path(":memory:")))
        self._courier = Courier(self._outbox, self.core)
        target = Target(replicas=tuple(addresses))
        self._session = Session(target, self._courier, handler=self, backoff=backoff)

    async def run(self) -> None:
        """Serve until cancelled."""
        cleaning = asyncio.create_task(self._courier.clean())
        try:
            await self._session.run()
        finally:
            tasks = [cleaning, *self._trials.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.to_thread(self._outbox.close)

    @property
    def at_rest(self) -> bool:
        """Whether nothing waits for an acknowledgement."""
        return not self.core.unacknowledged

    # The session's interface (headrace_worker.session.Handler).

    async def handle(self, effect: Effect) -> None:
        """Carry out one effect."""
        match effect:
            case Start():
                lease_id = effect.assign.lease.lease_id
                self.journal.started.append(lease_id)
                self._trials[lease_id] = asyncio.create_task(self._live(effect.assign))
            case Kill():
                if effect.fenced:
                    self.journal.fenced.append(effect.lease_id)
                if task := self._trials.get(effect.lease_id):
                    task.cancel()
            case Decide():
                self._decide(effect)
            case Acked():
                now = time.monotonic()
                for sequence in effect.sequences:
                    self.journal.acked.setdefault(sequence, now)
                self._courier.acknowledged()
            case Forget():
                self._courier.forget(effect.sequences)
            case Welcomed():
                self.journal.welcomed.append(time.monotonic())
                self.journal.schedulers.append(effect.scheduler)
            case Finish():
                pass
            case Reject():
                raise AssertionError(f"a message of a sound fleet is refused: {effect}")

    async def telemetry(self) -> Sequence[worker_pb2.DeviceTelemetry]:
        """There is nothing to measure."""
        return ()

    def trouble(self) -> str:
        """Nothing is wrong."""
        return ""

    def reused(self) -> str:
        return ""

    def mps(self) -> str:
        return ""

    def rejected(self) -> str:
        """Nothing is refused."""
        return ""

    def beat(self) -> None:
        """Nothing needs pruning."""

    # Trials.

    def _decide(self, effect: Decide) -> None:
        action = event_pb2.DecisionAction.Name(effect.decision.action).removeprefix("DECISION_ACTION_")
        before = self.journal.decided.setdefault(effect.report_sequence, action)
        if before != action:
            self.journal.contradictions.append(f"report {effect.report_sequence}: {before}, then {action}")
        waiting = self._undecided.pop(effect.report_sequence, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(effect.decision)

    async def _live(self, assign: worker_pb2.Assign) -> None:
        try:
            await self._train(assign)
        finally:
            released = worker_pb2.Exited(lease=assign.lease, outcome=worker_pb2.EXIT_OUTCOME_RELEASED)
            self._trials.pop(assign.lease.lease_id, None)
            await self._courier.post_exit(released)

    async def _train(self, assign: worker_pb2.Assign) -> None:
        step, milestone = assign.resume_step, assign.next_milestone
        while True:
            await asyncio.sleep(self._step_s())
            step += 1
            awaits = step >= milestone
            sequence = await self._report(assign, step, awaits)
            if not awaits:
                continue
            answer: asyncio.Future[event_pb2.Decision] = asyncio.get_running_loop().create_future()
            self._undecided[sequence] = answer
            decision = await answer
            if decision.action != event_pb2.DECISION_ACTION_CONTINUE:
                return
            milestone = decision.next_milestone

    async def _report(self, assign: worker_pb2.Assign, step: int, awaits: bool) -> int:
        value = score(assign.lease.trial, step)
        report = worker_pb2.Report(lease=assign.lease, step=step, metrics={assign.metric: value})
        report.checkpoint.uri = f"sim:///{assign.lease.trial}/{assign.lease.attempt}/{step}"
        report.checkpoint.step = step
        return await asyncio.shield(asyncio.create_task(self._post(report, value, awaits)))

    async def _post(self, report: worker_pb2.Report, value: float, awaits: bool) -> int:
        """Once started, it finishes and is recorded, even if the trial is killed meanwhile."""
        lease = report.lease
        request = worker_pb2.SessionRequest(report=report)
        sequence = await self._courier.post(lease, request, awaits_decision=awaits)
        self.journal.reports[sequence] = Said(lease.lease_id, sequence, report.step, value, time.monotonic())
        return sequence


class Fleet:
    """Many workers on one event loop; made in an `async with`."""

    def __init__(self, workers: Sequence[SimWorker]) -> None:
        self.workers = workers
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "Fleet":
        self._tasks = [asyncio.create_task(worker.run()) for worker in self.workers]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        results = await asyncio.gather(*self._tasks, return_exceptions=True)
        failures = [error for error in results if isinstance(error, Exception)]
        if failures:
            raise ExceptionGroup("workers of the fleet failed", failures)

    def note_stop(self) -> None:
        """Record that the study is about to be stopped: what was acknowledged until now must still be stored."""
        for journal in self.journals:
            journal.stopped_at, journal.fenced_before = time.monotonic(), frozenset(journal.fenced)

    @property
    def journals(self) -> list[Journal]:
        """The journal of each worker."""
        return [worker.journal for worker in self.workers]

    def served_again_after(self, moment: float) -> float | None:
        """Seconds from a monotonic `moment` to the first acknowledgement in a session opened after it."""
        found = []
        for journal in self.journals:
            opened = next((at for at in journal.welcomed if at > moment), None)
            if opened is not None:
                found += [at for at in journal.acked.values() if at > opened]
        return min(found) - moment if found else None
