"""Trials that ended because their study did: they continue if it does."""

from sqlalchemy import ColumnElement, and_, func, or_, select

from headrace_services.scheduler.core.exits import ENDED_AFTERWARDS
from headrace_services.scheduler.core.lifecycle import Reason, StudyState
from headrace_services.scheduler.store import tables


def cut_off(study_id: int) -> ColumnElement[bool]:
    """Whether a terminated trial of a study that has ended was cut off by that end."""
    t, e, s = tables.trial, tables.event, tables.study
    end = (
        select(e.c.cursor)
        .where(e.c.study_id == study_id, e.c.number.is_(None), e.c.kind == "study_moved")
        .order_by(e.c.cursor.desc())
        .limit(1)
        .scalar_subquery()
    )
    # A trial may complete, or fail, after the end of its study in one cycle: that end is its own.
    by_it = t.c.reason.in_([Reason.CANCELLED.value, Reason.STOPPED_EARLY.value])
    # A trial that leaves while its study closes ends before the study, with the study's reason (`core.closing`).
    of_itself = s.c.state.in_([StudyState.COMPLETED.value, StudyState.FAILED.value])
    why = select(s.c.detail).where(s.c.id == study_id, of_itself).scalar_subquery()
    left = and_(
        t.c.reason == Reason.STOPPED_EARLY.value,
        or_(t.c.detail == why, func.starts_with(t.c.detail, why + ENDED_AFTERWARDS)),
    )
    return and_(or_(t.c.end_cursor >= end, left), by_it)
