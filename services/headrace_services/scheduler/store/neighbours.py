"""Other studies, as cycles and users read them: which ones wait for slots, in which order, and with which
reservations.

Postgres computes the claims of `core.placement.shares` from columns of the studies, and returns only the first
studies that wait. `tests/placement/test_neighbours.py` compares the two.
"""

import logging
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from msgspec import Struct
from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    Double,
    Select,
    and_,
    any_,
    bindparam,
    case,
    cast,
    exists,
    func,
    not_,
    or_,
    select,
    text,
    tuple_,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace.spec import Resources
from headrace_services.scheduler.core.needs import Line, NextInLine, Surroundings
from headrace_services.scheduler.core.placement import Request
from headrace_services.scheduler.core.placement.shares import Claim, Share
from headrace_services.scheduler.core.study_status import Standing
from headrace_services.scheduler.store import rows, tables
from headrace_services.scheduler.store.pipeline import Pipeline, Reply, Statement, pipeline

log = logging.getLogger(__name__)


class Active(Struct, frozen=True, kw_only=True):
    """Active studies."""

    shares: tuple[Share, ...]
    unreadable: tuple[tuple[str, str], ...]
    """The projects and names of studies with an unreadable row. They are left out, and their own cycles handle it."""


def read(found: Iterable[Any]) -> Active:
    """Read rows of studies."""
    shares, unreadable = [], []
    for row in found:
        try:
            shares.append(_share(row))
        except Exception:  # noqa: BLE001  # one study that cannot be read must stop no other
            log.warning("the standing or the resources of study '%s' cannot be read", row.name)
            unreadable.append((row.project, row.name))
    return Active(shares=tuple(shares), unreadable=tuple(unreadable))


def _share(row: Any) -> Share:
    standing = rows.standing(row.standing)
    waits = standing.wants_slots or standing.held_off
    resources = _resources(row.resources) if waits else None
    return Share(
        study_id=row.id,
        name=row.name,
        weight=row.weight,
        priority=row.priority,
        usage=standing.usage,
        wants=Request.wanted(resources, standing) if standing.wants_slots and resources else None,
        wanted=standing.wants_count,
        project=row.project,
        held_off=standing.held_off,
        on_gpu=resources is None or resources.on_gpu,
        reserved=standing.reserved,
        quantum_s=standing.quantum_s,
        looked_s=standing.looked_s,
    )


@lru_cache(maxsize=1024)
def _resources(stored: str) -> Resources:
    return Resources.model_validate_json(stored)


def readable_standing(row: Any) -> Standing | None:
    """The status in a row with the columns `name` and `standing`; None, which is logged, if it is not a valid one."""
    try:
        return rows.standing(row.standing)
    except Exception:  # noqa: BLE001  # one study that cannot be read must stop no other
        log.warning("the standing of study '%s' cannot be read", row.name)
        return None


class AskedLine(Struct, frozen=True):
    """Studies that wait for slots, as requested."""

    found: Reply
    waiting: int

    def line(self) -> Line:
        """The studies in order."""
        first = self.found.rows[: self.waiting]
        last = first[-1] if len(self.found.rows) > self.waiting else None
        return Line(
            shares=read(first).shares,
            known_to=None if last is None else (-last.priority, last.ahead_s, last.id),
        )


class AskedNeighbours(Struct, frozen=True, kw_only=True):
    """The other studies that a cycle needs, as requested."""

    waiting: AskedLine
    kept_or_named: Reply
    others: Reply
    least: Reply | None

    @property
    def crowded(self) -> bool:
        """Whether there are any other active studies on workers."""
        assert self.others.row is not None
        return bool(self.others.row.crowded)

    def further(self) -> tuple[Share, ...]:
        """Those with reservations, those that the quota of the study's project holds off, and those that were
        named."""
        return read(self.kept_or_named.rows).shares

    @property
    def least_s(self) -> float | None:
        """The lowest virtual time among those that hold slots or wait for some; None if it was not requested."""
        return None if self.least is None or self.least.row is None else self.least.row.least_s


_FIRST: Claim = (float("-inf"), float("-inf"), 0)


def ask_neighbours(sent: Pipeline, study_id: int, need: Surroundings) -> AskedNeighbours:
    """Ask for the other active studies on workers."""
    return AskedNeighbours(
        waiting=_ask_line(sent, study_id, NextInLine(after=_FIRST, now_s=need.now_s, waiting=need.waiting)),
        kept_or_named=sent.run(_KEPT_OR_NAMED, study=study_id, named=sorted(need.named)),
        others=sent.run(_OTHERS, study=study_id),
        least=sent.run(_LEAST, study=study_id, now_s=need.now_s, beyond=need.beyond)
        if need.joining
        else None,
    )


async def next_in_line(conn: AsyncConnection, study_id: int, need: NextInLine) -> Line:
    """The studies that wait behind a claim."""
    async with pipeline(conn) as sent:
        asked = _ask_line(sent, study_id, need)
    return asked.line()


def _ask_line(sent: Pipeline, study_id: int, need: NextInLine) -> AskedLine:
    priority, ahead_s, last_id = need.after
    found = sent.run(
        _LINE,
        study=study_id,
        now_s=need.now_s,
        after_priority=priority,
        after_s=ahead_s,
        after_id=last_id,
        unlike=sorted(need.unlike),
        most=need.waiting + 1,
    )
    return AskedLine(found, need.waiting)


async def shares_of(conn: AsyncConnection, study_ids: Iterable[int]) -> tuple[Share, ...]:
    """The named studies, if they are active and on workers."""
    async with pipeline(conn) as sent:
        found = sent.run(_NAMED, named=sorted(study_ids))
    return read(found.rows).shares


def ask_active(sent: Pipeline) -> Reply:
    """Ask for every active study, including those that do not run on workers; `read` reads the rows."""
    return sent.run(_ACTIVE)


_s, _w, _st = tables.slot, tables.worker, tables.study
_number: Double[float] = Double(53)
_totals = (
    select(
        (func.count().filter(text("kind = 'GPU'")) * 1000).label("gpu_milli"),
        func.count().filter(text("kind = 'CPU'")).label("cpu_slots"),
    )
    .join_from(_s, _w, _s.c.worker_id == _w.c.id)
    .where(_s.c.present, _s.c.owner == "", _w.c.connected, _w.c.expires_at > func.clock_timestamp())
    .cte("totals")
)


def _virtual_time_s(*, ahead: bool) -> Any:
    """`shares.virtual_time_s` of a study, in the same order of operations, so that the results are equal bit for
    bit."""
    held_s = func.greatest(0.0, bindparam("now_s", type_=_number) - _st.c.at_s)
    gpu_s = _st.c.gpu_s + held_s * _st.c.gpu_milli / 1000.0
    cpu_s = _st.c.cpu_s + held_s * _st.c.cpu_slots
    if ahead:
        gpu_s = gpu_s + _st.c.quantum_s * _st.c.gpu_milli / 1000.0
        cpu_s = cpu_s + _st.c.quantum_s * _st.c.cpu_slots
    dominant = func.greatest(
        case((_totals.c.gpu_milli > 0, gpu_s * 1000.0 / _totals.c.gpu_milli), else_=0.0),
        case((_totals.c.cpu_slots > 0, cpu_s / _totals.c.cpu_slots), else_=0.0),
    )
    return dominant / _st.c.weight + _st.c.credit_s


def _read(*further: Any) -> Select[Any]:
    columns = (
        _st.c.id,
        _st.c.name,
        _st.c.project,
        _st.c.weight,
        _st.c.priority,
        _st.c.standing,
        _st.c.resources,
    )
    return select(*columns, *further).where(text("state = 'ACTIVE'"))  # as in its index


_others = (_st.c.id != bindparam("study", type_=BigInteger), _st.c.resources.is_not(None))
_named = _st.c.id == any_(bindparam("named", type_=ARRAY(BigInteger)))
_alike = _st.alias("alike")
_asked_in_vain = select(_alike.c.priority, _alike.c.wants).where(
    _alike.c.id == any_(bindparam("unlike", type_=ARRAY(BigInteger))), _alike.c.wants.is_not(None)
)
_ahead_s = _virtual_time_s(ahead=True)
_LINE = Statement(
    lambda: (
        _read(_ahead_s.label("ahead_s"))
        .join_from(_st, _totals, text("true"))
        .where(
            *_others,
            _st.c.wants.is_not(None),
            tuple_(_st.c.priority, _st.c.wants).not_in(_asked_in_vain),
            tuple_(cast(-_st.c.priority, Double), _ahead_s, _st.c.id)
            > tuple_(
                bindparam("after_priority", type_=_number),
                bindparam("after_s", type_=_number),
                bindparam("after_id", type_=BigInteger),
            ),
        )
        .order_by(-_st.c.priority, _ahead_s, _st.c.id)
        .limit(bindparam("most", type_=BigInteger))
    )
)
_own = _st.alias("own")
_own_project = (
    select(_own.c.project).where(_own.c.id == bindparam("study", type_=BigInteger)).scalar_subquery()
)
_kept_off = and_(_st.c.held_off > 0, _st.c.project == _own_project)
_KEPT_OR_NAMED = Statement(lambda: _read().where(*_others, or_(_st.c.keeps_slots, _kept_off, _named)))
_NAMED = Statement(lambda: _read().where(_st.c.resources.is_not(None), _named))
_OTHERS = Statement(
    lambda: select(exists(select(_st.c.id).where(text("state = 'ACTIVE'"), *_others)).label("crowded"))
)
_LEAST = Statement(
    lambda: (
        select(func.min(_virtual_time_s(ahead=False)).label("least_s"))
        .join_from(_st, _totals, text("true"))
        .where(
            text("state = 'ACTIVE'"),
            *_others,
            or_(_st.c.wants.is_not(None), _st.c.gpu_milli > 0, _st.c.cpu_slots > 0),
            or_(not_(bindparam("beyond", type_=Boolean)), _st.c.project != _own_project),
        )
    )
)
_ACTIVE = Statement(lambda: _read().order_by(_st.c.id))
