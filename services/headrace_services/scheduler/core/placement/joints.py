"""How the slots of a gang are joined, and which of a worker's slots to take because of it.

A worker says of each pair of its GPUs how they are joined: by NVLink, below one PCIe switch, on one NUMA node, or only
across the machine. A gang is joined as badly as the worst of its pairs. The choice is greedy from each slot: add what
is joined best to all that are chosen. Where joints form a tree, as on most machines, that finds the best set. Of equal
sets the one that leaves the fewest further slots joined to it is taken, so that small gangs leave large islands whole;
for the same reason a trial of one slot takes the one with the fewest free neighbours.

Where a worker says nothing of its joints, the first slots in order are taken, whatever they are.
"""

from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache

from headrace_services.scheduler.core.records import Slot


class Link(IntEnum):
    """How two slots of a worker are joined. The numbers are the contract's (`LinkKind`)."""

    UNKNOWN = 0
    NVLINK = 1
    SWITCH = 2
    NUMA_NODE = 3
    MACHINE = 4


WORDS = {
    Link.NVLINK: "NVLink",
    Link.SWITCH: "one PCIe switch",
    Link.NUMA_NODE: "one NUMA node",
    Link.MACHINE: "the machine alone, across NUMA nodes",
}
"""How people read a joint, after `joined by`."""
_SHORT = {
    Link.NVLINK: "NVLink",
    Link.SWITCH: "PCIe switch",
    Link.NUMA_NODE: "NUMA node",
    Link.MACHINE: "across NUMA nodes",
}
_COSTS = {Link.NVLINK: 0, Link.SWITCH: 1, Link.NUMA_NODE: 2, Link.UNKNOWN: 3, Link.MACHINE: 4}
"""What is not known stands between what is known to be good and what is known to be bad."""


def between(one: Slot, other: Slot) -> Link:
    """How two slots of a worker are joined."""
    return Link(one.links[other.index]) if other.index < len(one.links) else Link.UNKNOWN


def joint(slots: Sequence[Slot]) -> Link:
    """How a gang on these slots is joined: as the worst of its pairs; UNKNOWN for a single slot."""
    if len(slots) < 2 or not any(slot.links for slot in slots):
        return Link.UNKNOWN
    pairs = (between(one, other) for place, one in enumerate(slots) for other in slots[place + 1 :])
    return max(pairs, key=_COSTS.__getitem__)


def cost(slots: Sequence[Slot]) -> int:
    """What orders sets of slots: the least is joined best. The same for all that are not known, and for single ones."""
    return _COSTS[joint(slots)]


def kind(model: str, link: Link) -> str:
    """Name what a gang's speed depends on: the device model, and how its slots are joined where that is known."""
    return model if link is Link.UNKNOWN else f"{model} ({_SHORT[link]})"


def kind_of(slots: Sequence[Slot]) -> str:
    """The kind of a set of slots, such as `H200` or `H200 (NVLink)`."""
    return kind(slots[0].model, joint(slots))


def kinds(model: str) -> tuple[str, ...]:
    """All kinds of a model."""
    return tuple(kind(model, link) for link in Link)


def choose(slots: Sequence[Slot], count: int) -> list[Slot]:
    """Return the `count` of a worker's slots that are joined best; of equal sets the one that comes first in order."""
    if not slots[0].links or len(slots) <= count:
        return list(slots[:count])
    chosen = _chosen(tuple((slot.index, slot.links) for slot in slots), count)
    return [slots[place] for place in chosen]


@lru_cache(maxsize=4096)
def _chosen(slots: tuple[tuple[int, tuple[int, ...]], ...], count: int) -> tuple[int, ...]:
    """The places of the chosen slots. Workers of one make that have the same slots free share an answer."""
    costs = [
        [_COSTS[Link(links[index])] if index < len(links) else _COSTS[Link.UNKNOWN] for index, _ in slots]
        for _, links in slots
    ]
    places = range(len(slots))
    if count == 1:
        return (min(places, key=lambda place: (_neighbours(costs, place), place)),)
    sets = {tuple(sorted(_grown_from(costs, seed, count))) for seed in places}
    return min(sets, key=lambda found: (*_rank(costs, found), found))


def _grown_from(costs: list[list[int]], seed: int, count: int) -> list[int]:
    chosen = [seed]
    worst, total = list(costs[seed]), list(costs[seed])
    while len(chosen) < count:
        rest = (place for place in range(len(costs)) if place not in chosen)
        best = min(rest, key=lambda place: (worst[place], total[place], place))
        chosen.append(best)
        worst = [max(pair) for pair in zip(worst, costs[best], strict=True)]
        total = [sum(pair) for pair in zip(total, costs[best], strict=True)]
    return chosen


def _rank(costs: list[list[int]], chosen: tuple[int, ...]) -> tuple[int, int, int]:
    """The worst joint of a set, all of its joints, and how many further slots are joined to it as well as that."""
    joints = [costs[one][other] for one in chosen for other in chosen if one < other]
    worst = max(joints)
    left = sum(
        all(costs[place][other] <= worst for other in chosen)
        for place in range(len(costs))
        if place not in chosen
    )
    return worst, sum(joints), left


def _neighbours(costs: list[list[int]], place: int) -> tuple[int, ...]:
    """How many others are joined to a slot, by how well: the best joints count first."""
    found = [joined for other, joined in enumerate(costs[place]) if other != place]
    return tuple(found.count(level) for level in range(_COSTS[Link.UNKNOWN]))
