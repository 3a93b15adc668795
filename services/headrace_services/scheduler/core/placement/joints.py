"""The interconnect of a gang's slots, and which of a worker's slots to take because of it.

A worker reports for each pair of its GPUs how they are connected: by NVLink, below one PCIe switch, on one NUMA
node, or only across the machine. A gang's interconnect is that of its worst pair. The choice is greedy from each
slot: add the slot with the best connection to all chosen ones. If the connections form a tree, as on most
machines, that finds the best set. Of equal sets the one that leaves the fewest well connected further slots is
taken, so that small gangs leave large islands whole. For the same reason a trial of one slot takes the slot with
the fewest free neighbours.

If a worker does not report its interconnect, the first slots in order are taken.
"""

from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache

from headrace_services.scheduler.core.records import Slot


class Link(IntEnum):
    """How two slots of a worker are connected. The numbers are those of the API (`LinkKind`)."""

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
"""The interconnect in words, following `joined by`."""
_SHORT = {
    Link.NVLINK: "NVLink",
    Link.SWITCH: "PCIe switch",
    Link.NUMA_NODE: "NUMA node",
    Link.MACHINE: "across NUMA nodes",
}
_COSTS = {Link.NVLINK: 0, Link.SWITCH: 1, Link.NUMA_NODE: 2, Link.UNKNOWN: 3, Link.MACHINE: 4}
"""Unknown ranks between what is known to be good and what is known to be bad."""


def between(one: Slot, other: Slot) -> Link:
    """How two slots of a worker are connected."""
    return Link(one.links[other.index]) if other.index < len(one.links) else Link.UNKNOWN


def joint(slots: Sequence[Slot]) -> Link:
    """The interconnect of a gang on these slots: that of its worst pair, or UNKNOWN for a single slot."""
    if len(slots) < 2 or not any(slot.links for slot in slots):
        return Link.UNKNOWN
    pairs = (between(one, other) for place, one in enumerate(slots) for other in slots[place + 1 :])
    return max(pairs, key=_COSTS.__getitem__)


def cost(slots: Sequence[Slot]) -> int:
    """The sort key of sets of slots: the lowest has the best interconnect. Equal for all unknown ones, and for
    single slots."""
    return _COSTS[joint(slots)]


def kind(model: str, link: Link) -> str:
    """The name of what a gang's speed depends on: the device model and, if known, the interconnect."""
    return model if link is Link.UNKNOWN else f"{model} ({_SHORT[link]})"


def kind_of(slots: Sequence[Slot]) -> str:
    """The kind of a set of slots, such as `H200` or `H200 (NVLink)`."""
    return kind(slots[0].model, joint(slots))


def kinds(model: str) -> tuple[str, ...]:
    """All kinds of a model."""
    return tuple(kind(model, link) for link in Link)


def choose(slots: Sequence[Slot], count: int) -> list[Slot]:
    """Return the `count` slots of a worker with the best interconnect; of equal sets the first one in order."""
    if not slots[0].links or len(slots) <= count:
        return list(slots[:count])
    chosen = _chosen(tuple((slot.index, slot.links) for slot in slots), count)
    return [slots[place] for place in chosen]


@lru_cache(maxsize=4096)
def _chosen(slots: tuple[tuple[int, tuple[int, ...]], ...], count: int) -> tuple[int, ...]:
    """The positions of the chosen slots. Workers of one type with the same free slots share an answer."""
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
    """The worst connection of a set, all its connections, and how many further slots are connected to it equally
    well."""
    joints = [costs[one][other] for one in chosen for other in chosen if one < other]
    worst = max(joints)
    left = sum(
        all(costs[place][other] <= worst for other in chosen)
        for place in range(len(costs))
        if place not in chosen
    )
    return worst, sum(joints), left


def _neighbours(costs: list[list[int]], place: int) -> tuple[int, ...]:
    """How many others a slot is connected to, by quality: the best connections count first."""
    found = [joined for other, joined in enumerate(costs[place]) if other != place]
    return tuple(found.count(level) for level in range(_COSTS[Link.UNKNOWN]))
