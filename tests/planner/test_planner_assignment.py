"""Level 2 against brute force and the paper's local search, and a mutant that must be caught."""

import random
from dataclasses import replace

import pytest
from planner_instances import brute_force, random_problem

from headrace_services.planner import fronts
from headrace_services.planner.assignment import solve
from headrace_services.planner.assignment_local import solve_locally
from headrace_services.planner.problem import Link, Problem, Recompute

INSTANCES = 500


@pytest.mark.full
def test_exact_level_2_equals_brute_force_on_500_instances() -> None:
    rng = random.Random(20260)
    infeasible, gaps, missed = 0, [], 0
    for number in range(INSTANCES):
        problem = random_problem(rng)
        best, answer, local = brute_force(problem), solve(problem), solve_locally(problem)
        assert (answer is None) == (best is None), f"instance {number}"
        if answer is None or best is None:
            infeasible += 1
            assert local is None, f"instance {number}: the local search found what does not exist"
            continue
        assert answer.exact
        assert answer.objective_s == pytest.approx(best, rel=1e-9), f"instance {number}"
        if local is None:
            missed += 1
        else:
            gaps.append(local.objective_s / best - 1)
            assert gaps[-1] >= -1e-9
    assert infeasible >= 10, "the instances must exercise infeasibility"
    assert max(gaps) > 0.01, "a local search that is always right would make exactness pointless"


def test_a_wrong_memory_rule_is_caught() -> None:
    """The oracle can fail: solving with one micro-batch too few in flight differs from brute force."""
    rng = random.Random(7)
    differs = 0
    for _ in range(60):
        problem = random_problem(rng)
        wrong = replace(problem, in_flight=tuple(max(k - 1, 1) for k in problem.in_flight))
        answer, best = solve(wrong), brute_force(problem)
        if (answer is None) != (best is None) or (answer and abs(answer.objective_s - (best or 0)) > 1e-9):
            differs += 1
    assert differs > 5


def test_the_solution_is_what_its_objective_says() -> None:
    rng = random.Random(3)
    for _ in range(50):
        problem = random_problem(rng)
        answer = solve(problem)
        if answer is None:
            continue
        for a, b in zip(answer.boundaries, answer.boundaries[1:], strict=False):
            assert a < b
        assert all(problem.links[i].recomputable for i in answer.recomputed)


def link(**more: object) -> Link:
    values = {
        "forward_s": 1.0,
        "backward_s": 2.0,
        "recompute_s": 1.0,
        "static_bytes": 10,
        "saved_bytes": 10,
        "kept_bytes": 1,
    }
    return Link(**{**values, **more})  # type: ignore[arg-type]


def test_equal_layers_recompute_exactly_as_many_as_memory_wants() -> None:
    """n = ⌈(static + k·saved + rebuild − capacity) / (k·freed)⌉, the closed form for equal layers."""
    problem = Problem(
        links=(link(),) * 8,
        stages=2,
        micro_batches=8,
        in_flight=(2, 1),
        capacity_bytes=40 + 2 * 40 - 20,
        receive_forward_s=(0.0, 0.0),
        receive_backward_s=(0.0, 0.0),
        boundaries=(0, 4, 8),
    )
    answer = solve(problem)
    assert answer is not None
    assert answer.recomputed == (0, 1)  # ⌈(20 + 9) / 18⌉ = 2 on the first stage, none on the second


def test_restrictions_of_recomputation() -> None:
    problem = Problem(
        links=(link(),) * 4,
        stages=2,
        micro_batches=4,
        in_flight=(2, 1),
        capacity_bytes=50,
        receive_forward_s=(0.0, 0.0),
        receive_backward_s=(0.0, 0.0),
    )
    assert solve(replace(problem, recompute=Recompute.NONE)) is None
    everything = solve(replace(problem, recompute=Recompute.ALL))
    assert everything is not None
    assert everything.recomputed == (0, 1, 2, 3)
    free = solve(problem)
    assert free is not None
    assert free.objective_s <= everything.objective_s


def test_fronts_that_are_thinned_stay_true(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fifty different layers are solved exactly. With thinned fronts the answer still fits, and says that they
    were thinned."""
    rng = random.Random(5)
    links = tuple(
        link(forward_s=rng.random(), recompute_s=rng.random(), saved_bytes=rng.randint(10**8, 10**9))
        for _ in range(52)
    )
    problem = Problem(
        links=links,
        stages=2,
        micro_batches=8,
        in_flight=(2, 1),
        capacity_bytes=sum(k.saved_bytes for k in links) // 2,
        receive_forward_s=(0.0, 0.0),
        receive_backward_s=(0.0, 0.0),
        boundaries=(0, 50, 52),
    )
    exact = solve(problem)
    monkeypatch.setattr(fronts, "FRONT_LIMIT", 32)
    thinned = solve(problem)
    assert exact is not None
    assert thinned is not None
    assert exact.exact
    assert not thinned.exact
    assert exact.objective_s <= thinned.objective_s <= 1.05 * exact.objective_s
    for answer in (exact, thinned):
        used = sum(1 if i in answer.recomputed else links[i].saved_bytes for i in range(50))
        assert 2 * used <= problem.capacity_bytes
