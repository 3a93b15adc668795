"""Schedules: the simulation against closed forms, the lower bound and the memory model."""

import itertools
import random

import pytest

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
def test_equal_stages_match_the_closed_form(schedule: Schedule, s: int, mu: int, v: int) -> None:
    if schedule is Schedule.ZERO_BUBBLE and mu < s:
        pytest.skip("zero-bubble fills its bubbles from µ ≥ s on")
    stages = equal(schedule, s)
    simulation = simulate(schedule, stages, mu, v)
    v = 1 if s == 1 else v
    assert simulation.total_s == pytest.approx(
        closed_form_s(stages, mu, fill_share(schedule, s, v)), rel=1e-9
    )


@pytest.mark.parametrize(("schedule", "s", "mu", "v"), CASES)
def test_in_flight_is_what_the_memory_model_says(schedule: Schedule, s: int, mu: int, v: int) -> None:
    simulation = simulate(schedule, equal(schedule, s), mu, v)
    v = 1 if s == 1 else v
    assert simulation.peak_in_flight == in_flight(schedule, s, mu, v)


@pytest.mark.parametrize(("schedule", "s", "mu", "v"), CASES)
def test_every_pass_runs_once_and_in_time(schedule: Schedule, s: int, mu: int, v: int) -> None:
    simulation = simulate(schedule, equal(schedule, s), mu, v)
    chunks = v if schedule is Schedule.INTERLEAVED and s > 1 else 1
    kinds = list(Pass) if schedule is Schedule.ZERO_BUBBLE else [Pass.FORWARD, Pass.BACKWARD]
    wanted = {Step(kind, i, chunk) for kind in kinds for i in range(mu) for chunk in range(chunks)}
    for stage in range(s):
        events = simulation.events(stage)
        assert {event.step for event in events} == wanted
        assert len(events) == len(wanted)
        for one, next_ in itertools.pairwise(events):
            assert next_.start_s >= one.end_s - 1e-9


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
