"""Modes of Table 1 and its baselines, and how they differ."""

import pytest

from headrace_services.planner import asking
from headrace_services.planner.asking import Options
from headrace_services.planner.degrees import Degrees
from headrace_services.planner.expert import greedy
from headrace_services.planner.modes import FULL, MODES
from headrace_services.planner.search import Method, Search


def test_pipedream_pays_for_its_versions_of_the_weights() -> None:
    """2 bytes per parameter for each further micro-batch in flight; DAPPLE has one version."""
    search = Search(asking.request("gpt3-2.7b", "a100-16", Options(batch=64)))
    degrees = Degrees(d=4, m=1, o=1, s=4, mu=16)
    plans = {}
    for name in ("dapple", "pipedream"):
        candidate = search.candidate(MODES[name], degrees)
        assert candidate is not None
        plans[name] = search.assembled(candidate)
    layers = plans["dapple"].request.model.layers
    for one, other in zip(plans["dapple"].stages, plans["pipedream"].stages, strict=True):
        assert one.layers == other.layers
        weights = 2 * sum(layers[i].parameters for i in one.layers)
        more = other.memory.total_bytes - one.memory.total_bytes
        assert more == pytest.approx((one.in_flight - 1) * weights, abs=1000)


def test_the_two_have_different_plans_where_memory_is_short() -> None:
    options = Options(batch=64, usable_memory=0.45)
    search = Search(asking.request("gpt3-6.7b", "a100-32", options))
    dapple, pipedream = (search.run(MODES[name]).plan for name in ("dapple", "pipedream"))
    assert dapple is not None
    assert pipedream is None or pipedream.simulated_s > dapple.simulated_s


def test_adapipe_leaves_the_rest_to_data_ranks() -> None:
    """64 devices and 42 layers: 32 stages, twice. With no more devices than layers there is one pipeline."""
    plan = Search(asking.request("gpt3-13b", "a100-64", Options(batch=64))).run(MODES["adapipe"]).plan
    assert plan is not None
    assert (plan.degrees.d, plan.degrees.s) == (2, 32)
    few = Search(asking.request("gpt3-13b", "a100-32", Options(batch=64))).run(MODES["adapipe"]).plan
    assert few is not None
    assert (few.degrees.d, few.degrees.s) == (1, 32)


def test_the_expert_is_greedy() -> None:
    """Each degree is tuned once, in the paper's order, with the others fixed."""
    tuples = [
        Degrees(d=d, m=m, o=1, s=8 // d // m, mu=8 // d)
        for d in (1, 2, 4, 8)
        for m in (1, 2, 4, 8)
        if d * m <= 8
    ]
    seen: list[Degrees] = []

    def score(degrees: Degrees) -> tuple[float, float]:
        seen.append(degrees)
        return 0.0, abs(degrees.d - 2) + abs(degrees.m - 1)

    chosen = greedy(tuples, score)
    assert chosen is not None
    assert (chosen.d, chosen.m, chosen.s) == (2, 1, 4)
    assert len(set(seen)) < len(tuples) * 2
    assert greedy([], score) is None


def test_the_expert_is_never_better_than_the_full_search() -> None:
    for model, cluster, batch in (("gpt3-13b", "a100-64", 128), ("deepseek-141b", "ascend910-128", 512)):
        search = Search(asking.request(model, cluster, Options(batch=batch)))
        full, expert = search.run(FULL).plan, search.run(MODES["expert"]).plan
        assert full is not None
        assert expert is not None
        assert full.simulated_s <= expert.simulated_s
        blocks = sum(layer.recomputable for layer in search.request.model.layers)
        assert len(expert.recomputed) in (0, blocks)


def test_the_local_search_is_quick_at_a_trillion() -> None:
    """A neighbour is priced in constant time: pricing each from scratch took 210 CPU seconds.

    The test checks work, not time: how many stages are priced for one tuple.
    """
    from headrace_services.planner import assignment_local

    search = Search(asking.request("megatron-1t", "a100-3072", Options(batch=3072)), method=Method.LOCAL)
    counted = 0
    part = assignment_local._State._part

    def counting(
        self: assignment_local._State, j: int, stage: assignment_local._Stage
    ) -> tuple[int, float, float]:
        nonlocal counted
        counted += 1
        return part(self, j, stage)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assignment_local._State, "_part", counting)
        assert search.candidate(FULL, Degrees(d=8, m=8, o=8, s=48, mu=384)) is not None
    assert counted < 60_000
