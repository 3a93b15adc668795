"""The tradeoffs of a plan: time against memory, and the effect of each degree alone."""

import json
from itertools import pairwise

import pytest
from plan_command import run, said

from headrace_services.planner import asking
from headrace_services.planner.asking import Options
from headrace_services.planner.costing import Costing
from headrace_services.planner.degrees import Degrees
from headrace_services.planner.deltas import deltas
from headrace_services.planner.modes import FULL
from headrace_services.planner.search import Search
from headrace_services.planner.tradeoff import front

WORDS = ["gpt3-6.7b", "a100-16", "--batch", "64"]


def test_less_memory_takes_longer_along_the_front() -> None:
    request = asking.request("gpt3-6.7b", "a100-16", Options(batch=64))
    points = list(front(request))
    assert len(points) >= 3
    assert points[0].simulated_s == pytest.approx(Search(request).run(FULL).plan.simulated_s)  # type: ignore[union-attr]
    for one, other in pairwise(points):
        assert other.peak_bytes < one.peak_bytes
        assert other.simulated_s > one.simulated_s
    share = (points[-1].peak_bytes - 1) * 0.9 / request.cluster.device.memory_bytes
    smaller = asking.request("gpt3-6.7b", "a100-16", Options(batch=64, usable_memory=share))
    found = Search(smaller).run(FULL).plan
    assert found is None or len(points) == 12, "the front ends where nothing smaller fits"


def test_each_degree_does_what_it_is_for() -> None:
    request = asking.request("gpt3-13b", "a100-32", Options(batch=64))
    found = {one.degree: one.change for one in deltas(Costing(request), Degrees(d=2, m=4, o=2, s=4, mu=8))}
    assert list(found) == ["d", "m", "o", "s", "µ"]
    assert found["m"].static_bytes < 0 < found["m"].communication_s
    assert found["m"].compute_s < 0
    assert found["s"].static_bytes < 0
    assert found["s"].compute_s < 0
    assert found["o"].static_bytes < 0
    assert found["o"].activation_bytes == 0
    assert found["µ"].activation_bytes < 0
    assert found["d"].compute_s < 0
    assert found["d"].activation_bytes < 0


def test_the_commands_show_both() -> None:
    text = said(*WORDS, "--front")
    assert "slower" in text
    told = json.loads(run(*WORDS, "--front", "--json"))
    assert told["front"][0]["iteration_s"] == told["iteration_s"]
    why = json.loads(run("explain", *WORDS, "--json"))
    assert all({"degree", "value", "change"} == set(one) for one in why["deltas"])
    assert "each degree alone" in said("explain", *WORDS)
