"""What a step reads, under the study's lock."""

from collections.abc import AsyncIterator, Collection, Iterable
from typing import Any

from msgspec import Struct
from msgspec.structs import replace
from sqlalchemy import (
    ARRAY,
    BigInteger,
    Double,
    Text,
    and_,
    any_,
    bindparam,
    cast,
    func,
    select,
    text,
    tuple_,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace.spec import StudySpec
from headrace_services.scheduler.lifecycle import Action, Reason, State
from headrace_services.scheduler.records import Decision, Lease, Slot, Study, Trial
from headrace_services.scheduler.results import Result
from headrace_services.scheduler.store import rows, tables
from headrace_services.scheduler.store.pipeline import Pipeline, Reply, Statement, compiled, given, pipeline
from headrace_services.scheduler.store.placement import slots_query

UNFINISHED_AT_ONCE = 256
"""Rows that are made into trials in one turn on the event loop."""

now = func.clock_timestamp()


async def lock_study(conn: AsyncConnection, study_id: int, spec: StudySpec | None) -> Study | None:
    """Lock a study's row until the transaction ends; None when the study was deleted. `spec`, if it is known."""
    async with pipeline(conn) as sent:
        ask = ask_study(sent, study_id, spec)
    return ask.study()


class AskedStudy(Struct, frozen=True, kw_only=True):
    """A study on its way."""

    spec: StudySpec | None
    found: Reply

    def study(self) -> Study | None:
        """The study; None when it was deleted."""
        row = self.found.row
        return rows.study(row, self.spec) if row else None


def ask_study(sent: Pipeline, study_id: int, spec: StudySpec | None) -> AskedStudy:
    """Lock a study's row; what is asked for next is read under the lock."""
    found = sent.run(_LOCK_STUDY if spec is None else _LOCK_KNOWN_STUDY, study=study_id)
    return AskedStudy(spec=spec, found=found)


class AskedRows(Struct, frozen=True, kw_only=True):
    """Trials and leases on their way."""

    leases: Reply | None = None
    slots: Reply | None = None
    trials: Reply | None = None

    def found_leases(self) -> list[Lease]:
        """Those of the named leases that the study has."""
        return [rows.lease(row) for row in self.leases.rows] if self.leases else []

    def found_slots(self) -> dict[str, tuple[Slot, ...]]:
        """The slots that the named leases hold."""
        held: dict[str, list[Slot]] = {}
        for row in self.slots.rows if self.slots else ():
            held.setdefault(row.held_by, []).append(rows.slot(row))
        return {lease_id: tuple(slots) for lease_id, slots in held.items()}

    def found_trials(self) -> list[Trial]:
        """Those of the named trials that exist."""
        return [rows.trial(row) for row in self.trials.rows] if self.trials else []


def ask_rows(sent: Pipeline, study_id: int, leases: Collection[str], numbers: Collection[int]) -> AskedRows:
    """Ask for leases, with the slots that they hold, and for trials."""
    asked = AskedRows()
    if leases:
        ids = sorted(leases)
        asked = replace(
            asked,
            leases=sent.run(_LEASES, study=study_id, ids=ids),
            slots=_ask_slots(sent, leases),
        )
    if numbers:
        asked = replace(asked, trials=sent.run(_TRIALS, study=study_id, numbers=sorted(numbers)))
    return asked


async def trials(conn: AsyncConnection, study_id: int, numbers: Iterable[int]) -> list[Trial]:
    """The named trials that exist."""
    wanted = sorted(set(numbers))
    if not wanted:
        return []
    async with pipeline(conn) as sent:
        asked = AskedRows(trials=sent.run(_TRIALS, study=study_id, numbers=wanted))
    return asked.found_trials()


async def unfinished_trials(conn: AsyncConnection, study_id: int) -> AsyncIterator[list[Trial]]:
    """Every trial that is not terminated, by number, some at a time: in between, others have their turn on the loop."""
    after = -1
    while True:
        async with pipeline(conn) as sent:
            found = sent.run(_UNFINISHED, study=study_id, after=after, most=UNFINISHED_AT_ONCE)
        if not found.rows:
            return
        trials = [rows.trial(row) for row in found.rows]
        yield trials
        after = trials[-1].number


async def results(conn: AsyncConnection, study_id: int) -> AsyncIterator[list[Result]]:
    """What every trial came to, by number, some at a time."""
    t = tables.trial
    query = select(t.c.number, t.c.baseline, t.c.best_value, t.c.metrics, t.c.reason, t.c.detail)
    after = -1
    while True:
        page = query.where(t.c.study_id == study_id, t.c.number > after).order_by(t.c.number)
        found = [
            Result(
                number=row.number,
                baseline=row.baseline,
                best_value=row.best_value,
                metrics=row.metrics,
                reason=Reason(row.reason) if row.reason else None,
                detail=row.detail,
            )
            for row in await conn.execute(page.limit(UNFINISHED_AT_ONCE))
        ]
        if not found:
            return
        yield found
        after = found[-1].number


async def failed_and_connected(conn: AsyncConnection, study_id: int) -> tuple[set[str], frozenset[str]]:
    """The workers on which trials of a study have failed, as its log says, and all that are connected."""
    e, w = tables.event, tables.worker
    charged = e.c.detail["action"].astext.in_([Action.RETRY.value, Action.TERMINATE.value])
    query = select(e.c.detail["worker"].astext.label("worker")).where(
        e.c.study_id == study_id, e.c.kind == "trial_moved", charged
    )
    failed_on = {row.worker.removeprefix("workers/") for row in await conn.execute(query.distinct())} - {""}
    connected = await conn.execute(select(w.c.name).where(w.c.connected))
    return failed_on, frozenset(row.name for row in connected)


async def runnable_trials(conn: AsyncConnection, study_id: int, limit: int) -> list[Trial]:
    """Trials that should be on a worker and are not: interrupted ones first, then by number."""
    async with pipeline(conn) as sent:
        found = sent.run(_RUNNABLE, study=study_id, most=limit)
    return [rows.trial(row) for row in found.rows]


async def unstarted_count(conn: AsyncConnection, study_id: int) -> int:
    """How many trials were never placed."""
    t = tables.trial
    query = select(func.count()).where(
        t.c.study_id == study_id,
        t.c.state == State.PENDING.value,
        t.c.epoch == 0,
        t.c.milestone.is_not(None),
        ~t.c.held,
    )
    return int((await conn.execute(query)).scalar_one())


async def held_count(conn: AsyncConnection, study_id: int) -> int:
    """How many unfinished trials a user holds."""
    t = tables.trial
    query = select(func.count()).where(
        t.c.study_id == study_id, t.c.held, t.c.state != State.TERMINATED.value
    )
    return int((await conn.execute(query)).scalar_one())


async def leases(conn: AsyncConnection, ids: Iterable[str]) -> list[Lease]:
    """The named leases that exist, live or not."""
    wanted = sorted(set(ids))
    if not wanted:
        return []
    return [
        rows.lease(row)
        for row in await conn.execute(select(tables.lease).where(tables.lease.c.id.in_(wanted)))
    ]


async def live_leases(conn: AsyncConnection, study_id: int) -> list[Lease]:
    """Every live lease of a study."""
    query = select(tables.lease).where(tables.lease.c.study_id == study_id, tables.lease.c.live)
    return [rows.lease(row) for row in await conn.execute(query)]


async def live_count(conn: AsyncConnection, study_id: int) -> int:
    """How many live leases a study has."""
    query = select(func.count()).where(tables.lease.c.study_id == study_id, tables.lease.c.live)
    return int((await conn.execute(query)).scalar_one())


async def decisions(
    conn: AsyncConnection, study_id: int, keys: Iterable[tuple[int, int, int]]
) -> dict[tuple[int, int, int], Decision]:
    """What was answered to the reports (number, epoch, sequence) that are stored already."""
    wanted = sorted(set(keys))
    if not wanted:
        return {}
    r = tables.report
    query = select(r).where(r.c.study_id == study_id, tuple_(r.c.number, r.c.epoch, r.c.sequence).in_(wanted))
    return {(row.number, row.epoch, row.sequence): rows.decision(row) for row in await conn.execute(query)}


async def slots_of(conn: AsyncConnection, lease_ids: Collection[str]) -> dict[str, tuple[Slot, ...]]:
    """The slots that the named leases hold."""
    async with pipeline(conn) as sent:
        asked = ask_slots(sent, lease_ids)
    return asked.found_slots()


def ask_slots(sent: Pipeline, lease_ids: Collection[str]) -> AskedRows:
    """Ask for the slots that the named leases hold."""
    return AskedRows(slots=_ask_slots(sent, lease_ids) if lease_ids else None)


def _ask_slots(sent: Pipeline, lease_ids: Collection[str]) -> Reply:
    return sent.run(_SLOTS_OF, [{"g_lease": lease_id} for lease_id in sorted(set(lease_ids))])


_study = bindparam("study", type_=BigInteger)
_ids = bindparam("ids", type_=ARRAY(Text))


def _locking(*columns: Any) -> Statement:
    """A study's row, with what others ask of its leases: for [study, at the next report?, why] by lease."""
    lv = tables.leave
    asked = func.jsonb_object_agg(
        lv.c.lease_id, func.jsonb_build_array(lv.c.for_study_id, lv.c.at_report, lv.c.why)
    )
    query = select(
        *columns,
        cast(func.extract("epoch", now), Double).label("now_s"),
        select(asked).where(lv.c.study_id == _study).scalar_subquery().label("leaving"),
    )
    return compiled(query.where(tables.study.c.id == _study).with_for_update(of=tables.study))


_LOCK_STUDY = _locking(*tables.study.c)
_LOCK_KNOWN_STUDY = _locking(*(column for column in tables.study.c if column.name != "spec"))
_LEASES = compiled(
    select(tables.lease).where(tables.lease.c.id == any_(_ids), tables.lease.c.study_id == _study)
)
_TRIALS = compiled(
    select(tables.trial).where(
        tables.trial.c.study_id == _study,
        tables.trial.c.number == any_(bindparam("numbers", type_=ARRAY(BigInteger))),
    )
)
_t = tables.trial
_UNFINISHED = compiled(
    select(_t)
    .where(_t.c.study_id == _study, _t.c.state != State.TERMINATED.value)
    .where(_t.c.number > bindparam("after", type_=BigInteger))
    .order_by(_t.c.number)
    .limit(bindparam("most", type_=BigInteger))
)
_RUNNABLE = compiled(
    select(_t)
    .where(
        _t.c.study_id == _study,
        text("state IN ('PENDING', 'PAUSED') AND milestone IS NOT NULL AND NOT held"),  # as its index says it
    )
    .order_by(text("(epoch = 0)"), _t.c.number)
    .limit(bindparam("most", type_=BigInteger))
)
_held_by = given({"g_lease": tables.lease.c.id})
_SLOTS_OF = compiled(
    slots_query(held_by=tables.lease)
    .join(
        tables.lease,
        and_(
            tables.slot.c.worker_id == tables.lease.c.worker_id,
            tables.slot.c.index == func.any(tables.lease.c.slots),
        ),
    )
    .join(_held_by, tables.lease.c.id == _held_by.c.g_lease)
    .order_by(tables.slot.c.index)
)
"""Joined to the named leases instead of comparing with an array of them: for an array Postgres prefers a plan made for
its length, and makes it anew each time, which takes longer than the rest of a step's first words."""
