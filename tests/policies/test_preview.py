"""The expected cost of a study."""

from itertools import pairwise

import pytest
from tiers import processor_time

from headrace.spec import (
    AshaPolicy,
    FloatDomain,
    Goal,
    GridSampler,
    Nsga2Sampler,
    Objective,
    RunAllPolicy,
    StudySpec,
    TrialTemplate,
)
from headrace_services.scheduler.preview import preview


def spec(policy, *, trials=27, max_steps=27, **fields):
    return StudySpec(
        objective=Objective(metric="loss", goal=Goal.MINIMIZE),
        space={"x": FloatDomain(low=0, high=1)},
        policy=policy,
        max_trials=trials,
        max_steps=max_steps,
        **fields,
    )


def test_run_all_is_exact():
    shown = preview(spec(RunAllPolicy(), trials=10), slots=4, seconds_per_step=2.0)
    assert (shown.trials, shown.steps, shown.steps_run_all, shown.slots) == (10, 270, 270, 4)
    assert shown.wall_time_s == 3 * 27 * 2.0
    assert shown.slot_time_s == 270 * 2.0
    assert [(rung.milestone, rung.trials, rung.steps) for rung in shown.rungs] == [(27, 10, 270)]


def test_several_objectives_are_counted_as_one_is():
    further = (Objective(metric="latency", goal=Goal.MINIMIZE),)
    shown = preview(spec(RunAllPolicy(), trials=10, further_objectives=further), slots=4)
    assert (shown.steps, [rung.trials for rung in shown.rungs]) == (270, [10])


def test_no_configurations_are_shown_that_a_study_does_not_try():
    assert preview(
        spec(RunAllPolicy(), trials=10, sampler=Nsga2Sampler(), enqueued=({"x": 0.5},)), slots=1
    ).samples == ({"x": 0.5},)


def test_the_baseline_is_counted_in_steps_and_not_in_trials():
    shown = preview(spec(RunAllPolicy(), trials=10, baseline={"x": 0.5}), slots=1)
    assert (shown.trials, shown.steps, shown.steps_run_all) == (10, 297, 297)
    assert shown.wall_time_s is None
    assert shown.slot_time_s is None


def test_promotion_halves():
    """At least ⌊n/η⌋ trials reach the next rung, and a few more because of early mistakes."""
    shown = preview(spec(AshaPolicy(), trials=243, max_steps=243), slots=8, seconds_per_step=1.0)
    counts = [rung.trials for rung in shown.rungs]
    assert counts[0] == 243
    for earlier, later in pairwise(counts):
        assert earlier // 3 <= later <= earlier // 3 + earlier // 8 + 2
    assert shown.steps == sum(rung.steps for rung in shown.rungs) < shown.steps_run_all / 10
    assert shown.rungs[1].steps == shown.rungs[1].trials * 2
    assert shown.wall_time_s >= shown.slot_time_s / 8


def test_stopping_keeps_the_first_ones():
    shown = preview(spec(AshaPolicy(variant="stopping"), trials=27), slots=4)
    assert shown.rungs[0].trials == 27
    assert 1 <= shown.rungs[-1].trials <= 6


def test_brackets():
    shown = preview(spec(AshaPolicy(brackets=2), trials=100), slots=4)
    firsts = {rung.bracket: rung for rung in shown.rungs if rung.rung == 0}
    assert firsts[0].trials + firsts[1].trials == 100
    assert (firsts[0].milestone, firsts[1].milestone) == (1, 3)
    assert firsts[0].trials > firsts[1].trials > 10


def test_a_grid_may_have_fewer_trials():
    shown = preview(spec(RunAllPolicy(), trials=27, sampler=GridSampler(points={"x": 5})), slots=1)
    assert shown.trials == 5
    assert [sample["x"] for sample in shown.samples] == [0.0, 0.25, 0.5, 0.75, 1.0]
    enqueued = spec(RunAllPolicy(), sampler=GridSampler(points={"x": 5}), enqueued=[{"x": 0.1}])
    assert preview(enqueued, slots=1).trials == 6
    assert [sample["x"] for sample in preview(enqueued, slots=1).samples] == [0.1, 0.0, 0.25, 0.5, 0.75]


@pytest.mark.parametrize(("slots", "parallel", "shown"), [(0, 0, 1), (8, 0, 8), (8, 2, 2), (1, 5, 1)])
def test_slots(slots, parallel, shown):
    assert preview(spec(RunAllPolicy(), max_parallel=parallel), slots=slots).slots == shown


@pytest.mark.timeout(60)
@pytest.mark.parametrize("trials", [1000, 10**6])
def test_fast_and_the_same_each_time(trials):
    large = spec(AshaPolicy(brackets=3), trials=trials, max_steps=243)
    with processor_time(at_most_s=3):  # well under a second on an idle machine
        first = preview(large, slots=16)
    assert first == preview(large, slots=16)
    assert sum(rung.trials for rung in first.rungs if rung.rung == 0) == pytest.approx(trials, rel=1e-3)


def test_one_trial():
    """It trains to the end: a study ends with a trial that had the full budget."""
    shown = preview(spec(AshaPolicy(), trials=1), slots=1, seconds_per_step=1.0)
    assert [rung.trials for rung in shown.rungs] == [1, 1, 1, 1]
    assert shown.wall_time_s == 27.0


def test_a_trial_of_more_slots_than_a_step_looks_at_is_simulated() -> None:
    found = preview(spec(RunAllPolicy(), trials=3, resources={"cpus": 65}), 2)
    assert found.steps == found.steps_run_all


TRAIN = TrialTemplate(callable="train:train", working_dir="/data")


def companions(slots=4, seconds=2.0, target_seconds=None, **fields):
    shown = preview(spec(RunAllPolicy(), template=TRAIN, trials=10, **fields), slots, seconds, target_seconds)
    assert (shown.steps, shown.steps_run_all) == (270, 270), "the study's own figures are without them"
    return [(one.role, one.trials, one.steps, one.wall_time_s, one.slot_time_s) for one in shown.companions]


def test_targets_are_counted_with_their_own_budget_time_and_size():
    transfer = {"callable": "train:target", "top": 3, "steps": 100}
    assert companions(transfer=transfer) == [("target", 3, 300, 200.0, 600.0)]
    assert companions(transfer=transfer, target_seconds=50.0) == [("target", 3, 300, 5000.0, 15000.0)]
    gangs = {**transfer, "resources": {"gpus": 4}}
    assert companions(transfer=gangs) == [("target", 3, 300, 600.0, 2400.0)], (
        "one after the other on four slots"
    )
    assert companions(slots=2, transfer=gangs) == [("target", 3, 300, 600.0, 2400.0)]
    assert companions(transfer={**transfer, "steps": None}, seconds=None) == [("target", 3, 81, None, None)]


def test_a_pilot_is_counted_with_the_models_trials_as_long_as_targets():
    """Ten configurations, each on the model and on two copies, for five steps."""
    surrogate = {
        "model": "train:make_model",
        "scale": "auto",
        "pilot": {"configurations": 10, "steps": 5, "scales": [8, 4]},
        "accept": ["x"],
    }
    assert companions(surrogate=surrogate) == [("pilot", 30, 150, 8 * 10.0, 300.0)]
    (found,) = companions(surrogate=surrogate, target_seconds=10.0)
    assert found[3:] == (180.0, 10 * 50.0 + 20 * 10.0), (
        "the model's trials first, the copies fill what is left"
    )
    (fused,) = companions(surrogate=surrogate, fuse={"most": 10})
    assert fused[1:] == (30, 150, 10.0, 30.0), "the trials of a scale share a process"
    both = companions(surrogate=surrogate, transfer={"callable": "train:train", "top": 2})
    assert [role for role, *_ in both] == ["pilot", "target"]


def test_the_slots_of_a_gang_are_all_counted_in_slot_time():
    shown = preview(spec(RunAllPolicy(), trials=4, resources={"gpus": 2}), slots=4, seconds_per_step=1.0)
    assert (shown.wall_time_s, shown.slot_time_s) == (27.0, 4 * 27 * 2)
