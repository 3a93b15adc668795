"""What a cycle learns about the cluster around its study, and what it leaves there."""

from collections import Counter
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from headrace.spec.resources import WHOLE
from headrace_services.scheduler.core import precedence, quotas, sharing
from headrace_services.scheduler.core.inputs import Input, ReportArrived
from headrace_services.scheduler.core.needs import (
    AnyRunnable,
    Deciding,
    Devices,
    FreeSlots,
    Surroundings,
    ask,
)
from headrace_services.scheduler.core.placement import (
    Request,
    fit,
    is_suspect,
    requests_of,
    suits,
    with_ephemeral,
)
from headrace_services.scheduler.core.placement.fit import has_room
from headrace_services.scheduler.core.records import Lease, Slot
from headrace_services.scheduler.core.state import CycleState
from headrace_services.scheduler.core.study_status import Standing

FIRST_IN_LINE = 32
"""How many waiting studies a cycle reads at first."""


def look_around(state: CycleState, limit: int) -> Deciding[None]:
    """Offer the study free slots, and record the state of the other active studies on workers."""
    study, cluster = state.study, state.cluster
    spec, standing = study.spec, study.standing
    smallest, *larger = requests = requests_of(spec, standing.avoided)
    least = with_ephemeral(spec, _least(smallest, larger))
    wanted = _beside_freed(state, least)
    asked_by = {one.for_study_id for one in study.leaving.values() if one.for_study_id is not None}
    found = yield from ask(
        Surroundings(
            request=wanted,
            limit=limit,
            now_s=study.now_s,
            waiting=FIRST_IN_LINE,
            named=frozenset(standing.left_to.keys() | asked_by),
            joining=precedence.own_share(state).idle or standing.held_off > 0,
            beyond=standing.held_off > 0,
        )
    )
    state.offer_found(found.free)
    cluster.passed_over = found.passed_over or (found.quota is not None and found.quota.is_taken)
    if len(found.free) >= limit:  # a gang's slots may come after this many
        queued = [state.trials[number] for number in state.queue if number in state.trials]
        alone = [smallest.grown(smallest.slots)] if any(map(is_suspect, queued)) else []
        for request in (*(larger if wanted is least else requests), *alone):
            state.offer_found((yield from ask(FreeSlots(request=request, limit=limit))))
    cluster.crowded, cluster.totals, cluster.least_s = found.crowded, found.totals, found.least_s
    cluster.quota = found.quota
    cluster.extend(found.line)
    cluster.meet(found.further)


def _least(smallest: Request, larger: Iterable[Request]) -> Request:
    """The least that a slot must have to be of use to any of several requests."""
    for other in larger:
        smallest = replace(
            smallest,
            slots=min(smallest.slots, other.slots),
            milli=min(smallest.milli, other.milli),
            cores=0,
        )
    return smallest


def _beside_freed(state: CycleState, least: Request) -> Request:
    """The same request, less the most slots that this cycle freed on one worker, if interconnects are known. A
    gang may be better connected with a slot that was already free than on the freed slots alone, so workers with
    few free slots count too."""
    freed = Counter(slot.worker_id for slot in state.free if slot.links)
    if least.slots == 1 or not freed:
        return least
    return replace(least, slots=max(1, least.slots - max(freed.values())))


def look_for_spare(state: CycleState) -> Deciding[None]:
    """If the spec lets finalists use spare slots, check whether there are any before reports are judged."""
    elastic = state.study.spec.elastic
    if elastic is None or not elastic.spare or not state.leases:
        return
    yield from look_around(state, elastic.spare)
    own = requests_of(state.study.spec, state.study.standing.avoided)[0]
    if own.milli < WHOLE:  # this many slots may all be shared
        whole = FreeSlots(request=own.grown(1), limit=elastic.spare)
        state.offer_found((yield from ask(whole)))
    state.cluster.nothing_waits = not state.cluster.others_wait and not (yield from ask(AnyRunnable()))


def at_a_rung(state: CycleState, inputs: Iterable[Input]) -> Iterator[Lease]:
    """The leases of the trials whose reports arrive at a rung."""
    for one in inputs:
        if isinstance(one, ReportArrived) and (lease := state.lease(one)) is not None and lease.live:
            milestone = state.trials[lease.number].milestone
            if milestone is not None and one.step >= milestone:
                yield lease


def free_for_study(state: CycleState) -> list[Slot]:
    """The slots that a trial of the study could have now, and for none of which another study goes first."""
    cluster, now_s, own = state.cluster, state.study.now_s, precedence.own_claim(state)
    if cluster.ahead_of(own, now_s) or cluster.others_may_go_before(own):
        return []
    request = Request.of(state.study.spec.resources, state.study.standing.avoided)
    kept = cluster.reservations(now_s)
    found = [
        slot
        for slot in state.free
        if suits(slot, request)
        and has_room(slot, request)
        and not any(reservation.covers(slot) for reservation in kept)
    ]
    return quotas.within(state, found, request.milli)


def keep_slots(state: CycleState, every_s: float) -> Deciding[None]:
    """Decide whether to reserve slots for a trial that fits nowhere, at most every `every_s` seconds for each
    size."""
    cluster, now_s = state.cluster, state.study.now_s
    if cluster.blocked is None or not sharing.may_need_keeping(state):
        return
    size = cluster.blocked.request.size
    if every_s:
        kept = state.study.standing.kept
        if kept[0] == size and now_s - kept[1] < every_s:
            return
        state.stand(kept=(size, now_s))
    found = yield from ask(Devices(request=cluster.blocked.request))
    cluster.devices = tuple(_as_of_this_cycle(state, slot) for slot in found.devices)
    cluster.running = (*found.running, *sharing.just_granted(state))
    cluster.meet(found.shares)
    sharing.keep(state)


def _as_of_this_cycle(state: CycleState, slot: Slot) -> Slot:
    """A device as this cycle leaves it: the rows do not show yet what the cycle freed or took."""
    key = (slot.worker_id, slot.index)
    for free in state.free:
        if (free.worker_id, free.index) == key:
            return free
    if key in state.changes.occupied:
        return replace(slot, free_milli=0)
    return slot.less(*state.changes.shared.get(key, (0, 0)))


def left_over(state: CycleState, before: Standing, freed: list[Slot]) -> bool:
    """Whether slots are newly left for other studies, so that these must be notified.

    Those are slots that the cycle freed and slots that were reserved for the study. If the study waited for slots
    and no longer does, they are any free slots, as others left them to it. `before` is the study's status before
    the cycle.
    """
    withheld = {(s.worker_id, s.index) for placement in state.cluster.withheld for s in placement.slots}
    free = {(slot.worker_id, slot.index) for slot in state.free} - withheld
    after = state.study.standing
    if before.wants_slots and not after.wants_slots:
        wanted = before.wants_bubbles is not None
        return any(wanted or not slot.owner for slot in state.free if (slot.worker_id, slot.index) in free)
    let_go = {(slot.worker_id, slot.index) for slot in freed}
    if before.reserved is not None and after.reserved != before.reserved:
        let_go |= {(before.reserved.worker_id, index) for index in before.reserved.slots}
    return not free.isdisjoint(let_go)


def more_fits(state: CycleState) -> bool:
    """Whether another trial of the study would find slots among those that are left."""
    if state.cluster.blocked is not None:
        return False
    request = Request.of(state.study.spec.resources.each[0], state.study.standing.avoided)
    job = sharing.any_trial(state, request)
    return fit(state.free, job) is not None
