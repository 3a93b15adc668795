"""The data for a proposal: whether one is needed, results since a cursor, and trials that have none yet.

Each proposal reads what is new and a few counts, over indexes. Only the first read by a process that has not seen
the study grows with the number of trials. Results are those up to the cursor that was read first, in commit order,
so a longer history always starts with a shorter one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Select,
    and_,
    cast,
    exists,
    false,
    func,
    literal,
    literal_column,
    or_,
    select,
    text,
    true,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace.spec import Scope
from headrace_services.scheduler.core.best_of import Found, Source
from headrace_services.scheduler.core.lifecycle import Reason, State, StudyState
from headrace_services.scheduler.core.records import Params, Study
from headrace_services.scheduler.store import columns, counting, rows, studies, tables

FIRST = 0
"""The level that stands for each trial's first result."""
EVERY = -1
"""The level that stands for the results at several rungs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The state of a study, read in one transaction."""

    study: Study
    queued: int
    """How many trials could start now."""
    live: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A trial's metrics when it was recorded at a level."""

    params: Params
    generation: int | None
    metrics: dict[str, float]
    level: int


async def standing(conn: AsyncConnection, study_id: int) -> Standing | None:
    """The state of a study; None if it was deleted."""
    s = tables.study
    query = select(s).where(s.c.id == study_id, s.c.delete_time.is_(None))
    row = (await conn.execute(query)).one_or_none()
    if row is None:
        return None
    t, le = tables.trial, tables.lease
    queued = select(func.count()).where(t.c.study_id == study_id, *_runnable(t))
    live = select(func.count()).where(le.c.study_id == study_id, le.c.live)
    counts = (
        await conn.execute(
            select(queued.scalar_subquery().label("queued"), live.scalar_subquery().label("live"))
        )
    ).one()
    return Standing(study=rows.study(row), queued=counts.queued, live=counts.live)


async def levels_since(conn: AsyncConnection, study_id: int, cursor: int, upto: int) -> dict[int, int]:
    """How many results arrived at each level after an event."""
    r = tables.rung_result
    query = (
        select(r.c.milestone, func.count())
        .where(r.c.study_id == study_id, r.c.cursor > cursor, r.c.cursor <= upto)
        .group_by(r.c.milestone)
    )
    return {int(level): int(count) for level, count in await conn.execute(query)}


async def results_since(
    conn: AsyncConnection,
    study_id: int,
    level: int,
    cursor: int,
    upto: int,
    *,
    budgets: Sequence[int],
    among: Sequence[int] = (),
    most: int | None = None,
) -> list[Measured]:
    """The results at a level after an event, in the order of arrival; the newest `most` of them.

    For `EVERY` a trial has one for each rung in `among` that it crossed. A report that crossed several counts at
    the highest of them. At the top level a completed trial without an entry at a rung counts with its last report:
    the baseline, and a program that ended by itself. A trial that ended with an earlier full budget is compared at
    that budget, not at the present one, even if it was let continue since (`core.earlier_ends`).
    """
    top = budgets[-1]
    r, t, p = tables.rung_result, tables.trial, tables.report
    at = {FIRST: r.c.rung == 0, EVERY: _at_each(among)}.get(level, r.c.milestone == level)
    reported = _first_report(
        p.c.study_id == r.c.study_id, p.c.number == r.c.number, p.c.step == r.c.step
    ).lateral()
    recorded = (
        select(r.c.cursor, t.c.params, t.c.generation, reported.c.metrics, r.c.milestone.label("level"))
        .select_from(
            r.join(t, and_(t.c.study_id == r.c.study_id, t.c.number == r.c.number)).join(reported, true())
        )
        .where(r.c.study_id == study_id, at, r.c.cursor > cursor, r.c.cursor <= upto)
    )
    if most is not None:
        recorded = recorded.order_by(r.c.cursor.desc(), r.c.milestone.desc()).limit(most)
    found = [*await conn.execute(recorded)]
    unrecorded = [_infeasible(study_id, level, cursor, upto, top)]
    if level in (FIRST, EVERY, top):
        unrecorded.append(_unrecorded(study_id, level, cursor, upto, budgets))
    if len(budgets) > 1 and level in (FIRST, EVERY, *budgets[:-1]):
        unrecorded.append(_unrecorded_before(study_id, level, cursor, upto, among))
    for ends in unrecorded:
        newest = ends if most is None else ends.order_by(text("cursor DESC")).limit(most)
        found += await conn.execute(newest)
    found.sort(key=lambda row: (row.cursor, row.level))
    return [_measured(row) for row in found[-most if most else 0 :]]


def _first_report(*which: ColumnElement[bool]) -> Select[tuple[dict[str, float]]]:
    """The metrics of the first of the reports at a step."""
    p = tables.report
    return select(p.c.metrics).where(*which).order_by(p.c.attempt, p.c.sequence).limit(1)


def _at_each(levels: Sequence[int]) -> Any:
    """Entries at these levels whose report did not reach the next one of them."""
    r = tables.rung_result
    last = [r.c.milestone == level for level in levels[-1:]]
    return or_(
        false(),
        *(and_(r.c.milestone == level, r.c.step < above) for level, above in pairwise(levels)),
        *last,
    )


def _unrecorded(study_id: int, level: int, cursor: int, upto: int, budgets: Sequence[int]) -> Select[Any]:
    t, r = tables.trial, tables.rung_result
    top = budgets[-1]
    at = true() if level == FIRST else r.c.milestone == top
    return select(
        t.c.end_cursor.label("cursor"), t.c.params, t.c.generation, t.c.metrics, literal(top).label("level")
    ).where(
        t.c.study_id == study_id,
        t.c.end_cursor > cursor,
        t.c.end_cursor <= upto,
        t.c.reason == Reason.COMPLETED.value,
        ~exists().where(r.c.study_id == t.c.study_id, r.c.number == t.c.number, at),
        ~_had_budget(budgets[:-1]),
        ~func.jsonb_path_exists(t.c.earlier_ends, _COMPLETED_BEFORE) if level == FIRST else true(),
    )


def _infeasible(study_id: int, level: int, cursor: int, upto: int, top: int) -> Select[Any]:
    """Infeasible trials without an entry at the level: a result without values, which is the worst possible."""
    t, r = tables.trial, tables.rung_result
    at = {FIRST: r.c.rung == 0, EVERY: true()}.get(level, r.c.milestone == level)
    told = literal(level if level > 0 else top).label("level")
    nothing = literal_column("'{}'::json", type_=columns.Metrics).label("metrics")
    return select(t.c.end_cursor.label("cursor"), t.c.params, t.c.generation, nothing, told).where(
        t.c.study_id == study_id,
        t.c.end_cursor > cursor,
        t.c.end_cursor <= upto,
        t.c.reason == Reason.INFEASIBLE.value,
        ~exists().where(r.c.study_id == t.c.study_id, r.c.number == t.c.number, at),
    )


_COMPLETED_BEFORE: ColumnElement[Any] = literal_column("'$[*].budget ? (@ != null)'")


def _unrecorded_before(
    study_id: int, level: int, cursor: int, upto: int, among: Sequence[int]
) -> Select[Any]:
    """The same for trials that completed an earlier full budget and were let continue since: each completion
    counts at its budget."""
    t, r, p = tables.trial, tables.rung_result, tables.report
    end = func.jsonb_array_elements(t.c.earlier_ends).column_valued("ends", joins_implicitly=True)
    budget, told = cast(end.op("->>")("budget"), BigInteger), cast(end.op("->>")("cursor"), BigInteger)
    other = func.jsonb_array_elements(t.c.earlier_ends).column_valued("others", joins_implicitly=True)
    first = select(func.min(cast(other.op("->>")("budget"), BigInteger))).scalar_subquery()
    which = {FIRST: budget == first, EVERY: budget.in_(among)}.get(level, budget == level)
    at = true() if level == FIRST else r.c.milestone == budget
    step = cast(end.op("->>")("step"), BigInteger)
    reported = _first_report(p.c.study_id == t.c.study_id, p.c.number == t.c.number, p.c.step == step)
    query = select(
        told.label("cursor"),
        t.c.params,
        t.c.generation,
        reported.scalar_subquery().label("metrics"),
        budget.label("level"),
    )
    return query.select_from(t).where(
        t.c.study_id == study_id,
        told > cursor,
        told <= upto,
        budget.is_not(None),
        which,
        ~exists().where(r.c.study_id == t.c.study_id, r.c.number == t.c.number, at),
    )


def _had_budget(budgets: Sequence[int]) -> Any:
    """Whether a trial ended with one of these full budgets: then its last report is the one at that rung."""
    t, r = tables.trial, tables.rung_result
    if not budgets:
        return false()
    return exists().where(
        r.c.study_id == t.c.study_id,
        r.c.number == t.c.number,
        r.c.milestone.in_(budgets),
        r.c.step == t.c.step,
    )


async def pending(conn: AsyncConnection, study_id: int, level: int) -> list[Params]:
    """The configurations of trials that are on their way to a level, or could start now, by number."""
    t = tables.trial
    on_worker = t.c.state.in_([State.RUNNING.value, State.RESUMED.value])
    before = t.c.rungs == 0 if level in (FIRST, EVERY) else t.c.step < level
    query = (
        select(t.c.params)
        .where(t.c.study_id == study_id, or_(on_worker, and_(*_runnable(t))), before)
        .order_by(t.c.number)
    )
    return [row.params for row in await conn.execute(query)]


async def earlier(
    conn: AsyncConnection,
    project: str,
    name: str,
    level: int,
    limit: int,
    *,
    top: int,
    below: int | None = None,
) -> list[Measured]:
    """The metrics of the newest `limit` trials of an earlier study of a project when they first reached a level,
    and `below` another one.

    It does not matter how they ended, or whether they did: within a study a trial that was stopped counts at the
    rungs that it reached. At the top level a trial that completed in fewer steps counts with its last report,
    unless the study was extended and the trial ended with its earlier budget. Values are compared at equal steps,
    even if a trial counts with an earlier end. If an extension brought no result at its budget, all count at the
    earlier budget. Nothing is returned if the study no longer exists.
    """
    s = tables.study
    extended = (
        await conn.execute(select(s.c.spec["extended"]["steps"]).where(studies.named(project, name)))
    ).scalar_one_or_none()
    before = [step for step in extended if isinstance(step, int)] if isinstance(extended, list) else []
    found = await _earlier(conn, project, name, level, limit, top=top, below=below, before=before)
    while not found and level == top and below is None and before:
        budget = before.pop()
        found = await _earlier(conn, project, name, min(budget, level), limit, top=budget, before=before)
    return [replace(one, level=level) for one in found]


async def _earlier(
    conn: AsyncConnection,
    project: str,
    name: str,
    level: int,
    limit: int,
    *,
    top: int,
    below: int | None = None,
    before: Sequence[int],
) -> list[Measured]:
    s, t, p = tables.study, tables.trial, tables.report
    reported = (
        select(p.c.metrics)
        .where(
            p.c.study_id == t.c.study_id,
            p.c.number == t.c.number,
            p.c.step >= level,
            p.c.step < below if below is not None else true(),
        )
        .order_by(p.c.attempt, p.c.sequence)
        .limit(1)
        .lateral()
    )
    is_complete = and_(t.c.reason == Reason.COMPLETED.value, ~_had_budget(before))
    metrics = func.coalesce(reported.c.metrics, t.c.metrics) if level == top else reported.c.metrics
    study = (
        select(s.c.id).where(studies.named(project, name)).scalar_subquery()
    )  # as a join, all studies' trials might be read
    query = (
        select(t.c.params, t.c.generation, metrics.label("metrics"), literal(level).label("level"))
        .select_from(t.join(reported, true(), isouter=level == top))
        .where(t.c.study_id == study, or_(is_complete, reported.c.metrics.is_not(None)))
        .order_by(t.c.number.desc())
        .limit(limit)
    )
    return [_measured(row) for row in await conn.execute(query)]


async def source(conn: AsyncConnection, project: str, name: str) -> Source | None:
    """Another study of a project as a source of configurations; None if there is none with this name."""
    s, t = tables.study, tables.trial
    has_ended = t.c.state == State.TERMINATED.value
    is_decided = or_(has_ended, and_(t.c.state == State.PAUSED.value, t.c.milestone.is_(None)))
    had_full = and_(counting.has_completed(t), t.c.score.is_not(None), ~t.c.baseline)
    counts = (
        select(
            func.count().filter(has_ended).label("ended"),
            func.count().filter(is_decided, ~t.c.baseline).label("decided"),
            func.coalesce(func.bool_or(had_full), False).label("has_full"),
        )
        .where(t.c.study_id == s.c.id)
        .lateral()
    )
    query = (
        select(s.c.id, s.c.state, s.c.detail, s.c.planned, counts)
        .select_from(s.join(counts, true()))
        .where(studies.named(project, name))
    )
    row = (await conn.execute(query)).one_or_none()
    if row is None:
        return None
    return Source(
        id=row.id,
        state=StudyState(row.state),
        detail=row.detail,
        planned=row.planned,
        ended=row.ended,
        decided=row.decided,
        has_full=row.has_full,
    )


async def best_left(conn: AsyncConnection, source_id: int, study_id: int, *, maximize: bool) -> Found | None:
    """The best trial of a source that did not fail, and whose configuration no trial of the study has yet
    (`scores.ranked`). The source's own scope decides what counts."""
    s, t, mine = tables.study, tables.trial, tables.trial.alias()
    taken = select(mine.c.source).where(mine.c.study_id == study_id, mine.c.source.is_not(None))
    value = t.c.score.desc() if maximize else t.c.score.asc()
    scope = s.c.spec["objective"]["scope"].as_string()
    counts = (await conn.execute(select(scope).where(s.c.id == source_id))).scalar_one_or_none()
    late = [~counting.has_completed(t)] if counts == Scope.FULL_BUDGET else []
    query = (
        select(t.c.number, t.c.params)
        .where(
            t.c.study_id == source_id,
            ~t.c.baseline,
            t.c.score.is_not(None),
            ~counting.has_failed(t),
            t.c.number.not_in(taken),
        )
        .order_by(*late, value, t.c.step.desc(), t.c.number)
        .limit(1)
    )
    row = (await conn.execute(query)).one_or_none()
    return None if row is None else Found(number=row.number, params=row.params)


async def studies_to_propose_for(conn: AsyncConnection) -> list[int]:
    """Active studies of the pool with no trial that could start now, oldest first."""
    s, t = tables.study, tables.trial
    # One at a time by its index: a join might read the waiting trials of all studies.
    waiting = select(t.c.number).where(t.c.study_id == s.c.id, *_runnable(t)).limit(1).scalar_subquery()
    kind = s.c.spec["sampler"]["kind"].as_string()
    query = (
        select(s.c.id)
        .where(
            s.c.state == StudyState.ACTIVE.value,
            s.c.sampled < s.c.planned,
            kind.not_in(["random", "grid"]),
            waiting.is_(None),
        )
        .order_by(s.c.id)
    )
    return list(await conn.scalars(query))


def _runnable(t: Any) -> tuple[Any, ...]:
    waiting = t.c.state.in_([State.PENDING.value, State.PAUSED.value])
    rests = t.c.not_before_s > func.extract("epoch", func.clock_timestamp())
    return waiting, t.c.milestone.is_not(None), ~t.c.user_paused, or_(t.c.not_before_s.is_(None), ~rests)


def _measured(row: Any) -> Measured:
    return Measured(params=row.params, generation=row.generation, metrics=row.metrics, level=row.level)
