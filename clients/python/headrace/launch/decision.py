"""Which seats to fill: a pure function of demand, free slots and the members that exist.

Trials are placed on the free slots of connected workers, then on the slots of workers that are about to connect,
and last on new workers. What remains beyond the last seat waits. This estimates what the scheduler will do. A wrong
estimate costs a worker that leaves when it is idle, or a turn of waiting, never more than `--max` workers.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from headrace import worker_labels
from headrace.grants import WHOLE
from headrace.launch.engine import Member, Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Waiting trials of one size."""

    count: int
    slots: int
    """On one worker."""
    milli: int = WHOLE
    """Thousandths of each slot: less than 1000 where trials share a GPU."""
    on_gpu: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels that the worker must have."""
    study: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What each worker of the launch offers."""

    slots: int
    on_gpu: bool
    labels: Mapping[str, str] = field(default_factory=dict)
    """Those of `--label`."""

    def suits(self, need: Need) -> bool:
        """Whether an empty worker can run such a trial."""
        return _suits(self.empty, need) and need.slots <= self.slots

    @property
    def empty(self) -> "FreeSlots":
        """The slots of a worker without trials. It also has the labels that Headrace gives it."""
        labels = {**self.labels, worker_labels.EPHEMERAL: worker_labels.YES}
        return FreeSlots(free=(WHOLE,) * self.slots, on_gpu=self.on_gpu, labels=labels)


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeSlots:
    """The slots of one kind that are free on one worker, in thousandths of each slot."""

    free: tuple[int, ...]
    on_gpu: bool
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a turn does."""

    submit: tuple[int, ...] = ()
    """The seats to fill."""
    withdraw: tuple[Member, ...] = ()
    """Pending members whose seat is taken by an earlier one, or that an earlier turn began to withdraw."""
    waiting: int = 0
    """Waiting trials that suit the launch."""
    unsuited: tuple[Need, ...] = ()
    """Those that no worker of the launch can run."""
    beyond: int = 0
    """Trials that have to wait because all seats are taken."""


def decide(
    needs: Sequence[Need],
    free: Sequence[FreeSlots],
    members: Sequence[Member],
    connected: Collection[str],
    *,
    kind: Kind,
    most: int,
    resting: Collection[int] = (),
) -> Decision:
    """Which seats to fill, so that the waiting trials find slots.

    `connected` are the names of the workers whose slots are in `free`, or that offer none at the moment. `most` is
    the number of seats. Those that are `resting` are not filled now, and no other seat is filled instead. Takes time
    in proportion to the sizes of trials times the workers, not to the trials.
    """
    kept, doubles = _by_seat(members)
    coming = sum(member.stage is Stage.PENDING or member.worker not in connected for member in kept.values())
    idle = [seat for seat in range(most) if seat not in kept and seat not in resting]
    rest = sum(seat < most and seat not in kept for seat in resting)
    seats = idle[: max(0, most - len(kept))]  # seats beyond a smaller maximum count too
    bins = [_Bin(slots) for slots in free]
    bins += [_Bin(kind.empty) for _ in range(coming + rest)]
    suited = [need for need in needs if kind.suits(need)]
    submit: list[int] = []
    beyond = 0
    for need in sorted(suited, key=lambda need: (need.slots, need.milli), reverse=True):
        left = need.count
        for one in bins:
            left -= one.fill(need, left)
        while left and len(submit) < len(seats):
            submit.append(seats[len(submit)])
            bins.append(_Bin(kind.empty))
            left -= bins[-1].fill(need, left)
        beyond += left
    return Decision(
        submit=tuple(submit),
        withdraw=(
            *(one for one in doubles if one.stage is Stage.PENDING),
            *(one for one in kept.values() if one.held),
        ),
        waiting=sum(need.count for need in suited),
        unsuited=tuple(need for need in needs if not kind.suits(need)),
        beyond=beyond,
    )


def _by_seat(members: Sequence[Member]) -> tuple[dict[int, Member], list[Member]]:
    """The member that keeps each seat, and the others. One that runs comes before those that are pending, and those
    before held ones.
    """
    kept: dict[int, Member] = {}
    doubles = []
    for member in sorted(members, key=lambda member: (member.stage is Stage.PENDING, member.held)):
        if member.seat in kept:
            doubles.append(member)
        else:
            kept[member.seat] = member
    return kept, doubles


def _suits(offered: FreeSlots, need: Need) -> bool:
    return offered.on_gpu == need.on_gpu and need.labels.items() <= offered.labels.items()


class _Bin:
    """The free slots of one worker, while trials are put on them."""

    def __init__(self, offered: FreeSlots) -> None:
        self._offered, self._free = offered, list(offered.free)

    def fill(self, need: Need, count: int) -> int:
        """Puts at most `count` trials here; returns how many."""
        if not count or not _suits(self._offered, need):
            return 0
        if need.milli >= WHOLE:
            whole = [place for place, left in enumerate(self._free) if left >= WHOLE]
            fitting = min(count, len(whole) // need.slots)
            for place in whole[: fitting * need.slots]:
                self._free[place] = 0
            return fitting
        fitting = 0
        for place in sorted(range(len(self._free)), key=self._free.__getitem__):  # shared slots first
            here = min(count - fitting, self._free[place] // need.milli)
            self._free[place] -= here * need.milli
            fitting += here
        return fitting
