"""The part of a step's transaction that concerns the cluster: what it reads of others, and what it tells them."""

from msgspec import Struct
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace_services.scheduler.arrivals import Vacation
from headrace_services.scheduler.records import Slot
from headrace_services.scheduler.step import sharing
from headrace_services.scheduler.step.cache import StudyCache
from headrace_services.scheduler.step.placement import Request, fit, request_at
from headrace_services.scheduler.step.state import StepState
from headrace_services.scheduler.store import placement
from headrace_services.scheduler.store.pipeline import Pipeline, pipeline

KEEP_EVERY_S = 1.0
"""A study whose trial fits nowhere looks this often, on a replica, whether slots are to be kept for it."""


class Surroundings(Struct, frozen=True, kw_only=True):
    """What placing has to know of the cluster, on its way."""

    free: placement.AskedSlots
    others: placement.AskedOthers
    totals: placement.AskedTotals | None
    limit: int


def ask(sent: Pipeline, study_id: int, cache: StudyCache, limit: int) -> Surroundings:
    """Ask for free slots, and who else there is; also what they all share, where there was somebody the last time."""
    return Surroundings(
        free=placement.ask_free_slots(sent, Request.of(cache.spec.resources), limit),
        others=placement.ask_others(sent, study_id),
        totals=placement.ask_totals(sent) if cache.in_company else None,
        limit=limit,
    )


async def take_in(conn: AsyncConnection, state: StepState, asked: Surroundings) -> None:
    """Offer the study the free slots, and note how the other active studies on workers stand."""
    spec = state.study.spec
    base = Request.of(spec.resources)
    found = asked.free.slots()
    state.offer(found)
    if spec.elastic is not None and len(found) >= asked.limit:  # a gang's slots may lie behind so many
        here = {(slot.worker_id, slot.index) for slot in state.free}
        for slots in sorted({row.slots for row in spec.elastic.grants if row.slots > base.slots}):
            larger = await placement.free_slots(conn, Request.of(spec.resources, slots), asked.limit)
            new = [slot for slot in larger if (slot.worker_id, slot.index) not in here]
            here.update((slot.worker_id, slot.index) for slot in new)
            state.offer(new)
    others = asked.others.others()
    state.cache.in_company = bool(others.shares)
    if others.shares:
        state.room.others, state.room.names = others.shares, others.names
        state.room.totals = asked.totals.totals() if asked.totals else await placement.totals(conn)


async def keep_slots(conn: AsyncConnection, state: StepState) -> None:
    """Look whether slots are to be kept for a trial that fits nowhere."""
    room = state.room
    now_s = state.study.now_s
    if room.blocked is None or not sharing.may_need_keeping(state):
        return
    slots = room.blocked.request.slots
    if state.cache.kept[0] == slots and now_s - state.cache.kept[1] < KEEP_EVERY_S:
        return
    state.cache.kept = (slots, now_s)
    devices = await placement.devices(conn, room.blocked.request)
    room.devices = tuple(_as_of_this_step(state, slot) for slot in devices)
    running = await placement.running_on(conn, {slot.worker_id for slot in devices})
    room.running = (*running, *sharing.just_granted(state))
    sharing.keep(state)


def _as_of_this_step(state: StepState, slot: Slot) -> Slot:
    """A device as this step leaves it: what it freed or took is not in the rows yet."""
    key = (slot.worker_id, slot.index)
    for free in state.free:
        if (free.worker_id, free.index) == key:
            return free
    if key in state.changes.occupied:
        return slot.less(slot.free_milli, 0)
    return slot


async def look_for_spare(conn: AsyncConnection, state: StepState) -> None:
    """Where the spec lets finalists have spare slots: see, before reports are judged, whether there are any."""
    elastic = state.study.spec.elastic
    if elastic is None or not elastic.spare or not state.leases:
        return
    async with pipeline(conn) as sent:
        asked = ask(sent, state.study.id, state.cache, elastic.spare)
    await take_in(conn, state, asked)
    waits = any(share.wants is not None for share in state.room.others)
    state.room.nothing_waits = not waits and not await placement.runnable_exists(conn, state.study.id)


def has_words(state: StepState) -> bool:
    """Whether there is anything for `write` to do."""
    return bool(state.changes.asks or _gives_up(state) or _no_longer_asked(state))


def _gives_up(state: StepState) -> bool:
    return state.changes.withdraw_asks or (
        state.study.state.ended and state.study.standing.reserved is not None
    )


def _no_longer_asked(state: StepState) -> list[str]:
    over = (lease.id for lease in state.changes.updated.values() if not lease.live)
    return [lease_id for lease_id in over if lease_id in state.study.leaving]


async def write(conn: AsyncConnection, state: StepState) -> None:
    """Tell other studies' trials to leave, and drop what is void of earlier such messages."""
    changes, study = state.changes, state.study
    await placement.forget_asked(conn, _no_longer_asked(state))
    if _gives_up(state):
        await placement.withdraw_asks(conn, study.id)
    why = f"study '{study.name}' needs its slots"
    for lease in await placement.ask_to_leave(conn, study.id, changes.asks, why):
        assert lease.worker_id is not None
        state.orders.append(Vacation(worker_id=lease.worker_id, lease=lease, reason=why))


def left_over(state: StepState, freed: list[Slot]) -> bool:
    """Whether free slots are left that nobody was told of: freed here, or offered here to a study that is done."""
    withheld = {(s.worker_id, s.index) for placement in state.room.withheld for s in placement.slots}
    free = {(slot.worker_id, slot.index) for slot in state.free} - withheld
    if not free:
        return False
    if any((slot.worker_id, slot.index) in free for slot in freed):
        return True
    return state.room.blocked is None and any(share.wants is not None for share in state.room.others)


def more_fits(state: StepState) -> bool:
    """Whether another trial of the study would find slots among those that are left."""
    blocked = state.room.blocked
    if blocked is not None:
        return False
    job = sharing.any_trial(state, request_at(state.study.spec, 0))
    return fit(state.free, job) is not None
