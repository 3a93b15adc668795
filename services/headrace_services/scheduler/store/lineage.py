"""Whether this database is the one that schedulers last served, or a copy of it that was restored.

A copy does not know what was issued after it was made: attempts, lease ids, names of checkpoints. Workers do: they
run these attempts, keep their reports, and have stored their checkpoints. So at its start a scheduler asks
Postgres which database it is (`_FINGERPRINT`), and compares the answer with the one stored in the database. If
they differ, the database was dumped and loaded. Then, in one transaction:

- Every study numbers its attempts from the next thousand on. No number and no lease id is issued twice, and names
  of checkpoints still sort by age.
- Every live lease gets an id that nobody holds. What workers say under the old one is stale: they are told that it
  is over, and end its process. The lease itself is lost as soon as its worker connects, or expires. So a trial
  continues from the checkpoint that this database knows, and its history is consistent.
- Bundles accept no more trials, because their processes end.

A copy of the server's files has the same fingerprint as the original. Whoever restores one must declare it
(`headrace scheduler --mark-restored`) before a scheduler starts. If nobody does, the first worker with an attempt
that the database never issued reveals it (`knows_not`), if the lease proves that it was issued (`session.proofs`).
Until then, numbers may have been issued twice.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

RESTORED = "restored"
"""The incarnation of live leases that a restored database knows: no worker has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """The result for a database that was restored."""

    restores: int
    """How often this database was restored, in total."""
    leases: int
    """How many live leases were taken from their holders."""


async def notice_restore(conn: AsyncConnection, *, certain: bool = False) -> Restored | None:
    """Compare the database's fingerprint with the stored one; `certain`: it is known that it was restored. Return
    None if it was not."""
    await conn.execute(text("SET LOCAL statement_timeout = 0"))
    known = (await conn.execute(_KNOWN)).one()
    found = (await conn.execute(_FINGERPRINT)).scalar_one()
    if known.fingerprint == found and not certain:
        return None
    await conn.execute(_NOTE, {"fingerprint": found})
    if not known.fingerprint and not certain:
        return None  # no scheduler has served it yet
    restores = (await conn.execute(_COUNT)).scalar_one()
    await conn.execute(_NUMBER_ANEW)
    prefix = f"{RESTORED}-{restores}."
    leases = await conn.execute(_TAKE_LEASES, {"prefix": prefix, "incarnation": RESTORED})
    await conn.execute(_NAME_LEASES, {"prefix": prefix})
    await conn.execute(_CLOSE_BUNDLES)
    await conn.execute(_LOSE_WORKERS)
    return Restored(restores=restores, leases=leases.rowcount)


async def lease_secret(conn: AsyncConnection) -> bytes:
    """The secret that proves leases."""
    return bytes((await conn.execute(_SECRET)).scalar_one())


async def knows_not(conn: AsyncConnection, leases: Iterable[str]) -> bool:
    """Whether a worker holds an attempt that this database would issue only later, judged by the ids of its
    leases."""
    parts = [lease.split(".") for lease in leases]
    found = [(uid, int(number), int(attempt)) for uid, number, attempt in filter(_is_id, parts)]
    if not found:
        return False
    uids, numbers, attempts = map(list, zip(*found, strict=True))
    said = {"uids": uids, "numbers": numbers, "attempts": attempts}
    return bool((await conn.execute(_KNOWS_NOT, said)).scalar_one())


def _is_id(parts: list[str]) -> bool:
    return len(parts) == 3 and all(part.isdecimal() and len(part) < 18 for part in parts[1:])


_KNOWS_NOT = text(
    "SELECT EXISTS (SELECT FROM unnest(CAST(:uids AS text[]), CAST(:numbers AS bigint[]), CAST(:attempts AS bigint[]))"
    " AS said (uid, number, attempt) JOIN study ON study.uid = said.uid AND study.delete_time IS NULL"
    " LEFT JOIN trial ON trial.study_id = study.id AND trial.number = said.number"
    " WHERE said.attempt > greatest(study.attempts_from, coalesce(trial.attempt, 0)))"
)
_KNOWN = text("SELECT fingerprint FROM lineage WHERE id = 1 FOR UPDATE")
_SECRET = text("SELECT secret FROM lineage WHERE id = 1")
_FINGERPRINT = text(
    "SELECT system_identifier || '/' || (SELECT oid FROM pg_database WHERE datname = current_database())"
    " || '/' || 'lineage'::regclass::oid FROM pg_control_system()"
)
_NOTE = text("UPDATE lineage SET fingerprint = :fingerprint, time = clock_timestamp() WHERE id = 1")
_COUNT = text("UPDATE lineage SET restores = restores + 1 WHERE id = 1 RETURNING restores")
# At least 500 more than any attempt that the copy knows.
_NUMBER_ANEW = text(
    "UPDATE study SET attempts_from = 1000 * (1 + (500 + greatest(attempts_from,"
    " (SELECT coalesce(max(attempt), 0) FROM trial WHERE trial.study_id = study.id))) / 1000)"
)
_TAKE_LEASES = text(
    "UPDATE lease SET id = :prefix || id, incarnation = :incarnation,"
    " expires_at = CASE WHEN worker_id IS NULL THEN clock_timestamp() ELSE expires_at END WHERE live"
)
_NAME_LEASES = text("UPDATE trial SET lease_id = :prefix || lease_id WHERE lease_id IS NOT NULL")
_CLOSE_BUNDLES = text("UPDATE slot_grant SET closed = true WHERE live AND seats > 1")
_LOSE_WORKERS = text("UPDATE worker SET connected = false, expires_at = clock_timestamp() WHERE connected")
