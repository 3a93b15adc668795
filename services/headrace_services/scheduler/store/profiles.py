"""What studies know about their bundles (`core.capacity`), row by row. The lock on the study guards its rows."""

import hashlib
from collections.abc import Iterable

from msgspec.structs import asdict
from sqlalchemy import BigInteger, bindparam, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace_services.scheduler.core.capacity import Capacity, FirstStep, Measured, Profile, Turns, capacity
from headrace_services.scheduler.core.placement import Request
from headrace_services.scheduler.core.records import Study
from headrace_services.scheduler.store import tables
from headrace_services.scheduler.store.pipeline import Pipeline, Reply, Statement, given, pipeline
from headrace_services.scheduler.store.rows import AnyRow, Columns

READ = 256
"""How many profiles of a study are read, the most recently written ones: `apart` may name a parameter whose values
are all different. What is known about the others is learned again, except for the memory limits, which stay in the
rows."""


def ask(sent: Pipeline, study_id: int) -> Reply:
    """Ask for the profiles of a study; `read` reads the reply."""
    return sent.run(_OF_STUDY, study=study_id)


def read(found: Reply) -> tuple[Profile, ...]:
    """The profiles."""
    return tuple(map(_profile, found.rows))


async def sizes(conn: AsyncConnection, study: Study) -> tuple[tuple[Profile, Capacity], ...]:
    """The profiles of a study with `fuse`, each with the resulting capacity on the smallest such device."""
    assert study.spec.fuse is not None
    async with pipeline(conn) as sent:
        found, memory = ask(sent, study.id), sent.run(_MEMORY)
    least = {row.model: row.memory_bytes for row in memory.rows}
    budget = Request.of(study.spec.resources).memory_bytes
    profiles = sorted(read(found), key=lambda profile: (profile.device, profile.key))
    return tuple(
        (profile, capacity(study.spec.fuse, profile, budget or least.get(profile.device, 0)))
        for profile in profiles
    )


def write(sent: Pipeline, study_id: int, profiles: Iterable[Profile]) -> None:
    """Write what a cycle has learned."""
    if rows := [_columns(study_id, profile) for profile in profiles]:
        sent.run(_WRITE, rows)


def _profile(row: AnyRow) -> Profile:
    return Profile(
        device=row.device,
        key=row.key,
        steady=_turns(row.steady),
        fresh=_turns(row.fresh),
        most=row.most,
        first=None if row.first_step is None else FirstStep(**row.first_step),
    )


def _turns(columns: Columns) -> Turns:
    return {int(members): Measured(**known) for members, known in columns.items()}


def _turn_columns(turns: Turns) -> Columns:
    return {str(members): asdict(known) for members, known in turns.items()}


def _columns(study_id: int, profile: Profile) -> Columns:
    return {
        "study_id": study_id,
        "device": profile.device,
        "digest": hashlib.sha256(profile.key.encode()).hexdigest(),
        "key": profile.key,
        "steady": _turn_columns(profile.steady),
        "fresh": _turn_columns(profile.fresh),
        "most": profile.most,
        "first_step": None if profile.first is None else asdict(profile.first),
    }


_b = tables.bundle_profile
_OF_STUDY = Statement(
    lambda: (
        select(_b.c.device, _b.c.key, _b.c.steady, _b.c.fresh, _b.c.most, _b.c.first_step)
        .where(_b.c.study_id == bindparam("study", type_=BigInteger))
        .order_by(_b.c.time.desc())
        .limit(READ)
    )
)
_MEMORY = Statement(
    lambda: (
        select(tables.slot.c.model, func.min(tables.slot.c.memory_bytes).label("memory_bytes"))
        .where(tables.slot.c.present)
        .group_by(tables.slot.c.model)
    )
)
_NAMES = ("study_id", "device", "digest", "key", "steady", "fresh", "most", "first_step")
_new = given({name: _b.c[name] for name in _NAMES})
_insert = insert(_b).from_select(
    list(_NAMES), select(*(_new.c[name] for name in _NAMES)), include_defaults=False
)
_WRITE = Statement(
    lambda: _insert.on_conflict_do_update(
        index_elements=["study_id", "device", "digest"],
        set_={
            "steady": _insert.excluded.steady,
            "fresh": _insert.excluded.fresh,
            # It never grows; LEAST ignores NULL.
            "first_step": _insert.excluded.first_step,
            "most": func.least(_b.c.most, _insert.excluded.most),
            "time": func.clock_timestamp(),
        },
    )
)
