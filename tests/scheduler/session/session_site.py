"""Scheduler replicas with the workers' service on loopback, and a scripted worker that speaks the protocol by hand."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
from sqlalchemy.ext.asyncio import AsyncEngine
from study_site import StudySite, make_spec

from headrace.protocol import SPOKEN
from headrace.v1 import event_pb2, worker_pb2
from headrace.v1.worker_pb2_grpc import WorkerServiceStub, add_WorkerServiceServicer_to_server
from headrace_services.scheduler.engine.hub import Hub
from headrace_services.scheduler.engine.log_reads import LogReads
from headrace_services.scheduler.rpc.interceptors import make_server_interceptors
from headrace_services.scheduler.session.heartbeats import Heartbeats
from headrace_services.scheduler.session.loads import Loads
from headrace_services.scheduler.session.registry import Registry
from headrace_services.scheduler.session.servicer import WorkerServicer
from headrace_services.scheduler.session.worker_session import Timing
from headrace_services.scheduler.store import log_reads

DEADLINE_S = 60.0
TIMING = Timing(heartbeat_s=0.05, lease_ttl_s=60)
"""A lease time so long that no scripted worker, which seldom sends heartbeats, expires on a busy machine."""
RUN_ALL = {"kind": "run_all"}


async def study(engine: AsyncEngine, **changes: object) -> StudySite:
    """Create a study of one trial, unless `changes` say otherwise."""
    return await StudySite(engine, make_spec(**{"policy": RUN_ALL, "max_trials": 1, **changes})).create()


class Replica:
    """One scheduler's workers' side."""

    def __init__(self, hub: Hub, registry: Registry, loads: Loads, address: str, logs: LogReads) -> None:
        self.hub = hub
        self.logs = logs
        self.loads = loads
        self.registry = registry
        self.address = address


@asynccontextmanager
async def serving(engine: AsyncEngine, timing: Timing, *, certified: bool = False) -> AsyncIterator[Replica]:
    """Run a replica until the block ends. With `certified`, a test sets the certificate that a call shows."""
    server = grpc.aio.server(interceptors=make_server_interceptors())
    ready: asyncio.Future[tuple[Hub, Heartbeats, Registry, LogReads]] = (
        asyncio.get_running_loop().create_future()
    )
    over = asyncio.Event()

    async def run() -> None:
        async with asyncio.TaskGroup() as tasks:
            hub, registry = Hub(engine, tasks), Registry(engine)
            heartbeats = Heartbeats(engine, timing.lease_ttl_s)
            hub.deliver_with(registry.deliver)
            logs = LogReads(engine, registry.find, tasks)
            registry.hear(log_reads.CHANNEL, logs.heard)
            background = [
                tasks.create_task(work)
                for work in (
                    hub.run_waking(),
                    heartbeats.run(),
                    registry.run_notifying(),
                    registry.run_listening(),
                )
            ]
            ready.set_result((hub, heartbeats, registry, logs))
            await over.wait()
            await hub.drain()
            for task in background:
                task.cancel()

    running = asyncio.create_task(run())
    hub, heartbeats, registry, logs = await ready
    loads = Loads(engine)
    servicer = WorkerServicer(hub, heartbeats, loads, registry, timing, certified=certified)
    add_WorkerServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield Replica(hub, registry, loads, f"127.0.0.1:{port}", logs)
    finally:
        await server.stop(0)
        over.set()
        await running


class ScriptedWorker:
    """Sends what a test tells it to and keeps what it receives."""

    def __init__(self, stub: WorkerServiceStub) -> None:
        self.call: Any = stub.Session()
        self.heard: list[worker_pb2.SessionResponse] = []
        self.error: grpc.RpcError | None = None
        self._new = asyncio.Condition()
        self._reader = asyncio.create_task(self._read())
        self.ended = asyncio.Event()

    async def _read(self) -> None:
        try:
            async for response in self.call:
                async with self._new:
                    self.heard.append(response)
                    self._new.notify_all()
        except grpc.RpcError as error:
            self.error = error
        finally:
            self.ended.set()

    async def say(self, **message: Any) -> None:
        """Send one message."""
        await self.call.write(worker_pb2.SessionRequest(**message))

    async def hello(
        self,
        incarnation: str = "1",
        slots: int = 1,
        held: tuple[event_pb2.LeaseRef, ...] = (),
        host: str = "",
        home: str = "",
        home_lock: str = "",
        name: str = "w",
        *,
        protocol: int = SPOKEN.newest,
    ) -> None:
        """Open the session, as worker `w` unless another name is given."""
        devices = [
            worker_pb2.Device(index=index, kind=worker_pb2.DEVICE_KIND_CPU, model="cpu")
            for index in range(slots)
        ]
        await self.say(
            hello=worker_pb2.Hello(
                worker=name,
                incarnation=incarnation,
                devices=devices,
                held=held,
                log_dir="/l",
                host=host,
                home=home,
                home_lock=home_lock,
                protocol=protocol,
            )
        )

    async def report(self, lease: event_pb2.LeaseRef, sequence: int, step: int, loss: float) -> None:
        """Report a loss."""
        await self.say(
            report=worker_pb2.Report(sequence=sequence, lease=lease, step=step, metrics={"loss": loss})
        )

    async def hears(self, kind: str, which: Callable[[Any], bool] = lambda _: True, count: int = 1) -> Any:
        """Wait for the `count`th message of a kind, and return it."""

        def found() -> list[Any]:
            messages = [message for response in self.heard for message in _said(response, kind)]
            return [message for message in messages if which(message)]

        async with asyncio.timeout(DEADLINE_S), self._new:
            await self._new.wait_for(lambda: len(found()) >= count)
        return found()[count - 1]

    async def hang_up(self) -> None:
        """Break the stream."""
        self.call.cancel()
        await self.ended.wait()


def _said(response: worker_pb2.SessionResponse, kind: str) -> Iterator[Any]:
    """The messages of one kind in a response. An acknowledgement attached to another message counts like a
    separate one."""
    if response.WhichOneof("message") == kind:
        yield getattr(response, kind)
    if kind == "ack" and response.acknowledged:
        yield worker_pb2.Ack(sequences=response.acknowledged)


@asynccontextmanager
async def worker(replica: Replica) -> AsyncIterator[ScriptedWorker]:
    """A scripted worker, connected and silent so far."""
    async with grpc.aio.insecure_channel(replica.address) as channel:
        scripted = ScriptedWorker(WorkerServiceStub(channel))
        try:
            yield scripted
        finally:
            await scripted.hang_up()
