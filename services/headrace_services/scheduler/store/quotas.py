"""Projects and their quotas: their definition, what cycles read of them, and what users see.

A cycle that places for a project with a quota locks the project's row until its commit, and passes it over if
another cycle has it locked. So no two cycles give out the same room, and none waits for a replica that is frozen.
What studies hold is read after the lock: any cycle that gave something out before has committed. A cycle that only
gives back takes no lock.

The quota of studies locks the project too: it is checked when studies are created or continue after their end.
"""

from dataclasses import dataclass

from msgspec import Struct
from sqlalchemy import BigInteger, ColumnElement, Select, bindparam, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace.spec.resources import WHOLE
from headrace_services.scheduler.core.placement.quotas import Quota
from headrace_services.scheduler.core.studies_quota import StudiesQuota
from headrace_services.scheduler.store import code, tables
from headrace_services.scheduler.store.pipeline import Pipeline, Reply, Statement


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectView:
    """A project, and what its studies use now."""

    name: str
    slots: int | None
    """The most slots that its studies may hold at once; None for no limit."""
    studies: int | None
    """The most studies that may be unfinished; None for no limit."""
    code_mib: int | None
    """The total size of its codes; None for the limit of all projects."""
    held_milli: int
    """What its studies hold, in thousandths of slots."""
    unended: int
    """How many of its studies have not ended."""
    code_bytes: int
    """The total size of its codes now."""

    @property
    def of_studies(self) -> StudiesQuota | None:
        """The quota of studies; None if there is none."""
        if self.studies is None:
            return None
        return StudiesQuota(project=self.name, most=self.studies, unended=self.unended)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A study that holds slots of its project's quota."""

    study: str
    milli: int


class AskedQuota(Struct, frozen=True):
    """The quota of a study's project, as requested."""

    locked: Reply
    found: Reply

    def quota(self) -> Quota | None:
        """The quota; None if the project has none."""
        row = self.found.row
        if row is None:
            return None
        return Quota(
            slots=int(row.slots), others_milli=int(row.others_milli), is_taken=self.locked.row is None
        )


def ask_quota(sent: Pipeline, study_id: int) -> AskedQuota:
    """Ask for the quota of a study's project, and lock it for the transaction."""
    return AskedQuota(sent.run(_LOCK, study=study_id), sent.run(_QUOTA, study=study_id))


async def project(conn: AsyncConnection, name: str, *, lock: bool = False) -> ProjectView | None:
    """A project. With `lock` no other cycle places for it or creates studies in it until the transaction ends."""
    is_it = tables.project.c.name == name
    if lock:
        await conn.execute(select(tables.project.c.name).where(is_it).with_for_update(key_share=True))
    return next(iter(await _projects(conn, is_it)), None)


async def projects(conn: AsyncConnection, *, after: str, only: str | None, limit: int) -> list[ProjectView]:
    """Projects after `after`, by name, at most `limit`; with `only`, the one with this name."""
    p = tables.project
    return await _projects(conn, p.c.name > after, *([] if only is None else [p.c.name == only]), most=limit)


async def room_for_studies(conn: AsyncConnection, study_id: int) -> StudiesQuota | None:
    """The quota of studies of a study's project, which is locked until the transaction ends; None if it has none."""
    p, own = tables.project, tables.study.alias("own")
    limited = select(p.c.name, p.c.studies).join_from(own, p, p.c.name == own.c.project)
    limited = limited.where(own.c.id == study_id, p.c.studies.is_not(None))
    row = (await conn.execute(limited.with_for_update(of=p, key_share=True))).one_or_none()
    if row is None:
        return None
    unended = select(func.count()).where(_st.c.project == row.name, _st.c.end_time.is_(None))
    return StudiesQuota(
        project=row.name, most=row.studies, unended=int((await conn.execute(unended)).scalar_one())
    )


async def make(conn: AsyncConnection, name: str) -> bool:
    """Make sure that there is a project with this name. Returns whether it is new."""
    made = insert(tables.project).values(name=name).on_conflict_do_nothing()
    return (await conn.execute(made.returning(tables.project.c.name))).first() is not None


async def limit(
    conn: AsyncConnection, name: str, *, slots: int | None, studies: int | None, code_mib: int | None
) -> None:
    """Set all limits of a project. None means no limit or, for code, the limit of all projects."""
    p = tables.project
    values = {"slots": slots, "studies": studies, "code_mib": code_mib}
    await conn.execute(p.update().where(p.c.name == name).values(values))


async def holders(conn: AsyncConnection, name: str) -> list[Holder]:
    """The studies of a project that hold slots, the largest holder first."""
    query = select(_st.c.name, _held.label("milli")).where(_st.c.project == name, *_holding)
    found = await conn.execute(query.order_by(_held.desc(), _st.c.name))
    return [Holder(study=row.name, milli=int(row.milli)) for row in found]


async def kept_off(conn: AsyncConnection, name: str) -> list[int]:
    """The studies of a project that its quota holds off."""
    query = select(_st.c.id).where(_st.c.project == name, _st.c.end_time.is_(None), _st.c.held_off > 0)
    return [int(row.id) for row in await conn.execute(query.order_by(_st.c.id))]


async def _projects(
    conn: AsyncConnection, *which: ColumnElement[bool], most: int | None = None
) -> list[ProjectView]:
    p = tables.project
    unended = select(func.count()).where(_st.c.project == p.c.name, _st.c.end_time.is_(None))
    query: Select[tuple[object, ...]] = (
        select(
            p.c.name,
            p.c.slots,
            p.c.studies,
            p.c.code_mib,
            _sum_held(_st.c.project == p.c.name).label("held_milli"),
            unended.correlate(p).scalar_subquery().label("unended"),
            code.held_by(p.c.name).correlate(p).scalar_subquery().label("code_bytes"),
        )
        .where(*which)
        .order_by(p.c.name)
        .limit(most)
    )
    return [
        ProjectView(
            name=row.name,
            slots=row.slots,
            studies=row.studies,
            held_milli=int(row.held_milli),
            unended=int(row.unended),
            code_mib=row.code_mib,
            code_bytes=int(row.code_bytes),
        )
        for row in await conn.execute(query)
    ]


_st = tables.study
_held = _st.c.gpu_milli + WHOLE * _st.c.cpu_slots
_holding = (_st.c.end_time.is_(None), _held > 0)


def _sum_held(*which: ColumnElement[bool]) -> ColumnElement[float]:
    """What studies hold, in thousandths of slots. A study that has ended holds nothing."""
    found = select(func.coalesce(func.sum(_held), 0)).where(*which, *_holding)
    return found.correlate(tables.project).scalar_subquery()


_p, _own = tables.project, tables.study.alias("own")
_study = bindparam("study", type_=BigInteger)
_limited = (_own.c.id == _study, _p.c.slots.is_not(None))
_LOCK = Statement(
    lambda: (
        select(_p.c.name)
        .join_from(_own, _p, _p.c.name == _own.c.project)
        .where(*_limited)
        .with_for_update(of=_p, key_share=True, skip_locked=True)
    )
)
_QUOTA = Statement(
    lambda: (
        select(_p.c.slots, _sum_held(_st.c.project == _p.c.name, _st.c.id != _study).label("others_milli"))
        .join_from(_own, _p, _p.c.name == _own.c.project)
        .where(*_limited)
    )
)
