"""Links between nodes that are not all alike: a bandwidth for every pair of nodes, as a matrix or as tiers.

Devices are numbered as ranks are (tensor, data, pipeline), node by node, so it is known which nodes a group spans.
A ring runs at the speed of its slowest link, and all rings of a kind run at once, so the slowest of them counts.
In an all-to-all every rank sends to each other rank, one after another. So the mean time over its peers counts,
for the rank whose mean is longest. Links that several groups share are not modelled: each device has its own share
of a link.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from headrace_services.planner.checking import Checker

MOST_NODES: Final = 1024
LOW, HIGH = 1e6, 1e13
"""The plausible range, in bytes per second."""


@dataclass(frozen=True, slots=True, eq=False)
class NodeLinks:
    """Bytes per second that a device of node a sends to one of node b, at [a, b]; ∞ on the diagonal.

    Two instances are never equal, so that plans compare quickly.
    """

    matrix: NDArray[np.float64]
    _rings: dict[tuple[int, ...], float | None] = field(init=False, default_factory=dict)
    _pairs: dict[tuple[int, ...], float | None] = field(init=False, default_factory=dict)

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return len(self.matrix)

    @property
    def slowest(self) -> float:
        """The lowest bandwidth of any pair."""
        return float(self.matrix.min())

    @property
    def fastest(self) -> float:
        """The highest bandwidth of any pair."""
        return float(self.matrix[np.isfinite(self.matrix)].max())

    def ring(self, ranks: int, stride: int, node: int, devices: int) -> float | None:
        """The slowest link of rings of `ranks` devices, `stride` apart, in nodes of `node`. None if they cross no
        link."""
        key = (ranks, stride, node, devices)
        if key not in self._rings:
            places = _groups(*key)
            slowest = self.matrix[places, np.roll(places, -1, axis=1)].min()
            self._rings[key] = float(slowest) if np.isfinite(slowest) else None
        return self._rings[key]

    def pairs(self, ranks: int, stride: int, node: int, devices: int) -> float | None:
        """For the same groups: the bandwidth of the rank whose peers on other nodes take longest. None if it has
        none."""
        key = (ranks, stride, node, devices)
        if key not in self._pairs:
            worst: float | None = None
            for places in np.unique(_groups(*key), axis=0):
                held, members = np.unique(places, return_counts=True)
                inverse = 1.0 / self.matrix[np.ix_(held, held)]
                elsewhere = members.sum() - members
                if len(held) > 1:
                    mean = float((elsewhere / (inverse @ members)).min())
                    worst = mean if worst is None else min(worst, mean)
            self._pairs[key] = worst
        return self._pairs[key]

    def between(self, senders: Sequence[int], receivers: Sequence[int], node: int) -> float | None:
        """The slowest link by which each sender reaches its receiver; None if all are on one node."""
        slowest = self.matrix[np.array(senders) // node, np.array(receivers) // node].min()
        return float(slowest) if np.isfinite(slowest) else None


def links_from(check: Checker, description: Mapping[str, Any], nodes: int) -> NodeLinks | None:
    """The links in `node_links` or `tiers` of a cluster's description; None if it has neither."""
    if "node_links" in description and "tiers" in description:
        check.fail("tiers", None, "says the same as node_links", "Give one of them.")
    elif "node_links" in description:
        return _from_matrix(check, description["node_links"], nodes)
    elif "tiers" in description:
        return _from_tiers(check, description["tiers"], nodes)
    return None


def _from_matrix(check: Checker, told: Any, nodes: int) -> NodeLinks | None:
    square = isinstance(told, list) and len(told) == nodes <= MOST_NODES
    if not square or not all(isinstance(row, list) and len(row) == nodes for row in told):
        message = f"must be {nodes} lists of {nodes} numbers, a row and a column for each node"
        check.fail(
            "node_links", None, message, f"Give bytes/s from node to node, for at most {MOST_NODES} nodes."
        )
        return None
    matrix = np.full((nodes, nodes), np.inf)
    for a, row in enumerate(told):
        for b, value in enumerate(row):
            if a != b:
                name = f"node_links[{a}][{b}]"
                matrix[a, b] = check.number({name: value}, name, low=LOW, high=HIGH, unit="bytes/s")
    return NodeLinks(matrix)


def _from_tiers(check: Checker, told: Any, nodes: int) -> NodeLinks | None:
    if not isinstance(told, list) or not told or not all(isinstance(one, Mapping) for one in told):
        check.fail("tiers", told, "must be a list of tiers", "Write [{nodes: 4, bandwidth: 5e10}, ...].")
        return None
    if nodes > MOST_NODES:
        check.fail("tiers", nodes, f"are for at most {MOST_NODES} nodes", "Use network_bandwidth alone.")
        return None
    matrix = np.full((nodes, nodes), np.inf)
    place = np.arange(nodes)
    before = 1
    for number, one in enumerate(told):
        inner = check.below(f"tiers[{number}]")
        inner.known(one, ("nodes", "bandwidth"))
        size = inner.integer(one, "nodes", low=2, high=1_000_000)
        bandwidth = inner.number(one, "bandwidth", low=LOW, high=HIGH, unit="bytes/s")
        if inner.clean and (size <= before or size % before):
            inner.fail(
                "nodes", size, f"is no multiple of the {before} before it", "List tiers from small to large."
            )
        within = place // size
        lower = place // before
        matrix[(within[:, None] == within) & (lower[:, None] != lower)] = bandwidth
        before = size
    if before < nodes:
        check.fail("tiers", before, f"hold fewer than the {nodes} nodes", "Let the last tier hold all nodes.")
    return NodeLinks(matrix)


def _groups(ranks: int, stride: int, node: int, devices: int) -> NDArray[np.int64]:
    """The node of every rank of every group, a row for each group."""
    block = ranks * stride
    starts = (np.arange(0, devices, block)[:, None] + np.arange(stride)).ravel()
    return (starts[:, None] + stride * np.arange(ranks)) // node
