"""A server with few places, in this process: health, a call, a stream and an upload, all of which require tokens."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import grpc
from grpc_health.v1 import health_pb2_grpc
from raw_http2 import Caller, Stream

from headrace_services.identity.gate import Gate, Identity
from headrace_services.identity.roles import Role
from headrace_services.identity.tokens import Token, new_token
from headrace_services.serving.admission import AdmissionInterceptor
from headrace_services.serving.health import Health
from headrace_services.serving.limits import Known, Strangers
from headrace_services.serving.server import Server

CALL = "/headrace.v1.StudyService/GetStudy"
STREAM = "/headrace.v1.StudyService/WatchStudy"
UPLOAD = "/headrace.v1.CodeService/PutCode"
JOIN = "/headrace.v1.JoinService/Join"
CHECK = "/grpc.health.v1.Health/Check"
WATCH = "/grpc.health.v1.Health/Watch"
STRANGERS = Strangers(connections=4, calls=4, messages=2, message_bytes=1000, within_s=60.0)
KNOWN = Known(calls=4, streams=2, connections=64, messages=1, within_s=60.0)


@dataclass(kw_only=True)
class Site:
    """The server, and the owners of its tokens."""

    address: str
    health: Health
    door: AdmissionInterceptor
    tokens: dict[str, Token] = field(default_factory=dict)
    looking_up: asyncio.Event = field(default_factory=asyncio.Event)
    """Look-ups of tokens wait until this is set."""
    answer: bytes = b"answer"
    callers: list[Caller] = field(default_factory=list)

    async def identify(self, token: Token) -> Identity:
        """Everybody with a token is an editor."""
        await self.looking_up.wait()
        return Identity(project="p", role=Role.EDITOR, token=token.id)

    def said(self, who: str) -> tuple[tuple[str, str], ...]:
        """The metadata of somebody's calls."""
        token = self.tokens.setdefault(who, new_token())
        return (("authorization", f"Bearer {token.text}"),)

    async def caller(self, *, window: int = 2**31 - 1, source: str = "") -> Caller:
        """A connection driven by hand."""
        made = await asyncio.to_thread(Caller, self.address, window=window, source=source)
        self.callers.append(made)
        await asyncio.to_thread(made.pump, 0.2)
        return made

    async def ends(self, caller: Caller, number: int) -> Stream:
        """A hand-made call once it, or its connection, has ended."""
        return await asyncio.to_thread(caller.wait, number, 60)

    async def comes_to(self, what: Callable[[], bool]) -> None:
        """Waits until something holds."""
        async with asyncio.timeout(60):
            while not await asyncio.to_thread(what):
                await asyncio.sleep(0.02)

    @asynccontextmanager
    async def client(self, who: str = "") -> AsyncIterator["Client"]:
        """A gRPC client."""
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(self.address, options) as channel:
            yield Client(channel, self.said(who) if who else ())


class Client:
    """The calls of a gRPC client."""

    def __init__(self, channel: grpc.aio.Channel, said: tuple[tuple[str, str], ...]) -> None:
        self.health: Any = health_pb2_grpc.HealthStub(channel)
        self._channel = channel
        self._said = said

    async def call(self, data: bytes = b"", path: str = CALL) -> bytes:
        """An answer."""
        answer: bytes = await self._channel.unary_unary(path)(data, timeout=60, metadata=self._said)
        return answer

    def silent(self) -> Any:
        """A call whose request never arrives."""

        async def nothing() -> AsyncIterator[bytes]:
            await asyncio.Event().wait()
            yield b""

        return self._channel.stream_unary(CALL)(nothing(), timeout=60, metadata=self._said)

    def stream(self) -> Any:
        """A stream, whose first message comes at once."""
        return self._channel.unary_stream(STREAM)(b"", timeout=60, metadata=self._said)


@asynccontextmanager
async def admission_site(
    host: str = "127.0.0.1",
    *,
    asks: bool = True,
    strangers: dict[str, Any] | None = None,
    known: dict[str, Any] | None = None,
) -> AsyncIterator[Site]:
    """The server, with other limits if they are given."""
    site: Site

    class Tokens:
        async def identify(self, token: Token) -> Identity:
            return await site.identify(token)

    door = AdmissionInterceptor(
        Gate(Tokens()) if asks else None,
        strangers=replace(STRANGERS, **(strangers or {})),
        known=replace(KNOWN, **(known or {})),
    )
    server, health = Server((door,), door.connections), Health()

    async def call(request: bytes, _: Any) -> bytes:
        return site.answer + request[:10]

    async def stream(_: bytes, context: Any) -> None:
        while True:
            await context.write(site.answer)
            await asyncio.sleep(0.01 if len(site.answer) > 10 else 3600)

    async def upload(requests: AsyncIterator[bytes], _: Any) -> bytes:
        return b"".join([one async for one in requests])

    handlers = {
        CALL: grpc.unary_unary_rpc_method_handler(call),
        JOIN: grpc.unary_unary_rpc_method_handler(call),
        STREAM: grpc.unary_stream_rpc_method_handler(stream),
        UPLOAD: grpc.stream_unary_rpc_method_handler(upload),
    }
    for path, handler in handlers.items():
        service, name = path.strip("/").split("/")
        server.grpc.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, {name: handler})])
    health_pb2_grpc.add_HealthServicer_to_server(health, server.grpc)
    port = server.bind("--listen", f"{host}:0", None)
    site = Site(address=f"{host}:{port}", health=health, door=door)
    site.looking_up.set()
    await server.start()
    try:
        yield site
    finally:
        for one in site.callers:
            one.close()
        await server.stop(0)
