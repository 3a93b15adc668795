"""What users have noted on studies and trials: tags and a note. The only writer of these columns."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Table, and_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace_services.scheduler.store import tables


@dataclass(frozen=True, slots=True)
class Annotation:
    """The tags in alphabetical order, and the note."""

    tags: Sequence[str]
    note: str


def _row(study_id: int, number: int | None) -> tuple[Table, ColumnElement[bool]]:
    """The row of a trial, or of the study."""
    s, t = tables.study, tables.trial
    if number is None:
        return s, s.c.id == study_id
    return t, and_(t.c.study_id == study_id, t.c.number == number)


async def change(
    conn: AsyncConnection, study_id: int, number: int | None, how: Callable[[Annotation], Annotation]
) -> Annotation | None:
    """Change the annotation of a study, or of one of its trials; None if there is no such trial."""
    table, which = _row(study_id, number)
    columns: list[Any] = [table.c.tags, table.c.note]
    row = (await conn.execute(select(*columns).where(which).with_for_update())).one_or_none()
    if row is None:
        return None
    found = how(Annotation(tags=row.tags, note=row.note))
    await conn.execute(update(table).where(which).values(tags=sorted(found.tags), note=found.note))
    return found
