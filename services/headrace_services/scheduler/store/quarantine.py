"""Quarantine a study: end it without reading any part of it that may be defective.

A cycle ends a study by loading its trials and moving each by the table of transitions. A study whose rows cannot
be read, or whose policy cannot process them, cannot be ended like that. Here Postgres ends it: all live trials are
cancelled, their leases end, their slots are free, and the study is FAILED with the reason. This is one transaction
under the study's lock, guarded by the states of the rows, so it may run twice, and concurrently with a cycle of
another replica.
"""

from dataclasses import dataclass

from sqlalchemy import BigInteger, ColumnElement, Text, bindparam, func, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace_services.scheduler.core.inputs import Leased
from headrace_services.scheduler.core.lifecycle import StudyState
from headrace_services.scheduler.core.records import Lease
from headrace_services.scheduler.store import studies, tables


@dataclass(frozen=True, slots=True, kw_only=True)
class Brief:
    """The columns of a study that are readable whatever their values."""

    id: int
    name: str
    project: str
    state: StudyState
    detail: str
    cursor: int


async def brief(conn: AsyncConnection, study_id: int, *, lock: bool = False) -> Brief | None:
    """A study; None if there is none. With `lock` its row is locked until the transaction ends."""
    return await _brief(conn, tables.study.c.id == study_id, lock=lock)


async def brief_named(conn: AsyncConnection, project: str, name: str, *, lock: bool = False) -> Brief | None:
    """The same for the study with a name in a project."""
    return await _brief(conn, studies.named(project, name), lock=lock)


async def _brief(conn: AsyncConnection, which: ColumnElement[bool], *, lock: bool) -> Brief | None:
    s = tables.study
    query = select(s.c.id, s.c.name, s.c.project, s.c.state, s.c.detail, s.c.cursor).where(
        which, s.c.delete_time.is_(None)
    )
    row = (await conn.execute(query.with_for_update() if lock else query)).one_or_none()
    if row is None:
        return None
    state = StudyState(row.state)
    return Brief(
        id=row.id, name=row.name, project=row.project, state=state, detail=row.detail, cursor=row.cursor
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined:
    """What ended with the study."""

    study: Brief
    leases: tuple[Lease, ...]


async def quarantine(conn: AsyncConnection, study_id: int, why: str) -> Quarantined | None:
    """End a study and everything of it that is live; a study that has ended keeps its state. Returns None if it was
    deleted."""
    study = await brief(conn, study_id, lock=True)
    if study is None:
        return None
    leases = tuple(
        Lease(
            id=row.id,
            study_id=study_id,
            number=row.number,
            attempt=row.attempt,
            worker_id=row.worker_id,
            incarnation="",
            client_id="",
            ttl_s=None,
            grant=None,
            live=False,
        )
        for row in await conn.execute(_END_LEASES, {"study": study_id})
    )
    ended = [row.id for row in await conn.execute(_END_GRANTS, {"study": study_id})]
    if ended:
        await conn.execute(_FREE_WHOLE_SLOTS, {"grants": ended})
        await conn.execute(_FREE_SHARED_SLOTS, {"grants": ended})
    await conn.execute(_FORGET_ASKS, {"study": study_id})
    values = {"study": study_id, "why": why}
    trials = await conn.execute(_END_TRIALS, values)
    if study.state.ended and not trials.rowcount:
        return Quarantined(study=study, leases=leases)
    await conn.execute(_NOTE, {**values, "before": study.state.value})
    after = await conn.execute(_END_STUDY, values)
    row = after.one()
    ended_study = Brief(
        id=study.id,
        name=study.name,
        project=study.project,
        state=StudyState(row.state),
        detail=row.detail,
        cursor=row.cursor,
    )
    return Quarantined(study=ended_study, leases=leases)


async def holds(conn: AsyncConnection, study_id: int, message: Leased) -> bool:
    """Whether a message speaks for a live lease of this study that belongs to its sender."""
    le = tables.lease
    query = select(func.count()).where(
        le.c.id == message.lease_id,
        le.c.study_id == study_id,
        le.c.number == message.number,
        le.c.attempt == message.attempt,
        le.c.live,
    )
    if message.worker_id is not None:
        query = query.where(le.c.worker_id == message.worker_id)
    return bool((await conn.execute(query)).scalar_one())


_study = bindparam("study", type_=BigInteger)
_why = bindparam("why", type_=Text)
_END_LEASES = text(
    "UPDATE lease SET live = false, end_time = clock_timestamp() WHERE study_id = :study AND live"
    " RETURNING id, number, attempt, worker_id"
).bindparams(_study)
_END_GRANTS = text(
    "UPDATE slot_grant SET live = false, end_time = clock_timestamp() WHERE study_id = :study AND live RETURNING id"
).bindparams(_study)
_FREE_WHOLE_SLOTS = text("UPDATE slot SET grant_id = NULL WHERE grant_id = ANY(:grants)")
_FREE_SHARED_SLOTS = text(
    "UPDATE slot SET shared_milli = greatest(0, shared_milli - part.milli),"
    " shared_memory_bytes = greatest(0, shared_memory_bytes - part.memory_bytes)"
    " FROM (SELECT worker_id, unnest(slots) AS index, sum(milli) AS milli, sum(memory_bytes) AS memory_bytes"
    "       FROM grant_part JOIN slot_grant ON slot_grant.id = grant_id"
    "       WHERE grant_id = ANY(:grants) AND milli < 1000 GROUP BY 1, 2) AS part"
    " WHERE slot.worker_id = part.worker_id AND slot.index = part.index"
)
_FORGET_ASKS = text("DELETE FROM leave WHERE study_id = :study OR for_study_id = :study").bindparams(_study)
_END_TRIALS = text(
    "UPDATE trial SET state = 'TERMINATED', reason = 'CANCELLED', detail = :why, milestone = NULL, user_paused = false,"
    " lease_id = NULL, end_time = clock_timestamp(),"
    " end_cursor = (SELECT cursor + 1 FROM study WHERE id = :study)"
    " WHERE study_id = :study AND state <> 'TERMINATED'"
).bindparams(_study, _why)
_NOTE = text(
    "INSERT INTO event (study_id, cursor, kind, message, detail)"
    " SELECT id, cursor + 1, 'study_moved', 'study quarantined: ' || :why,"
    " jsonb_build_object('from_state', CAST(:before AS text), 'to_state',"
    " CASE WHEN end_time IS NULL THEN 'FAILED' ELSE state END, 'detail', :why)"
    " FROM study WHERE id = :study"
).bindparams(_study, _why)
_END_STUDY = text(
    "UPDATE study SET cursor = cursor + 1, standing = '{}',"
    " state = CASE WHEN end_time IS NULL THEN 'FAILED' ELSE state END,"
    " detail = CASE WHEN end_time IS NULL THEN :why ELSE detail END,"
    " end_time = coalesce(end_time, clock_timestamp())"
    " WHERE id = :study RETURNING state, detail, cursor"
).bindparams(_study, _why)
