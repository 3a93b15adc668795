"""Studies as users see them: the rows, and the figures of a live view.

The figures of a whole page of studies take three statements, each over an index. They are read at most twice a
second for a watched study and cost a few milliseconds at 10,000 trials. A study's row is read before its figures,
so the figures are at least as new as the row's cursor.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    Select,
    and_,
    case,
    cast,
    false,
    func,
    insert,
    literal_column,
    or_,
    select,
    text,
    true,
    tuple_,
    union,
    union_all,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace.errors import StudyDefectError
from headrace.spec import StudySpec
from headrace.spec.names import DEFAULT_PROJECT
from headrace.spec.objective import is_feasible, objective_vector
from headrace_services.scheduler.core import hours
from headrace_services.scheduler.core.capacity import Capacity, Profile
from headrace_services.scheduler.core.lifecycle import LEASED, Reason, State, StudyState
from headrace_services.scheduler.core.records import Event, Schedule, Study, TrialView
from headrace_services.scheduler.store import columns, counting, ends, profiles, rows, tables, trials
from headrace_services.scheduler.store.defects import is_transient, reason_of

FRONT_AT_MOST = 200
"""How many trials of a front a status names."""
FAILURES_AT_MOST = 20
"""How many failed trials a status names."""
SCHEDULES_AT_MOST = 20
"""How many kinds of ending schedules a status names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The part of a study's row that a watcher polls."""

    cursor: int
    state: StudyState
    ending: bool
    """Whether it has ended, but still has trials to terminate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """How many trials there are at the rungs of one milestone, over all brackets."""

    recorded: int
    promoted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A trial that failed, and where it did."""

    number: int
    detail: str
    worker: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndingSchedule:
    """A schedule that ends, for the trials that track it identically."""

    schedule: Schedule
    trials: int
    first_trial: int


@dataclass(slots=True, kw_only=True)
class Figures:
    """The counts for a study's status."""

    states: dict[State, int] = field(default_factory=dict)
    reasons: dict[Reason, int] = field(default_factory=dict)
    running: dict[int, int] = field(default_factory=dict)
    """Trials on a worker now, by the milestone that they run to."""
    user_paused: tuple[int, ...] = ()
    """The trials that are off their slots until a user resumes them, by number."""
    runnable: int = 0
    """Trials that could take a slot."""
    occupancy: dict[int, Occupancy] = field(default_factory=dict)
    """By milestone."""
    steps_spent: int = 0
    best: TrialView | None = None
    """It is a failed trial only if no other one has a value."""
    measured: tuple[tuple[int, tuple[float, ...]], ...] = ()
    """With several objectives: each feasible trial's number and its objectives."""
    front: tuple[TrialView, ...] = ()
    """With several objectives: the feasible trials that no other one dominates, by the first objective. They are
    failed trials only if no others have values."""
    baseline: TrialView | None = None
    failures: tuple[Failure, ...] = ()
    """The first trials that failed."""
    warm_results: int | None = None
    """How many results of an earlier study the sampler started with, once it has proposed a trial."""
    bundle_sizes: tuple[tuple[Profile, Capacity], ...] = ()
    """With `fuse`: the bundle profiles, and how many trials share a process."""
    has_schedules: bool = False
    """Whether any trial tracks a schedule that ends."""
    schedules: tuple[EndingSchedule, ...] = ()
    """The schedules that end, of trials that an extension may let continue, by their end."""
    unshown: str = ""
    """What could not be counted, and why; empty if all is there."""


_ENDING: ColumnElement[bool] = literal_column(
    "standing ->> 'ended_through' IS NOT NULL", Boolean
)  # as in its index


async def find(conn: AsyncConnection, project: str, name: str) -> Study | None:
    """The study with this name in a project. Raises StudyDefectError if its row cannot be read."""
    return await _one(conn, named(project, name), f"study '{name}'")


def named(project: str, name: str) -> ColumnElement[bool]:
    """The study with a name in a project, as a condition."""
    return and_(tables.study.c.project == project, tables.study.c.name == name)


async def get(conn: AsyncConnection, study_id: int) -> Study | None:
    """The study with this id. Raises StudyDefectError if its row cannot be read."""
    return await _one(conn, tables.study.c.id == study_id, "the study")


async def _one(conn: AsyncConnection, which: ColumnElement[bool], called: str) -> Study | None:
    try:
        here = tables.study.c.delete_time.is_(None)
        row = (await conn.execute(select(tables.study).where(which, here))).one_or_none()
        return rows.study(row) if row else None
    except Exception as error:
        if is_transient(error):
            raise
        raise StudyDefectError(f"{called} cannot be read: {reason_of(error)}") from error


async def head(conn: AsyncConnection, study_id: int) -> Head | None:
    """The present head of a study; None if it was deleted."""
    s = tables.study
    query = select(s.c.cursor, s.c.state, _ENDING.label("ending"))
    query = query.where(s.c.id == study_id, s.c.delete_time.is_(None))
    row = (await conn.execute(query)).one_or_none()
    return Head(cursor=row.cursor, state=StudyState(row.state), ending=row.ending) if row else None


async def ending(conn: AsyncConnection) -> list[int]:
    """The studies that have ended but still have trials to terminate."""
    s = tables.study
    return [int(row.id) for row in await conn.execute(select(s.c.id).where(_ENDING).order_by(s.c.id))]


async def to_count(conn: AsyncConnection) -> list[int]:
    """The studies whose hours (`core.hours`) are used up, or pass and have not been counted for a while, and those
    that close (`core.closing`) and whose trials have had their time."""
    s = tables.study
    found = union(select(s.c.id).where(_TO_COUNT), select(s.c.id).where(_CLOSED)).order_by("id")
    return [int(row.id) for row in await conn.execute(found)]


_TO_COUNT: ColumnElement[bool] = literal_column(
    "state IN ('ACTIVE', 'PAUSED') AND spec #>> '{until,hours}' IS NOT NULL"  # as in its index
    " AND standing #>> '{progress,since_s}' IS NOT NULL AND standing #>> '{closing}' IS NULL"
    " AND extract(epoch FROM clock_timestamp()) >= least("
    f"(standing #>> '{{progress,seen_s}}')::double precision + {hours.COUNT_EVERY_S},"
    " (standing #>> '{progress,since_s}')::double precision - (standing #>> '{progress,spent_s}')::double precision"
    " + 3600 * (spec #>> '{until,hours}')::double precision)",
    Boolean,
)
_CLOSED: ColumnElement[bool] = literal_column(
    "state IN ('ACTIVE', 'PAUSED')"  # as in its index
    " AND extract(epoch FROM clock_timestamp()) >= (standing #>> '{closing,by_s}')::double precision",
    Boolean,
)

MOST_SPEC_BYTES = 1024 * 1024
"""How many bytes of specs one page of a list reads: reading and showing this much takes 0.2 s of the event loop."""


@dataclass(frozen=True, slots=True)
class Key:
    """A study in a list."""

    id: int
    name: str
    size: int
    """The size of its spec, as stored."""


async def newest(
    conn: AsyncConnection,
    project: str,
    *,
    before_id: int | None,
    limit: int,
    which: ColumnElement[bool] | None = None,
) -> list[Key]:
    """A project's studies, or those that meet a condition, newest first, after the one with `before_id`."""
    s = tables.study
    size = func.pg_column_size(s.c.spec).label("size")
    query = select(s.c.id, s.c.name, size).where(s.c.project == project, s.c.delete_time.is_(None))
    query = query.order_by(s.c.id.desc()).limit(limit)
    if which is not None:
        query = query.where(which)
    if before_id is not None:
        query = query.where(s.c.id < before_id)
    return [Key(id=row.id, name=row.name, size=row.size) for row in await conn.execute(query)]


async def with_figures(conn: AsyncConnection, keys: Sequence[Key]) -> list[tuple[Study, Figures]]:
    """Studies with their figures, except their fronts, in the order of the keys."""
    s = tables.study
    query = select(s).where(s.c.id.in_([key.id for key in keys]))
    found = {row.id: rows.study(row) for row in await conn.execute(query)}
    studies = [found[key.id] for key in keys if key.id in found]
    counted = await figures(conn, studies)
    return [(study, counted[study.id]) for study in studies]


async def create(
    conn: AsyncConnection,
    *,
    project: str = DEFAULT_PROJECT,
    name: str,
    uid: str,
    spec: StudySpec,
    planned: int,
    event: Event,
    checks: str | None = None,
) -> Study:
    """Insert an active study with its first event; `checks` is the key of what a gate checks. Raises IntegrityError
    if the name is taken in the project."""
    s = tables.study
    values = {
        "project": project,
        "name": name,
        "uid": uid,
        "spec": spec.model_dump(mode="json"),
        "planned": planned,
        "after": spec.after,
        "checks": checks,
        "code": code_of(spec) or None,
        "state": StudyState.ACTIVE.value,
        "cursor": 1,
        "weight": spec.weight,
        "priority": spec.priority,
    }
    study = rows.study((await conn.execute(insert(s).values(values).returning(s))).one())
    first = {
        "study_id": study.id,
        "cursor": study.cursor,
        "number": event.number,
        "kind": event.kind,
        "message": event.message,
        "detail": event.detail,
    }
    await conn.execute(insert(tables.event).values(first))
    return study


def code_of(spec: StudySpec) -> str:
    """The digest of the code that a study's workers need; empty if none was shipped."""
    code = spec.template.code if spec.template is not None else None
    return code.digest if code is not None else ""


async def figures(
    conn: AsyncConnection, studies: Sequence[Study], *, whole: bool = False
) -> dict[int, Figures]:
    """The figures of each study, by its id. Those not in `whole` lack the failures, the rungs of trials, the
    results of a warm start and the data for a front. The caller computes the front (`add_front`), as it may take
    long."""
    found = {study.id: Figures() for study in studies}
    if not found:
        return found
    await _count_trials(conn, found)
    await _count_rungs(conn, found)
    for view in await trials.views(conn, _finalists(studies)):
        if view.trial.baseline:
            found[view.trial.study_id].baseline = view
        else:
            found[view.trial.study_id].best = view
    for study in studies if whole else ():
        if study.spec.further_objectives:
            found[study.id].measured = await _measured(conn, study)
        await _add_rungs(conn, study.id, found[study.id])
        if Reason.FAILED in found[study.id].reasons:
            found[study.id].failures = await _failures(conn, study.id)
        if found[study.id].has_schedules:
            found[study.id].schedules = await _schedules(conn, study)
        if study.spec.warm_start is not None:
            found[study.id].warm_results = await _warm_results(conn, study.id)
        if study.spec.fuse is not None:
            found[study.id].bundle_sizes = await profiles.sizes(conn, study)
    return found


async def add_front(conn: AsyncConnection, study: Study, figures: Figures, places: Sequence[int]) -> None:
    """Add the trials at these places of `figures.measured`, at most `FRONT_AT_MOST` of them, evenly spaced."""
    if len(places) > FRONT_AT_MOST:
        places = [places[share * (len(places) - 1) // (FRONT_AT_MOST - 1)] for share in range(FRONT_AT_MOST)]
    numbers = [figures.measured[place][0] for place in places]
    t = tables.trial
    found = await trials.views(conn, and_(t.c.study_id == study.id, t.c.number.in_(numbers)))
    by_number = {view.trial.number: view for view in await trials.with_rungs(conn, study.id, found)}
    figures.front = tuple(by_number[number] for number in numbers if number in by_number)


async def _add_rungs(conn: AsyncConnection, study_id: int, figures: Figures) -> None:
    """Add the rungs of the best trial and the baseline."""
    named = [view for view in (figures.best, figures.baseline) if view is not None]
    for view in await trials.with_rungs(conn, study_id, named):
        if view.trial.baseline:
            figures.baseline = view
        else:
            figures.best = view


async def _warm_results(conn: AsyncConnection, study_id: int) -> int | None:
    """How many results the sampler started with, according to its first proposal; None before that."""
    e = tables.event
    proposal = e.c.detail["proposal"]
    query = (
        select(proposal["warm_results"].as_integer().label("results"))
        .where(e.c.study_id == study_id, e.c.kind == "trial_created", proposal.is_not(None))
        .order_by(e.c.cursor)
        .limit(1)
    )
    return (await conn.execute(query)).scalar_one_or_none()


async def _failures(conn: AsyncConnection, study_id: int) -> tuple[Failure, ...]:
    """The first trials that failed, in the order of their ends."""
    t, le, w = tables.trial, tables.lease, tables.worker
    query = (
        select(t.c.number, t.c.detail, w.c.name)
        .join_from(t, le, trials.last_lease(t, le), isouter=True)
        .join(w, le.c.worker_id == w.c.id, isouter=True)
        .where(t.c.study_id == study_id, t.c.reason == Reason.FAILED.value)
        .order_by(t.c.end_cursor)
        .limit(FAILURES_AT_MOST)
    )
    return tuple(
        Failure(number=row.number, detail=row.detail, worker=row.name) for row in await conn.execute(query)
    )


async def _schedules(conn: AsyncConnection, study: Study) -> tuple[EndingSchedule, ...]:
    """The schedules of trials that a larger budget lets continue: those that are not over, that ended with their
    study, that had the full budget, or that continued once."""
    t = tables.trial
    one = func.jsonb_array_elements(t.c.schedules).column_valued("one", joins_implicitly=True)
    names = ("name", "kind", "last_step", "past_end")
    parts = [one.op("->>")(name).label(name) for name in names]
    completed = and_(t.c.reason == Reason.COMPLETED.value, t.c.step >= study.spec.max_steps)
    before = t.c.earlier_ends != text("'[]'")
    cut_off = ends.cut_off(study.id) if study.state.ended else false()
    last_step = func.min(cast(one.op("->>")("last_step"), BigInteger))
    query = (
        select(*parts, func.count().label("trials"), func.min(t.c.number).label("first"))
        .select_from(t)
        .where(
            t.c.study_id == study.id,
            t.c.schedules != text("'[]'"),
            or_(t.c.reason.is_(None), completed, before, cut_off),
        )
        .group_by(*parts)
        .order_by(last_step, func.min(t.c.number))
        .limit(SCHEDULES_AT_MOST)
    )
    return tuple(
        EndingSchedule(
            schedule=Schedule(
                name=row.name, kind=row.kind, last_step=int(row.last_step), past_end=row.past_end
            ),
            trials=row.trials,
            first_trial=row.first,
        )
        for row in await conn.execute(query)
    )


async def _measured(conn: AsyncConnection, study: Study) -> tuple[tuple[int, tuple[float, ...]], ...]:
    """The feasible trials of a study with several objectives, with the reports that count.

    This reads the objectives of all trials: some 50 ms at 10,000 of them.
    """
    t, spec = tables.trial, study.spec
    names = {one.metric for one in spec.objectives} | {one.metric for one in spec.constraints}
    counts = counting.metrics(t)
    parts = [part for name in sorted(names) for part in (name, counts[name])]
    wanted = func.jsonb_strip_nulls(func.jsonb_build_object(*parts))
    query = (
        select(
            t.c.number, counting.has_failed(t).label("failed"), wanted.cast(columns.Metrics).label("metrics")
        )
        .where(t.c.study_id == study.id, ~t.c.baseline, t.c.step > 0, ~counting.is_infeasible(t))
        .order_by(t.c.number)
    )
    sound: list[tuple[int, tuple[float, ...]]] = []
    failed: list[tuple[int, tuple[float, ...]]] = []
    for row in await conn.execute(query):
        vector = objective_vector(spec.objectives, row.metrics)
        if vector is not None and is_feasible(spec.constraints, row.metrics):
            (failed if row.failed else sound).append((row.number, vector))
    return tuple(sound or failed)


async def _count_trials(conn: AsyncConnection, found: dict[int, Figures]) -> None:
    t = tables.trial
    heading = case((t.c.state.in_([state.value for state in LEASED]), t.c.milestone)).label("heading")
    query = (
        select(
            t.c.study_id,
            t.c.state,
            t.c.reason,
            heading,
            func.count().label("trials"),
            func.sum(t.c.steps_spent).label("steps"),
            func.array_agg(t.c.number).filter(t.c.user_paused).label("user_paused"),
            func.count().filter(t.c.milestone.is_not(None), ~t.c.user_paused).label("runnable"),
            func.bool_or(t.c.schedules != text("'[]'")).label("has_schedules"),
        )
        .where(t.c.study_id.in_(found))
        .group_by(t.c.study_id, t.c.state, t.c.reason, heading)
    )
    for row in await conn.execute(query):
        study = found[row.study_id]
        state = State(row.state)
        study.states[state] = study.states.get(state, 0) + row.trials
        study.steps_spent += int(row.steps)
        study.has_schedules |= row.has_schedules
        if state in (State.PENDING, State.PAUSED):
            study.user_paused = tuple(sorted((*study.user_paused, *(row.user_paused or ()))))
            study.runnable += row.runnable
        if row.reason:
            study.reasons[Reason(row.reason)] = row.trials
        if row.heading is not None:
            study.running[row.heading] = study.running.get(row.heading, 0) + row.trials


async def _count_rungs(conn: AsyncConnection, found: dict[int, Figures]) -> None:
    r = tables.rung_result
    query = (
        select(
            r.c.study_id,
            r.c.milestone,
            func.count().label("recorded"),
            func.count(r.c.promoted_cursor).label("promoted"),
        )
        .where(r.c.study_id.in_(found))
        .group_by(r.c.study_id, r.c.milestone)
    )
    for row in await conn.execute(query):
        occupancy = Occupancy(recorded=row.recorded, promoted=row.promoted)
        found[row.study_id].occupancy[row.milestone] = occupancy


def _finalists(studies: Sequence[Study]) -> Any:
    """Each study's best trial and its baseline."""
    t = tables.trial
    ids = [study.id for study in studies]
    alike: dict[tuple[bool, bool], list[int]] = {}
    for study in studies:
        ranks = (study.spec.maximizes(), study.spec.objective.full_budget_first)
        alike.setdefault(ranks, []).append(study.id)
    baselines = select(t.c.study_id, t.c.number).where(t.c.study_id.in_(ids), t.c.number == 0, t.c.baseline)
    best = [_best(some, greatest=greatest, full_first=full) for (greatest, full), some in alike.items()]
    wanted: Any = union_all(baselines, *best)
    return tuple_(t.c.study_id, t.c.number).in_(wanted)


def _best(ids: list[int], *, greatest: bool, full_first: bool) -> Select[Any]:
    """The best of the sound trials or, if these have no scores, of the failed and diverged ones. With
    `full_first`, a completed one ranks before all others."""
    s = tables.study
    full = [_first(greatest=greatest, sound=True, full=True)] if full_first else []
    number = func.coalesce(
        *full, _first(greatest=greatest, sound=True), _first(greatest=greatest, sound=False)
    )
    return select(s.c.id, number).where(s.c.id.in_(ids))


@cache  # it is slow to build, and part of every status
def _first(*, greatest: bool, sound: bool, full: bool = False) -> Any:
    """The first of the sound trials, or of the others. With `full`, among those that completed.

    Of equal ones the trial that completed ranks first, then the one that trained further, whose result is better
    known. The index has the order of scores, so only equals are sorted.
    """
    s, t = tables.study, tables.trial.alias()
    value = t.c.score.desc() if greatest else t.c.score.asc()
    completed, is_sound = counting.has_completed(t), counting.is_sound(t)
    return (
        select(t.c.number)
        .where(t.c.study_id == s.c.id, ~t.c.baseline, t.c.score.is_not(None))
        .where(is_sound if sound else ~is_sound & ~counting.is_infeasible(t), completed if full else true())
        .order_by(value, completed.desc(), t.c.step.desc(), t.c.number)
        .limit(1)
        .correlate(s)
        .scalar_subquery()
    )
