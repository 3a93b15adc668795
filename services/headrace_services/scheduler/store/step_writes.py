"""What a step writes. Every write is guarded by what the step loaded; a guard that meets no row means that the
copy was stale, and the whole transaction is given up."""

from dataclasses import asdict
from typing import Any

from sqlalchemy import CursorResult, bindparam, case, func, insert, update
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace_services.scheduler.lifecycle import State
from headrace_services.scheduler.records import Lease, Study, Trial
from headrace_services.scheduler.step.changes import Changes, TrialChange
from headrace_services.scheduler.store import exploits, rows, tables
from headrace_services.scheduler.store.rows import Columns

now = func.clock_timestamp()


class StaleCopyError(Exception):
    """A guarded write met no row: something changed it outside the study's lock."""


async def write(conn: AsyncConnection, before: Study, after: Study, changes: Changes) -> None:
    """Write everything that a step changed. The order keeps every constraint satisfied in between."""
    await _create_trials(conn, changes.created)
    await _end_and_grant_leases(conn, changes)
    await _move_trials(conn, changes.trials)
    await _move_slots(conn, changes)
    await _append_history(conn, after.id, before.cursor, changes)
    await _update_study(conn, before, after)


async def _create_trials(conn: AsyncConnection, created: list[Trial]) -> None:
    if created:
        await conn.execute(insert(tables.trial), [_created(trial) for trial in created])


def _created(trial: Trial) -> Columns:
    return {
        "study_id": trial.study_id,
        "number": trial.number,
        "state": State.PENDING.value,
        "params": trial.params,
        "baseline": trial.baseline,
        "bracket": trial.bracket,
        "generation": trial.generation,
        "milestone": trial.milestone,
    }


async def _end_and_grant_leases(conn: AsyncConnection, changes: Changes) -> None:
    le = tables.lease
    query = (
        update(le)
        .where(le.c.id == bindparam("lease"), le.c.live)
        .values(
            last_sequence=bindparam("new_sequence"),
            step=bindparam("new_step"),
            expires_at=now + _seconds(le.c.ttl_s),
        )
    )
    going = [lease for lease in changes.updated.values() if lease.live]
    ended = [lease for lease in changes.updated.values() if not lease.live]
    await _guarded(conn, query, [_progress(lease) for lease in going])
    await _guarded(conn, query.values(live=False, end_time=now), [_progress(lease) for lease in ended])
    if changes.granted:
        values = {
            **{name: bindparam(name) for name in _LEASE_COLUMNS},
            "expires_at": now + _seconds(bindparam("ttl_s")),
        }
        await conn.execute(insert(le).values(values), [_granted(lease) for lease in changes.granted.values()])


_LEASE_COLUMNS = (
    "id",
    "study_id",
    "number",
    "epoch",
    "worker_id",
    "incarnation",
    "client_id",
    "ttl_s",
    "slots",
    "last_sequence",
    "step",
    "resume",
    "milli",
    "memory_bytes",
    "model",
)


def _granted(lease: Lease) -> Columns:
    columns: Columns = {name: getattr(lease, name) for name in _LEASE_COLUMNS}
    return columns | {"slots": list(lease.slots), "resume": rows.checkpoint_columns(lease.resume)}


def _progress(lease: Lease) -> Columns:
    return {"lease": lease.id, "new_sequence": lease.last_sequence, "new_step": lease.step}


def _seconds(column: Any) -> Any:
    return func.make_interval(0, 0, 0, 0, 0, 0, column)


async def _move_trials(conn: AsyncConnection, changes: list[TrialChange]) -> None:
    t = tables.trial
    guard = (
        t.c.study_id == bindparam("g_study"),
        t.c.number == bindparam("g_number"),
        t.c.epoch == bindparam("g_epoch"),
        t.c.state == bindparam("g_state"),
    )
    for wave in _waves(changes):
        for ends in (False, True):
            part = [change for change in wave if (change.after.state is State.TERMINATED) is ends]
            names = rows.trial_columns(part[0].after) if part else {}
            values: dict[str, Any] = {name: bindparam(name) for name in names}
            if ends:
                values |= {"end_time": now, "end_cursor": bindparam("ended_at")}
            values["start_time"] = func.coalesce(t.c.start_time, case((bindparam("epoch") > 0, now)))
            await _guarded(conn, update(t).where(*guard).values(values), [_guards(change) for change in part])


def _waves(changes: list[TrialChange]) -> list[list[TrialChange]]:
    """Group changes so that each wave holds one transition a trial at most, in order.

    Changes of a trial that do not change its state are merged into the transition before or after.
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


def _guards(change: TrialChange) -> Columns:
    columns = rows.trial_columns(change.after) | {
        "g_study": change.before.study_id,
        "g_number": change.before.number,
        "g_epoch": change.before.epoch,
        "g_state": change.before.state.value,
    }
    if change.after.state is State.TERMINATED:
        columns["ended_at"] = change.cursor
    return columns


async def _move_slots(conn: AsyncConnection, changes: Changes) -> None:
    s = tables.slot
    here = (s.c.worker_id == bindparam("g_worker"), s.c.index == bindparam("g_index"))
    freed = update(s).where(*here, s.c.lease_id == bindparam("g_lease")).values(lease_id=None)
    for (worker, index), lease in changes.vacated.items():
        await conn.execute(freed, {"g_worker": worker, "g_index": index, "g_lease": lease})
    shared = (
        update(s)
        .where(*here, s.c.lease_id.is_(None))
        .values(
            shared_milli=s.c.shared_milli + bindparam("milli"),
            shared_memory_bytes=s.c.shared_memory_bytes + bindparam("memory"),
        )
    )
    parts = [
        {"g_worker": worker, "g_index": index, "milli": milli, "memory": memory}
        for (worker, index), (milli, memory) in changes.shared.items()
        if milli or memory
    ]
    await _guarded(conn, shared, parts)
    free = (s.c.lease_id.is_(None), s.c.shared_milli == 0)
    taken = update(s).where(*here, *free).values(lease_id=bindparam("new_lease"))
    occupied = [
        {"g_worker": worker, "g_index": index, "new_lease": lease}
        for (worker, index), lease in changes.occupied.items()
    ]
    await _guarded(conn, taken, occupied)


async def _append_history(conn: AsyncConnection, study_id: int, cursor: int, changes: Changes) -> None:
    if changes.reports:
        values = [rows.report_columns(study_id, report) for report in changes.reports]
        await conn.execute(insert(tables.report), values)
    r = tables.rung_result
    if changes.rungs:
        await conn.execute(
            insert(r),
            [
                {
                    "study_id": study_id,
                    "number": change.entry.number,
                    "rung": change.entry.rung,
                    "bracket": change.entry.bracket,
                    "milestone": change.entry.milestone,
                    "step": change.entry.step,
                    "value": change.entry.value,
                    "arrival": change.entry.arrival,
                    "checkpoint": rows.checkpoint_columns(change.entry.checkpoint),
                    "cost": asdict(change.entry.cost) if change.entry.cost else None,
                    "cursor": change.cursor,
                }
                for change in changes.rungs
            ],
        )
    promote = (
        update(r)
        .where(
            r.c.study_id == bindparam("g_study"),
            r.c.number == bindparam("g_number"),
            r.c.rung == bindparam("g_rung"),
            r.c.promoted_cursor.is_(None),
        )
        .values(promoted_cursor=bindparam("at"))
    )
    promoted = [
        {"g_study": study_id, "g_number": change.number, "g_rung": change.rung, "at": change.cursor}
        for change in changes.promotions
    ]
    await _guarded(conn, promote, promoted)
    await exploits.append(conn, study_id, changes.exploits)
    if changes.events:
        await conn.execute(
            insert(tables.event),
            [
                {
                    "study_id": study_id,
                    "cursor": cursor + offset,
                    "number": event.number,
                    "kind": event.kind,
                    "message": event.message,
                    "detail": event.detail,
                }
                for offset, event in enumerate(changes.events, start=1)
            ],
        )


async def _update_study(conn: AsyncConnection, before: Study, after: Study) -> None:
    if after == before:
        return
    s = tables.study
    query = (
        update(s)
        .where(s.c.id == after.id, s.c.cursor == before.cursor)
        .values(
            state=after.state.value,
            detail=after.detail,
            cursor=after.cursor,
            next_number=after.next_number,
            sampled=after.sampled,
            reports=after.reports,
            metric_seen=after.metric_seen,
            early_failures=after.early_failures,
            standing=rows.standing_columns(after.standing),
        )
    )
    if after.state.ended and not before.state.ended:
        query = query.values(end_time=now)
    _expect(await conn.execute(query), 1)


async def _guarded(conn: AsyncConnection, query: Any, parameters: list[Columns]) -> None:
    """Run a guarded write for each set of parameters; each must meet its row."""
    if parameters:
        _expect(await conn.execute(query, parameters), len(parameters))


def _expect(result: CursorResult[Any], count: int) -> None:
    if result.rowcount != count:
        raise StaleCopyError(f"expected to change {count} rows and changed {result.rowcount}")
