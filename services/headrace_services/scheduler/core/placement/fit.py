"""Best fit: which slots a request gets, given what is free on each device.

A request takes its slots from one worker, all or none. Among the workers that can serve it, these are preferred,
in this order: slots without a reservation; a worker other than those where the trial could not start; a CPU slot
rather than a GPU if no GPU is requested; what the trial runs fastest on (`speeds`); for a gang, slots with a fast
interconnect (`joints`); the tightest fit, so that free capacity stays in one piece; then the name, so that equal
inputs give equal placements. A share of a GPU goes to the GPU with the least free capacity that still suffices;
whole slots are taken from the worker with the fewest free ones.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from headrace.spec.resources import WHOLE
from headrace_services.scheduler.core.placement.joints import Link, choose, cost, joint, kind_of, kinds
from headrace_services.scheduler.core.placement.values import Placement, Request, Reservation, Waiting
from headrace_services.scheduler.core.records import Slot

_UNMEASURED = 1.0
BACKFILL_MARGIN = 1.1
"""Predicted times are multiplied by this before they are trusted to end before a reservation starts."""


def memory_of(request: Request, slot: Slot) -> int:
    """The memory that a request for a share of a GPU takes on this one; 0 for whole slots, which have all of it."""
    if request.milli == WHOLE:
        return 0
    return request.memory_bytes or slot.memory_bytes * request.milli // WHOLE


def suits(slot: Slot, request: Request) -> bool:
    """Whether a slot could serve a request if nobody else used it."""
    if slot.incarnation in request.avoided:
        return False
    if slot.owner and (request.ephemeral_memory_bytes is None or request.gpu != (slot.kind == "GPU")):
        return False
    if any(slot.labels.get(key) != value for key, value in request.labels.items()):
        return False
    if not request.gpu:
        return True
    least = (
        request.ephemeral_memory_bytes
        if slot.owner and request.ephemeral_memory_bytes is not None
        else request.memory_bytes
    )
    if slot.kind != "GPU" or slot.memory_bytes < least:
        return False
    if (slot.is_instance and request.slots > 1) or (slot.unshared and request.milli < WHOLE):
        return False
    if request.types and not any(kind.lower() in slot.model.lower() for kind in request.types):
        return False
    return not request.cores or slot.cores * request.slots * request.milli >= request.cores * WHOLE


def can_ever_serve(slots: Iterable[Slot], request: Request) -> bool:
    """Whether some worker could serve a request if nobody else used it."""
    suitable = Counter(slot.worker_id for slot in slots if suits(slot, request))
    return max(suitable.values(), default=0) >= request.slots


def has_room(slot: Slot, request: Request) -> bool:
    """Whether the free part of a slot suffices."""
    return slot.free_milli >= request.milli and slot.memory_left >= memory_of(request, slot)


def fit(
    devices: Iterable[Slot], waiting: Waiting, reservations: Sequence[Reservation] = ()
) -> Placement | None:
    """Return the slots for a trial, or None if it fits nowhere now. Linear in the number of devices."""
    request = waiting.request
    others = [reservation for reservation in reservations if reservation.key != waiting.key]
    foreign = [reservation for reservation in others if binds(reservation, waiting, reservations)]
    open_slots: dict[int, list[Slot]] = defaultdict(list)
    kept_slots: dict[int, list[Slot]] = defaultdict(list)
    for slot in devices:
        if slot.free_milli < request.milli or not (suits(slot, request) and has_room(slot, request)):
            continue
        if not any(reservation.covers(slot) for reservation in others):
            open_slots[slot.worker_id].append(slot)
        keepers = [reservation for reservation in foreign if reservation.covers(slot)]
        if all(_may_end_before(waiting, slot, reservation) for reservation in keepers):
            kept_slots[slot.worker_id].append(slot)
    for rule, by_worker in (("best_fit", open_slots), ("backfill", kept_slots)):
        options = [
            (_best(slots, waiting), len(slots)) for slots in by_worker.values() if len(slots) >= request.slots
        ]
        if rule == "backfill":
            options = [option for option in options if _leaves_in_time(waiting, option[0], foreign)]
        if options:
            best, _ = min(options, key=lambda option: _rank(option[0], option[1], waiting))
            chosen = sorted(best, key=lambda slot: slot.index)
            return Placement(
                key=waiting.key,
                slots=tuple(chosen),
                milli=request.milli,
                memory_bytes=memory_of(request, chosen[0]),
                rule=rule,
            )
    return None


def _best(slots: list[Slot], waiting: Waiting) -> list[Slot]:
    """A worker's slots for a request: a gang gets those with the best interconnect, a single trial the smallest
    free part that suffices, away from others."""
    ordered = sorted(slots, key=lambda slot: _slot_rank(slot, waiting))
    if waiting.request.slots == 1 and ordered[0].links:
        first = _slot_rank(ordered[0], waiting)[:3]
        ordered = [slot for slot in ordered if _slot_rank(slot, waiting)[:3] == first]
    return choose(ordered, waiting.request.slots)


def binds(reservation: Reservation, waiting: Waiting, reservations: Sequence[Reservation]) -> bool:
    """Whether a reservation keeps a trial off: it is not the trial's own, nor of lower priority.

    Of two with the same priority that share slots, the older one holds. A reservation that shares no slot with the
    trial's own always keeps it off, because the trial gets its own slots later. Otherwise the trial that is
    overtaken would wait a rung for each trial that goes first.
    """
    if reservation.key == waiting.key or reservation.priority < waiting.priority:
        return False
    own = next((r for r in reservations if r.key == waiting.key), None)
    if own is None or reservation.priority > waiting.priority:
        return True
    apart = reservation.worker_id != own.worker_id or not set(reservation.slots) & set(own.slots)
    return apart or (reservation.since_s, reservation.key) < (own.since_s, own.key)


def without(devices: Iterable[Slot], placement: Placement) -> tuple[Slot, ...]:
    """Return the devices without what a placement occupies."""
    taken = {(slot.worker_id, slot.index) for slot in placement.slots}
    return tuple(
        slot.less(placement.milli, placement.memory_bytes) if (slot.worker_id, slot.index) in taken else slot
        for slot in devices
    )


def with_parts(devices: Iterable[Slot], parts: Iterable[Slot]) -> list[Slot]:
    """Return the devices together with parts of devices that become free; the free part of a shared device grows."""
    found = list(devices)
    here = {(slot.worker_id, slot.index): place for place, slot in enumerate(found)}
    for slot in parts:
        place = here.get((slot.worker_id, slot.index))
        if place is None:
            found.append(slot)
        else:
            found[place] = found[place].less(-slot.free_milli, -slot.memory_left)
    return found


def _leaves_in_time(waiting: Waiting, slots: list[Slot], foreign: Sequence[Reservation]) -> bool:
    """Whether a trial on these slots ends before slots reserved for others are needed."""
    took = kind_of(slots)
    keepers = (reservation for reservation in foreign if any(map(reservation.covers, slots)))
    return all(_ends_before(waiting, took, reservation) for reservation in keepers)


def _may_end_before(waiting: Waiting, slot: Slot, reservation: Reservation) -> bool:
    """The same for a single slot, whatever the interconnect of a gang on it."""
    joined = kinds(slot.model) if waiting.request.slots > 1 and slot.links else (slot.model,)
    return any(_ends_before(waiting, one, reservation) for one in joined)


def _ends_before(waiting: Waiting, kind: str, reservation: Reservation) -> bool:
    run_s = waiting.run_s.get(kind)
    if run_s is None or reservation.ready_in_s is None:
        return False
    return run_s * BACKFILL_MARGIN <= reservation.ready_in_s


def preference_of(slots: Sequence[Slot], waiting: Waiting) -> float:
    """How much a trial prefers a set of slots, by measured times: the lowest is the best."""
    if joint(slots) is Link.UNKNOWN:
        return min(waiting.preference.get(slot.model, _UNMEASURED) for slot in slots)
    return waiting.preference.get(kind_of(slots), _UNMEASURED)


def _rank(chosen: list[Slot], free: int, waiting: Waiting) -> tuple[object, ...]:
    kind, liked, left, _ = min(_slot_rank(slot, waiting) for slot in chosen)
    if joint(chosen) is not Link.UNKNOWN:
        liked = preference_of(chosen, waiting)
    name = chosen[0].worker_name
    return (name in waiting.shunned, kind, liked, cost(chosen), left, free, name)


def _slot_rank(slot: Slot, waiting: Waiting) -> tuple[str, float, int, int]:
    return (slot.kind, waiting.preference.get(slot.model, _UNMEASURED), slot.free_milli, slot.index)
