"""The keys of a project's studies."""

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from sqlalchemy import ColumnElement, and_

from headrace.query import parse_filter
from headrace_services.scheduler.core.lifecycle import StudyState
from headrace_services.scheduler.store import tables
from headrace_services.scheduler.store.query.keys import Key, Prose, Tags, Time, Words, condition

_S = tables.study
FIELDS: Final[Mapping[str, Key]] = {
    "name": Prose(_S.c.name),
    "state": Words({state.lower(): _S.c.state == state.value for state in StudyState}),
    "tag": Tags(_S.c.tags),
    "note": Prose(_S.c.note),
    "detail": Prose(_S.c.detail),
    "created": Time(_S.c.create_time),
    "ended": Time(_S.c.end_time),
}


def filtered(text: str, now: datetime) -> ColumnElement[bool]:
    """The studies that meet a filter. Raises InvalidFieldError."""
    terms = parse_filter(text)
    for term in terms:
        if term.key not in FIELDS:
            raise term.refused(
                f"uses '{term.key}', which is no field of studies", f"Use {', '.join(FIELDS)}."
            )
    return and_(True, *(condition(FIELDS[term.key], term, now) for term in terms))
