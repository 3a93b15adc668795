"""Seats: which trials of a study share a process, and which process a trial joins.

A study with `fuse` runs several trials in one process, a bundle. A bundle is a grant with several seats; its members
are ordinary leases, which come and go one by one. Trials take free slots first. A trial that finds none takes an open
seat of the study's own bundles, of which all trials have the same key.

Blame by halves: a bundle's process that dies charges no member, since each of them may be the cause. Every loss halves
the number of trials that a member may share a process with, until the cause is alone. Then it is an ordinary trial. A
new checkpoint or rung forgets the losses.

Fairness: a bundle whose slots a study that goes before could use takes nobody in. It is empty when its members have
left at their rungs, and then its slots are free like any others.
"""

from collections.abc import Collection

from msgspec.structs import replace

from headrace.spec import StudySpec
from headrace_services.scheduler.core import sharing
from headrace_services.scheduler.core.placement import Placement, fit
from headrace_services.scheduler.core.placement.shares import claim
from headrace_services.scheduler.core.records import Grant, Params, Slot, Trial
from headrace_services.scheduler.core.state import CycleState

BUNDLES_AT_ONCE = 256
"""How many bundles with open seats one cycle looks at."""


def allowance(spec: StudySpec, trial: Trial) -> int:
    """How many trials may be in a process with this one, itself included."""
    return 1 if spec.fuse is None else max(1, spec.fuse.most >> trial.losses_in_row)


def seats_on(spec: StudySpec, trial: Trial, slot: Slot) -> int:
    """How many seats a grant has that begins with this trial: on an ephemeral slot as many as its memory has room for,
    at least one. `resources.gpu_memory_bytes` is what a full bundle needs."""
    most, needed = allowance(spec, trial), spec.resources.gpu_memory_bytes
    if not slot.owner or spec.fuse is None or not needed:
        return most
    return max(1, min(most, spec.fuse.most * slot.memory_bytes // needed))


def losses_alone(spec: StudySpec, losses_in_row: int) -> int:
    """How many of a trial's losses in a row it had when nothing else was in its process."""
    shared = 0 if spec.fuse is None else spec.fuse.most.bit_length() - 1
    return max(0, losses_in_row - shared)


def key_of(spec: StudySpec, params: Params) -> str:
    """What the trials of a bundle have in common; empty where nothing is fused."""
    return "" if spec.fuse is None else spec.fuse.key(params)


def revived(state: CycleState, trial: Trial, placement: Placement) -> Grant | None:
    """Return the bundle that has just ended on exactly these slots, if the trial can go on in its process."""
    where = {(slot.worker_id, slot.index) for slot in placement.slots}
    for grant_id in state.changes.ended_grants:
        grant = state.grants[grant_id]
        there = {(part.worker_id, index) for part in grant.parts for index in part.slots}
        size = (grant.milli, grant.memory_bytes) == (placement.milli, placement.memory_bytes)
        if grant.seats > 1 and where == there and size and _suits(state, grant, trial, placement):
            return replace(grant, leases=1)
    return None


def _suits(state: CycleState, grant: Grant, trial: Trial, placement: Placement) -> bool:
    """Whether a bundle that is empty is what would be begun for the trial, and its process is there."""
    spec = state.study.spec
    begun = (seats_on(spec, trial, placement.slots[0]), key_of(spec, trial.params))
    same = (grant.seats, grant.key) == begun
    return same and _takes_members(state, grant)


def _takes_members(state: CycleState, grant: Grant) -> bool:
    """Whether the process of a bundle is there and may stay."""
    asked = grant.id in state.study.leaving or grant.id in state.changes.asks
    avoided = any(part.incarnation in state.study.standing.avoided for part in grant.parts)
    return not (grant.closed or asked or avoided)


class OpenSeats:
    """The seats that trials of a study may take in one cycle, after its free slots are given out."""

    def __init__(self, state: CycleState) -> None:
        self._state = state
        self._kept_off: Collection[str] | None = None

    @property
    def any(self) -> bool:
        """Whether some trial could take a seat."""
        return any(grant.leases < grant.seats for grant in self._bundles())

    @property
    def count(self) -> int:
        """How many are open."""
        return sum(grant.seats - grant.leases for grant in self._bundles())

    def of(self, trial: Trial, params: Params, *, in_bubbles: bool = False) -> Grant | None:
        """Return the bundle that a trial with these parameters joins: of those that it may join the emptiest one."""
        spec = self._state.study.spec
        key, most = key_of(spec, params), allowance(spec, trial)
        fitting = [
            grant
            for grant in self._bundles()
            if grant.key == key
            and grant.leases < min(grant.seats, most)
            and bool(grant.bubbles) == in_bubbles
        ]
        return min(fitting, key=_fewest_first, default=None)

    def own(self, key: str) -> int:
        """How many are open for trials of a key, outside of bubbles."""
        ours = (grant for grant in self._bundles() if grant.key == key and not grant.bubbles)
        return sum(grant.seats - grant.leases for grant in ours)

    def _bundles(self) -> list[Grant]:
        """The bundles that may take a trial in."""
        if self._state.study.spec.fuse is None:
            return []
        if self._kept_off is None:
            self._kept_off = _left_to_others(self._state)
        return [grant for grant in _live(self._state) if grant.id not in self._kept_off]


def _live(state: CycleState) -> list[Grant]:
    """The bundles whose processes are there, on slots that are."""
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
    """The bundles whose slots go to studies that go before this one, as many as those want. They are those with the
    fewest members: they are empty the soonest."""
    room, now_s = state.room, state.study.now_s
    if not room.crowded:
        return frozenset()
    left, own, silent = set[str](), sharing.own_share(state), sharing.silent(state)
    others = {other.study_id: other for other in room.others.values() if other.study_id not in silent}
    for grant in sorted(_live(state), key=_fewest_first):
        slots = state.bundles[grant.id]
        if grant.bubbles:
            poorer = replace(own, usage=own.usage.hold_bubbles(-1))
            first = sharing.first_for(slots[0], others.values(), poorer, now_s)
            if first is not None:
                left.add(grant.id)
                own, others[first.study_id] = poorer, replace(first, wanted=first.wanted - 1)
            continue
        gpu = slots[0].kind == "GPU"
        poorer = replace(own, usage=own.usage.settled(now_s).hold(gpu, -grant.size))
        ours = claim(poorer, room.totals, now_s)
        for other in others.values():
            before = other.wanted > 0 and claim(other, room.totals, now_s) < ours
            if before and other.wants is not None and fit(slots, sharing.next_of(other)) is not None:
                left.add(grant.id)
                own, others[other.study_id] = poorer, other.holding(other.wants)
                break
    return frozenset(left)
