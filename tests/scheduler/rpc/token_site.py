"""A scheduler that requires tokens, in this process."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2
from sqlalchemy.ext.asyncio import AsyncEngine

from headrace.error_status import from_rpc_error
from headrace.errors import HeadraceError
from headrace.v1 import (
    code_pb2,
    code_pb2_grpc,
    identity_pb2_grpc,
    study_pb2,
    study_pb2_grpc,
    worker_pb2,
    worker_pb2_grpc,
)
from headrace.v1 import identity_pb2 as pb
from headrace.v1.identity_pb2_grpc import IdentityServiceStub
from headrace_services import reflecting
from headrace_services.identity.gate import Gate
from headrace_services.identity.known import KnownTokens
from headrace_services.identity.roles import Role
from headrace_services.scheduler.analysis import AnalysisPools
from headrace_services.scheduler.engine.hub import Hub
from headrace_services.scheduler.rpc.code_service import CodeServicer
from headrace_services.scheduler.rpc.identity_service import IdentityServicer, make
from headrace_services.scheduler.rpc.interceptors import make_server_interceptors
from headrace_services.scheduler.rpc.study_service import StudyServicer
from headrace_services.scheduler.session.heartbeats import Heartbeats
from headrace_services.scheduler.session.loads import Loads
from headrace_services.scheduler.session.registry import Registry
from headrace_services.scheduler.session.servicer import WorkerServicer
from headrace_services.scheduler.session.worker_session import Timing
from headrace_services.scheduler.store.tokens import TokenRows
from headrace_services.serving.admission import AdmissionInterceptor
from headrace_services.serving.health import Health

SERVED = [
    method
    for module in (study_pb2, worker_pb2, code_pb2, pb, health_pb2, reflection_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]
NUMBERS = {role: pb.Role.Value(f"ROLE_{role.name}") for role in Role}


def path(method: MethodDescriptor) -> str:
    """The path of a method in a call."""
    return f"/{method.containing_service.full_name}/{method.name}"


@dataclass(kw_only=True)
class Site:
    """A scheduler on loopback that requires tokens, as other machines would reach it."""

    engine: AsyncEngine
    channel: grpc.aio.Channel
    address: str
    clock_s: float = 0.0
    """Added to the clock of the token cache."""
    secrets: dict[Role, str] = field(default_factory=dict)

    async def token(self, role: Role, project: str = "default", lifetime_s: float | None = None) -> str:
        """A new token's text."""
        made, _ = await make(self.engine, name="n", project=project, role=role, lifetime_s=lifetime_s)
        return made.text

    def calling(self, method: MethodDescriptor) -> Any:
        """Return the callable for a method."""
        kinds = {
            (False, False): self.channel.unary_unary,
            (False, True): self.channel.unary_stream,
            (True, False): self.channel.stream_unary,
            (True, True): self.channel.stream_stream,
        }
        read = GetMessageClass(method.output_type).FromString
        make_call = kinds[method.client_streaming, method.server_streaming]
        return make_call(path(method), GetMessageClass(method.input_type).SerializeToString, read)

    async def status(self, method: MethodDescriptor, text: str | None) -> grpc.StatusCode:
        """The status of a call with an empty request and a token."""
        metadata = (("authorization", f"Bearer {text}"),) if text is not None else ()
        request = GetMessageClass(method.input_type)()
        call = self.calling(method)(
            iter([request]) if method.client_streaming else request, timeout=60, metadata=metadata
        )
        try:
            if method.server_streaming:
                await call.read()
            else:
                await call
        except grpc.aio.AioRpcError as error:
            if error.details() == "Internal error from Core":  # the status was lost during a write
                return await self.status(method, text)
            return error.code()
        if not method.server_streaming or call.done():
            return await call.code()
        call.cancel()
        return grpc.StatusCode.OK

    async def call(self, name: str, request: Any, text: str) -> Any:
        """A call about tokens; raises the HeadraceError that the client would see."""
        try:
            call = getattr(IdentityServiceStub(self.channel), name)
            return await call(request, timeout=60, metadata=(("authorization", f"Bearer {text}"),))
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error

    async def refusal(self, name: str, request: Any, text: str) -> HeadraceError:
        """The error with which such a call is refused."""
        try:
            answer = await self.call(name, request, text)
        except HeadraceError as error:
            return error
        raise AssertionError(f"{name} was not refused: {answer}")


@asynccontextmanager
async def guarded(engine: AsyncEngine, asked_again_s: float = 60.0) -> AsyncIterator[Site]:
    """The scheduler. It checks the tokens of open streams again every `asked_again_s` seconds."""
    clock = asyncio.get_running_loop().time
    site: Site
    known = KnownTokens(TokenRows(engine), lambda: clock() + site.clock_s)
    admission = AdmissionInterceptor(Gate(known), asked_again_s=asked_again_s)
    server = grpc.aio.server(interceptors=make_server_interceptors(admission))
    port = server.add_insecure_port("127.0.0.1:0")
    async with (
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
        asyncio.TaskGroup() as tasks,
    ):
        site = Site(engine=engine, channel=channel, address=f"127.0.0.1:{port}")
        hub, analysis = Hub(engine, tasks), AnalysisPools()
        workers = WorkerServicer(hub, Heartbeats(engine, 15), Loads(engine), Registry(engine), Timing())
        study_pb2_grpc.add_StudyServiceServicer_to_server(StudyServicer(hub, analysis), server)
        worker_pb2_grpc.add_WorkerServiceServicer_to_server(workers, server)
        identity_pb2_grpc.add_IdentityServiceServicer_to_server(IdentityServicer(engine), server)
        health_pb2_grpc.add_HealthServicer_to_server(Health(), server)
        code_pb2_grpc.add_CodeServiceServicer_to_server(CodeServicer(engine), server)
        reflecting.enable([], server)
        await server.start()
        yield site
        await server.stop(0)
        await hub.drain()
        await analysis.close()
