"""The rung from which a model learns: the highest with twice the results that a model needs, so that it does not
forget too early."""

import pytest

from headrace.spec import FloatDomain, MultiFidelitySampler, Nsga2Sampler, Objective, StudySpec, TpeSampler
from headrace_services.scheduler.samplers.history import EVERY_RUNG, FIRST_RESULT, choose_level, told_levels


def spec(parameters=1, sampler=None):
    return StudySpec(
        objective=Objective(metric="loss", goal="minimize"),
        space={f"x{place}": FloatDomain(low=0, high=1) for place in range(parameters)},
        sampler=sampler or TpeSampler(),
        max_trials=100,
        max_steps=9,
    )


@pytest.mark.parametrize(
    ("parameters", "startup", "moves_at"),
    [(1, 10, 20), (8, 10, 22), (1, 30, 60)],
    ids=["startup draws", "parameters and three more", "more startup draws"],
)
def test_the_model_moves_up_at_twice_what_makes_a_model(parameters, startup, moves_at):
    told = spec(parameters, TpeSampler(startup_trials=startup))
    assert choose_level(told, [(1, 90), (3, moves_at - 1)]) == 1
    assert choose_level(told, [(1, 90), (3, moves_at)]) == 3
    assert choose_level(told, [(1, 90), (3, moves_at), (9, moves_at)]) == 9


def test_until_then_it_learns_from_the_lowest_rung():
    assert choose_level(spec(), [(3, 5), (1, 12)]) == 1
    assert choose_level(spec(), []) == FIRST_RESULT


def test_evolutionary_samplers_take_each_trials_first_result():
    assert choose_level(spec(sampler=Nsga2Sampler()), [(1, 90), (3, 90)]) == FIRST_RESULT


def test_a_model_over_all_rungs_takes_them_all():
    assert choose_level(spec(sampler=MultiFidelitySampler()), [(1, 90), (3, 90)]) == EVERY_RUNG
    assert choose_level(spec(sampler=MultiFidelitySampler()), []) == EVERY_RUNG


@pytest.mark.parametrize(
    ("policy", "steps", "levels"),
    [
        ({"kind": "run_all"}, 9, (9,)),
        ({"kind": "asha", "rungs": [1, 3, 9, 27, 50]}, 50, (1, 3, 9, 27, 50)),
        ({"kind": "asha", "rungs": [4, 5, 6, 8, 9, 20, 21]}, 21, (4, 8, 20, 21)),
        ({"kind": "asha", "rungs": [4, 5, 6, 8, 9, 20], "brackets": 2}, 20, (4, 5, 20)),
        ({"kind": "hyperband", "rungs": [4, 5, 6, 20]}, 20, (4, 5, 6, 20)),
        ({"kind": "median", "interval": 1}, 100, (1, 2, 4, 8, 16, 32, 64, 100)),
    ],
)
def test_the_model_gets_some_of_several_rungs_close_together(policy, steps, levels):
    data = spec().model_dump(mode="json") | {"policy": policy, "max_steps": steps}
    assert told_levels(StudySpec.model_validate(data)) == levels


def test_an_extended_study_is_told_the_results_at_the_full_budgets_of_before():
    data = spec().model_dump(mode="json") | {
        "policy": {"kind": "asha", "rungs": [4, 8, 20, 21]},
        "max_steps": 21,
    }
    before = StudySpec.model_validate(data)
    assert told_levels(before.extended_to(trials=100, steps=42)) == (4, 8, 20, 21, 42)
    assert told_levels(spec().extended_to(trials=100, steps=10)) == (*told_levels(spec()), 10)
