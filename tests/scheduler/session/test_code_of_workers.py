"""Which code a worker may fetch: that of the trials that it runs, and no other."""

import asyncio
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from session_site import Replica, study, worker
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from headrace.errors import PermissionDeniedError, WorkerIdentityError
from headrace.v1 import code_pb2 as pb
from headrace_services.scheduler.rpc import code_service
from headrace_services.scheduler.rpc.code_service import CodeServicer, Serves

OURS, THEIRS, NOBODYS = ("1" * 64, "2" * 64, "3" * 64)


async def with_code(engine: AsyncEngine, digest: str) -> Any:
    """A study of one trial whose code is stored."""
    site = await study(engine)
    async with engine.begin() as conn:
        await conn.execute(text("INSERT INTO code (digest, size_bytes) VALUES (:d, 1)"), {"d": digest})
        await conn.execute(text("INSERT INTO code_chunk VALUES (:d, 0, 'x')"), {"d": digest})
        await conn.execute(
            text("UPDATE study SET code = :d WHERE id = :i"), {"d": digest, "i": site.study_id}
        )
    return site


async def got(codes: CodeServicer, digest: str) -> bytes:
    """The result of a call."""
    request: Any = pb.GetCodeRequest(digest=digest)
    context: Any = None
    return b"".join([one.data async for one in codes.GetCode(request, context)])


@pytest.fixture
def caller(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The worker whose certificate a call shows."""
    now = datetime.now(UTC)
    shown = SimpleNamespace(worker="w", issued=now, until=now + timedelta(days=1))
    monkeypatch.setattr(code_service, "certificate_of", lambda _: shown)
    return shown


async def test_a_worker_gets_the_code_of_the_trials_that_it_runs(
    engine: AsyncEngine, replica: Replica, caller: SimpleNamespace
) -> None:
    codes = CodeServicer(engine, Serves.WORKERS)
    async with worker(replica) as w, worker(replica) as other:
        ours = await with_code(engine, OURS)
        await w.hello()
        replica.hub.kick(ours.study_id)
        lease = (await w.hears("assign")).lease
        theirs = await with_code(engine, THEIRS)
        await other.hello(name="v")
        replica.hub.kick(theirs.study_id)
        await other.hears("assign")
        for name, own, another in (("w", OURS, THEIRS), ("v", THEIRS, OURS)):
            caller.worker = name
            assert await got(codes, own) == b"x"
            for digest in (another, NOBODYS):
                with pytest.raises(PermissionDeniedError, match=f"worker '{name}' runs no trial"):
                    await got(codes, digest)
        caller.worker = "nobody"
        with pytest.raises(PermissionDeniedError):
            await got(codes, OURS)

        caller.worker = "w"
        await w.report(lease, 1, 9, 0.5)
        await w.say(exited={"sequence": 2, "lease": lease, "outcome": "EXIT_OUTCOME_FINISHED"})
        await w.hears("ack", lambda ack: 2 in ack.sequences)
        async with asyncio.timeout(60):
            while await is_given(codes, OURS):
                await asyncio.sleep(0.05)


async def is_given(codes: CodeServicer, digest: str) -> bool:
    try:
        return bool(await got(codes, digest))
    except PermissionDeniedError:
        return False


async def test_users_listener_gives_code_only_where_workers_have_nothing_to_show(
    engine: AsyncEngine,
) -> None:
    await with_code(engine, OURS)
    assert await got(CodeServicer(engine, Serves.ALL), OURS) == b"x"
    with pytest.raises(WorkerIdentityError, match="by their certificates"):
        await got(CodeServicer(engine, Serves.USERS), OURS)
