"""Links between nodes as a matrix or as tiers: the bandwidth that a ring, an all-to-all and a transfer get."""

import json
import math
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plan_command import run
from refusals import refused

from headrace.v1 import planner_pb2 as pb
from headrace_services.planner import asking, catalogue
from headrace_services.planner.cluster import Cluster, checked_cluster, device_from_description
from headrace_services.planner.degrees import Degrees, data_group, stage_links
from headrace_services.planner.links import NodeLinks
from headrace_services.planner.plan import Plan
from headrace_services.planner.service import convert

CLUSTER: dict[str, Any] = {
    "peak_flops": 312e12,
    "memory_bytes": 80e9,
    "memory_bandwidth": 2e12,
    "link_bandwidth": 3e11,
    "devices_per_node": 4,
    "devices": 32,
}
FAST, SLOW = 5e10, 1e9


def matrix(nodes: int, value: float = FAST) -> list[list[float]]:
    return [[0.0 if a == b else value for b in range(nodes)] for a in range(nodes)]


def cluster(**more: Any) -> Cluster:
    told = {**CLUSTER, **more}
    return checked_cluster(device_from_description("mine", told, catalogue.profiles()), told["devices"], told)


def planned(where: Cluster, model: str = "gpt3-13b", **options: Any) -> Plan:
    asked = asking.assembled(catalogue.model(model), where, asking.Options(batch=64, **options))
    found = asking.search(asked, asking.method("exact"), None).run().plan
    assert found is not None
    return found


@pytest.mark.parametrize("model", ["gpt3-13b", "mixtral-8x7b"])
def test_equal_links_are_the_two_tiers_that_were(model: str) -> None:
    """A matrix of equal numbers, tiers of equal numbers, and the number itself: the same plan to the last digit."""
    plain = planned(cluster(network_bandwidth=FAST), model)
    for more in (
        {"node_links": matrix(8)},
        {"tiers": [{"nodes": 2, "bandwidth": FAST}, {"nodes": 8, "bandwidth": FAST}]},
    ):
        same = planned(cluster(**more), model)
        assert (same.degrees, same.simulated_s) == (plain.degrees, plain.simulated_s)


def test_tiers_are_a_matrix() -> None:
    links = cluster(
        tiers=[
            {"nodes": 2, "bandwidth": 3e10},
            {"nodes": 4, "bandwidth": 2e10},
            {"nodes": 16, "bandwidth": 1e10},
        ]
    ).links
    assert links is not None
    for a in range(8):
        for b in range(8):
            wanted = math.inf if a == b else 3e10 if a // 2 == b // 2 else 2e10 if a // 4 == b // 4 else 1e10
            assert links.matrix[a, b] == wanted
    assert (links.slowest, links.fastest) == (1e10, 3e10)


def test_rings_and_pairs_against_their_definition() -> None:
    rng = random.Random(7)
    for _ in range(200):
        node, nodes = rng.choice([1, 2, 4]), rng.choice([2, 3, 4, 6])
        devices = node * nodes
        told = np.array(
            [[math.inf if a == b else rng.uniform(1, 9) for b in range(nodes)] for a in range(nodes)]
        )
        stride = rng.choice([k for k in range(1, devices + 1) if devices % k == 0])
        ranks = rng.choice([k for k in range(1, devices // stride + 1) if devices // stride % k == 0])
        links = NodeLinks(told)
        groups = [
            [(start + offset + i * stride) // node for i in range(ranks)]
            for start in range(0, devices, ranks * stride)
            for offset in range(stride)
        ]
        around = [told[a, b] for group in groups for a, b in pairwise([*group, group[0]])]
        slowest = min(around)
        assert links.ring(ranks, stride, node, devices) == (slowest if math.isfinite(slowest) else None)
        means = []
        for group in groups:
            for a in group:
                others = [told[a, b] for b in group if b != a]
                if others:
                    means.append(len(others) / sum(1 / one for one in others))
        found = links.pairs(ranks, stride, node, devices)
        assert found == (pytest.approx(min(means)) if means else None)


def test_a_slow_rack_is_felt_where_groups_cross_it() -> None:
    """Two racks of four nodes. Data ranks of a stage stay in one rack if stages can cross the racks instead."""
    racks = cluster(tiers=[{"nodes": 4, "bandwidth": FAST}, {"nodes": 8, "bandwidth": SLOW}])
    two = Degrees(d=4, m=4, o=1, s=2, mu=8)
    assert data_group(two, racks).ring == FAST
    assert stage_links(two, racks) == (SLOW, SLOW)
    one = Degrees(d=8, m=4, o=1, s=1, mu=8)
    assert data_group(one, racks).ring == SLOW
    four = Degrees(d=2, m=4, o=1, s=4, mu=8)
    assert stage_links(four, racks) == (SLOW, FAST, SLOW, FAST)
    everywhere_slow, everywhere_fast = cluster(network_bandwidth=SLOW), cluster(network_bandwidth=FAST)
    seconds = [planned(where).simulated_s for where in (everywhere_fast, racks, everywhere_slow)]
    assert seconds[0] < seconds[1] < seconds[2]
    assert planned(racks).degrees.s > 1, "gradients stay in a rack, activations cross"


def test_one_bad_cable_is_enough() -> None:
    bad = matrix(8)
    bad[2][3] = SLOW
    where = cluster(node_links=bad)
    assert planned(where).simulated_s > planned(cluster(network_bandwidth=FAST)).simulated_s
    assert any("1 to 50 GB/s" in note for note in planned(where).notes)


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"node_links": matrix(7)}, "cluster.node_links", "8 lists of 8"),
    ({"node_links": [*matrix(8)[:7], [1.0]]}, "cluster.node_links", "8 lists of 8"),
    ({"node_links": "fast"}, "cluster.node_links", "8 lists of 8"),
    (
        {"node_links": [[0, "x", *row[2:]] if a == 0 else row for a, row in enumerate(matrix(8))]},
        "cluster.node_links[0][1]",
        "finite",
    ),
    ({"node_links": matrix(8, 25.0)}, "cluster.node_links[0][1]", "from 1e+06"),
    ({"tiers": []}, "cluster.tiers", "list of tiers"),
    ({"tiers": [{"nodes": 4, "bandwidth": FAST}]}, "cluster.tiers", "fewer than the 8 nodes"),
    (
        {"tiers": [{"nodes": 3, "bandwidth": FAST}, {"nodes": 8, "bandwidth": FAST}]},
        "cluster.tiers[1].nodes",
        "no multiple",
    ),
    ({"tiers": [{"nodes": 8}]}, "cluster.tiers[0].bandwidth", "missing"),
    ({"tiers": [{"nodes": 8, "bandwidth": FAST, "speed": 1}]}, "cluster.tiers[0].speed", "not a known field"),
    (
        {"tiers": [{"nodes": 8, "bandwidth": FAST}], "node_links": matrix(8)},
        "cluster.tiers",
        "same as node_links",
    ),
    (
        {"tiers": [{"nodes": 8, "bandwidth": FAST}], "topology": "ring"},
        "cluster.topology",
        "links between nodes",
    ),
    ({}, "cluster.network_bandwidth", "missing"),
]


@pytest.mark.parametrize(("more", "field", "words"), BAD)
def test_what_is_wrong_in_links_is_named(more: dict[str, Any], field: str, words: str) -> None:
    with refused(field, words):
        cluster(**more)


def test_a_file_and_a_server_take_links(tmp_path: Path) -> None:
    told = {**CLUSTER, "tiers": [{"nodes": 4, "bandwidth": FAST}, {"nodes": 8, "bandwidth": SLOW}]}
    file = tmp_path / "racks.json"
    file.write_text(json.dumps(told))
    planned_here = json.loads(run("gpt3-13b", str(file), "--batch", "64", "--json"))
    assert planned_here["degrees"]["s"] > 1
    asked = convert.request_from(
        pb.PlanQuestion(model_name="gpt3-13b", cluster_json=json.dumps(told), batch=64)
    )
    assert asked.cluster.links is not None
