"""A planner that requires tokens: a scheduler's tokens, about whose owners it asks that scheduler."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from headrace.bounds.edge import refuse
from headrace.error_status import from_rpc_error
from headrace.errors import (
    DatabaseUnavailableError,
    HeadraceError,
    InvalidFieldError,
    PermissionDeniedError,
    TooLargeError,
    UnauthenticatedError,
)
from headrace.v1 import identity_pb2, identity_pb2_grpc, planner_pb2_grpc
from headrace.v1 import planner_pb2 as pb
from headrace_services.identity.gate import Gate
from headrace_services.identity.keeping import AT_ONCE, KEPT_S
from headrace_services.identity.roles import Auth
from headrace_services.identity.tokens import new_token
from headrace_services.planner.service.server import Settings, check, make_server
from headrace_services.planner.service.whose import SchedulersTokens
from headrace_services.serving.health import Health

TOKENS = {new_token().text: role for role in ("VIEWER", "EDITOR", "ADMIN", "WORKER")}


class Scheduler(identity_pb2_grpc.IdentityServiceServicer):
    """Knows four tokens, and counts the requests."""

    def __init__(self) -> None:
        self.asked = 0
        self.at_once = self.most_at_once = 0
        self.asks_for_tokens = True
        self.revoked: set[str] = set()

    async def WhoAmI(self, request: Any, context: Any) -> Any:  # noqa: ARG002  # there is nothing in it
        self.asked += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0.05)  # so that simultaneous calls are recognized as such
        self.at_once -= 1
        text = dict(context.invocation_metadata())["authorization"].removeprefix("Bearer ")
        if not self.asks_for_tokens:
            return identity_pb2.WhoAmIResponse(project="default", role=identity_pb2.ROLE_ADMIN)
        if text not in TOKENS or text in self.revoked:
            refuse(context, UnauthenticatedError("authorization: the token was revoked"))
            return None
        role = identity_pb2.Role.Value(f"ROLE_{TOKENS[text]}")
        return identity_pb2.WhoAmIResponse(project="p", role=role, token={"name": "tokens/1"})


class Site:
    """A planner without processes, beside a scheduler."""

    def __init__(self, channel: grpc.aio.Channel, scheduler: Scheduler, scheduler_address: str) -> None:
        self.scheduler_address = scheduler_address
        self.channel = channel
        self.stub = planner_pb2_grpc.PlannerServiceStub(channel)
        self.health = health_pb2_grpc.HealthStub(channel)
        self.scheduler = scheduler
        self.now = 0.0

    async def refusal(self, text: str | None) -> HeadraceError:
        metadata = (("authorization", f"Bearer {text}"),) if text else ()
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await self.stub.Simulate(pb.SimulateRequest(), timeout=60, metadata=metadata)
        return from_rpc_error(failed.value)


@pytest_asyncio.fixture
async def site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[Site]:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
    known, scheduler = Scheduler(), grpc.aio.server()
    identity_pb2_grpc.add_IdentityServiceServicer_to_server(known, scheduler)
    address = f"127.0.0.1:{scheduler.add_insecure_port('127.0.0.1:0')}"
    await scheduler.start()
    found: Site
    tokens = SchedulersTokens(address, lambda: found.now)
    server = make_server(None, Health(), Gate(tokens), asked_again_s=0.05)  # type: ignore[arg-type]  # none is asked
    port = server.bind("--listen", "127.0.0.1:0", None)
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        found = Site(channel, known, address)
        yield found
    await server.stop(0)
    await scheduler.stop(0)


async def test_who_may_plan(site: Site) -> None:
    for text, role in TOKENS.items():
        error = await site.refusal(text)  # callers with access are told what is wrong with an empty request
        assert isinstance(error, PermissionDeniedError) == (role == "WORKER"), error
    for bad in (None, "hr_nonsense", new_token().text):
        assert isinstance(await site.refusal(bad), UnauthenticatedError)
    await site.health.Check(health_pb2.HealthCheckRequest(), timeout=60)


async def test_a_scheduler_is_asked_once_in_some_seconds(site: Site) -> None:
    good, bad = next(iter(TOKENS)), new_token().text
    for _ in range(3):
        await site.refusal(good)
        assert "was revoked" in str(await site.refusal(bad))
    assert site.scheduler.asked == 2
    site.now += KEPT_S
    await site.refusal(good)
    assert site.scheduler.asked == 3


async def test_guessing_tokens_opens_few_connections_to_the_scheduler(site: Site) -> None:
    good = next(iter(TOKENS))
    errors = await asyncio.gather(
        *(site.refusal(text) for text in [good] * 10), *(site.refusal(new_token().text) for _ in range(30))
    )
    assert [isinstance(error, UnauthenticatedError) for error in errors] == [False] * 10 + [True] * 30
    assert site.scheduler.most_at_once <= AT_ONCE
    assert site.scheduler.asked <= 30 + AT_ONCE


async def test_an_open_stream_ends_soon_after_its_token(site: Site) -> None:
    text = next(iter(TOKENS))
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(site.channel)
    call = stub.ServerReflectionInfo(timeout=120, metadata=(("authorization", f"Bearer {text}"),))
    await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
    assert await call.read() is not grpc.aio.EOF
    site.scheduler.revoked.add(text)
    site.now += KEPT_S
    async with asyncio.timeout(60):
        assert await call.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_a_scheduler_that_asks_for_no_tokens_vouches_for_nobody(site: Site) -> None:
    site.scheduler.asks_for_tokens = False
    assert "cannot say whose" in str(await site.refusal(next(iter(TOKENS))))


async def test_a_scheduler_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace_services.planner.service import whose

    monkeypatch.setattr(whose, "TIMEOUT_S", 0.2)
    with pytest.raises(DatabaseUnavailableError, match="does not answer") as away:
        await SchedulersTokens("127.0.0.1:1").identify(new_token())
    assert "--scheduler" in away.value.remedy


def test_a_planner_with_tls_that_knows_no_tokens_does_not_start() -> None:
    open_to_all = Settings(listen="0.0.0.0:7441", tls_cert=Path("c.pem"), tls_key=Path("k.pem"))
    with pytest.raises(InvalidFieldError) as refused:
        check(open_to_all)
    assert refused.value.violations[0].field == "--scheduler"
    check(replace(open_to_all, auth=Auth.NONE))
    check(replace(open_to_all, scheduler="tls://s1:7440"))
    with pytest.raises(InvalidFieldError):  # in plain text to another machine
        check(replace(open_to_all, scheduler="s1:7440"))
    check(Settings(listen="127.0.0.1:7441"))
    with pytest.raises(InvalidFieldError):
        check(Settings(listen="127.0.0.1:7441", auth=Auth.TOKENS))


class Noted:
    """A pool that records the callers of its calls, and answers none."""

    def __init__(self) -> None:
        self.callers: list[str] = []

    async def result(self, task: str, request: bytes, *, caller: str) -> bytes:  # noqa: ARG002  # a pool's
        self.callers.append(caller)
        raise TooLargeError("noted")


async def test_a_token_is_one_caller_over_all_its_connections(site: Site) -> None:
    """Otherwise a caller with many connections would take other callers' processes."""
    pool = Noted()
    tokens = SchedulersTokens(site.scheduler_address, lambda: 0.0)
    server = make_server(pool, Health(), Gate(tokens))  # type: ignore[arg-type]  # a pool as far as calls need one
    port = server.bind("--listen", "127.0.0.1:0", None)
    await server.start()
    question = pb.PlanQuestion(model_name="gpt3-2.7b", cluster_name="a100-16", batch=32)
    metadata = (("authorization", f"Bearer {next(iter(TOKENS))}"),)
    for _ in range(2):
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options) as channel:
            stub = planner_pb2_grpc.PlannerServiceStub(channel)
            with pytest.raises(grpc.aio.AioRpcError, match="noted"):
                await stub.Explain(pb.ExplainRequest(question=question), timeout=60, metadata=metadata)
    await server.stop(0)
    assert len(pool.callers) == 2
    assert len(set(pool.callers)) == 1
    assert ":" not in pool.callers[0], "no address"
