"""Trials whose size depends on their configuration: placed by it, none starves, and a preview says how many there
are."""

from typing import Any

import pytest
from unequal_study import previewed, simulate, unequal

from headrace.errors import InvalidFieldError
from headrace.spec import StudySpec, parse_spec
from headrace_services.scheduler.core.lifecycle import State
from headrace_services.scheduler.core.placement import request_at, requests_of
from headrace_services.scheduler.core.placing import LOOKAHEAD, lookahead
from headrace_services.scheduler.core.policies import RungResult, make_policy
from headrace_services.scheduler.core.records import Checkpoint
from headrace_services.scheduler.preview import preview

BY_BATCH = {"gpus": {"by": "batch_size", 64: 0.5, 256: 2, 1024: 4}, "cpus": 2}


def study(**changes: Any) -> StudySpec:
    fields: dict[str, Any] = {
        "objective": {"metric": "loss", "goal": "minimize"},
        "space": {
            "batch_size": {"type": "categorical", "values": [64, 256, 1024]},
            "lr": {"type": "float", "low": 0.0, "high": 1.0},
        },
        "policy": {"kind": "run_all"},
        "resources": BY_BATCH,
        "trials": 40,
        "steps": 9,
        "seed": 2,
    }
    return parse_spec({**fields, **changes})


def test_a_request_follows_from_the_configuration() -> None:
    spec = study()
    half, two, four = requests_of(spec)
    assert [request.shape for request in (half, two, four)] == [(1, 500, 2), (2, 1000, 2), (4, 1000, 2)]
    assert request_at(spec, {"batch_size": 256, "lr": 0.5}, 0) == two
    with pytest.raises(
        InvalidFieldError, match=r"batch_size: has no size in the study's resources \(got 512\)"
    ):
        request_at(spec, {"batch_size": 512, "lr": 0.5}, 0)


def test_a_table_of_progress_takes_nothing_from_a_large_trial() -> None:
    whole = {"gpus": {"by": "batch_size", 64: 1, 256: 2, 1024: 4}}
    spec = study(resources=whole, elastic={"grants": [{"from_step": 3, "slots": 2}]})
    sizes = {batch: request_at(spec, {"batch_size": batch}, 3).slots for batch in (64, 256, 1024)}
    assert sizes == {64: 2, 256: 2, 1024: 4}


def test_a_trial_grows_from_a_share_to_whole_gpus_and_its_cores_with_it() -> None:
    grants = [{"from_step": 1, "slots": 0.5}, {"from_step": 3, "slots": 1}, {"from_step": 5, "slots": 2}]
    spec = study(resources={"gpus": 0.25, "cpus": 1}, elastic={"grants": grants})
    shapes = [request_at(spec, {}, step).shape for step in (0, 1, 3, 5)]
    assert shapes == [(1, 250, 1), (1, 500, 2), (1, 1000, 4), (2, 1000, 8)]
    assert [request.shape for request in requests_of(spec)] == shapes


def test_a_table_of_progress_beside_sizes_by_configuration_takes_the_larger() -> None:
    grants = [{"from_step": 3, "slots": 1}, {"from_step": 5, "slots": 2}]
    spec = study(elastic={"grants": grants})  # batch sizes of 0.5, 2 and 4 GPUs with 2 cores
    by_step = {step: request_at(spec, {"batch_size": 64}, step).shape for step in (0, 3, 5)}
    assert by_step == {0: (1, 500, 2), 3: (1, 1000, 4), 5: (2, 1000, 8)}
    assert request_at(spec, {"batch_size": 1024}, 5).shape == (4, 1000, 2)


def test_a_preview_of_trials_that_grow_counts_slots() -> None:
    """A step costs a quarter of a GPU's time, whatever grant it runs on, and at most four GPUs are used."""
    grants = [{"from_step": 3, "slots": 1}, {"from_step": 6, "slots": 2}]
    spec = study(
        resources={"gpus": 0.25},
        elastic={"grants": grants},
        trials=10,
        policy={"kind": "asha", "variant": "stopping", "rungs": [3, 6, 9]},
    )
    found = preview(spec, 4, 1.0)
    assert found.slot_time_s is not None
    assert found.wall_time_s is not None
    assert found.slot_time_s == pytest.approx(found.steps / 4, rel=0.05)
    assert found.slot_time_s / 4 <= found.wall_time_s


def test_thresholds_and_a_size_for_all_other_values() -> None:
    space = {"width": {"type": "int", "low": 1, "high": 100}}
    spec = study(space=space, resources={"cpus": {"by": "width", "from": {11: 2, 51: 4}, "else": 1}})
    sizes = {width: request_at(spec, {"width": width}, 0).slots for width in (1, 10, 11, 50, 51, 100)}
    assert sizes == {1: 1, 10: 1, 11: 2, 50: 2, 51: 4, 100: 4}


def test_no_large_trial_starves_and_the_preview_agrees_with_what_ran() -> None:
    """The short form of `benchmarks/scheduler/unequal.py`."""
    spec = unequal(60, policy="run_all")
    tally, ran = simulate(spec)
    assert all(trial.state is State.TERMINATED for trial in ran.rows.trials.values())
    assert sum(tally.trials.values()) == 60
    assert set(tally.trials) == {1, 2, 4}
    assert tally.trials == previewed(preview(spec, 8).sizes)
    assert tally.longest_wait_s[4] <= tally.longest_stay_s
    assert tally.utilisation > 0.9


def test_a_preview_counts_the_baseline_and_what_is_enqueued() -> None:
    baseline = {"batch_size": 1024, "lr": 0.1}
    only = study(trials=2, baseline=baseline, enqueue=[{"batch_size": 64, "lr": 0.1}] * 2)
    found = preview(only, 8)
    assert [(size.gpus, size.gpu_milli, size.cpus, size.trials) for size in found.sizes] == [
        (0, 500, 2, 2),
        (2, 0, 2, 0),
        (4, 0, 2, 1),
    ]
    assert preview(study(resources={"gpus": 4}), 8).sizes == ()


def test_slot_time_counts_each_slot() -> None:
    four = [{"batch_size": 1024, "lr": 0.1}] * 4
    found = preview(study(trials=4, enqueue=four, resources={**BY_BATCH, "cpus": 0}), 8, 1.0)
    assert found.steps == 36
    assert found.slot_time_s is not None
    assert found.slot_time_s > 36  # a preview draws configurations


def test_a_member_of_a_population_keeps_its_size() -> None:
    spec = study(policy={"kind": "pbt", "interval": 3}, trials=4)
    policy = make_policy(spec)
    for number, batch in enumerate((64, 256, 1024, 64)):
        policy.joined(number, 0, {"batch_size": batch, "lr": 0.1 * number})
        policy.record(
            RungResult(
                trial=number,
                bracket=0,
                rung=0,
                milestone=3,
                step=3,
                value=float(number),
                arrival=number,
                checkpoint=Checkpoint(uri=f"c{number}", step=3),
            )
        )
    exploits = []
    while (promotion := policy.next_promotion()) is not None:
        policy.promoted(promotion.trial, 0, promotion.rung)
        exploits += [promotion.exploit] if promotion.exploit else []
    assert [(one.number, one.donor) for one in exploits] == [(3, 0)]
    assert exploits[0].params["batch_size"] == 64
    assert exploits[0].params["lr"] != exploits[0].previous_params["lr"]


def test_some_configurations_are_ready_in_case_one_is_too_large() -> None:
    tpe = study(sampler="tpe")
    assert lookahead(tpe, 0) == LOOKAHEAD
    assert lookahead(study(sampler="tpe", resources={"gpus": 1}), 0) == 1
