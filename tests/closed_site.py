"""A closed service: a scheduler with tokens, TLS, an authority and a listener for workers; a planner; a bubble
agent.

It runs in this process, or as the commands that people start (`closed_processes.py`). Calls go over TLS, each as
one of the callers on the permissions page.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from served import METHODS
from sqlalchemy.ext.asyncio import AsyncEngine

from headrace.spiffe import WORKERS_HOST
from headrace.v1 import join_pb2
from headrace_services.bubble_agent.agent import Agent
from headrace_services.bubble_agent.certificate import WorkerCertificate
from headrace_services.bubble_agent.process import port_server, socket_server
from headrace_services.bubble_agent.servicer import BubbleServicer
from headrace_services.identity import authority
from headrace_services.identity.authority import Authority
from headrace_services.identity.callers import CALLERS, Caller, Project
from headrace_services.identity.gate import Gate
from headrace_services.identity.roles import Auth, Role
from headrace_services.identity.tokens import new_token
from headrace_services.planner.service.pool import Pool
from headrace_services.planner.service.server import make_server
from headrace_services.planner.service.whose import SchedulersTokens
from headrace_services.scheduler import process
from headrace_services.scheduler.listeners import encrypted
from headrace_services.scheduler.rpc.identity_service import make
from headrace_services.scheduler.store import tokens
from headrace_services.scheduler.store.database import transaction
from headrace_services.serving.health import Health
from headrace_worker import credential

LIMIT_S = 60.0
NAMES = {Project.THIS: "this", Project.OTHER: "other", Project.DEFAULT: "default"}
WORKER = "w1"
LOST = "Internal error from Core"
"""What gRPC's asynchronous client reports for a call that was refused while it wrote: the status is lost."""
TRIES = 20
CALLER = {one.heading: one for one in CALLERS}


@dataclass(frozen=True, kw_only=True)
class Addresses:
    """Where the servers are, and what signs their certificates."""

    users: str
    workers: str
    planner: str
    agent: str
    """The agent's port for other agents."""
    agent_socket: str


@dataclass(frozen=True, kw_only=True)
class Held:
    """A worker's certificate."""

    key: bytes
    certificate: bytes


@dataclass(kw_only=True)
class ClosedSite:
    """The service, and all its callers."""

    addresses: Addresses
    trusted: bytes
    worker: Held
    tokens: Mapping[str, str]
    """By the caller's heading; callers without a token have none."""
    pids: Mapping[str, int]
    """The processes' ids, by their commands."""
    _channels: dict[tuple[str, bool], grpc.aio.Channel] = field(default_factory=dict)

    def channel(self, server: str, *, certificate: bool) -> grpc.aio.Channel:
        """A channel to a server, named by its field in the addresses."""
        key = server, certificate
        if key not in self._channels:
            self._channels[key] = self._connected(getattr(self.addresses, server), certificate=certificate)
        return self._channels[key]

    def _connected(self, address: str, *, certificate: bool) -> grpc.aio.Channel:
        if address.startswith("unix:"):
            return grpc.aio.insecure_channel(address)
        pair = (self.worker.key, self.worker.certificate) if certificate else (None, None)
        options = [("grpc.use_local_subchannel_pool", 1)]
        if address == self.addresses.agent:
            options.append(("grpc.ssl_target_name_override", WORKERS_HOST))
        return grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(self.trusted, *pair), options)

    def open(self, path: str, caller: Caller, server: str, request: Message) -> Any:
        """Starts a call. On a stream of requests nothing is sent yet."""
        method = METHODS[path]
        channel = self.channel(server, certificate="certificate" in caller.heading)
        kinds = {
            (False, False): channel.unary_unary,
            (False, True): channel.unary_stream,
            (True, False): channel.stream_unary,
            (True, True): channel.stream_stream,
        }
        begin = kinds[method.client_streaming, method.server_streaming](
            path, _encoded, GetMessageClass(method.output_type).FromString
        )
        text = self.tokens.get(caller.heading)
        metadata = () if text is None else (("authorization", f"Bearer {text}"),)
        given = () if method.client_streaming else (request,)
        return begin(*given, timeout=LIMIT_S, metadata=metadata)

    async def call(
        self, path: str, caller: Caller, server: str, request: Message
    ) -> tuple[grpc.StatusCode, Message | None]:
        """The status of a call, and its answer. Of a stream, the first answer; then it is closed."""
        for _ in range(TRIES):
            code, answer, details = await self._called(path, caller, server, request)
            if not details.startswith(LOST):
                break
        return code, answer

    async def _called(
        self, path: str, caller: Caller, server: str, request: Message
    ) -> tuple[grpc.StatusCode, Message | None, str]:
        call = self.open(path, caller, server, request)
        try:
            if METHODS[path].client_streaming:
                with suppress(asyncio.InvalidStateError):  # the call has ended: its status says why
                    await call.write(request)
                    if not METHODS[path].server_streaming:
                        await call.done_writing()
            if not METHODS[path].server_streaming:
                return grpc.StatusCode.OK, await call, ""
            answer = await call.read()
            if answer is not grpc.aio.EOF:
                return grpc.StatusCode.OK, answer, ""
            return await call.code(), None, await call.details()
        except grpc.aio.AioRpcError as error:
            return error.code(), None, error.details() or ""
        finally:
            call.cancel()

    async def must(self, path: str, heading: str, request: Message, server: str = "users") -> Any:
        """The answer to a call that must succeed."""
        code, answer = await self.call(path, CALLER[heading], server, request)
        assert code is grpc.StatusCode.OK, (path, heading, code)
        return answer


async def tokens_of_callers(engine: AsyncEngine) -> dict[str, str]:
    """A token for each caller that has one, made in the database."""
    made = {}
    for caller in CALLERS:
        if caller.role is not None:
            made[caller.heading] = await _token(engine, caller.role, NAMES[caller.project])
    made["wrong token"] = new_token().text
    made["revoked token"] = await _token(engine, Role.ADMIN, "default")
    async with transaction(engine) as conn:
        await tokens.revoke(conn, made["revoked token"].split("_")[1])
    return made


async def _token(engine: AsyncEngine, role: Role, project: str) -> str:
    made, _ = await make(
        engine, name=f"{role.value} of {project}", project=project, role=role, lifetime_s=None
    )
    return made.text


def held_by(signer: Authority, name: str) -> Held:
    """A worker's certificate, as if it had joined."""
    kept = certificate_for(signer, name)
    return Held(key=kept.key.encode(), certificate=kept.certificate.encode())


def certificate_for(signer: Authority, name: str) -> credential.Credential:
    """The same certificate as a worker stores it."""
    key = credential.new_key()
    pem = signer.sign_worker(name, key.public_key(), now=datetime.now(UTC), lives=timedelta(days=1))
    signed = join_pb2.Credential(certificate=pem.decode(), authorities=signer.trusted_pem.decode())
    return credential.credential_of(key, signed)


@asynccontextmanager
async def closed_site(engine: AsyncEngine, folder: Path) -> AsyncIterator[ClosedSite]:
    """The service in this process. HEADRACE_TLS_CA must name `folder / "ca" / "ca.pem"`, for the planner."""
    authority.make(folder / "ca", ["localhost", "127.0.0.1"], now=datetime.now(UTC))
    signer = authority.load(folder / "ca")
    settings = process.Settings(
        database_url="", listen="127.0.0.1:0", worker_listen="127.0.0.1:0", ca=folder / "ca", auth=Auth.TOKENS,
        sampler_processes=1,
    )  # fmt: skip
    async with AsyncExitStack() as stack:
        bound = process._listeners(settings, process._gate(engine, settings))
        assert bound.workers is not None
        stop = process.Stop()
        running = asyncio.create_task(process._serve_bound(engine, settings, stop, bound, ""))
        stack.push_async_callback(_ended, stop, running)
        pool = await stack.enter_async_context(Pool(1))
        gate = Gate(SchedulersTokens(f"tls://127.0.0.1:{bound.users.port}"))
        planner = make_server(pool, Health(), gate)
        shown = encrypted(signer.server_key_pem, signer.server_pem)
        planner_port = planner.bind("--listen", "127.0.0.1:0", shown)
        (home := folder / "home").mkdir()
        credential.store(home, certificate_for(signer, "agent"))
        servicer = BubbleServicer(Agent(folder), 1)
        agent = port_server(servicer)
        agent_port = agent.bind("--listen", "127.0.0.1:0", WorkerCertificate(home).server())
        own = socket_server(servicer, folder)
        for server in (planner, agent, own):
            await server.start()
            stack.push_async_callback(server.stop, 0)
        yield ClosedSite(
            addresses=Addresses(
                users=f"127.0.0.1:{bound.users.port}",
                workers=f"127.0.0.1:{bound.workers.port}",
                planner=f"127.0.0.1:{planner_port}",
                agent=f"127.0.0.1:{agent_port}",
                agent_socket=f"unix:{folder / 'agent.sock'}",
            ),
            trusted=signer.trusted_pem,
            worker=held_by(signer, WORKER),
            tokens=await tokens_of_callers(engine),
            pids={"all in one": os.getpid()},
        )


async def _ended(stop: process.Stop, running: "asyncio.Task[None]") -> None:
    stop.call()
    await running


def _encoded(message: Message) -> bytes:
    return message.SerializeToString()
