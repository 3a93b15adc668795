"""Ephemeral slots: devices that belong to a large job, lent to trials for a share of its time.

A slot is whole, shared or ephemeral. An ephemeral one has an owner and a duty cycle (`Slot.duty`), which is the
share of its time that trials may expect. So it is slow, and its owner may take it back at any time.

    what                        | an ordinary slot                    | an ephemeral slot
    --------------------------- | ----------------------------------- | ----------------------------------------------
    who may use it              | any trial that it suits             | trials of studies that accept ephemeral slots
                                |                                     | (`placement.accepts_ephemeral`)
    on the way to which rung    | any                                 | any but the last one; the last one too if no
                                |                                     | worker could ever serve the study otherwise
    how many trials             | `fuse.most` in a bundle             | as many of these as fit the slot's memory
    order                       | first                               | after ordinary free slots and open seats
    learned speeds, the quantum | measured                            | not measured
    pause prices, restore times | measured                            | not measured: the policy uses what it has
    fair shares                 | charged, by kind of slot            | not charged; seconds are summed separately
    who goes first              | by shares and priority              | by priority, then by what each study holds and
                                |                                     | has used of ephemeral slots alone
    reservations, backfill      | made, and others asked to leave     | never
    report_timeout              | in wall-clock time                  | scaled by the duty cycle
    when it is lost             | with its worker                     | asked to leave at the next report, then ended;
                                |                                     | no trial is charged

Members leave ephemeral slots at a rung: always before the last one, and before any rung when an ordinary slot or
seat is free. A trial computes the same on either kind of slot, so the policy need not know.
"""

from collections.abc import Sequence

from headrace import ephemeral
from headrace_services.scheduler.core import cluster_view, precedence, seats, sharing
from headrace_services.scheduler.core.inputs import Input
from headrace_services.scheduler.core.needs import Candidates, Deciding, OwnSlots, ask
from headrace_services.scheduler.core.placement import (
    Placement,
    Request,
    accepts_ephemeral,
    suits,
    with_ephemeral,
)
from headrace_services.scheduler.core.records import Grant, Lease, Params, Trial
from headrace_services.scheduler.core.state import CycleState

SLOTS_AT_ONCE = 64
"""How many ordinary free slots a study looks for before its members leave ephemeral slots."""


def any_open(state: CycleState) -> bool:
    """Whether an ephemeral slot is free for trials of the study."""
    return accepts_ephemeral(state.study.spec) and any(slot.owner for slot in state.free)


def find(state: CycleState, trial: Trial, milestone: int) -> Deciding[Placement | None]:
    """Return an ephemeral slot for a trial that found no ordinary slot, or None if it has to wait. Of the slots
    that suit it and are not left to studies that go first, it is the one with the most time."""
    if not any_open(state) or not (yield from may_have(state, milestone)):
        return None
    waiting = sharing.waiting_for(state, trial, milestone)
    request = with_ephemeral(state.study.spec, waiting.request)
    suitable = [slot for slot in state.free if slot.owner and suits(slot, request)]
    for slot in sorted(suitable, key=lambda slot: (-slot.duty, slot.worker_name, slot.index)):
        if (slot.worker_id, slot.index) in state.cluster.left_ephemeral:
            continue
        hopeless = precedence.silent(state)
        others = [other for who, other in state.cluster.others.items() if who not in hopeless]
        first = sharing.first_for(slot, others, precedence.own_share(state), state.study.now_s)
        if first is None:
            return Placement(key=waiting.key, slots=(slot,), milli=1000, memory_bytes=0, rule=ephemeral.RULE)
        sharing.leave_ephemeral(state, slot, first)
    return None


def may_have(state: CycleState, milestone: int) -> Deciding[bool]:
    """Whether a trial on its way to a milestone may have an ephemeral slot: to the last rung only if nothing else
    could ever serve the study."""
    if not accepts_ephemeral(state.study.spec):
        return False
    if milestone < state.study.spec.max_steps:
        return True
    return not (yield from has_own(state))


def has_own(state: CycleState) -> Deciding[bool]:
    """Whether a connected worker has slots for the study that are not ephemeral, occupied or not."""
    if state.cluster.has_own is None:
        request = Request.of(state.study.spec.resources.each[0], state.study.standing.avoided)
        state.cluster.has_own = yield from ask(OwnSlots(request=request))
    return state.cluster.has_own


def look_ahead(state: CycleState, inputs: Sequence[Input]) -> Deciding[None]:
    """If members on ephemeral slots reach a rung, check which ordinary slots the study could have instead, before
    their reports are judged."""
    if not accepts_ephemeral(state.study.spec) or not any(
        lease.owner_stage for lease in cluster_view.at_a_rung(state, inputs)
    ):
        return
    if not (yield from has_own(state)):
        return
    yield from cluster_view.look_around(state, SLOTS_AT_ONCE)
    if state.study.spec.fuse is not None:
        found = yield from ask(Candidates(now_s=state.study.now_s, limit=0, bundles=seats.BUNDLES_AT_ONCE))
        state.add_bundles(found.bundles)


def leaves(state: CycleState, lease: Lease, trial: Trial, target: int) -> str | None:
    """Say why a trial that continues to `target` leaves its ephemeral slot first; None if it stays, or has
    none."""
    if not lease.owner_stage or not state.cluster.has_own:
        return None
    if target >= state.study.spec.max_steps:
        return ephemeral.leaves_for_last_rung(lease.owner_stage)
    if state.cluster.moving >= _room_of_its_own(state, lease, trial):
        return None
    state.cluster.moving += 1
    return ephemeral.leaves_for_own_slot(lease.owner_stage)


def _room_of_its_own(state: CycleState, lease: Lease, trial: Trial) -> int:
    """How many members could continue on ordinary slots now, counting those that are free and that nobody else
    goes before."""
    spec = state.study.spec
    free = cluster_view.free_for_study(state)
    grant = state.grants[lease.grant.id] if lease.grant is not None else None
    if spec.max_parallel and (grant is None or grant.leases > 1):
        free = []  # one more grant might be too many
    open_seats = seats.OpenSeats(state).own(seats.key_of(spec, trial.params))
    return sum(seats.seats_on(state, trial, [slot]) for slot in free) + open_seats


def seat(state: CycleState, trial: Trial, params: Params, milestone: int) -> Deciding[Grant | None]:
    """Return a bundle on an ephemeral slot for a trial to join, or None if it finds no seat there or must not use
    one."""
    if not (yield from may_have(state, milestone)):
        return None
    found = seats.OpenSeats(state).of(trial, params, on_ephemeral=True)
    if found is None:
        state.cluster.wanted_ephemeral_bytes = with_ephemeral(
            state.study.spec, Request.of(state.study.spec.resources)
        ).ephemeral_memory_bytes
    return found


def with_owner(trial: Trial, owner_stage: str) -> tuple[str, ...]:
    """The owners of the ephemeral slots that a trial has run on, once it runs on one of this owner."""
    known = trial.bubbles
    return known if not owner_stage or owner_stage in known else (*known, owner_stage)
