"""Load what a cycle needs from Postgres: the study under its lock, and the answers to `core.needs`.

The lock on the study's row orders the cycles of a study over all replicas. Free slots are locked only when a cycle
asks for them; rows of other studies are never locked.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, assert_never

from msgspec import Struct, field
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
    exists,
    false,
    func,
    or_,
    select,
    text,
    tuple_,
)
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql import ClauseElement

from headrace_services.scheduler.core.lifecycle import Reason, State
from headrace_services.scheduler.core.needs import (
    AbleWorkers,
    AnyRunnable,
    BestScored,
    Candidates,
    Deciding,
    Decisions,
    Devices,
    EarlierCheckpoint,
    FoldIn,
    FreeSlots,
    Left,
    Named,
    Needs,
    Neighbourhood,
    NextInLine,
    Occupation,
    OverTrials,
    OwnSlots,
    ResultsAfter,
    RoomForStudies,
    Rows,
    SilentLeases,
    Surroundings,
    Unfinished,
    UnstartedCount,
    UserPausedCount,
    Waiting,
)
from headrace_services.scheduler.core.plan import Plan
from headrace_services.scheduler.core.records import (
    Checkpoint,
    Decision,
    History,
    Over,
    RungView,
    Slot,
    Study,
)
from headrace_services.scheduler.core.results import Result
from headrace_services.scheduler.store import (
    bundles,
    counting,
    ends,
    exploits,
    leading,
    leases,
    neighbours,
    placement,
    profiles,
    quotas,
    requests,
    rows,
    tables,
    unseen,
    workers,
)
from headrace_services.scheduler.store.pipeline import Pipeline, Reply, Statement, pipeline
from headrace_services.scheduler.store.placement import slots_query

PAGE = 256
"""Rows that are made into records between two yields to the event loop."""

now = func.clock_timestamp()


class Opened(Struct, frozen=True, kw_only=True):
    """A study under its lock, with the rows that the inputs of a cycle name."""

    study: Study | None
    """None if the study was deleted."""
    rows: Rows = Rows()
    answers: Mapping[str, requests.Answer] = field(default_factory=dict)
    """The earlier answers to requests of the cycle, by request id."""


async def open_study(
    conn: AsyncConnection,
    study_id: int,
    named: Named,
    asked: Sequence[requests.Request] = (),
    known_spec: rows.KnownSpec | None = None,
) -> Opened:
    """Lock a study's row until the transaction ends, and read what the inputs name: one round trip.

    If the study's spec is known, this reads less. If the spec has changed since, it takes another round trip.
    """
    async with pipeline(conn) as sent:
        locked = sent.run(_LOCK_STUDY if known_spec is None else _LOCK_KNOWN_STUDY, study=study_id)
        answers = requests.ask_answers(sent, asked)
        found = _Asked(sent, study_id, named)
        fuses = known_spec is None or known_spec.spec.fuse is not None
        known = profiles.ask(sent, study_id) if fuses else None
    if locked.row is None:
        return Opened(study=None)
    if known_spec is not None and known_spec.revision != locked.row.revision:
        known_spec = None
        async with pipeline(conn) as sent:
            locked = sent.run(_LOCK_STUDY, study=study_id)
    assert locked.row is not None, "it is locked"
    named_rows = replace(found.rows(), profiles=profiles.read(known) if known else ())
    return Opened(study=rows.study(locked.row, known_spec), rows=named_rows, answers=answers.answers())


async def serve(
    conn: AsyncConnection,
    study_id: int,
    deciding: Deciding[Plan],
    before_slots: Callable[[], Awaitable[None]] | None = None,
) -> Plan:
    """Drive a decision: answer each of its questions from the rows.

    `before_slots` is awaited before free slots are requested, which locks them.
    """
    answer: Any = None
    while True:
        try:
            need = deciding.send(answer)
        except StopIteration as done:
            plan: Plan = done.value
            return plan
        if before_slots is not None and isinstance(need, Surroundings | FreeSlots):
            await before_slots()
        answer = await load(conn, study_id, need)


async def load(conn: AsyncConnection, study_id: int, need: Needs) -> Any:
    """Answer one question."""
    match need:
        case Named():
            return await _named(conn, study_id, need)
        case Decisions():
            return await _decisions(conn, study_id, need)
        case AbleWorkers():
            return await placement.able_workers(conn, need.request)
        case SilentLeases():
            return await workers.silent_leases(conn, need.leases)
        case UnstartedCount():
            return await _unstarted_count(conn, study_id)
        case UserPausedCount():
            return await _user_paused_count(conn, study_id)
        case AnyRunnable():
            return await placement.runnable_exists(conn, study_id)
        case EarlierCheckpoint():
            return await _earlier_checkpoint(conn, study_id, need)
        case Surroundings():
            return await _surroundings(conn, study_id, need)
        case NextInLine():
            return await neighbours.next_in_line(conn, study_id, need)
        case OwnSlots():
            return bool(await placement.able_workers(conn, need.request))
        case FreeSlots():
            return await placement.free_slots(conn, need.request, need.limit)
        case Candidates():
            return await _candidates(conn, study_id, need)
        case Devices():
            devices = await placement.devices(conn, need.request)
            running = await placement.running_on(conn, {slot.worker_id for slot in devices})
            others = {run.key[0] for run in running} - {study_id}
            return Occupation(
                devices=devices, running=running, shares=await neighbours.shares_of(conn, others)
            )
        case ResultsAfter():
            return await _results(conn, study_id, need)
        case BestScored():
            return await leading.best_scored(conn, study_id, need)
        case Unfinished():
            return await _unfinished(conn, study_id, need)
        case OverTrials():
            return await _over(conn, study_id, need)
        case FoldIn():
            await unseen.catch_up(conn, study_id, need.fold, reopened=need.reopened)
            return None
        case RoomForStudies():
            return await quotas.room_for_studies(conn, study_id)
        case never:
            assert_never(never)


class _Asked:
    """Named rows that were requested."""

    def __init__(self, sent: Pipeline, study_id: int, named: Named) -> None:
        self._histories = sorted(named.histories)
        self._trials = self._leases = self._slots = None
        self._past: tuple[Reply, Reply, Reply] | None = None
        numbers = sorted(named.numbers)
        if numbers:
            self._trials = sent.run(_TRIALS, study=study_id, numbers=numbers)
            self._slots = sent.run(_SLOTS_OF_TRIALS, study=study_id, numbers=numbers)
        if numbers or named.leases:
            self._leases = sent.run(_LEASES, study=study_id, ids=sorted(named.leases), numbers=numbers)
        if self._histories:
            self._past = ask_histories(sent, study_id, self._histories)

    def rows(self) -> Rows:
        """The rows that were found."""
        return Rows(
            trials=tuple(rows.trial(row) for row in (self._trials.rows if self._trials else ())),
            leases=tuple(rows.lease(row) for row in (self._leases.rows if self._leases else ())),
            slots=_by_lease(self._slots.rows if self._slots else ()),
            histories=histories(self._histories, *self._past) if self._past else {},
        )


def _by_lease(found: Iterable[Any]) -> dict[str, tuple[Slot, ...]]:
    held: dict[str, list[Slot]] = {}
    for row in found:
        held.setdefault(row.held_by, []).append(rows.slot(row))
    return {lease_id: tuple(slots) for lease_id, slots in held.items()}


def ask_histories(sent: Pipeline, study_id: int, numbers: Collection[int]) -> tuple[Reply, Reply, Reply]:
    """Ask for the histories of trials; `histories` reads the replies."""
    which: dict[str, object] = {"study": study_id, "numbers": sorted(numbers)}
    return sent.run(_RUNGS, **which), sent.run(exploits.OF_NAMED, **which), sent.run(_LAST_WORKERS, **which)


def histories(numbers: Iterable[int], rungs: Reply, copied: Reply, workers: Reply) -> dict[int, History]:
    """The histories of the numbered trials."""
    entries: dict[int, list[RungView]] = {}
    for row in rungs.rows:
        entries.setdefault(row.number, []).append(RungView(entry=rows.rung_entry(row), time=row.time))
    lineage: dict[int, list[Any]] = {}
    for row in copied.rows:
        lineage.setdefault(row.number, []).append(exploits.exploit(row))
    last = {row.number: row.worker_name for row in workers.rows}
    return {
        number: History(
            rungs=tuple(entries.get(number, ())),
            lineage=tuple(lineage.get(number, ())),
            last_worker=last.get(number),
        )
        for number in numbers
    }


async def _named(conn: AsyncConnection, study_id: int, need: Named) -> Rows:
    async with pipeline(conn) as sent:
        asked = _Asked(sent, study_id, need)
    return asked.rows()


async def _surroundings(conn: AsyncConnection, study_id: int, need: Surroundings) -> Neighbourhood:
    async with pipeline(conn) as sent:
        free = placement.ask_free_slots(sent, need.request, need.limit)
        others = neighbours.ask_neighbours(sent, study_id, need)
        totals = placement.ask_totals(sent)
        quota = quotas.ask_quota(sent, study_id)
    return Neighbourhood(
        free=tuple(free.slots()),
        passed_over=free.passed_over,
        crowded=others.crowded,
        line=others.waiting.line(),
        further=others.further(),
        least_s=others.least_s,
        totals=totals.totals(),
        quota=quota.quota(),
    )


async def _candidates(conn: AsyncConnection, study_id: int, need: Candidates) -> Waiting:
    async with pipeline(conn) as sent:
        runnable = sent.run(_RUNNABLE, study=study_id, most=need.limit, now_s=need.now_s)
        live = sent.run(_LIVE_COUNT, study=study_id, now_s=need.now_s)
        seats = bundles.ask_open(sent, study_id, need.bundles) if need.bundles else None
        asked = _Asked(sent, study_id, Named(numbers=need.numbers))
    assert live.row is not None
    return Waiting(
        runnable=tuple(rows.trial(row) for row in runnable.rows),
        live=live.row.live,
        rests_until_s=live.row.rests_until_s,
        rows=asked.rows(),
        bundles=bundles.read(seats) if seats else (),
    )


async def _earlier_checkpoint(
    conn: AsyncConnection, study_id: int, need: EarlierCheckpoint
) -> Checkpoint | None:
    r, x = tables.report, tables.exploit
    copies = select(x.c.checkpoint, x.c.time).where(x.c.study_id == study_id, x.c.number == need.owner)
    copies = copies.where(x.c.checkpoint["step"].as_integer() < need.step).order_by(x.c.rung.desc()).limit(1)
    copied = (await conn.execute(copies)).one_or_none()
    own = select(r.c.checkpoint).where(
        r.c.study_id == study_id,
        r.c.number == need.owner,
        r.c.step < need.step,
        r.c.checkpoint["uri"].as_string().in_(list(need.stored)),
    )
    if copied is not None:
        own = own.where(r.c.time > copied.time)
    last = own.order_by(r.c.step.desc(), r.c.attempt.desc(), r.c.sequence.desc()).limit(1)
    found = (await conn.execute(last)).scalar_one_or_none()
    return rows.checkpoint(found if found is not None else copied and copied.checkpoint)


async def _decisions(
    conn: AsyncConnection, study_id: int, need: Decisions
) -> dict[tuple[int, int, int], Decision]:
    r = tables.report
    key = tuple_(r.c.number, r.c.attempt, r.c.sequence)
    query = select(r).where(r.c.study_id == study_id, key.in_(sorted(need.keys)))
    return {(row.number, row.attempt, row.sequence): rows.decision(row) for row in await conn.execute(query)}


async def _unstarted_count(conn: AsyncConnection, study_id: int) -> int:
    t = tables.trial
    query = select(func.count()).where(
        t.c.study_id == study_id,
        t.c.state == State.PENDING.value,
        t.c.attempt == 0,
        t.c.milestone.is_not(None),
        ~t.c.user_paused,
    )
    return int((await conn.execute(query)).scalar_one())


async def _user_paused_count(conn: AsyncConnection, study_id: int) -> int:
    t = tables.trial
    query = select(func.count()).where(
        t.c.study_id == study_id, t.c.user_paused, t.c.state != State.TERMINATED.value
    )
    return int((await conn.execute(query)).scalar_one())


async def _results(conn: AsyncConnection, study_id: int, need: ResultsAfter) -> tuple[Result, ...]:
    t = tables.trial
    columns = (t.c.number, t.c.baseline, t.c.step, t.c.score, t.c.reason, t.c.detail)
    furthest = func.greatest(t.c.step, counting.step(t)).label("furthest")
    query = select(
        *columns, furthest, counting.metrics(t).label("metrics"), counting.reason(t).label("counts_as")
    )
    page = query.where(t.c.study_id == study_id, t.c.number > need.number).order_by(t.c.number).limit(PAGE)
    return tuple(
        Result(
            number=row.number,
            baseline=row.baseline,
            step=row.furthest,
            score=row.score,
            metrics=row.metrics,
            reason=Reason(row.reason) if row.reason else None,
            counts_as=Reason(row.counts_as) if row.counts_as else None,
            detail=row.detail,
        )
        for row in await conn.execute(page)
    )


async def _unfinished(conn: AsyncConnection, study_id: int, need: Unfinished) -> Left:
    async with pipeline(conn) as sent:
        live = sent.run(_LIVE_NUMBERS, study=study_id)
        found = sent.run(_UNLEASED, study=study_id, after=need.after, most=need.limit)
    others = tuple(rows.trial(row) for row in found.rows)
    await asyncio.sleep(0)  # a page is enough between two yields to the event loop
    held = await _named(conn, study_id, Named(numbers=frozenset(row.number for row in live.rows)))
    left = Rows(trials=(*held.trials, *others), leases=held.leases, slots=held.slots)
    return Left(rows=left, through=others[-1].number if others and len(others) == need.limit else None)


async def _over(conn: AsyncConnection, study_id: int, need: OverTrials) -> tuple[Over, ...]:
    t, r = tables.trial, tables.rung_result
    went_on = exists().where(
        r.c.study_id == study_id,
        r.c.number == t.c.number,
        r.c.rung == t.c.rungs - 1,
        r.c.promoted_cursor.is_not(None),
    )
    cut_off = ends.cut_off(study_id) if need.cut_off else false()
    query = (
        select(t, went_on.label("went_on"), cut_off.label("cut_off"))
        .where(t.c.study_id == study_id, t.c.state == State.TERMINATED.value, t.c.number > need.number)
        .where(or_(t.c.reason.in_([reason.value for reason in need.reasons]), cut_off))
        .order_by(t.c.number)
        .limit(PAGE)
    )
    return tuple(
        Over(trial=rows.trial(row), went_on=row.went_on, cut_off=row.cut_off, end_cursor=row.end_cursor or 0)
        for row in await conn.execute(query)
    )


async def live_count(conn: AsyncConnection, study_id: int) -> int:
    """How many live leases a study has."""
    query = select(func.count()).where(tables.lease.c.study_id == study_id, tables.lease.c.live)
    return int((await conn.execute(query)).scalar_one())


_study = bindparam("study", type_=BigInteger)
_numbers = bindparam("numbers", type_=ARRAY(BigInteger))


def _locking(*columns: Any) -> ClauseElement:
    """A study's row, with what other studies ask of its grants: [study, at the next report?, why] by grant."""
    lv = tables.leave
    asked = func.jsonb_object_agg(
        lv.c.grant_id, func.jsonb_build_array(lv.c.for_study_id, lv.c.at_report, lv.c.why)
    )
    query = select(
        *columns,
        cast(func.extract("epoch", now), Double).label("now_s"),
        select(asked).where(lv.c.study_id == _study).scalar_subquery().label("leaving"),
    )
    here = and_(tables.study.c.id == _study, tables.study.c.delete_time.is_(None))
    return query.where(here).with_for_update(of=tables.study)


_t, _le = tables.trial, tables.lease
_WAITS = "state IN ('PENDING', 'PAUSED') AND milestone IS NOT NULL AND NOT user_paused"
"""As in the index of runnable trials."""
_OWN = [column for column in tables.study.c if column.computed is None]
_LOCK_STUDY = Statement(lambda: _locking(*_OWN))
_LOCK_KNOWN_STUDY = Statement(lambda: _locking(*(column for column in _OWN if column.name != "spec")))
_LEASES = Statement(
    lambda: (
        select(*leases.COLUMNS)
        .select_from(leases.SOURCE)
        .where(
            _le.c.study_id == _study,
            or_(
                _le.c.id == any_(bindparam("ids", type_=ARRAY(Text))),
                and_(_le.c.number == any_(_numbers), _le.c.live),
            ),
        )
    )
)
_TRIALS = Statement(lambda: select(_t).where(_t.c.study_id == _study, _t.c.number == any_(_numbers)))
_held_by = func.coalesce(_le.c.grant_id, _le.c.id)
_now_s = bindparam("now_s", type_=Double)
_RESTS_UNTIL = select(func.min(_t.c.not_before_s)).where(
    _t.c.study_id == _study, text("not_before_s IS NOT NULL"), _t.c.not_before_s > _now_s, text(_WAITS)
)
_LIVE_COUNT = Statement(
    lambda: select(
        func.count(_held_by.distinct()).label("live"), _RESTS_UNTIL.scalar_subquery().label("rests_until_s")
    ).where(_le.c.study_id == _study, _le.c.live)
)
_LIVE_NUMBERS = Statement(lambda: select(_le.c.number).where(_le.c.study_id == _study, _le.c.live))
_UNLEASED = Statement(
    lambda: (
        select(_t)
        .where(_t.c.study_id == _study, text("state IN ('PENDING', 'PAUSED')"))
        .where(_t.c.number > bindparam("after", type_=BigInteger))
        .order_by(_t.c.number)
        .limit(bindparam("most", type_=BigInteger))
    )
)
_RUNNABLE = Statement(
    lambda: (
        select(_t)
        .where(
            _t.c.study_id == _study,
            text(_WAITS),
            or_(_t.c.not_before_s.is_(None), _t.c.not_before_s <= _now_s),
        )
        .order_by(text("(attempt = 0)"), _t.c.number)
        .limit(bindparam("most", type_=BigInteger))
    )
)
_SLOTS_OF_TRIALS = Statement(
    lambda: (
        slots_query(granted=True)
        .join(_le, _le.c.grant_id == tables.slot_grant.c.id)
        .add_columns(_le.c.id.label("held_by"))
        .where(_le.c.study_id == _study, _le.c.number == any_(_numbers), _le.c.live)
        .order_by(tables.slot.c.index)
    )
)
_RUNGS = Statement(
    lambda: (
        select(tables.rung_result)
        .where(exploits.named(tables.rung_result))
        .order_by(tables.rung_result.c.rung)
    )
)
_LAST_WORKERS = Statement(
    lambda: (
        select(_t.c.number, tables.worker.c.name.label("worker_name"))
        .join_from(
            _t,
            _le,
            and_(_le.c.study_id == _t.c.study_id, _le.c.number == _t.c.number, _le.c.attempt == _t.c.attempt),
        )
        .join(tables.worker, _le.c.worker_id == tables.worker.c.id)
        .where(exploits.named(_t))
    )
)
