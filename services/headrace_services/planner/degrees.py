"""Level 1: the degrees of parallelism, and all tuples of them that a cluster and a batch allow.

N = d·m·s devices; o divides d; µ divides B/d; there are no more stages than layers. m divides a node, so that
tensor groups stay in one, and it divides what Megatron-LM and DeepSpeed split over it: attention heads,
feed-forward widths, the sequence. Heads of keys and values are divided too, or copied if there are fewer of them.
e, the ranks that share the routed experts, divides both d and the number of experts; a dense model has e = 1.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from math import gcd

from headrace_services.planner.cluster import Cluster
from headrace_services.planner.collectives import Group, group
from headrace_services.planner.model import Model


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Degrees:
    """(d, m, o, s, µ) of the paper, and e for mixtures of experts."""

    d: int
    m: int
    o: int
    s: int
    mu: int
    e: int = 1

    @property
    def devices(self) -> int:
        """N."""
        return self.d * self.m * self.s

    def micro_batch(self, batch: int) -> int:
        """b = B/(d·µ): sequences per micro-batch and pipeline. (The paper's s(d) = B/d forgets µ.)"""
        return batch // (self.d * self.mu)


def tuples(model: Model, cluster: Cluster, batch: int) -> Iterator[Degrees]:
    """Every tuple, in lexicographic order of (d, m, s, µ, o, e)."""
    n = cluster.devices
    possible = {m for m in divisors(cluster.node) if tensor_fault(model, cluster, m) is None}
    for d in divisors(n):
        if batch % d:
            continue
        experts = expert_degrees(model, d)
        for m in divisors(n // d):
            s = n // d // m
            if m not in possible or s > len(model.layers):
                continue
            for mu in divisors(batch // d):
                for o in divisors(d):
                    for e in experts:
                        yield Degrees(d=d, m=m, o=o, s=s, mu=mu, e=e)


@cache
def least_data(devices: int, batch: int, layers: int) -> int:
    """The smallest data degree with which stages alone can use all devices; 1 if they can without data ranks."""
    fitting = [d for d in divisors(devices) if batch % d == 0 and devices // d <= layers]
    return min(fitting, default=1)


def tensor_fault(model: Model, cluster: Cluster, m: int) -> str | None:
    """Why m ranks cannot split a layer of this model on this cluster; None if they can."""
    if model.profiled and m > 1:
        return "splits layers, and a profile says nothing of layers that are split"
    if cluster.node % m:
        return f"does not divide the {cluster.node} devices of a node"
    if model.sequence % m:
        return f"does not divide the sequence of {model.sequence} tokens"
    for layer in dict.fromkeys(model.layers):
        for name, number in layer.divided:
            if number % m:
                return f"does not divide {name} {number}"
        if layer.kv_heads and layer.kv_heads % m and m % layer.kv_heads:
            return f"neither divides kv_heads {layer.kv_heads:g} nor is a multiple of it"
    return None


def expert_degrees(model: Model, d: int) -> tuple[int, ...]:
    """Every number of ranks that can share the experts evenly: adjacent ranks in the data group."""
    if not model.experts:
        return (1,)
    return divisors(gcd(d, model.experts))


def data_group(degrees: Degrees, cluster: Cluster) -> Group:
    """Ranks that hold the same dense parameters: m devices apart (Megatron-LM's order: tensor, data, pipeline)."""
    return _group(cluster, degrees.d, degrees.m)


def expert_group(degrees: Degrees, cluster: Cluster) -> Group:
    """Ranks that share the experts: adjacent ranks in the data group."""
    return _group(cluster, degrees.e, degrees.m)


def replica_group(degrees: Degrees, cluster: Cluster) -> Group:
    """Ranks that hold the same experts."""
    return _group(cluster, degrees.d // degrees.e, degrees.m * degrees.e)


def tensor_group(degrees: Degrees, cluster: Cluster) -> Group:
    """Ranks that split one layer."""
    return _group(cluster, degrees.m, 1)


def _group(cluster: Cluster, ranks: int, stride: int) -> Group:
    found = group(ranks, stride, cluster.node)
    links = cluster.links
    if links is None or found.nodes == 1:
        return found
    where = (ranks, stride, cluster.device.devices_per_node, cluster.devices)
    return replace(found, ring=links.ring(*where), pairs=links.pairs(*where))


def stage_links(degrees: Degrees, cluster: Cluster) -> tuple[float | None, ...]:
    """Per stage, bytes/s of the slowest link from the previous stage; for the first stage, from the last; None:
    the network's."""
    links, size = cluster.links, degrees.d * degrees.m
    if links is None:
        return (None,) * degrees.s
    node = cluster.device.devices_per_node
    stages = [range(j * size, (j + 1) * size) for j in range(degrees.s)]
    return tuple(links.between(stages[j - 1], stages[j], node) for j in range(degrees.s))


def stages_part(degrees: Degrees, cluster: Cluster) -> tuple[bool, ...]:
    """For every stage except the first, whether any of its devices receives from the previous stage over the
    network.

    A stage holds d·m adjacent devices, so stages smaller than a node share one.
    """
    size, node = degrees.d * degrees.m, cluster.device.devices_per_node
    return tuple(
        size >= node or any((first + i) // node != (first + i - size) // node for i in range(size))
        for first in range(size, degrees.s * size, size)
    )


def divisors(n: int) -> tuple[int, ...]:
    """All divisors, ascending."""
    small = [k for k in range(1, int(n**0.5) + 1) if n % k == 0]
    return tuple(sorted({*small, *(n // k for k in small)}))
