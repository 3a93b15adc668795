"""Apply a plan: write everything that a cycle changed, in one round trip that commits.

Every write is guarded by what the cycle loaded. A guard that matches no row means that the copy was stale, and the
whole transaction is given up. There is one statement for each table, whatever the number of rows. A guarded
statement counts the rows that it changed and fails if there are fewer than it was given, so the commit can be sent
right behind it.

A cycle that ends a study changes thousands of trials. It sends them in several statements and yields to the event
loop between two of them, because streams wait for it.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any, TypeVar

import psycopg
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Integer,
    Update,
    bindparam,
    case,
    cast,
    exists,
    func,
    insert,
    literal,
    null,
    or_,
    select,
    text,
    update,
)
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql import ClauseElement

from headrace_services.scheduler.core.changes import Changes, TrialChange
from headrace_services.scheduler.core.lifecycle import State
from headrace_services.scheduler.core.plan import Plan
from headrace_services.scheduler.core.records import Grant, Lease, Study, Trial
from headrace_services.scheduler.store import exploits, placement, profiles, requests, rows, tables
from headrace_services.scheduler.store.pipeline import Pipeline, Statement, given, pipeline
from headrace_services.scheduler.store.rows import Columns

now = func.clock_timestamp()
T = TypeVar("T")
ROWS_AT_ONCE = 256
"""Rows between two yields to the event loop, about 10 ms."""


def is_stale_copy(error: BaseException) -> bool:
    """Whether a guarded write did not match all of its rows: something changed them outside the study's lock."""
    return isinstance(error, psycopg.errors.DivisionByZero)


async def apply(
    conn: AsyncConnection, plan: Plan, answers: Sequence[tuple[requests.Request, bytes]] = ()
) -> None:
    """Write a plan and the answers to its requests, and commit."""
    async with pipeline(conn) as sent:
        if plan.changes.has_rows or plan.study != plan.before:
            await Writes(sent).write(plan.before, plan.study, plan.changes)
        requests.remember_all(sent, answers)
        sent.commit()


class Writes:
    """The writes of one plan."""

    def __init__(self, sent: Pipeline) -> None:
        self._pipeline = sent

    async def write(self, before: Study, after: Study, changes: Changes) -> None:
        """Add everything that a cycle changed. The order satisfies every constraint at each point, and keeps what
        a lease reported before the time at which the next one is granted."""
        self._insert(_CREATE_TRIALS, map(_created, changes.created))
        self._append_history(after, changes)
        late = [lease for lease in changes.updated.values() if lease.id in changes.reclaimed]
        held = [lease for lease in changes.updated.values() if lease.id not in changes.reclaimed]
        self._guarded(_UPDATE_LEASES, map(_progress, held))
        self._guarded(_RECLAIM_LEASES, map(_progress, late))
        self._insert(_BEGIN_GRANTS, map(_grant, changes.grants.values()))
        self._insert(_ADD_PARTS, (part for grant in changes.grants.values() for part in _grant_parts(grant)))
        self._insert(_GRANT_LEASES, map(_granted, changes.granted.values()))
        self._guarded(_CLOSE_GRANTS, ({"g_grant": grant_id} for grant_id in changes.closed_grants))
        self._guarded(_END_GRANTS, ({"g_grant": grant_id} for grant_id in changes.ended_grants))
        async for trials in _by_turns(changes.trials):
            self._move_trials(trials)
        self._move_slots(changes)
        logged = list(enumerate(changes.events, start=before.cursor + 1))
        async for part in _by_turns(logged):
            self._insert(_EVENTS, (rows.event_columns(after.id, cursor, event) for cursor, event in part))
        profiles.write(self._pipeline, after.id, changes.profiles.values())
        exploits.append(self._pipeline, after.id, changes.exploits)
        placement.tell_others(self._pipeline, after.id, changes)
        self._update_study(before, after)

    def _insert(self, statement: Statement, values: Iterable[Columns]) -> None:
        if listed := list(values):
            self._pipeline.run(statement, listed)

    def _guarded(self, statement: Statement, values: Iterable[Columns]) -> None:
        """Run a guarded write for each of the rows; each must match exactly its own row."""
        if listed := list(values):
            self._pipeline.run(statement, listed, expected=len(listed))

    def _move_trials(self, changes: Sequence[TrialChange]) -> None:
        for wave in _waves(changes):
            self._guarded(_MOVE_TRIALS, map(_moved, wave))

    def _move_slots(self, changes: Changes) -> None:
        left = {key: grant for key, grant in changes.vacated.items() if key not in changes.occupied}
        self._insert(_VACATE_SLOTS, map(_vacated, left.items()))
        self._guarded(_SHARE_SLOTS, _parts(changes.shared))
        self._guarded(_OCCUPY_SLOTS, (_occupied(key, changes) for key in changes.occupied))

    def _append_history(self, study: Study, changes: Changes) -> None:
        self._insert(_REPORTS, (rows.report_columns(study, report) for report in changes.reports))
        past = {(change.number, change.rung): change.cursor for change in changes.promotions}
        assert len(past) == len(changes.promotions), "a trial goes past a rung once"
        entries = (
            rows.rung_columns(study, c.entry, c.cursor, past.pop((c.entry.number, c.entry.rung), None))
            for c in changes.rungs
        )
        self._insert(_RUNGS, entries)  # with the promotions of the trials that it records
        earlier = (
            {"g_study": study.id, "g_number": number, "g_rung": rung, "at": cursor}
            for (number, rung), cursor in past.items()
        )
        self._guarded(_PROMOTE, earlier)

    def _update_study(self, before: Study, after: Study) -> None:
        if after == before:
            return
        if after.code_files is not before.code_files:
            files = json.dumps({path: list(versions) for path, versions in after.code_files.items()})
            self._pipeline.run(_UPDATE_CODE, g_study=after.id, code_files=files)
        if after.spec is not before.spec:
            spec = json.dumps(after.spec.model_dump(mode="json"), allow_nan=False)
            self._pipeline.run(_UPDATE_SPEC, g_study=after.id, spec=spec)
        ends = after.state.ended and not (before.state.ended and before.revision == after.revision)
        values = rows.study_columns(after) | {"g_study": after.id, "g_cursor": before.cursor}
        values["standing"] = json.dumps(values["standing"], allow_nan=False)
        choice = values["scale_choice"]
        values["scale_choice"] = None if choice is None else json.dumps(choice, allow_nan=False)
        reopens = before.state.ended and not after.state.ended
        statement = _END_STUDY if ends else _REOPEN_STUDY if reopens else _UPDATE_STUDY
        self._pipeline.run(statement, expected=1, **values)


async def _by_turns(changes: Sequence[T]) -> AsyncIterator[Sequence[T]]:
    for first in range(0, len(changes), ROWS_AT_ONCE):
        if first:
            await asyncio.sleep(0)
        yield changes[first : first + ROWS_AT_ONCE]


# --- rows -------------------------------------------------------------------------------------------


def _created(trial: Trial) -> Columns:
    return rows.trial_identity(trial) | rows.trial_columns(trial)


def _granted(lease: Lease) -> Columns:
    columns: Columns = {name: getattr(lease, name) for name in _LEASE_COLUMNS if name != "grant_id"}
    grant_id = lease.grant.id if lease.grant else None
    return columns | {"grant_id": grant_id, "resume": rows.checkpoint_columns(lease.resume)}


def _grant(grant: Grant) -> Columns:
    return {
        "id": grant.id,
        "study_id": grant.study_id,
        "slot_count": sum(len(part.slots) for part in grant.parts),
        "milli": grant.milli,
        "memory_bytes": grant.memory_bytes,
        "model": grant.model,
        "seats": grant.seats,
        "key": grant.key,
        "bubbles": grant.owner_stage,
    }


def _grant_parts(grant: Grant) -> Iterable[Columns]:
    for part in grant.parts:
        yield {
            "grant_id": grant.id,
            "worker_id": part.worker_id,
            "incarnation": part.incarnation,
            "slots": list(part.slots),
        }


def _progress(lease: Lease) -> Columns:
    return {
        "g_lease": lease.id,
        "last_sequence": lease.last_sequence,
        "step": lease.step,
        "live": lease.live,
        "ended": lease.ended,
    }


def _vacated(held: tuple[tuple[int, int], str]) -> Columns:
    (worker, index), grant = held
    return {"g_worker": worker, "g_index": index, "g_grant": grant}


def _occupied(key: tuple[int, int], changes: Changes) -> Columns:
    """A slot that a grant gets, perhaps from one that ends in the same cycle."""
    worker, index = key
    before = changes.vacated.get(key)
    return {"g_worker": worker, "g_index": index, "g_grant": before, "grant": changes.occupied[key]}


def _parts(slots: dict[tuple[int, int], tuple[int, int]]) -> Iterable[Columns]:
    for (worker, index), (milli, memory) in slots.items():
        if milli or memory:
            yield {"g_worker": worker, "g_index": index, "milli": milli, "memory": memory}


def _moved(change: TrialChange) -> Columns:
    ends = change.after.state is State.TERMINATED
    return rows.trial_columns(change.after) | {
        "g_study": change.before.study_id,
        "g_number": change.before.number,
        "g_attempt": change.before.attempt,
        "g_state": change.before.state.value,
        "end_cursor": change.cursor if ends else None,
    }


def _waves(changes: Sequence[TrialChange]) -> list[list[TrialChange]]:
    """Group changes so that each wave holds at most one transition of each trial, in order.

    Changes of a trial that do not change its state are merged into the transition before or after them.
    """
    chains: dict[int, list[TrialChange]] = {}
    for change in changes:
        chain = chains.setdefault(change.after.number, [])
        last = chain[-1] if chain else None
        quiet = change.before.state is change.after.state
        if last is not None and (quiet or last.before.state is last.after.state):
            chain[-1] = TrialChange(before=last.before, after=change.after, cursor=change.cursor)
        else:
            chain.append(change)
    depth = max((len(chain) for chain in chains.values()), default=0)
    return [[chain[level] for chain in chains.values() if len(chain) > level] for level in range(depth)]


# --- statements -------------------------------------------------------------------------------------


def _inserting(table: Any, *names: str, **computed: Callable[[Any], ColumnElement[Any]]) -> ClauseElement:
    """Insert the given rows; `computed` columns are expressions over a given row."""
    new = given({name: table.c[name] for name in names})
    values = [new.c[name] for name in names] + [of(new.c) for of in computed.values()]
    return insert(table).from_select([*names, *computed], select(*values), include_defaults=False)


def _guarding(query: Update) -> ClauseElement:
    """Require that a write changes as many rows as are `expected`: division by zero is the one error that plain
    SQL can raise at will."""
    changed = query.returning(literal(1)).cte("changed")
    met = func.count() == bindparam("expected", type_=BigInteger)
    return select(literal(1) / cast(met, Integer)).select_from(changed)


def _seconds(column: Any) -> Any:
    return column * text("interval '1 second'")


_LEASE_COLUMNS = (
    "id",
    "study_id",
    "number",
    "attempt",
    "worker_id",
    "incarnation",
    "client_id",
    "ttl_s",
    "grant_id",
    "last_sequence",
    "step",
    "resume",
    "budget",
)
_CREATE_TRIALS = Statement(lambda: _inserting(tables.trial, *rows.TRIAL_IDENTITY, *rows.TRIAL_COLUMNS))
_GRANT_LEASES = Statement(
    lambda: _inserting(tables.lease, *_LEASE_COLUMNS, expires_at=lambda new: now + _seconds(new.ttl_s))
)
_BEGIN_GRANTS = Statement(
    lambda: _inserting(
        tables.slot_grant,
        *("id", "study_id", "slot_count", "milli", "memory_bytes", "model", "seats", "key", "bubbles"),
    )
)
_ADD_PARTS = Statement(lambda: _inserting(tables.grant_part, "grant_id", "worker_id", "incarnation", "slots"))
_REPORTS = Statement(lambda: _inserting(tables.report, *rows.REPORT_COLUMNS))
_RUNGS = Statement(lambda: _inserting(tables.rung_result, *rows.RUNG_COLUMNS))
_EVENTS = Statement(lambda: _inserting(tables.event, *rows.EVENT_COLUMNS))


def _updating_leases(*here: ColumnElement[bool]) -> ClauseElement:
    le = tables.lease
    changed = {name: le.c[name] for name in ("last_sequence", "step", "live", "ended")}
    new = given({"g_lease": le.c.id} | changed)
    query = update(le).where(le.c.id == new.c.g_lease, *here)
    values = {name: new.c[name] for name in changed}
    end = case((~new.c.live, now))
    return _guarding(query.values(**values, expires_at=now + _seconds(le.c.ttl_s), end_time=end))


_UPDATE_LEASES = Statement(lambda: _updating_leases(tables.lease.c.live))
_RECLAIM_LEASES = Statement(
    lambda: _updating_leases(
        ~tables.lease.c.live, tables.lease.c.worker_id.is_(None), tables.lease.c.ended == "lapse"
    )
)


def _ending_grants() -> ClauseElement:
    """End grants without a live lease."""
    g, le = tables.slot_grant, tables.lease
    over = given({"g_grant": g.c.id})
    shared = exists().where(le.c.grant_id == g.c.id, le.c.live)
    query = update(g).where(g.c.id == over.c.g_grant, g.c.live, ~shared)
    return _guarding(query.values(live=False, end_time=now))


_END_GRANTS = Statement(_ending_grants)


def _closing_grants() -> ClauseElement:
    g = tables.slot_grant
    lost = given({"g_grant": g.c.id})
    return _guarding(update(g).where(g.c.id == lost.c.g_grant, g.c.live, ~g.c.closed).values(closed=True))


_CLOSE_GRANTS = Statement(_closing_grants)


def _moving_trials() -> ClauseElement:
    t = tables.trial
    guards = {"g_study": t.c.study_id, "g_number": t.c.number, "g_attempt": t.c.attempt, "g_state": t.c.state}
    names = (*rows.TRIAL_COLUMNS, "end_cursor")
    new = given(guards | {name: t.c[name] for name in names})
    query = update(t).where(*(of == new.c[name] for name, of in guards.items()))
    values: dict[str, ColumnElement[Any]] = {name: new.c[name] for name in names}
    # Set only once: a change of a trial that is over does not end it again. A reopened trial has no end.
    is_over = new.c.state == State.TERMINATED.value
    values["end_cursor"] = case((is_over, func.coalesce(t.c.end_cursor, new.c.end_cursor)))
    return _guarding(query.values(values))


_MOVE_TRIALS = Statement(_moving_trials)


def _vacating_slots() -> ClauseElement:
    s = tables.slot
    here = given({"g_worker": s.c.worker_id, "g_index": s.c.index, "g_grant": s.c.grant_id})
    query = update(s).where(s.c.worker_id == here.c.g_worker, s.c.index == here.c.g_index)
    return query.where(s.c.grant_id == here.c.g_grant).values(grant_id=None)


def _occupying_slots() -> ClauseElement:
    s = tables.slot
    here = given(
        {
            "g_worker": s.c.worker_id,
            "g_index": s.c.index,
            "g_grant": s.c.grant_id,
            "grant": s.c.grant_id,
        }
    )
    query = update(s).where(
        s.c.worker_id == here.c.g_worker,
        s.c.index == here.c.g_index,
        or_(s.c.grant_id.is_(None), s.c.grant_id == here.c.g_grant),
        s.c.shared_milli == 0,
    )
    return _guarding(query.values(grant_id=here.c.grant))


_VACATE_SLOTS = Statement(_vacating_slots)
_OCCUPY_SLOTS = Statement(_occupying_slots)


def _sharing_slots() -> ClauseElement:
    s = tables.slot
    part = given(
        {
            "g_worker": s.c.worker_id,
            "g_index": s.c.index,
            "milli": s.c.shared_milli,
            "memory": s.c.shared_memory_bytes,
        }
    )
    here = (s.c.worker_id == part.c.g_worker, s.c.index == part.c.g_index, s.c.grant_id.is_(None))
    more = {
        "shared_milli": s.c.shared_milli + part.c.milli,
        "shared_memory_bytes": s.c.shared_memory_bytes + part.c.memory,
    }
    return _guarding(update(s).where(*here).values(**more))


_SHARE_SLOTS = Statement(_sharing_slots)


def _promoting() -> ClauseElement:
    r = tables.rung_result
    new = given({"g_study": r.c.study_id, "g_number": r.c.number, "g_rung": r.c.rung, "at": r.c.cursor})
    query = update(r).where(
        r.c.study_id == new.c.g_study,
        r.c.number == new.c.g_number,
        r.c.rung == new.c.g_rung,
        r.c.promoted_cursor.is_(None),
    )
    return _guarding(query.values(promoted_cursor=new.c["at"]))


_PROMOTE = Statement(_promoting)


def _updating_study(**values: Any) -> ClauseElement:
    s = tables.study
    query = update(s).where(
        s.c.id == bindparam("g_study", type_=s.c.id.type),
        s.c.cursor == bindparam("g_cursor", type_=s.c.cursor.type),
    )
    changed = {name: bindparam(name, type_=s.c[name].type) for name in rows.STUDY_COLUMNS}
    return _guarding(query.values(**changed, **values))


_UPDATE_SPEC = Statement(
    lambda: (
        update(tables.study)
        .where(tables.study.c.id == bindparam("g_study", type_=BigInteger))
        .values(spec=bindparam("spec", type_=tables.study.c.spec.type))
    )
)
_UPDATE_CODE = Statement(
    lambda: (
        update(tables.study)
        .where(tables.study.c.id == bindparam("g_study", type_=BigInteger))
        .values(code_files=bindparam("code_files", type_=tables.study.c.code_files.type))
    )
)
_UPDATE_STUDY = Statement(_updating_study)
_END_STUDY = Statement(lambda: _updating_study(end_time=now))
_REOPEN_STUDY = Statement(lambda: _updating_study(end_time=null()))
