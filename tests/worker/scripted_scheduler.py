"""A scheduler that does what a test says: a real gRPC server without a database."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import grpc

from headrace.v1 import event_pb2, worker_pb2, worker_pb2_grpc

DEADLINE_S = 60.0


async def until(
    condition: Callable[[], Any], what: str = "the condition", deadline_s: float = DEADLINE_S
) -> Any:
    """Polls until the condition is true; returns its value."""
    async with asyncio.timeout(deadline_s):
        while not (value := condition()):
            await asyncio.sleep(0.01)
    assert value, what
    return value


@dataclass
class Stream:
    """One session from the scheduler's side."""

    hello: worker_pb2.Hello
    context: Any
    received: list[worker_pb2.SessionRequest] = field(default_factory=list)
    outgoing: asyncio.Queue[worker_pb2.SessionResponse | None] = field(
        default_factory=lambda: asyncio.Queue(100_000)
    )
    over: asyncio.Event = field(default_factory=asyncio.Event)
    # How many reports each message with several of them had.
    batches: list[int] = field(default_factory=list)

    def send(self, **message: Any) -> None:
        self.outgoing.put_nowait(worker_pb2.SessionResponse(**message))

    def close(self) -> None:
        self.outgoing.put_nowait(None)

    def all(self, kind: str) -> list[Any]:
        return [getattr(m, kind) for m in self.received if m.WhichOneof("message") == kind]

    def durable(self) -> list[Any]:
        kinds = [(m, m.WhichOneof("message")) for m in self.received]
        return [getattr(m, kind) for m, kind in kinds if kind in {"report", "restored", "exited"}]

    async def get(self, kind: str, count: int = 1) -> Any:
        """Wait for the count-th message of a kind."""
        await until(lambda: len(self.all(kind)) >= count, f"{count} × {kind}")
        return self.all(kind)[count - 1]

    def welcome(
        self,
        held: Iterable[event_pb2.LeaseRef] | None = None,
        interval_s: float = 0.2,
        *,
        store: worker_pb2.StoreOrder | None = None,
    ) -> None:
        welcome = worker_pb2.Welcome(
            protocol=1,
            held=self.hello.held if held is None else held,
            scheduler="scripted",
            store=store,
        )
        welcome.heartbeat_interval.FromMilliseconds(int(interval_s * 1000))
        welcome.lease_ttl.FromSeconds(15)
        self.send(welcome=welcome)

    def decide(
        self,
        report: worker_pb2.Report,
        action: event_pb2.DecisionAction.ValueType,
        next_milestone: int = 0,
        pinned: Iterable[str] = (),
    ) -> None:
        decision = event_pb2.Decision(action=action, next_milestone=next_milestone, pinned=pinned)
        self.send(
            decision=worker_pb2.LeaseDecision(
                lease=report.lease, report_sequence=report.sequence, decision=decision
            )
        )


class ScriptedScheduler(worker_pb2_grpc.WorkerServiceServicer):
    """Collects sessions. Welcomes and acknowledges by itself unless told not to."""

    def __init__(self) -> None:
        self.streams: list[Stream] = []
        self.welcomes = True
        self.acks = True
        self.store = worker_pb2.StoreOrder(id="5c41f7ed5c41f7ed", set_up=True)
        self.interval_s = 0.2
        self.address = ""
        self._server: grpc.aio.Server | None = None

    async def start(self, address: str = "127.0.0.1:0") -> None:
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        worker_pb2_grpc.add_WorkerServiceServicer_to_server(self, self._server)
        port = self._server.add_insecure_port(address)
        self.address = f"127.0.0.1:{port}"
        await self._server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(grace=None)
            self._server = None

    async def stream(self, number: int = 1) -> Stream:
        """Wait for the number-th session."""
        await until(lambda: len(self.streams) >= number, f"session {number}")
        return self.streams[number - 1]

    async def Session(self, request_iterator: Any, context: Any) -> None:  # noqa: ARG002 - the protocol's
        first = await context.read()
        stream = Stream(first.hello, context)
        self.streams.append(stream)
        if self.welcomes:
            stream.welcome(interval_s=self.interval_s, store=self.store)
        reader = asyncio.create_task(self._read(stream, context))
        try:
            while (response := await stream.outgoing.get()) is not None:
                await context.write(response)
        finally:
            reader.cancel()
            stream.over.set()

    async def _read(self, stream: Stream, context: Any) -> None:
        while (request := await context.read()) is not grpc.aio.EOF:
            if request.WhichOneof("message") == "reports":
                reports = request.reports.reports
                stream.batches.append(len(reports))
                said = [worker_pb2.SessionRequest(report=report) for report in reports]
            else:
                said = [request]
            stream.received += said
            durable = [one for one in said if one.WhichOneof("message") in {"report", "restored", "exited"}]
            for one in said:
                if one.WhichOneof("message") == "heartbeat":
                    stream.send(ack=worker_pb2.Ack(heartbeat=one.heartbeat.sequence))
            if self.acks and durable:
                sequences = [getattr(one, one.WhichOneof("message")).sequence for one in durable]
                stream.send(ack=worker_pb2.Ack(sequences=sequences))
        stream.close()
