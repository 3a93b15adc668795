"""The cluster in numbers. The cost is bounded by its slots, not by its trials."""

from dataclasses import dataclass, field

from sqlalchemy import and_, case, func, literal, select
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace_services.scheduler.core.lifecycle import State, StudyState
from headrace_services.scheduler.store import tables
from headrace_services.scheduler.store.cluster import HEARD_OF

MOST_WAITING = 10_000
"""How many waiting trials are counted at most."""
SLOT_STATES = ("free", "busy", "draining", "quarantined", "suspended", "away")


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """Counts by state."""

    slots: dict[str, int] = field(default_factory=dict)
    studies: dict[str, int] = field(default_factory=dict)
    trials: dict[str, int] = field(default_factory=dict)


async def overview(conn: AsyncConnection) -> Overview:
    """Count what the cluster has now."""
    s, w, lv, le, t, st = (
        *(tables.slot, tables.worker, tables.leave),
        *(tables.lease, tables.trial, tables.study),
    )
    state = case(
        (s.c.defect != "", literal("quarantined")),
        (~HEARD_OF, literal("away")),
        (lv.c.grant_id.is_not(None), literal("draining")),
        ((s.c.grant_id.is_not(None)) | (s.c.shared_milli > 0), literal("busy")),
        (w.c.suspended_until.is_not(None), literal("suspended")),
        (~s.c.present, literal("away")),
        else_=literal("free"),
    ).label("state")
    slots = (
        select(state, func.count())
        .join_from(s, w, w.c.id == s.c.worker_id)
        .join(lv, lv.c.grant_id == s.c.grant_id, isouter=True)
        .group_by(state)
    )
    live = [StudyState.ACTIVE.value, StudyState.PAUSED.value]
    studies = select(st.c.state, func.count()).where(st.c.state.in_(live)).group_by(st.c.state)
    on_workers = (
        select(t.c.state, func.count())
        .join_from(le, t, and_(t.c.study_id == le.c.study_id, t.c.number == le.c.number))
        .where(le.c.live)
        .group_by(t.c.state)
    )
    waiting = (
        select(literal(1))
        .join_from(st, t, t.c.study_id == st.c.id)
        .where(st.c.state == StudyState.ACTIVE.value)
        .where(t.c.state.in_([State.PENDING.value, State.PAUSED.value]))
        .where(t.c.milestone.is_not(None), ~t.c.user_paused)
        .limit(MOST_WAITING)
        .subquery()
    )
    found_slots = dict.fromkeys(SLOT_STATES, 0)
    found_slots |= {row[0]: row[1] for row in await conn.execute(slots)}
    found_studies = {state.lower(): 0 for state in live}
    found_studies |= {row[0].lower(): row[1] for row in await conn.execute(studies)}
    trials = {State.RUNNING.value.lower(): 0, State.RESUMED.value.lower(): 0}
    trials |= {row[0].lower(): row[1] for row in await conn.execute(on_workers)}
    runnable = (await conn.execute(select(func.count()).select_from(waiting))).scalar_one()
    return Overview(slots=found_slots, studies=found_studies, trials={**trials, "runnable": runnable})
