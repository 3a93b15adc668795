"""Studies that start after others, gates that others may rely on, and the results of pilots."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, and_, or_, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace.spec import Goal, StudySpec
from headrace_services.scheduler.core.lifecycle import StudyState
from headrace_services.scheduler.core.scales import PilotTrial, ScaleChoice
from headrace_services.scheduler.store import counting, rows, studies, tables


async def passed_gate(conn: AsyncConnection, project: str, key: str) -> str | None:
    """The name of a gate of the project that has passed with this key."""
    s = tables.study
    query = (
        select(s.c.name)
        .where(s.c.checks == key, s.c.project == project, s.c.state == StudyState.COMPLETED.value)
        .order_by(s.c.id.desc())
        .limit(1)
    )
    return (await conn.execute(query)).scalar_one_or_none()


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitOver:
    """A study that waits for another one, which has ended or no longer exists."""

    id: int
    project: str
    after: str
    state: StudyState | None
    """The other study's state; None if it was deleted."""
    detail: str
    scale: ScaleChoice | None
    """What the other study's pilot has chosen, which holds for this one too."""
    uid: str
    revision: int
    columns: rows.Columns

    @property
    def spec(self) -> StudySpec:
        """This study's spec. Raises ValidationError if its columns are not a valid one."""
        return rows.spec_of(self.uid, self.revision, self.columns)


async def waits_over(conn: AsyncConnection) -> list[WaitOver]:
    """The studies that no longer have to wait for another one."""
    s, other = tables.study, tables.study.alias()
    query = (
        select(s.c.id, s.c.project, s.c.uid, s.c.revision, s.c.after, s.c.spec)
        .add_columns(other.c.state, other.c.detail, other.c.scale_choice)
        .select_from(s.join(other, _after(other), isouter=True))
        .where(
            text("study.after IS NOT NULL AND study.end_time IS NULL"),  # as in its index
            or_(other.c.id.is_(None), other.c.end_time.is_not(None)),
        )
        .order_by(s.c.id)
    )
    return [
        WaitOver(
            id=row.id,
            project=row.project,
            after=row.after,
            state=None if row.state is None else StudyState(row.state),
            detail=row.detail or "",
            uid=row.uid,
            revision=row.revision,
            columns=row.spec,
            scale=rows.scale_choice(row.scale_choice),
        )
        for row in await conn.execute(query)
    ]


def _after(other: Any) -> ColumnElement[bool]:
    """Studies name others of their own project."""
    s = tables.study
    return and_(other.c.project == s.c.project, other.c.name == s.c.after)


async def maximizes(conn: AsyncConnection, project: str, name: str) -> bool:
    """Whether a greater value is better in the study of this name."""
    s = tables.study
    query = select(s.c.spec["objective"]["goal"].as_string()).where(studies.named(project, name))
    return (await conn.execute(query)).scalar_one_or_none() == Goal.MAXIMIZE.value


async def pilot_trials(conn: AsyncConnection, project: str, name: str) -> list[PilotTrial]:
    """The trials of the pilot of this name, by number. A failed one has no value."""
    t, s = tables.trial, tables.study
    query = (
        select(t.c.params, counting.has_completed(t).label("completed"), t.c.score)
        .select_from(t.join(s, s.c.id == t.c.study_id))
        .where(studies.named(project, name))
        .order_by(t.c.number)
    )
    return [
        PilotTrial(params=row.params, value=row.score if row.completed else None)
        for row in await conn.execute(query)
    ]
