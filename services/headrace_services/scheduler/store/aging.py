"""Parts of ended studies that have reached their age limit. The rows hold all state, so any replica can continue
the work.

A study that a live one refers to (a warm start, a transfer, a pilot, a gate) does not age meanwhile. Its row
stores, for each kind, the end for which that kind was deleted: a study that continues and ends again ages from its
new end.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    Boolean,
    ColumnElement,
    Text,
    and_,
    cast,
    exists,
    func,
    literal,
    literal_column,
    or_,
    select,
    text,
    update,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace_services.scheduler.store import removal, studies, tables
from headrace_services.scheduler.store.removal import Batch, Key, Part

_s, _t, _e = tables.study, tables.trial, tables.event
_r, _g, _le = tables.report, tables.rung_result, tables.lease

OF_ROWS: dict[str, tuple[Part, tuple[ColumnElement[bool], ...]]] = {
    # Events of the study itself stay: `retry` and `extend` use them to find the trials that its end cut off.
    "events": (removal.PARTS[0], (_e.c.number.is_not(None),)),
    # The report at a rung stays, and each trial's last one: samplers, warm starts and importances read those.
    "reports": (
        removal.PARTS[1],
        (
            ~exists().where(
                _g.c.study_id == _r.c.study_id, _g.c.number == _r.c.number, _g.c.step == _r.c.step
            ),
            ~exists().where(
                _t.c.study_id == _r.c.study_id, _t.c.number == _r.c.number, _t.c.step == _r.c.step
            ),
        ),
    ),
    "leases": (removal.PARTS[4], (~_le.c.live,)),
}
"""The kinds that are rows of a study, with the conditions for deletion."""
REFERRING = ("{warm_start,study}", "{sampler,study}", "{after}", "{surrogate,pilot,study}")
"""The places where a spec names another study."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """A study with parts that have reached their age limit."""

    id: int
    end_time: datetime
    ended: str
    """The same time, as text, for the study's row."""


async def due(conn: AsyncConnection, kind: str, age: timedelta, most: int, since: datetime) -> list[Due]:
    """The studies that ended since then and are due for this kind, earliest end first.

    They include those that `hold` refuses, because other studies refer to them or cycles are working on them.
    """
    query = select(_s.c.id, _s.c.end_time, _ended.label("ended")).where(_is_over_age(kind, age))
    query = query.where(_s.c.end_time >= since).order_by(_s.c.end_time).limit(most)
    return [Due(id=row.id, end_time=row.end_time, ended=row.ended) for row in await conn.execute(query)]


async def over_before(conn: AsyncConnection, age: timedelta) -> datetime:
    """The time before which an end must be for a given age limit."""
    found: datetime = (await conn.execute(select(func.now() - age))).scalar_one()
    return found


async def count_due(conn: AsyncConnection, kind: str, age: timedelta, project: str | None) -> int:
    """How many such studies there are in a project, or in all projects if it is None."""
    mine = () if project is None else (_s.c.project == project,)
    query = select(func.count()).where(_is_over_age(kind, age), ~is_ending, ~is_referred_to, *mine)
    return int((await conn.execute(query)).scalar_one())


async def hold(conn: AsyncConnection, one: Due) -> bool:
    """Lock a study as it is until the transaction ends. Returns False if it continues, is busy, or a live one needs
    it."""
    query = select(_s.c.id).where(_s.c.id == one.id, _s.c.delete_time.is_(None), _ended == one.ended)
    query = query.where(~is_ending, ~is_referred_to).with_for_update(read=True, skip_locked=True, of=_s)
    return (await conn.execute(query)).one_or_none() is not None


async def remove_aged(conn: AsyncConnection, kind: str, one: Due, most: int, after: Key | None) -> Batch:
    """Delete at most this many rows of this kind of a study that is held."""
    part, only = OF_ROWS[kind]
    return await removal.remove_some(conn, one.id, part, most, after=after, only=only)


async def note_aged(conn: AsyncConnection, kind: str, one: Due, *, all_of_it: bool) -> None:
    """Record that nothing of this kind is left to delete; or that some of it is deleted, which no extension of the
    study brings back."""
    noted = func.jsonb_build_object(literal(kind, Text), one.ended if all_of_it else "")
    await conn.execute(
        update(_s).where(_s.c.id == one.id).values(aged=_s.c.aged.op("||")(cast(noted, JSONB)))
    )


async def worth_keeping(conn: AsyncConnection, one: Due) -> frozenset[int] | None:
    """The trials whose checkpoints are kept: the best one, and those of the front. None if that cannot be
    determined."""
    study = await studies.get(conn, one.id)
    if study is None:
        return None
    figures = (await studies.figures(conn, [study], whole=True))[study.id]
    if study.spec.further_objectives:
        from headrace_services.scheduler.samplers.front import front  # numpy, only for such studies

        signs = [objective.sign for objective in study.spec.objectives]
        places = await asyncio.to_thread(front, [vector for _, vector in figures.measured], signs)
        return frozenset(figures.measured[place][0] for place in places)
    return frozenset({figures.best.trial.number} if figures.best else ())


async def forget_checkpoints(
    conn: AsyncConnection, one: Due, keep: frozenset[int], most: int, after: Key | None
) -> Batch:
    """Clear the references to checkpoints of at most this many further trials, except those to keep.

    The files are deleted later (`leftovers`): no trial is resumed from a file that no row refers to.
    """
    beyond = [] if after is None else [_t.c.number > after[0]]
    query = select(_t.c.number).where(_t.c.study_id == one.id, *beyond).order_by(_t.c.number)
    last = (await conn.execute(query.offset(most - 1).limit(1))).scalar_one_or_none()
    upto = [] if last is None else [_t.c.number <= last]
    which = (_t.c.study_id == one.id, *beyond, *upto, _t.c.number.not_in(sorted(keep)))
    of_ends = func.jsonb_path_exists(_t.c.earlier_ends, _checkpoints_of_ends)
    has = or_(_t.c.checkpoint.is_not(None), _t.c.best_checkpoint.is_not(None), of_ends)
    forget = update(_t).where(*which, has, _t.c.state == "TERMINATED")
    gone = {"checkpoint": None, "best_checkpoint": None, "earlier_ends": _ends_without_checkpoints}
    done = await conn.execute(forget.values(gone))
    return Batch(rows=done.rowcount, through=None if last is None else (last,))


async def forget_deleted(conn: AsyncConnection, study_id: int, uris: Sequence[str]) -> int:
    """Clear the references of a study's trials to these checkpoints, whose files are to be deleted. Returns the
    number of trials that had one."""
    done = await conn.execute(_FORGET_DELETED, {"study_id": study_id, "uris": list(uris)})
    return done.rowcount


async def forget_tombstones(conn: AsyncConnection, age: timedelta, most: int) -> int:
    """Delete the tombstones of at most this many studies that were deleted long ago."""
    t = tables.tombstone
    old = select(t.c.uid).where(t.c.time < func.now() - age).order_by(t.c.time).limit(most)
    uids: Sequence[Any] = (await conn.execute(old)).scalars().all()
    if uids:
        await conn.execute(t.delete().where(t.c.uid.in_(uids)))
    return len(uids)


def is_over(age: timedelta) -> ColumnElement[bool]:
    """Whether a study ended at least this long ago."""
    return and_(_s.c.end_time.is_not(None), _s.c.end_time <= func.now() - age)


def is_noted(kind: str) -> ColumnElement[bool]:
    """Whether nothing of this kind has been left to delete since the study's end."""
    return _s.c.aged.op("->>")(kind).is_not_distinct_from(_ended)


def _is_over_age(kind: str, age: timedelta) -> ColumnElement[bool]:
    return and_(is_over(age), _s.c.delete_time.is_(None), ~is_noted(kind))


_checkpoints_of_ends: ColumnElement[Any] = literal_column("'$[*].checkpoint.uri'")
_ends_without_checkpoints: ColumnElement[Any] = literal_column(
    "(SELECT coalesce(jsonb_agg(one || '{\"checkpoint\": null}' ORDER BY place), '[]')"
    " FROM jsonb_array_elements(trial.earlier_ends) WITH ORDINALITY AS ends (one, place))"
)
_FORGET_DELETED = text(
    "UPDATE trial SET"
    " checkpoint = CASE WHEN checkpoint->>'uri' = ANY(:uris) THEN NULL ELSE checkpoint END,"
    " best_checkpoint = CASE WHEN best_checkpoint->>'uri' = ANY(:uris) THEN NULL ELSE best_checkpoint END,"
    " earlier_ends = (SELECT coalesce(jsonb_agg(CASE WHEN one->'checkpoint'->>'uri' = ANY(:uris)"
    " THEN one || '{\"checkpoint\": null}' ELSE one END ORDER BY place), '[]')"
    " FROM jsonb_array_elements(trial.earlier_ends) WITH ORDINALITY AS ends (one, place))"
    " WHERE study_id = :study_id AND state = 'TERMINATED' AND (checkpoint->>'uri' = ANY(:uris)"
    " OR best_checkpoint->>'uri' = ANY(:uris) OR EXISTS (SELECT FROM jsonb_array_elements(trial.earlier_ends) AS one"
    " WHERE one->'checkpoint'->>'uri' = ANY(:uris)))"
)
_ended: ColumnElement[str] = cast(func.extract("epoch", _s.c.end_time), Text)
is_ending = _s.c.standing.op("->>")("ended_through").is_not(None)
_PATHS: list[ColumnElement[str]] = [literal_column(f"'{path}'", Text) for path in REFERRING]
_other = _s.alias("referring")
is_referred_to = exists().where(
    literal_column("referring.state IN ('ACTIVE', 'PAUSED')", Boolean),  # as in its index
    _other.c.project == _s.c.project,
    or_(_other.c.after == _s.c.name, *(_other.c.spec.op("#>>")(path) == _s.c.name for path in _PATHS)),
)
