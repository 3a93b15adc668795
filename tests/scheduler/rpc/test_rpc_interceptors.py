"""Errors at the edge: the right status with its details, no internals of a defect, and no call that never ends."""
# ruff: noqa: ARG002  (every method takes the context)

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc
from rpc_site import Replica, serving
from sqlalchemy.ext.asyncio import create_async_engine

from headrace import errors
from headrace.error_status import from_rpc_error
from headrace.v1 import study_pb2 as pb
from headrace_services.scheduler.analysis.pools import FRONTS, IMPORTANCES, PREVIEWS
from headrace_services.scheduler.engine.log_reads import PATIENCE_S
from headrace_services.scheduler.rpc import caller, interceptors
from headrace_services.scheduler.rpc.ask_tell_calls import LONGEST_WAIT_S
from headrace_services.scheduler.rpc.log_calls import OTHERS
from headrace_services.scheduler.store.database import open_engine
from headrace_services.serving.health import Health

Behaviour = Callable[[bytes], Awaitable[None]]
KINDS = ["unary", "upload", "yielding", "writing", "bidi_yielding", "bidi_writing"]
SECRET = "postgresql://user:secret@db"


class Probe:
    """A server whose methods run `behaviour`, answer "ok" and record how they ended."""

    def __init__(self) -> None:
        self.behaviour: Behaviour = self.nothing
        self.callers: list[caller.Caller] = []
        self.closed: list[str] = []

    async def nothing(self, request: bytes) -> None:
        """Succeed."""

    async def unary(self, request: bytes, context: Any) -> bytes:
        self.callers.append(caller.caller())
        try:
            await self.behaviour(request)
        finally:
            self.closed.append("unary")
        return b"ok"

    async def upload(self, requests: AsyncIterator[bytes], context: Any) -> bytes:
        self.callers.append(caller.caller())
        try:
            async for request in requests:
                await self.behaviour(request)
        finally:
            self.closed.append("upload")
        return b"ok"

    async def yielding(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        self.callers.append(caller.caller())
        try:
            yield b"ok"
            await self.behaviour(request)
        finally:
            self.closed.append("yielding")

    async def writing(self, request: bytes, context: Any) -> None:
        self.callers.append(caller.caller())
        try:
            await context.write(b"ok")
            await self.behaviour(request)
        finally:
            self.closed.append("writing")

    async def bidi_yielding(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        self.callers.append(caller.caller())
        try:
            async for request in requests:
                yield b"ok"
                await self.behaviour(request)
        finally:
            self.closed.append("bidi_yielding")

    async def bidi_writing(self, requests: AsyncIterator[bytes], context: Any) -> None:
        self.callers.append(caller.caller())
        try:
            async for request in requests:
                await context.write(b"ok")
                await self.behaviour(request)
        finally:
            self.closed.append("bidi_writing")

    def handlers(self) -> grpc.GenericRpcHandler:
        return grpc.method_handlers_generic_handler(
            "probe",
            {
                "unary": grpc.unary_unary_rpc_method_handler(self.unary),
                "upload": grpc.stream_unary_rpc_method_handler(self.upload),
                "yielding": grpc.unary_stream_rpc_method_handler(self.yielding),
                "writing": grpc.unary_stream_rpc_method_handler(self.writing),
                "bidi_yielding": grpc.stream_stream_rpc_method_handler(self.bidi_yielding),
                "bidi_writing": grpc.stream_stream_rpc_method_handler(self.bidi_writing),
            },
        )


class Client:
    """Calls the probe."""

    def __init__(self, channel: grpc.aio.Channel, probe: Probe) -> None:
        self.channel = channel
        self.probe = probe

    def start(self, kind: str, timeout_s: float | None = 10.0) -> Any:
        if kind == "unary":
            return self.channel.unary_unary("/probe/unary")(b"hello", timeout=timeout_s)

        async def requests() -> AsyncIterator[bytes]:
            yield b"hello"

        if kind == "upload":
            return self.channel.stream_unary("/probe/upload")(requests(), timeout=timeout_s)
        if kind.startswith("bidi"):
            return self.channel.stream_stream(f"/probe/{kind}")(requests(), timeout=timeout_s)
        return self.channel.unary_stream(f"/probe/{kind}")(b"hello", timeout=timeout_s)

    async def call(self, kind: str, timeout_s: float | None = 10.0) -> list[bytes]:
        """Return the responses; raises the HeadraceError that the client would see."""
        try:
            call = self.start(kind, timeout_s)
            return [await call] if kind in ("unary", "upload") else [response async for response in call]
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error


@asynccontextmanager
async def probing(deadline_s: float = 60.0) -> AsyncIterator[Client]:
    probe = Probe()
    server = grpc.aio.server(interceptors=interceptors.make_server_interceptors(deadline_s=deadline_s))
    server.add_generic_rpc_handlers([probe.handlers()])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield Client(channel, probe)
    await server.stop(0)


@pytest_asyncio.fixture
async def client() -> AsyncIterator[Client]:
    async with AsyncExitStack() as stack:
        yield await stack.enter_async_context(probing())


def raising(error: BaseException) -> Behaviour:
    async def behave(request: bytes) -> None:
        raise error

    return behave


@pytest.mark.parametrize("kind", KINDS)
async def test_good_calls_pass_and_know_their_caller(client: Client, kind: str) -> None:
    assert await client.call(kind) == [b"ok"]
    assert client.probe.callers[0].peer.startswith("ipv4:127.0.0.1:")
    with pytest.raises(LookupError):
        caller.caller()


@pytest.mark.parametrize("kind", KINDS)
async def test_every_error_of_the_catalogue_arrives_as_itself(client: Client, kind: str) -> None:
    for entry in errors.CATALOGUE:
        if entry.reason is None or entry.error is errors.InternalError:
            continue
        error = (
            errors.InvalidFieldError(
                [errors.Violation(field="a.b", value="7", message="is odd", remedy="Fix it.")]
            )
            if entry.error is errors.InvalidFieldError
            else entry.error(f"what happened in {kind}")
        )
        client.probe.behaviour = raising(error)
        with pytest.raises(entry.error) as raised:
            await client.call(kind)
        assert raised.value.remedy == error.remedy
        if isinstance(error, errors.InvalidFieldError):
            assert raised.value.violations == error.violations
        else:
            assert raised.value.message == error.message


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "defect",
    [ValueError(f"cannot use {SECRET}"), errors.InternalError(f"KeyError: {SECRET}"), KeyError(SECRET)],
)
async def test_a_defect_is_logged_and_not_told(
    client: Client, kind: str, defect: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    client.probe.behaviour = raising(defect)
    with caplog.at_level(logging.ERROR), pytest.raises(errors.InternalError) as raised:
        await client.call(kind)
    assert SECRET not in str(raised.value)
    assert "log" in raised.value.remedy
    (record,) = [record for record in caplog.records if record.name == interceptors.__name__]
    assert kind in record.getMessage()
    assert record.exc_info is not None
    assert record.exc_info[1] is defect


@pytest.mark.parametrize("kind", ["unary", "upload"])
@pytest.mark.parametrize("timeout_s", [None, 3600.0])
async def test_no_callers_deadline_lengthens_the_servers(kind: str, timeout_s: float | None) -> None:
    async with probing(deadline_s=0.1) as client:
        client.probe.behaviour = lambda _: asyncio.Event().wait()
        with pytest.raises(errors.DeadlineError, match=r"took longer than 0\.1 s"):
            await client.call(kind, timeout_s=timeout_s)
        assert client.probe.closed == [kind]


async def test_a_callers_shorter_deadline_counts() -> None:
    async with probing(deadline_s=3600) as client:
        client.probe.behaviour = lambda _: asyncio.Event().wait()
        with pytest.raises(errors.DeadlineError):
            await client.call("unary", timeout_s=0.3)


def test_what_waits_within_a_call_waits_less_than_the_call_may_take() -> None:
    waits = {
        "a proposal": LONGEST_WAIT_S,
        "a preview": PREVIEWS.wait_s + PREVIEWS.time_s,
        "an importance": IMPORTANCES.wait_s + IMPORTANCES.time_s,
        "a front": FRONTS.wait_s + FRONTS.time_s,
        "a worker's log": PATIENCE_S * (OTHERS + 1),
    }
    assert [what for what, longest_s in waits.items() if longest_s + 5 > interceptors.DEADLINE_S] == []


@pytest.mark.parametrize("kind", KINDS)
async def test_a_client_that_goes_away_ends_the_method_at_once(client: Client, kind: str) -> None:
    started = asyncio.Event()

    async def behave(request: bytes) -> None:
        started.set()
        await asyncio.Event().wait()

    client.probe.behaviour = behave
    call = client.start(kind)
    async with asyncio.timeout(60):
        await started.wait()
        call.cancel()
        while client.probe.closed != [kind]:
            await asyncio.sleep(0.01)


async def test_a_database_that_is_away_says_so() -> None:
    engine = open_engine("postgresql://nobody@127.0.0.1:1/none")
    try:
        async with serving(engine) as replica:
            for method, request in (
                ("GetStudy", pb.GetStudyRequest(name="studies/s")),
                ("ListWorkers", pb.ListWorkersRequest()),
                ("PauseStudy", pb.PauseStudyRequest(name="studies/s", request_id="r")),
            ):
                error = await replica.refusal(method, request)
                assert isinstance(error, errors.DatabaseUnavailableError), method
                assert error.retryable
            with pytest.raises(errors.DatabaseUnavailableError):
                await watch(replica)
    finally:
        await engine.dispose()


async def test_database_errors_that_reach_the_edge_are_known(client: Client) -> None:
    engine = create_async_engine("postgresql+psycopg://nobody@127.0.0.1:1/none")

    async def behave(request: bytes) -> None:
        async with engine.connect():
            pass

    client.probe.behaviour = behave
    with pytest.raises(errors.DatabaseUnavailableError):
        await client.call("unary")
    await engine.dispose()


async def watch(replica: Replica) -> None:
    async for _ in replica.watch(pb.WatchStudyRequest(name="studies/s")):
        raise AssertionError("nothing can be known")


async def test_health_and_reflection_pass_the_edge() -> None:
    server = grpc.aio.server(interceptors=interceptors.make_server_interceptors())
    servicer = Health()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    reflection.enable_server_reflection([pb.DESCRIPTOR.services_by_name["StudyService"].full_name], server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        client = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest()
        assert (await client.Check(request, timeout=10)).status == health_pb2.HealthCheckResponse.SERVING
        watching = client.Watch(request, timeout=10)
        assert (await watching.read()).status == health_pb2.HealthCheckResponse.SERVING
        servicer.leave()
        assert (await watching.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        watching.cancel()
        listing = reflection_pb2.ServerReflectionRequest(list_services="")
        reflected = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(
            iter([listing]), timeout=10
        )
        answers = [answer async for answer in reflected]
        assert [service.name for service in answers[0].list_services_response.service] == [
            "headrace.v1.StudyService"
        ]
    await server.stop(0)
