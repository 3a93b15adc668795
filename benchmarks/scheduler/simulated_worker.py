"""A worker daemon without processes: it speaks the real session protocol and makes up its trials' reports.

Its trials behave like real ones: below a milestone a report is sent and the trial continues, at a milestone it
waits for the decision. They train in no time at all, so the scheduler is what limits them.
"""

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import grpc

from headrace.v1 import event_pb2, worker_pb2
from headrace.v1.worker_pb2_grpc import WorkerServiceStub

HEARTBEAT_S = 3.0


@dataclass(slots=True)
class Figures:
    """What the simulated workers measured."""

    committed: int = 0
    """Reports that were acknowledged."""
    trials: int = 0
    """How many trials were started, as far as their numbers show."""
    decision_s: list[float] = field(default_factory=list)
    """From sending a report at a milestone to receiving the decision, with all workers active."""
    quiet_s: list[float] = field(default_factory=list)
    """The same for every report, with a single active trial."""


@dataclass(slots=True)
class Crowd:
    """All simulated workers. While they are silenced, only the soloist sends reports, and waits for each answer."""

    figures: Figures = field(default_factory=Figures)
    soloist: str = ""
    loud: asyncio.Event = field(default_factory=asyncio.Event)

    def hush(self, soloist: str) -> None:
        """Let only one worker continue."""
        self.soloist = soloist
        self.loud.clear()

    def go_on(self) -> None:
        """Let all workers continue."""
        self.soloist = ""
        self.loud.set()


def loss(trial: str, step: int) -> float:
    """A falling curve whose floor depends only on the trial."""
    floor = (hash_of(trial) % 1000) / 1000
    return floor + math.exp(-step / 3)


def hash_of(text: str) -> int:
    """A hash that is the same in every process."""
    value = 0
    for byte in text.encode():
        value = (value * 131 + byte) % 1_000_003
    return value


class SimulatedWorker:
    """One stream with several slots."""

    kind = worker_pb2.DEVICE_KIND_CPU
    credentials: grpc.ChannelCredentials | None = None

    def __init__(self, name: str, slots: int, crowd: Crowd, over: Callable[[], bool]) -> None:
        self.name = name
        self._slots = slots
        self._crowd = crowd
        self._figures = crowd.figures
        self._over = over
        self._sequence = 0
        self._held: dict[str, event_pb2.LeaseRef] = {}
        self._waiting: dict[int, asyncio.Future[event_pb2.Decision]] = {}
        self._outgoing: asyncio.Queue[worker_pb2.SessionRequest] = asyncio.Queue()

    async def run(self, address: str) -> None:
        """Serve until told that the study is over."""
        async with self._channel(address) as channel:
            call = WorkerServiceStub(channel).Session()
            devices = [
                worker_pb2.Device(index=index, kind=self.kind, model="simulated")
                for index in range(self._slots)
            ]
            hello = worker_pb2.Hello(
                protocol=1, worker=self.name, incarnation="1", devices=devices, log_dir="/simulated"
            )
            self._say(hello=hello)
            tasks: set[asyncio.Task[None]] = set()
            for work in (self._write(call), self._beat()):
                tasks.add(asyncio.create_task(work))
            try:
                async for response in call:
                    self._receive(response, tasks)
                    if self._over():
                        break
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                call.cancel()

    def _channel(self, address: str) -> grpc.aio.Channel:
        options = [("grpc.use_local_subchannel_pool", 1)]
        if self.credentials is None:
            return grpc.aio.insecure_channel(address, options=options)
        return grpc.aio.secure_channel(address, self.credentials, options=options)

    def _say(self, **message: object) -> None:
        self._outgoing.put_nowait(worker_pb2.SessionRequest(**message))  # type: ignore[arg-type]  # one of the oneof

    async def _write(self, call: grpc.aio.StreamStreamCall) -> None:
        while True:
            await call.write(await self._outgoing.get())

    async def _beat(self) -> None:
        while True:
            self._say(heartbeat=worker_pb2.Heartbeat(held=list(self._held.values())))
            await asyncio.sleep(HEARTBEAT_S)

    def _receive(self, response: worker_pb2.SessionResponse, tasks: set[asyncio.Task[None]]) -> None:
        self._figures.committed += len(response.acknowledged)
        match response.WhichOneof("message"):
            case "assign":
                lease = response.assign.lease
                if lease.lease_id not in self._held:
                    self._held[lease.lease_id] = lease
                    self._figures.trials = max(self._figures.trials, int(lease.trial.rpartition("/")[2]) + 1)
                    task = asyncio.create_task(self._trial(response.assign))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
            case "decision":
                self._decided(response.decision)
            case "decisions":
                for decision in response.decisions.decisions:
                    self._decided(decision)
            case "ack":
                self._figures.committed += len(response.ack.sequences)
            case "cancel":
                self._held.pop(response.cancel.lease.lease_id, None)
            case _:
                pass

    def _decided(self, said: worker_pb2.LeaseDecision) -> None:
        waiting = self._waiting.pop(said.report_sequence, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(said.decision)

    async def _trial(self, assign: worker_pb2.Assign) -> None:
        step, milestone = assign.resume_step, assign.next_milestone
        while True:
            step += 1
            solo = self._crowd.soloist == self.name
            if not solo:
                await self._crowd.loud.wait()
            answer = self._report(assign, step)
            if step < milestone and not solo:
                continue
            began = time.monotonic()
            decision = await answer
            taken = time.monotonic() - began
            (self._figures.quiet_s if solo else self._figures.decision_s).append(taken)
            if decision.action != event_pb2.DECISION_ACTION_CONTINUE:
                self._held.pop(assign.lease.lease_id, None)
                return
            milestone = decision.next_milestone

    def _report(self, assign: worker_pb2.Assign, step: int) -> "asyncio.Future[event_pb2.Decision]":
        self._sequence += 1
        report = worker_pb2.Report(
            sequence=self._sequence,
            lease=assign.lease,
            step=step,
            metrics={assign.metric: loss(assign.lease.trial, step)},
        )
        report.checkpoint.uri, report.checkpoint.step = f"sim:///{assign.lease.trial}/{step}", step
        answer: asyncio.Future[event_pb2.Decision] = asyncio.get_running_loop().create_future()
        self._waiting[self._sequence] = answer
        self._say(report=report)
        return answer
