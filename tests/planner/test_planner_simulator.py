"""Schedules: the simulation against closed forms, the lower bound and the memory model."""

import itertools
import random
from dataclasses import replace

import pytest

from headrace_services.planner import catalogue
from headrace_services.planner.costing import Costing, Request
from headrace_services.planner.degrees import Degrees
from headrace_services.planner.schedules import Pass, Schedule, Step, fill_share, in_flight, order
from headrace_services.planner.simulator import (
    StageTimes,
    closed_form_s,
    lower_bound_s,
    paper_s,
    simulate,
)

CASES = [
    (schedule, s, mu, v)
    for schedule in Schedule
    for s in (1, 2, 3, 4, 8)
    for mu in (1, 2, 4, 8, 24)
    for v in ((2, 3) if schedule is Schedule.INTERLEAVED else (1,))
    if schedule is not Schedule.INTERLEAVED or mu % s == 0
]


def equal(schedule: Schedule, s: int) -> list[StageTimes]:
    weight = 1.0 if schedule is Schedule.ZERO_BUBBLE else 0.0
    return [StageTimes(forward_s=1.0, backward_s=2.0, weight_s=weight, tail_s=0.25)] * s


@pytest.mark.parametrize(("schedule", "s", "mu", "v"), CASES)
def test_equal_stages_match_the_closed_form_and_the_memory_model(
    schedule: Schedule, s: int, mu: int, v: int
) -> None:
    stages = equal(schedule, s)
    simulation = simulate(schedule, stages, mu, v)
    v = 1 if s == 1 else v
    closed = closed_form_s(stages, mu, fill_share(schedule, s, mu, v))
    assert simulation.total_s == pytest.approx(closed, rel=1e-9)
    assert simulation.peak_in_flight == in_flight(schedule, s, mu, v)
    kinds = list(Pass) if schedule is Schedule.ZERO_BUBBLE else [Pass.FORWARD, Pass.BACKWARD]
    wanted = {Step(kind, i, chunk) for kind in kinds for i in range(mu) for chunk in range(v)}
    for stage in range(s):
        events = simulation.events(stage)
        assert {event.step for event in events} == wanted
        assert len(events) == len(wanted), "every pass runs once"
        for one, next_ in itertools.pairwise(events):
            assert next_.start_s >= one.end_s - 1e-9


def unequal_passes(rng: random.Random) -> tuple[float, float, float]:
    """F, B and W of one stage, any of which may be the longest."""
    return rng.uniform(0.1, 3), rng.uniform(0.1, 3), rng.uniform(0.05, 3)


def longest_path_s(stages: list[StageTimes], orders: list[list[Step]]) -> float:
    """An oracle that shares only the steps with the simulator: the longest path through the dependencies.

    A step waits for the one before it on its stage; F waits for F of the previous stage; B for F of its own stage and
    for B of the next stage; W for B. Found by relaxing until nothing changes.
    """
    last = len(stages) - 1
    takes = [
        {Pass.FORWARD: one.forward_s, Pass.BACKWARD: one.backward_s - one.weight_s, Pass.WEIGHT: one.weight_s}
        for one in stages
    ]
    ends = {(j, step): 0.0 for j, steps in enumerate(orders) for step in steps}
    moved = True
    while moved:
        moved = False
        for j, steps in enumerate(orders):
            for position, step in enumerate(steps):
                waits = [(j, steps[position - 1])] if position else []
                match step.kind:
                    case Pass.FORWARD:
                        waits += [(j - 1, step)] if j else []
                    case Pass.BACKWARD:
                        waits.append((j, Step(Pass.FORWARD, step.micro_batch)))
                        waits += [(j + 1, step)] if j < last else []
                    case Pass.WEIGHT:
                        waits.append((j, Step(Pass.BACKWARD, step.micro_batch)))
                end = max((ends[one] for one in waits), default=0.0) + takes[j][step.kind]
                if end > ends[j, step]:
                    ends[j, step] = end
                    moved = True
    return max(ends[j, steps[-1]] + stages[j].tail_s for j, steps in enumerate(orders))


@pytest.mark.parametrize("schedule", [Schedule.ZERO_BUBBLE, Schedule.ONE_F_ONE_B, Schedule.GPIPE])
def test_simulation_is_the_longest_path(schedule: Schedule) -> None:
    """Unequal stages, unequal F, B and W, more and fewer micro-batches than stages."""
    rng = random.Random(7)
    for _ in range(60):
        s, mu = rng.randint(1, 6), rng.randint(1, 9)
        stages = []
        for _ in range(s):
            forward, back, weight = unequal_passes(rng)
            stages.append(
                StageTimes(
                    forward_s=forward, backward_s=back + weight, weight_s=weight, tail_s=rng.uniform(0, 2)
                )
            )
        plain = stages
        if schedule is not Schedule.ZERO_BUBBLE:
            plain = [replace(one, weight_s=0.0) for one in stages]
        orders = [order(schedule, j, s, mu) for j in range(s)]
        total = simulate(schedule, stages, mu).total_s
        assert total == pytest.approx(longest_path_s(plain, orders), rel=1e-12)
        assert total >= lower_bound_s(schedule, stages, mu) * (1 - 1e-12)


def test_zero_bubble_matches_its_closed_form_with_unequal_passes() -> None:
    """F, B and W of any lengths with W the shortest, as in the cost model; any µ and s."""
    rng = random.Random(3)
    for _ in range(300):
        forward, back, other = unequal_passes(rng)
        weight = min(forward, back, other)
        s, mu = rng.randint(1, 9), rng.randint(1, 20)
        stages = [StageTimes(forward_s=forward, backward_s=back + weight, weight_s=weight, tail_s=0.5)] * s
        closed = closed_form_s(stages, mu, fill_share(Schedule.ZERO_BUBBLE, s, mu))
        assert simulate(Schedule.ZERO_BUBBLE, stages, mu).total_s == pytest.approx(closed, rel=1e-9)


def test_zero_bubble_with_long_weight_gradients_leaves_bubbles() -> None:
    """µ ≥ s: a bubble holds W only up to the length of the shortest of F, B and W."""
    rng = random.Random(4)
    longer = 0
    for _ in range(300):
        forward, back, weight = unequal_passes(rng)
        s = rng.randint(2, 8)
        mu = s + rng.randint(0, 12)
        stages = [StageTimes(forward_s=forward, backward_s=back + weight, weight_s=weight)] * s
        total = simulate(Schedule.ZERO_BUBBLE, stages, mu).total_s
        bubble = forward + back - min(forward, back, weight)
        assert total == pytest.approx(mu * (forward + back + weight) + (s - 1) * bubble, rel=1e-9)
        closed = closed_form_s(stages, mu, fill_share(Schedule.ZERO_BUBBLE, s, mu))
        assert total >= closed * (1 - 1e-12)
        longer += total > closed * (1 + 1e-9)
    assert longer > 100


def test_weight_gradients_are_the_shortest_pass_of_every_layer() -> None:
    """The closed form assumes this; checked for the blocks and heads of all presets."""
    for name in ("gpt3-125m", "gpt3-175b", "llama3-70b", "mixtral-8x7b", "deepseek-v3"):
        request = Request(model=catalogue.model(name), cluster=catalogue.cluster("a100-64"), batch=64)
        for d, m in ((64, 1), (8, 8)):
            for one in Costing(request).times(Degrees(d=d, m=m, o=1, s=1, mu=64 // d)):
                assert one.weight_s <= min(one.forward_s, one.backward_s - one.weight_s) * (1 + 1e-9)


def test_simulation_is_never_below_the_lower_bound() -> None:
    rng = random.Random(11)
    for _ in range(300):
        schedule = rng.choice(list(Schedule))
        s = rng.randint(1, 6)
        mu = s * rng.randint(1, 5) if schedule is Schedule.INTERLEAVED else rng.randint(1, 20)
        v = rng.randint(2, 3) if schedule is Schedule.INTERLEAVED else 1
        stages = [
            StageTimes(
                forward_s=rng.uniform(0.1, 2),
                backward_s=(back := rng.uniform(0.2, 4)),
                weight_s=back / 3 if schedule is Schedule.ZERO_BUBBLE else 0.0,
                tail_s=rng.uniform(0, 2),
            )
            for _ in range(s)
        ]
        total = simulate(schedule, stages, mu, v).total_s
        assert total >= lower_bound_s(schedule, stages, mu, v) * (1 - 1e-12)


def test_the_papers_approximation_forgets_the_bubble() -> None:
    stages = [StageTimes(forward_s=1.0, backward_s=2.0)] * 8
    assert simulate(Schedule.ONE_F_ONE_B, stages, 8).total_s == pytest.approx(45.0)
    assert paper_s(stages, 8) == pytest.approx(24.0)


def test_interleaving_wants_groups_of_stages() -> None:
    with pytest.raises(ValueError, match="groups of 4"):
        simulate(Schedule.INTERLEAVED, equal(Schedule.INTERLEAVED, 4), 6, 2)


def test_orders_are_one_step_each() -> None:
    steps = order(Schedule.ONE_F_ONE_B, 1, 4, 3)
    assert [f"{step.kind}{step.micro_batch}" for step in steps] == ["F0", "F1", "F2", "B0", "B1", "B2"]
