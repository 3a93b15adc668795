"""Seats: which trials of a study share a process, and which process a trial joins.

A study with `fuse` runs several trials in one process, a bundle. A bundle is a grant with several seats. Its
members are ordinary leases, which start and end one by one. Trials take free slots first. A trial that finds none
takes an open seat in one of the study's own bundles, all of whose trials have the same key.

`capacity` decides how many trials share a process, by kind of device and key. A bundle that runs out of memory
halves that number for all later bundles; its members continue, and none of them is charged.

Blame by halves: if a bundle's process dies for another reason, no member is charged, since each of them may be the
cause. Every loss halves the number of trials that a member may share a process with, until the cause is alone.
Then it is an ordinary trial. A new checkpoint or rung clears the losses.

Fairness: a bundle accepts no new member if a study that goes first could use its slots. It empties as its members
leave at their rungs, and then its slots are free like any others.
"""

from collections.abc import Collection, Sequence

from msgspec.structs import replace

from headrace import ephemeral
from headrace.bounds import numbers
from headrace.spec import StudySpec
from headrace_services.scheduler.core import events, precedence, sharing
from headrace_services.scheduler.core.capacity import Capacity, Profile, TurnCost, capacity
from headrace_services.scheduler.core.placement import Placement, fit, is_suspect
from headrace_services.scheduler.core.placement.joints import kind_of
from headrace_services.scheduler.core.placement.shares import claim
from headrace_services.scheduler.core.records import Grant, Lease, Params, Slot, Trial
from headrace_services.scheduler.core.state import CycleState

BUNDLES_AT_ONCE = 256
"""How many bundles with open seats one cycle considers."""


def allowance(most: int, trial: Trial) -> int:
    """How many trials may be in a process with this one, including itself, if others share theirs with `most`: a
    suspect of faults on shared GPUs (`placement.is_suspect`) has its own."""
    return 1 if is_suspect(trial) else max(1, most >> trial.losses_in_row)


def room_on(spec: StudySpec, slot: Slot) -> int:
    """How many members an ephemeral slot's memory has room for, at least one: a full bundle needs
    `resources.gpu_memory_bytes`."""
    needed = spec.resources.gpu_memory_bytes
    if spec.fuse is None or not needed:
        return numbers.SEATS
    return max(1, spec.fuse.first * slot.memory_bytes // needed)


def losses_alone(most: int, losses_in_row: int) -> int:
    """How many of a trial's losses in a row happened when it was alone in its process."""
    return max(0, losses_in_row - (most.bit_length() - 1))


def capacity_on(state: CycleState, device: str, key: str, memory_bytes: int = 0) -> Capacity:
    """How many trials of the study may share a process on a kind of device."""
    fuse, at = state.study.spec.fuse, (device, key, memory_bytes)
    if fuse is None:
        return _ALONE
    if at not in state.capacities:
        state.capacities[at] = capacity(fuse, state.profile(device, key), memory_bytes)
    return state.capacities[at]


def _device(grant: Grant) -> str:
    return _device_of(grant.model, grant.owner_stage)


def _device_of(kind: str, stage: str) -> str:
    """The kind of device that bundles are measured on. An ephemeral slot is a kind of its own: turns take longer
    there because of its duty cycle, and it has less memory to give."""
    return ephemeral.device(kind, stage) if stage else kind


_ALONE = Capacity(trials=1, seats=1, why="")


def capacity_of(state: CycleState, grant: Grant, slots: tuple[Slot, ...]) -> Capacity:
    """How many trials may share the process on a grant of these slots."""
    memory_bytes = grant.memory_bytes or (slots[0].memory_bytes if slots else 0)
    return capacity_on(state, _device(grant), grant.key, memory_bytes)


def seats_for(state: CycleState, trial: Trial, placement: Placement) -> int:
    """How many seats a grant has that starts with this trial on free slots."""
    return seats_on(state, trial, placement.slots, placement.memory_bytes)


def seats_on(state: CycleState, trial: Trial, slots: Sequence[Slot], memory_bytes: int = 0) -> int:
    """The same on these slots, of which the trial has this much memory (0: all that a slot has)."""
    spec, slot = state.study.spec, slots[0]
    key = key_of(spec, trial.params)
    device = _device_of(kind_of(slots), slot.owner_stage)
    found = capacity_on(state, device, key, memory_bytes or slot.memory_bytes)
    suspected = trial.losses_in_row or is_suspect(trial)
    seats = allowance(found.trials, trial) if suspected else found.seats
    return min(seats, room_on(spec, slot)) if slot.owner else seats


def learn(state: CycleState, lease: Lease, cost: TurnCost) -> None:
    """Record what a turn cost. If more trials may share a process now, some may be placed."""
    if state.study.spec.fuse is None or lease.grant is None:
        return
    profile = state.profile(_device(lease.grant), lease.grant.key)
    _learnt(state, lease, profile, profile.learn(cost))


def too_many(state: CycleState, lease: Lease, members: int) -> None:
    """A bundle ran out of memory with this many members, two or more: half as many share a process from now on."""
    assert lease.grant is not None
    profile = state.profile(_device(lease.grant), lease.grant.key)
    _learnt(state, lease, profile, profile.halved(members))


def _learnt(state: CycleState, lease: Lease, before: Profile, after: Profile) -> None:
    fuse, slots = state.study.spec.fuse, state.slots.get(lease.id, ())
    assert fuse is not None
    memory_bytes = lease.memory_bytes or (slots[0].memory_bytes if slots else 0)
    was, now = capacity(fuse, before, memory_bytes), capacity(fuse, after, memory_bytes)
    state.learn_capacity(after)
    if was.trials != now.trials:
        state.emit(events.bundles_sized(after, now))
    if was.trials < now.trials:
        state.wants_placement = True


def key_of(spec: StudySpec, params: Params) -> str:
    """The key that the trials of a bundle have in common; empty if nothing is fused."""
    return "" if spec.fuse is None else spec.fuse.key(params)


def revived(state: CycleState, trial: Trial, placement: Placement) -> Grant | None:
    """Return the bundle that has just ended on exactly these slots, if the trial can continue in its process."""
    where = {(slot.worker_id, slot.index) for slot in placement.slots}
    for grant_id in state.changes.ended_grants:
        grant = state.grants[grant_id]
        there = {(part.worker_id, index) for part in grant.parts for index in part.slots}
        size = (grant.milli, grant.memory_bytes) == (placement.milli, placement.memory_bytes)
        begun = (seats_for(state, trial, placement), key_of(state.study.spec, trial.params))
        suits = begun == (grant.seats, grant.key) and _takes_members(state, grant)
        if grant.seats > 1 and where == there and size and suits:
            return replace(grant, leases=1)
    return None


def _takes_members(state: CycleState, grant: Grant) -> bool:
    """Whether the process of a bundle exists and may continue."""
    asked = grant.id in state.study.leaving or grant.id in state.changes.asks
    avoided = any(part.incarnation in state.study.standing.avoided for part in grant.parts)
    return not (grant.closed or asked or avoided)


def open_beside(state: CycleState, own: Grant) -> list[Grant]:
    """The other bundles of a bundle's key that have an open seat for its members, on slots that are not ephemeral."""
    same = [grant for grant in _live(state) if grant.key == own.key and not grant.owner_stage]
    return [grant for grant in same if grant.id != own.id and open_in(state, grant)]


def room_for(state: CycleState, own: Grant, slot: Slot) -> int:
    """How many members of a bundle could share a process on a free slot."""
    return capacity_on(state, kind_of((slot,)), own.key, own.memory_bytes or slot.memory_bytes).trials


def open_in(state: CycleState, grant: Grant) -> int:
    """How many seats of a bundle are open, limited to how many trials may share a process on its device."""
    room = capacity_of(state, grant, state.bundles[grant.id]).trials
    return max(0, min(grant.seats, room) - grant.leases)


class OpenSeats:
    """The seats that trials of a study may take in one cycle, after its free slots have been given out."""

    def __init__(self, state: CycleState) -> None:
        self._state = state
        self._kept_off: Collection[str] | None = None

    @property
    def any(self) -> bool:
        """Whether some trial could take a seat."""
        return self.count > 0

    @property
    def count(self) -> int:
        """How many seats are open."""
        return sum(open_in(self._state, grant) for grant in self._bundles())

    def of(self, trial: Trial, params: Params, *, on_ephemeral: bool = False) -> Grant | None:
        """Return the bundle that a trial with these parameters joins: the emptiest of those that it may join."""
        key = key_of(self._state.study.spec, params)
        fitting = [
            grant
            for grant in self._bundles()
            if grant.key == key
            and grant.leases < min(grant.seats, allowance(self._room(grant), trial))
            and bool(grant.owner_stage) == on_ephemeral
        ]
        return min(fitting, key=_fewest_first, default=None)

    def own(self, key: str) -> int:
        """How many seats are open for trials with a key, on slots that are not ephemeral."""
        return sum(
            open_in(self._state, grant)
            for grant in self._bundles()
            if grant.key == key and not grant.owner_stage
        )

    def _room(self, grant: Grant) -> int:
        """How many trials may share a process on the grant's device."""
        return capacity_of(self._state, grant, self._state.bundles[grant.id]).trials

    def _bundles(self) -> list[Grant]:
        """The bundles that may accept a trial."""
        if self._state.study.spec.fuse is None:
            return []
        if self._kept_off is None:
            self._kept_off = _left_to_others(self._state)
        return [grant for grant in _live(self._state) if grant.id not in self._kept_off]


def _live(state: CycleState) -> list[Grant]:
    """The bundles whose processes exist, on slots that exist."""
    found = []
    for grant_id, slots in state.bundles.items():
        grant = state.grants[grant_id]
        if grant.leases and _takes_members(state, grant) and slots and _are_there(grant, slots):
            found.append(grant)
    return found


def _are_there(grant: Grant, slots: tuple[Slot, ...]) -> bool:
    incarnations = {part.worker_id: part.incarnation for part in grant.parts}
    return all(slot.placeable and slot.incarnation == incarnations[slot.worker_id] for slot in slots)


def _fewest_first(grant: Grant) -> tuple[int, str]:
    return (grant.leases, grant.id)


def _left_to_others(state: CycleState) -> frozenset[str]:
    """The bundles whose slots go to studies that go before this one, as many as those need. They are the ones with
    the fewest members, as these are empty soonest."""
    cluster, now_s = state.cluster, state.study.now_s
    if not cluster.crowded:
        return frozenset()
    left, own, silent = set[str](), precedence.own_share(state), precedence.silent(state)
    others = {other.study_id: other for other in cluster.others.values() if other.study_id not in silent}
    for grant in sorted(_live(state), key=_fewest_first):
        slots = state.bundles[grant.id]
        if grant.owner_stage:
            poorer = replace(own, usage=own.usage.hold_ephemeral(-1, now_s))
            first = sharing.first_for(slots[0], others.values(), poorer, now_s)
            if first is not None:
                left.add(grant.id)
                own, others[first.study_id] = poorer, replace(first, wanted=first.wanted - 1)
            continue
        gpu = slots[0].kind == "GPU"
        poorer = replace(own, usage=own.usage.hold(gpu, -grant.size, now_s))
        ours = claim(poorer, cluster.totals, now_s)
        for other in others.values():
            before = other.wanted > 0 and claim(other, cluster.totals, now_s) < ours
            if before and other.wants is not None and fit(slots, sharing.next_of(other)) is not None:
                left.add(grant.id)
                own, others[other.study_id] = poorer, other.holding(other.wants, now_s)
                break
    return frozenset(left)
