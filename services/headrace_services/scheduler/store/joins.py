"""Join tokens, and the workers that have joined. Times are the database's own.

A use of a token is counted in the transaction that writes the worker, so no two workers share a use. A name
belongs to the worker that joined with it, as long as one of its certificates is valid. Another key gets the name
with a token that was made for it, or when the worker was revoked.

A certificate starts and ends by the database's clock, whatever the clock of a replica says. Only TLS compares it
with the replica's clock, when a connection starts.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import delete, func, insert, literal, null, select, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace.errors import (
    JoinRefusedError,
    JoinTokenNotFoundError,
    WorkerIdentityError,
    WorkerRevokedError,
)
from headrace_services.identity.join_tokens import JoinToken
from headrace_services.identity.shown import WorkerCertificate
from headrace_services.scheduler.store import tables

KEPT_FOR = timedelta(days=7)
"""How long an expired token is remembered, so that whoever uses it learns why it does not work."""
MOST_LISTED = 1000
_NAMES = 0x48724A6E
"""The class of the advisory locks on names."""

_now = func.clock_timestamp()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredToken:
    """A join token without its secret."""

    id: str
    worker: str
    uses: int
    used: int
    create_time: datetime
    expire_time: datetime
    revoke_time: datetime | None


async def database_time(conn: AsyncConnection) -> datetime:
    """The current time."""
    found: datetime = (await conn.execute(select(_now))).scalar_one()
    return found


async def create(
    conn: AsyncConnection, token: JoinToken, *, worker: str, uses: int, lifetime: timedelta
) -> StoredToken:
    """Store a new token."""
    query = insert(tables.join_token).values(
        id=token.id, digest=token.digest, worker=worker, uses=uses, expire_time=_now + lifetime
    )
    return _stored((await conn.execute(query.returning(tables.join_token))).one())


async def listed(conn: AsyncConnection) -> list[StoredToken]:
    """The tokens that have not expired, newest first."""
    t = tables.join_token
    query = (
        select(t).where(t.c.expire_time > _now).order_by(t.c.create_time.desc(), t.c.id).limit(MOST_LISTED)
    )
    return [_stored(row) for row in await conn.execute(query)]


async def revoke(conn: AsyncConnection, token_id: str) -> StoredToken:
    """End a token. Raises JoinTokenNotFoundError if there is none."""
    t = tables.join_token
    query = update(t).where(t.c.id == token_id).values(revoke_time=func.coalesce(t.c.revoke_time, _now))
    row = (await conn.execute(query.returning(t))).one_or_none()
    if row is None:
        raise JoinTokenNotFoundError(f"there is no join token 'hr_{token_id}_…'")
    return _stored(row)


async def join(
    conn: AsyncConnection, token: JoinToken, *, worker: str, key_digest: bytes, now: datetime, until: datetime
) -> bool:
    """Admit a worker, and count the use unless it repeats a join. Returns whether the token is now used up.

    A worker that did not get the answer repeats its join with the same key. It may do so as long as the
    certificate that it missed is valid, even after the token has expired. Raises JoinRefusedError.
    """
    t, j = tables.join_token, tables.joined_worker
    found = (await conn.execute(select(t).where(t.c.id == token.id).with_for_update())).one_or_none()
    if found is None or not token.is_of(found.digest):
        raise JoinRefusedError(f"token: join token {_shown(token)} is not one of this cluster")
    if found.revoke_time is not None:
        raise JoinRefusedError(f"token: join token {_shown(token)} was revoked")
    if found.worker not in ("", worker):
        raise JoinRefusedError(
            f"worker: join token {_shown(token)} is for worker '{found.worker}', not for '{worker}'",
            remedy=f"Start the worker with `--name {found.worker}`, or make a token with `--worker {worker}`.",
        )
    # Of two joins with one name, the second must find the first, whose row may not exist yet.
    await conn.execute(select(func.pg_advisory_xact_lock(_NAMES, func.hashtext(worker))))
    known = (await conn.execute(select(j).where(j.c.worker == worker).with_for_update())).one_or_none()
    taken = known is not None and known.revoke_time is None and known.certificate_until > now
    same_key = known is not None and known.key_digest == key_digest
    if taken and not same_key and found.worker != worker:
        raise JoinRefusedError(
            f"worker: '{worker}' has joined already, with another key",
            remedy="Choose another `--name`. If it is the same machine and its home was lost, make a token for it: "
            f"`headrace worker-token create --worker {worker}`.",
        )
    repeats = taken and same_key and known is not None and known.token_id == token.id
    if not repeats:
        if found.expire_time <= now:
            raise JoinRefusedError(
                f"token: join token {_shown(token)} expired on {found.expire_time:%Y-%m-%d %H:%M} UTC"
            )
        if found.used >= found.uses:
            raise JoinRefusedError(
                f"token: join token {_shown(token)} was used {found.used} of {found.uses} times"
            )
        await conn.execute(update(t).where(t.c.id == token.id).values(used=t.c.used + 1))
    values: dict[str, Any] = {
        "token_id": token.id,
        "key_digest": key_digest,
        "join_time": now,
        "certificate_until": until if known is None else max(until, known.certificate_until),
        # It ends what was signed before; what is signed now has a later time.
        "revoke_time": known.revoke_time if known is not None else None,
    }
    query = upsert(j).values(worker=worker, **values)
    await conn.execute(query.on_conflict_do_update(index_elements=[j.c.worker], set_=values))
    return bool(found.used + (not repeats) >= found.uses)


async def has_joined(conn: AsyncConnection, worker: str, *, lasts: timedelta) -> bool:
    """Whether a worker has a certificate that was not revoked and is valid for this long."""
    j = tables.joined_worker
    query = select(j.c.worker).where(
        j.c.worker == worker, j.c.revoke_time.is_(None), j.c.certificate_until > _now + lasts
    )
    return (await conn.execute(query)).one_or_none() is not None


async def renew(
    conn: AsyncConnection, shown: WorkerCertificate, *, key_digest: bytes, now: datetime, until: datetime
) -> None:
    """Record that a worker gets its next certificate. Raises what `check` raises."""
    await check(conn, shown)
    j = tables.joined_worker
    query = upsert(j).values(
        worker=shown.worker, token_id="", join_time=now, key_digest=key_digest, certificate_until=until
    )
    last = func.greatest(j.c.certificate_until, until)
    values = {"key_digest": key_digest, "certificate_until": last}
    await conn.execute(query.on_conflict_do_update(index_elements=[j.c.worker], set_=values))


async def check(conn: AsyncConnection, shown: WorkerCertificate) -> float:
    """For how many seconds a certificate still admits its worker.

    Raises WorkerIdentityError if it has ended, and WorkerRevokedError if it was signed before a revocation. A
    revocation waits for this transaction, so it finds the session that starts in it.
    """
    j = tables.joined_worker
    query = select(j.c.revoke_time).where(j.c.worker == shown.worker).with_for_update(key_share=True)
    revoked = (await conn.execute(query)).scalar_one_or_none()
    if revoked is not None and revoked >= shown.issued:
        raise WorkerRevokedError(f"the certificate of worker '{shown.worker}' was revoked")
    left_s = (shown.until - await database_time(conn)).total_seconds()
    if left_s <= 0:
        raise has_ended(shown)
    return left_s


def has_ended(shown: WorkerCertificate) -> WorkerIdentityError:
    """The error for a worker whose certificate has ended."""
    return WorkerIdentityError(
        f"the certificate of worker '{shown.worker}' expired on {shown.until:%Y-%m-%d %H:%M} UTC",
        remedy=f"Join again with a new token: `headrace worker-token create --worker {shown.worker}`.",
    )


async def revoke_worker(conn: AsyncConnection, worker: str) -> bool:
    """End all certificates of a worker, and its session; return whether it had joined.

    Its stream learns at its next heartbeat that it no longer speaks for the worker. A worker that joined after the
    dump from which the database was restored is known only by its sessions.
    """
    j, w = tables.joined_worker, tables.worker
    connected = select(w.c.name, literal(""), literal(b""), w.c.certificate_until, _now).where(
        w.c.name == worker, w.c.certificate_until.is_not(None)
    )
    names = ["worker", "token_id", "key_digest", "certificate_until", "revoke_time"]
    await conn.execute(upsert(j).from_select(names, connected).on_conflict_do_nothing())
    query = update(j).where(j.c.worker == worker).values(revoke_time=_now)
    found = (await conn.execute(query.returning(j.c.worker))).one_or_none()
    values = {"session": w.c.session + 1, "connected": False, "certificate_until": null()}
    await conn.execute(update(w).where(w.c.name == worker).values(**values))
    return found is not None


async def forget_old(conn: AsyncConnection, most: int) -> int:
    """Delete at most this many tokens that expired a week ago, and workers whose certificates had all ended by
    then: a revocation is kept as long as what it revokes."""
    t, j = tables.join_token, tables.joined_worker
    before = func.now() - KEPT_FOR
    some = select(t.c.id).where(t.c.expire_time < before).limit(most).with_for_update(skip_locked=True)
    gone = (await conn.execute(delete(t).where(t.c.id.in_(some)))).rowcount
    workers = (
        select(j.c.worker).where(j.c.certificate_until < before).limit(most).with_for_update(skip_locked=True)
    )
    return max(gone, (await conn.execute(delete(j).where(j.c.worker.in_(workers)))).rowcount)


def _stored(row: Any) -> StoredToken:
    names = ("id", "worker", "uses", "used", "create_time", "expire_time", "revoke_time")
    return StoredToken(**{name: getattr(row, name) for name in names})


def _shown(token: JoinToken) -> str:
    return f"'hr_{token.id}_…'"
