"""A worker with one slot that plays one trial after the other on a session, as long as requested.

Unlike `simulated_worker`, which is a fleet under load, this one measures whole cycles: a trial is assigned,
reports three times and waits for each decision, ends, and receives the acknowledgement of its end.
"""

import asyncio
import time
from collections.abc import Sequence

import grpc

from headrace.v1 import event_pb2, worker_pb2
from headrace.v1.worker_pb2_grpc import WorkerServiceStub

BEAT_EVERY_S = 3.0


class OneSlot:
    """One stream, on an event loop of its own that runs only within `cycle`."""

    def __init__(self, name: str, address: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._sequence = 0
        self._lease: event_pb2.LeaseRef | None = None
        self._next: worker_pb2.SessionResponse | None = None
        self._loop.run_until_complete(self._open(name, address))

    async def _open(self, name: str, address: str) -> None:
        self._call = WorkerServiceStub(grpc.aio.insecure_channel(address)).Session()
        device = worker_pb2.Device(index=0, kind=worker_pb2.DEVICE_KIND_CPU, model="simulated")
        hello = worker_pb2.Hello(
            protocol=1, worker=name, incarnation="1", devices=[device], log_dir="/simulated"
        )
        await self._call.write(worker_pb2.SessionRequest(hello=hello))
        await self._beat()

    def cycle(self, steps: Sequence[int], loss: float, params: int) -> None:
        """One trial, from its assignment to the acknowledgement of its end."""
        self._loop.run_until_complete(self._cycle(steps, loss, params))

    async def _cycle(self, steps: Sequence[int], loss: float, params: int) -> None:
        if time.monotonic() >= self._beat_at:
            await self._beat()
        assign = (await self._until("assign")).assign
        assert len(assign.parameters.values) == params
        self._lease = assign.lease
        for step in steps:
            self._sequence += 1
            report = worker_pb2.Report(
                sequence=self._sequence, lease=assign.lease, step=step, metrics={assign.metric: loss}
            )
            await self._call.write(worker_pb2.SessionRequest(report=report))
            decided = (await self._until("decision")).decision
            assert decided.report_sequence == self._sequence
            assert decided.decision.action == event_pb2.DECISION_ACTION_CONTINUE
        self._sequence += 1
        exited = worker_pb2.Exited(
            sequence=self._sequence, lease=assign.lease, outcome=worker_pb2.EXIT_OUTCOME_FINISHED
        )
        await self._call.write(worker_pb2.SessionRequest(exited=exited))
        await self._until_acknowledged(self._sequence)
        self._lease = None

    async def _beat(self) -> None:
        held = [self._lease] if self._lease else []
        await self._call.write(worker_pb2.SessionRequest(heartbeat=worker_pb2.Heartbeat(held=held)))
        self._beat_at = time.monotonic() + BEAT_EVERY_S

    async def _until(self, kind: str) -> worker_pb2.SessionResponse:
        """The next message of a kind. An assignment that arrives before it is kept; it may arrive with the last
        answer."""
        if kind == "assign" and self._next is not None:
            message, self._next = self._next, None
            return message
        while (message := await self._read()).WhichOneof("message") != kind:
            pass
        if kind == "assign":
            self._next = None
        return message

    async def _until_acknowledged(self, sequence: int) -> None:
        while sequence not in (*(message := await self._read()).acknowledged, *message.ack.sequences):
            pass

    async def _read(self) -> worker_pb2.SessionResponse:
        message = await self._call.read()
        if not isinstance(message, worker_pb2.SessionResponse):
            raise ConnectionError("the scheduler ended the session")
        if message.HasField("assign"):
            self._next = message
        return message
