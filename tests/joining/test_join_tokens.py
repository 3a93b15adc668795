"""Who may join with which token, as the database decides, and what a refused call is told."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import func, text, update
from sqlalchemy.ext.asyncio import AsyncEngine

from headrace.errors import (
    InvalidFieldError,
    JoinRefusedError,
    JoinTokenNotFoundError,
    WorkerIdentityError,
    WorkerRevokedError,
)
from headrace.v1 import join_pb2
from headrace_services.identity import authority, join_tokens
from headrace_services.identity.join_tokens import JoinToken
from headrace_services.identity.shown import WorkerCertificate
from headrace_services.scheduler.rpc.caller import Caller, let_call
from headrace_services.scheduler.rpc.join_service import JoinServicer, Signing
from headrace_services.scheduler.store import joins, tables
from headrace_services.scheduler.store.database import open_engine, transaction
from headrace_worker import credential

HOUR = timedelta(hours=1)
A, B = b"a" * 32, b"b" * 32


@pytest.fixture
async def engine(database_url: str) -> AsyncIterator[AsyncEngine]:
    opened = open_engine(database_url, pool_size=4)
    yield opened
    await opened.dispose()


async def made(engine: AsyncEngine, *, worker: str = "", uses: int = 1) -> JoinToken:
    token = join_tokens.new_token()
    async with transaction(engine) as conn:
        await joins.create(conn, token, worker=worker, uses=uses, lifetime=HOUR)
    return token


async def join(engine: AsyncEngine, token: JoinToken, worker: str, key: bytes) -> bool:
    async with transaction(engine) as conn:
        now = await joins.database_time(conn)
        return await joins.join(conn, token, worker=worker, key_digest=key, now=now, until=now + HOUR)


def certificate(now: datetime) -> WorkerCertificate:
    """The certificate that worker `a` shows."""
    return WorkerCertificate(worker="a", issued=now, until=now + HOUR)


async def used(engine: AsyncEngine) -> int:
    async with transaction(engine) as conn:
        return sum(token.used for token in await joins.listed(conn))


async def test_a_token_is_used_up(engine: AsyncEngine) -> None:
    token = await made(engine, uses=2)
    await join(engine, token, "a", A)
    await join(engine, token, "b", B)
    with pytest.raises(JoinRefusedError, match="2 of 2"):
        await join(engine, token, "c", b"c" * 32)


async def test_two_at_once_share_no_use(engine: AsyncEngine) -> None:
    token = await made(engine)
    both = [join(engine, token, name, name.encode() * 32) for name in "ab"]
    outcomes = await asyncio.gather(*both, return_exceptions=True)
    assert sorted(type(one).__name__ for one in outcomes) == ["JoinRefusedError", "bool"]
    assert await used(engine) == 1


async def test_a_join_that_is_repeated_is_the_same_join(engine: AsyncEngine) -> None:
    token = await made(engine)
    for _ in range(3):
        await join(engine, token, "a", A)
    assert await used(engine) == 1


async def test_a_join_is_repeated_after_its_token_has_expired_by_the_same_key_alone(
    engine: AsyncEngine,
) -> None:
    """Its answer was lost, and the scheduler was away for longer than the token lasts."""
    token = await made(engine, worker="a")
    assert await join(engine, token, "a", A)
    async with transaction(engine) as conn:
        await conn.execute(update(tables.join_token).values(expire_time=func.now() - HOUR))
    assert await join(engine, token, "a", A)
    with pytest.raises(JoinRefusedError, match="expired on"):
        await join(engine, token, "a", B)
    async with transaction(engine) as conn:
        await conn.execute(update(tables.joined_worker).values(certificate_until=func.now()))
    with pytest.raises(JoinRefusedError, match="expired on"):
        await join(engine, token, "a", A)  # it had its certificate


@pytest.mark.parametrize("same_key", [False, True])
async def test_a_token_for_a_worker_that_is_shown_twice_at_once(
    engine: AsyncEngine, *, same_key: bool
) -> None:
    """Two machines of one name share no use. A worker that does not wait for the answer shows its key again."""
    token = await made(engine, worker="a")
    both = [join(engine, token, "a", key) for key in (A, A if same_key else B)]
    outcomes = await asyncio.gather(*both, return_exceptions=True)
    refused = [str(one) for one in outcomes if isinstance(one, JoinRefusedError)]
    assert len(refused) == (0 if same_key else 1)
    assert all("used 1 of 1" in one for one in refused)
    assert await used(engine) == 1


async def test_two_machines_that_take_one_name_at_once(engine: AsyncEngine) -> None:
    names = "abcdefgh"
    for name in names:
        both = [join(engine, await made(engine), name, key) for key in (A, B)]
        outcomes = await asyncio.gather(*both, return_exceptions=True)
        assert sorted(type(one).__name__ for one in outcomes) == ["JoinRefusedError", "bool"]
    assert await used(engine) == len(names)


async def test_the_last_one_to_join_hears_that_the_token_is_used_up(engine: AsyncEngine) -> None:
    token = await made(engine, uses=2)
    assert not await join(engine, token, "a", A)
    assert not await join(engine, token, "a", A)
    assert await join(engine, token, "b", B)


async def test_a_name_belongs_to_its_key(engine: AsyncEngine) -> None:
    await join(engine, await made(engine), "a", A)
    with pytest.raises(JoinRefusedError, match="joined already") as refused:
        await join(engine, await made(engine), "a", B)
    assert "--worker a" in refused.value.remedy
    await join(engine, await made(engine, worker="a"), "a", B)


async def test_a_token_for_a_worker_lets_no_second_machine_in(engine: AsyncEngine) -> None:
    token = await made(engine, worker="a")
    await join(engine, token, "a", A)
    with pytest.raises(JoinRefusedError, match="1 of 1"):
        await join(engine, token, "a", B)


async def test_a_name_whose_certificate_has_ended_is_free(engine: AsyncEngine) -> None:
    await join(engine, await made(engine), "a", A)
    async with transaction(engine) as conn:
        await conn.execute(update(tables.joined_worker).values(certificate_until=func.now() - HOUR))
    await join(engine, await made(engine), "a", B)


async def test_a_token_for_another_worker(engine: AsyncEngine) -> None:
    with pytest.raises(JoinRefusedError, match="for worker 'a', not for 'b'"):
        await join(engine, await made(engine, worker="a"), "b", B)


async def test_expired_revoked_foreign_and_of_another_secret(engine: AsyncEngine) -> None:
    expired, revoked = await made(engine), await made(engine)
    async with transaction(engine) as conn:
        past = update(tables.join_token).where(tables.join_token.c.id == expired.id)
        await conn.execute(past.values(expire_time=func.now() - HOUR))
        await joins.revoke(conn, revoked.id)
        await joins.revoke(conn, revoked.id)
        with pytest.raises(JoinTokenNotFoundError):
            await joins.revoke(conn, "0" * 16)
    own = await made(engine)
    other = join_tokens.new_token()
    forged = join_tokens.read(f"hr_{own.id}_{other.text[-43:]}")
    assert forged is not None
    for token, why in (
        (expired, "expired on"),
        (revoked, "revoked"),
        (other, "not one"),
        (forged, "not one"),
    ):
        with pytest.raises(JoinRefusedError, match=why) as refused:
            await join(engine, token, "a", A)
        assert token.text not in str(refused.value)
        assert "worker-token create" in refused.value.remedy


async def test_a_revoked_worker(engine: AsyncEngine) -> None:
    """What was signed before is refused, what is signed after is not: to the microsecond."""
    await join(engine, await made(engine), "a", A)
    async with transaction(engine) as conn:
        before = certificate(await joins.database_time(conn))
        await joins.check(conn, before)
        assert await joins.revoke_worker(conn, "a")
        after = certificate(await joins.database_time(conn))
        with pytest.raises(WorkerRevokedError, match="'a' was revoked"):
            await joins.check(conn, before)
        with pytest.raises(WorkerRevokedError):
            await joins.renew(conn, before, key_digest=B, now=after.issued, until=after.until)
        await joins.check(conn, after)
        assert not await joins.revoke_worker(conn, "never joined")
    await join(engine, await made(engine), "a", B)
    async with transaction(engine) as conn:
        with pytest.raises(WorkerRevokedError):
            await joins.check(conn, before)


async def test_a_database_that_forgot_the_worker_renews_it(engine: AsyncEngine) -> None:
    async with transaction(engine) as conn:
        now = await joins.database_time(conn)
        await joins.renew(conn, certificate(now), key_digest=A, now=now, until=now + HOUR)
        found = await conn.execute(text("SELECT worker FROM joined_worker"))
        assert found.scalars().all() == ["a"]


async def test_what_ended_long_ago_is_forgotten(engine: AsyncEngine) -> None:
    await join(engine, await made(engine), "a", A)
    async with transaction(engine) as conn:
        assert await joins.forget_old(conn, 10) == 0
        await conn.execute(text("UPDATE join_token SET expire_time = now() - interval '8 days'"))
        await conn.execute(text("UPDATE joined_worker SET certificate_until = now() - interval '8 days'"))
        assert await joins.forget_old(conn, 10) == 1
        assert (await conn.execute(text("SELECT count(*) FROM joined_worker"))).scalar_one() == 0


async def test_where_no_token_is_asked_for_a_project_that_was_chosen_keeps_nobody_out(
    engine: AsyncEngine,
) -> None:
    """As on one machine with HEADRACE_PROJECT set: draining and cleaning up are allowed there too."""
    let_call(Caller(peer="", project="other"))
    found = await JoinServicer(engine, None).ListJoinTokens(join_pb2.ListJoinTokensRequest(), None)  # type: ignore[arg-type]
    assert not found.tokens


async def test_a_worker_is_no_admin(engine: AsyncEngine) -> None:
    let_call(Caller(peer=""))
    servicer = JoinServicer(engine, None, for_workers=True)
    with pytest.raises(WorkerIdentityError, match="manage no join tokens"):
        await servicer.RevokeWorker(join_pb2.RevokeWorkerRequest(worker="a"), None)  # type: ignore[arg-type]


async def test_a_scheduler_without_an_authority_says_so(engine: AsyncEngine) -> None:
    let_call(Caller(peer=""))
    servicer = JoinServicer(engine, None)
    with pytest.raises(JoinRefusedError, match="no listener for them") as refused:
        await servicer.CreateJoinToken(join_pb2.CreateJoinTokenRequest(), None)  # type: ignore[arg-type]
    assert "--worker-listen" in refused.value.remedy
    with pytest.raises(InvalidFieldError, match="id"):
        await servicer.RevokeJoinToken(join_pb2.RevokeJoinTokenRequest(id="x"), None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("minutes", "says"), [(-61, "61 minutes behind"), (61, "61 minutes ahead of"), (0, "")]
)
async def test_a_clock_that_is_far_from_the_databases_is_told_of(
    engine: AsyncEngine, tmp_path: Path, caplog: pytest.LogCaptureFixture, minutes: int, says: str
) -> None:
    """The worker still joins: certificates follow the database's clock."""
    authority.make(tmp_path / "ca", ["localhost"], now=datetime.now(UTC))
    signing = Signing(authority=authority.load(tmp_path / "ca"), worker_port=1)
    token = await made(engine, worker="a")
    apart = timedelta(minutes=minutes, seconds=30 * (minutes > 0) - 30 * (minutes < 0))
    servicer = JoinServicer(engine, signing, clock=lambda: datetime.now(UTC) + apart)
    request = join_pb2.JoinRequest(
        token=token.text, worker="a", signing_request=credential.signing_request(credential.new_key(), "a")
    )
    response = await servicer.Join(request, None)  # type: ignore[arg-type]
    assert response.token_used_up
    assert says in caplog.text
    assert bool(says) is ("the clock of this machine" in caplog.text)
