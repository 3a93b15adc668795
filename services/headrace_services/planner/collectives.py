"""Seconds of collectives on two tiers of links. Arguments may be floats or arrays; volumes are bytes.

A ring all-reduce of V bytes over n ranks takes 2(n−1)α + 2(n−1)/n·V/β (Patarasuk and Yuan 2009). Over nodes with g
ranks each it is hierarchical: reduce within the node, all-reduce 1/g of the data between nodes, gather within the
node. A reduce-scatter or an all-gather takes half as long as an all-reduce.
"""

from dataclasses import dataclass

from headrace_services.planner.cluster import Cluster, Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Ranks that communicate: how many on each node, and on how many nodes."""

    per_node: float
    nodes: float
    ring: float | None = None
    """Bytes/s of the slowest link between its nodes in a ring; None: the device's network bandwidth."""
    pairs: float | None = None
    """The same in an all-to-all."""

    @property
    def ranks(self) -> float:
        """All ranks."""
        return self.per_node * self.nodes


def group(ranks: int, stride: int, node: int) -> Group:
    """The group of `ranks` ranks that are `stride` devices apart, in nodes of `node` devices."""
    per_node = min(max(node // stride, 1), ranks)
    while ranks % per_node:
        per_node -= 1
    return Group(per_node=per_node, nodes=ranks // per_node)


def all_reduce_s(
    volume: float, ranks: Group, *, link: float, network: float, latency_s: float, node_latency_s: float
) -> float:
    """Seconds of a hierarchical ring all-reduce at these achieved bandwidths (bytes/s per rank)."""
    g, k = ranks.per_node, ranks.nodes
    within = 2 * (g - 1) * latency_s + 2 * (g - 1) / g * volume / link
    between = 2 * (k - 1) * node_latency_s + 2 * (k - 1) / k * (volume / g) / network
    return within + between


def all_to_all_s(volume: float, ranks: Group, cluster: Cluster) -> float:
    """Seconds of an all-to-all in which every rank sends `volume` bytes, an equal part to each rank.

    In a ring of nodes, the mean distance between two nodes is k/4 hops, and every hop is paid.
    """
    device, constants = cluster.device, cluster.device.efficiencies
    n, g, k = ranks.ranks, ranks.per_node, ranks.nodes
    hops = max(k / 4, 1.0) if device.topology is Topology.RING else 1.0
    within = volume * (g - 1) / n / (device.link_bandwidth * constants.link)
    network = device.network_bandwidth if ranks.pairs is None else ranks.pairs
    between = volume * (n - g) / n * hops / (network * constants.network)
    latency = (k > 1) * constants.transfer_network_s + (n > 1) * constants.collective_s
    return latency + within + between


def hidden_s(window_s: float, share: float, cluster: Cluster) -> float:
    """The part of a collective that `window_s` of computation hides.

    `share` is the paper's α for the collective's pattern: the part of the window during which it runs. Meanwhile
    it is slower by the factor `overlap_slowdown`, because computation uses memory bandwidth and multiprocessors.
    """
    return share * window_s / cluster.device.efficiencies.overlap_slowdown
