"""Reservations: how a trial that fits nowhere now gets to run within a bounded time.

A gang of eight on a cluster of busy single GPUs would wait for ever: eight slots are never free at once. So slots
of one worker are reserved for it: those that are free, and those that will be free soonest by measured rung times.
From then on other trials get them only for work that ends before the gang can start (backfill). A trial that runs
there leaves at its next rung or, if its priority is lower, at its next report, in both cases with its checkpoint.
No trial of the same priority overtakes on reserved slots. So the wait is bounded by the longest rung that runs
there: running trials leave within it, and backfill ends before, with a tenth to spare.

No reservation is made if the end of one running trial makes room. Then the slots are not fragmented, and shares
decide who is next.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from headrace_services.scheduler.core.placement.fit import binds, has_room, memory_of, preference_of, suits
from headrace_services.scheduler.core.placement.joints import choose, cost
from headrace_services.scheduler.core.placement.values import (
    Ask,
    Cluster,
    Place,
    Reservation,
    Running,
    Waiting,
)
from headrace_services.scheduler.core.records import Slot


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opening:
    """When a slot could have room, by the rungs of the trials that would have to leave it."""

    slot: Slot
    ready_in_s: float
    leaving: tuple[Running, ...]


@dataclass(slots=True)
class Occupants:
    """The occupants of each device, computed once for all the trials of a plan."""

    on_slot: dict[Place, list[Running]]
    devices: dict[Place, Slot]
    least_priority: int
    """The lowest priority of those that run; higher than any if none runs."""

    @classmethod
    def of(cls, cluster: Cluster) -> "Occupants":
        """Compute them."""
        on_slot: dict[Place, list[Running]] = defaultdict(list)
        for running in cluster.running:
            for index in running.slots:
                on_slot[running.worker_id, index].append(running)
        return cls(
            on_slot=on_slot,
            devices={(slot.worker_id, slot.index): slot for slot in cluster.devices},
            least_priority=min((run.priority for run in cluster.running), default=1 << 30),
        )


def reserve(
    cluster: Cluster, waiting: Waiting, occupants: Occupants | None = None
) -> tuple[Reservation, tuple[Ask, ...]] | None:
    """Choose the slots to reserve for a trial that fits nowhere now, and the grants that must leave them.

    Returns None if no worker could ever serve the trial, or if it only has to wait for its turn.
    """
    occupants = occupants or Occupants.of(cluster)
    if _only_waits_its_turn(cluster, waiting, occupants):
        return None
    openings = _openings(cluster, waiting, occupants)
    candidates = [
        _soonest(found, waiting) for found in openings.values() if len(found) >= waiting.request.slots
    ]
    if not candidates:
        return None
    chosen = min(candidates, key=lambda openings: _rank(openings, waiting))
    ready = max((_leaves_in_s(run) for run in _leaving_at_rungs(chosen, waiting)), default=0.0)
    reservation = Reservation(
        key=waiting.key,
        worker_id=chosen[0].slot.worker_id,
        slots=tuple(sorted(opening.slot.index for opening in chosen)),
        since_s=cluster.now_s,
        priority=waiting.priority,
        ready_in_s=None if ready == inf else ready,
        group=waiting.group,
    )
    return reservation, _asks(chosen, waiting)


def holds(reservation: Reservation, waiting: Waiting, devices: Sequence[Slot]) -> bool:
    """Whether a reservation can still be met: its slots exist and would suit the trial."""
    there = [slot for slot in devices if reservation.covers(slot) and suits(slot, waiting.request)]
    return len(there) == len(reservation.slots) == waiting.request.slots


def _openings(cluster: Cluster, waiting: Waiting, occupants: Occupants) -> dict[int, list[_Opening]]:
    older = [r for r in cluster.reservations if binds(r, waiting, cluster.reservations)]
    found: dict[int, list[_Opening]] = defaultdict(list)
    for slot in cluster.devices:
        if not suits(slot, waiting.request) or any(reservation.covers(slot) for reservation in older):
            continue
        opening = _opening(slot, occupants.on_slot.get((slot.worker_id, slot.index), []), waiting)
        if opening is not None:
            found[slot.worker_id].append(opening)
    return found


def _opening(slot: Slot, runs: list[Running], waiting: Waiting) -> _Opening | None:
    """The fewest trials that must leave the slot, the soonest first; None if those that may be asked do not
    suffice."""
    request = waiting.request
    if has_room(slot, request):
        return _Opening(slot=slot, ready_in_s=0.0, leaving=())
    missing = request.milli - slot.free_milli
    leaving: list[Running] = []
    for run in sorted((run for run in runs if _may_be_asked(run, waiting)), key=_leaving_rank):
        leaving.append(run)
        missing -= run.milli
        if missing <= 0 and memory_of(request, slot) <= slot.memory_bytes:
            return _Opening(
                slot=slot,
                ready_in_s=max(_leaves_in_s(run) for run in leaving),
                leaving=tuple(leaving),
            )
    return None


def _may_be_asked(run: Running, waiting: Waiting) -> bool:
    """Whether a trial may be asked to leave: not one of higher priority, nor one of the study's own trials of the
    same size, as that would gain nothing."""
    own = run.key[0] == waiting.key[0]
    request = waiting.request
    return run.priority <= waiting.priority and not (own and len(run.slots) * run.milli >= request.size)


def _leaving_at_rungs(openings: list[_Opening], waiting: Waiting) -> list[Running]:
    """The trials that leave at a rung. Those of lower priority leave at a report, which may arrive at any moment:
    no work of others is sure to end before that."""
    return [run for opening in openings for run in opening.leaving if run.priority >= waiting.priority]


def _leaves_in_s(run: Running) -> float:
    return inf if run.leaves_in_s is None else max(0.0, run.leaves_in_s)


def _leaving_rank(run: Running) -> tuple[object, ...]:
    return (
        run.priority,
        not run.asked,
        -run.over_share,
        inf if run.leaves_in_s is None else run.leaves_in_s,
        run.grant_id,
    )


def _soonest(openings: list[_Opening], waiting: Waiting) -> list[_Opening]:
    """Order by lowest priority first, if trials of lower priority are in the way, as these leave at their next
    report; then by what is free soonest; of equal ones, those with the best interconnect."""

    def rank(opening: _Opening) -> tuple[int, float, int]:
        in_the_way = max((run.priority for run in opening.leaving), default=-(1 << 30))
        sooner = in_the_way if in_the_way < waiting.priority else waiting.priority
        return (sooner, opening.ready_in_s, opening.slot.index)

    ordered = sorted(openings, key=rank)
    last = rank(ordered[waiting.request.slots - 1])[:2]
    in_time = {opening.slot.index: opening for opening in ordered if rank(opening)[:2] <= last}
    chosen = choose([opening.slot for opening in in_time.values()], waiting.request.slots)
    return [in_time[slot.index] for slot in chosen]


def _only_waits_its_turn(cluster: Cluster, waiting: Waiting, occupants: Occupants) -> bool:
    """Whether the end of one running trial makes room, and none has lower priority, which would have to leave
    first.

    A trial of its own study counts only while no other study is in the way: otherwise the study would never get
    more than it has.
    """
    if occupants.least_priority < waiting.priority:
        return False
    request = waiting.request
    own_makes_room = others_in_the_way = False
    for run in cluster.running:
        slot = occupants.devices.get((run.worker_id, run.slots[0]))
        if slot is None or not suits(slot, request):
            continue
        other = run.key[0] != waiting.key[0]
        if len(run.slots) < request.slots or run.milli < request.milli:
            others_in_the_way |= other
        elif other:
            return True
        else:
            own_makes_room = True
    return own_makes_room and not others_in_the_way


def _rank(openings: list[_Opening], waiting: Waiting) -> tuple[object, ...]:
    """Sort key: preempt those of lower priority, the lowest first; then what is ready soonest; then what moves the
    fewest."""
    leaving = {run.grant_id: run for opening in openings for run in opening.leaving}
    return (
        sum(run.priority >= waiting.priority for run in leaving.values()),
        sum(run.priority for run in leaving.values()),
        max(opening.ready_in_s for opening in openings),
        -sum(run.over_share for run in leaving.values()),
        len(leaving),
        preference_of([opening.slot for opening in openings], waiting),
        cost([opening.slot for opening in openings]),
        openings[0].slot.worker_name,
    )


def _asks(openings: list[_Opening], waiting: Waiting) -> tuple[Ask, ...]:
    leaving = {run.grant_id: run for opening in openings for run in opening.leaving}
    return tuple(
        Ask(grant_id=grant_id, at_report=run.priority < waiting.priority, in_favour_of=waiting.key)
        for grant_id, run in sorted(leaving.items())
    )
