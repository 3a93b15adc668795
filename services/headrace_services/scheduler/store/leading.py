"""The best of a study's trials that have no further training to do, which further trials have to improve on
(`core.until`)."""

from typing import Any, Final

from sqlalchemy import Select, func, or_, select, true
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace_services.scheduler.core.lifecycle import State
from headrace_services.scheduler.core.needs import BestScored
from headrace_services.scheduler.core.records import Trial
from headrace_services.scheduler.store import counting, rows, tables

_ranked: Final = tables.trial.alias("ranked")  # slow to build


async def best_scored(conn: AsyncConnection, study_id: int, need: BestScored) -> tuple[Trial, ...]:
    """The best one and the named ones, by number."""
    t = tables.trial
    still = or_(t.c.state == State.TERMINATED.value, t.c.milestone.is_(None))
    best = [_first(study_id, need, full=full) for full in ((True, False) if need.full_first else (False,))]
    wanted = or_(
        t.c.number == func.coalesce(*(one.scalar_subquery() for one in best)), t.c.number.in_(need.named)
    )
    query = select(t).where(t.c.study_id == study_id, still, wanted).order_by(t.c.number)
    return tuple(rows.trial(row) for row in await conn.execute(query))


def _first(study_id: int, need: BestScored, *, full: bool) -> Select[Any]:
    """With `full`, among those that completed. The index has the order of scores, so only equals are sorted."""
    t = _ranked
    value = t.c.score.desc() if need.maximize else t.c.score.asc()
    still = or_(t.c.state == State.TERMINATED.value, t.c.milestone.is_(None))
    return (
        select(t.c.number)
        .where(t.c.study_id == study_id, ~t.c.baseline, t.c.score.is_not(None), still)
        .where(~counting.has_failed(t), t.c.number.not_in(need.apart))
        .where(counting.has_completed(t) if full else true())
        .order_by(value, t.c.step.desc(), t.c.number)
        .limit(1)
    )
