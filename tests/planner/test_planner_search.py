"""Both levels together: dominance over restricted modes, bounds, counts of tuples, determinism, cancellation."""

import random

import pytest

from headrace_services.planner import catalogue
from headrace_services.planner.blocks import gpt
from headrace_services.planner.cluster import Cluster, checked_cluster
from headrace_services.planner.costing import Costing, Request
from headrace_services.planner.degrees import tuples
from headrace_services.planner.model import Model
from headrace_services.planner.modes import FULL, MODES
from headrace_services.planner.schedules import Schedule
from headrace_services.planner.search import Method, Progress, Search, SearchStoppedError

PAIRS = 200


def random_pair(rng: random.Random) -> Request:
    model: Model
    if rng.random() < 0.8:
        heads = rng.choice([8, 16, 32])
        model = gpt(
            "random",
            hidden=heads * rng.choice([64, 128]),
            layers=rng.randint(2, 16),
            heads=heads,
            sequence=rng.choice([1024, 2048]),
        )
    else:
        model = catalogue.model("mixtral-8x7b")
    device = catalogue.device(rng.choice(catalogue.devices()))
    cluster: Cluster = checked_cluster(device, rng.choice([1, 2, 4, 8, 16, 32]))
    schedule = rng.choice([Schedule.ONE_F_ONE_B, Schedule.GPIPE, Schedule.ZERO_BUBBLE])
    usable = rng.choice([0.94, 0.5, 0.2])
    batch = rng.choice([8, 32, 64])
    return Request(model=model, cluster=cluster, batch=batch, schedule=schedule, usable_memory=usable)


@pytest.mark.full
def test_no_restricted_mode_beats_the_full_search_on_200_pairs() -> None:
    rng = random.Random(99)
    compared = 0
    for number in range(PAIRS):
        search = Search(random_pair(rng))
        full = search.run(FULL).plan
        for mode in MODES.values():
            plan = search.run(mode).plan
            if plan is None:
                continue
            assert full is not None, f"pair {number}: {mode.name} fits and the full search says nothing does"
            compared += mode is not FULL
            assert full.simulated_s <= plan.simulated_s, f"pair {number}: {mode.name} is faster"
            assert plan.simulated_s >= plan.lower_bound_s * (1 - 1e-12)
            assert all(stage.memory.total_bytes <= plan.request.capacity_bytes for stage in plan.stages)
            if plan.request.schedule is not Schedule.INTERLEAVED:
                assert plan.run().peak_in_flight == tuple(stage.in_flight for stage in plan.stages)
    assert compared > PAIRS


def test_pruning_loses_nothing() -> None:
    """Solving every tuple finds no better objective than the search that stops at its bounds."""
    rng = random.Random(4)
    for _ in range(12):
        search = Search(random_pair(rng))
        outcome = search.run(FULL)
        solved = [search.candidate(FULL, degrees) for _, degrees in search.bounds()]
        objectives = [one.objective_s for one in solved if one is not None]
        if outcome.plan is None:
            assert not objectives
            continue
        assert min(plan.analytic_s for plan in outcome.finalists) <= min(objectives) * (1 + 1e-9)
        for (bound, _), one in zip(search.bounds(), solved, strict=True):
            assert one is None or one.objective_s >= bound * (1 - 1e-9)


def test_counts_of_tuples_are_those_of_the_design() -> None:
    model = gpt("many-layers", hidden=1024, layers=126, heads=16, sequence=1024)
    cluster = checked_cluster(catalogue.device("ascend910"), 128)
    assert len(list(tuples(model, cluster, 2048))) == 810


def test_plans_are_deterministic() -> None:
    def plan() -> object:
        request = Request(model=catalogue.model("gpt3-13b"), cluster=catalogue.cluster("a100-32"), batch=64)
        return Search(request).run().plan

    assert plan() == plan()


def test_interleaved_plans_run() -> None:
    request = Request(
        model=catalogue.model("gpt3-13b"),
        cluster=catalogue.cluster("a100-32"),
        batch=64,
        schedule=Schedule.INTERLEAVED,
        chunks=2,
    )
    search = Search(request)
    found = [search.candidate(FULL, degrees) for _, degrees in search.bounds() if degrees.s == 4]
    candidate = next(one for one in found if one is not None)
    plan = search.assembled(candidate)
    assert sorted(layer for stage in plan.stages for layer in stage.layers) == list(range(42))
    assert all(len(stage.chunks) == 2 for stage in plan.stages)
    assert plan.run().peak_in_flight == tuple(stage.in_flight for stage in plan.stages)


def test_the_local_search_is_never_better() -> None:
    request = Request(model=catalogue.model("gpt3-2.7b"), cluster=catalogue.cluster("a100-16"), batch=32)
    exact, local = Search(request).run().plan, Search(request, method=Method.LOCAL).run().plan
    assert exact is not None
    assert local is not None
    assert exact.analytic_s <= local.analytic_s * (1 + 1e-9)


def test_a_watcher_can_stop_the_search() -> None:
    seen: list[Progress] = []

    def watch(progress: Progress) -> None:
        seen.append(progress)
        if len(seen) == 3:
            raise SearchStoppedError("enough")

    request = Request(model=catalogue.model("gpt3-13b"), cluster=catalogue.cluster("a100-32"), batch=64)
    with pytest.raises(SearchStoppedError):
        Search(request, watch=watch).run()
    assert len(seen) == 3


def test_the_parts_of_an_iteration_add_up() -> None:
    plan = (
        Search(Request(model=catalogue.model("gpt3-13b"), cluster=catalogue.cluster("a100-32"), batch=64))
        .run()
        .plan
    )
    assert plan is not None
    parts = plan.breakdown
    total = (
        parts.compute_s
        + parts.communication_s
        + parts.transfer_s
        + parts.recompute_s
        + parts.bubble_s
        + parts.tail_s
    )
    assert total == pytest.approx(plan.simulated_s, rel=1e-12)
    assert parts.bubble_s >= 0
    assert plan.hfu >= plan.mfu > 0


def test_costing_prunes_only_what_cannot_fit() -> None:
    request = Request(model=catalogue.model("gpt3-175b"), cluster=catalogue.cluster("a100-64"), batch=64)
    search, costing = Search(request), Costing(request)
    possible = {degrees for _, degrees in search.bounds()}
    for degrees in list(tuples(request.model, request.cluster, request.batch))[::7]:
        if degrees not in possible:
            assert search.candidate(FULL, degrees) is None
            assert costing.bound_s(degrees) is None
