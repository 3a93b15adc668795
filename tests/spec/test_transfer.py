"""A transfer in a study: what is valid, the study that it makes, and the round trip over protobuf."""

from typing import Any

import pytest
from spec_samples import SMALL, assert_refused

from headrace.spec import BestOfSampler, from_proto, parse_spec, to_proto

STUDY: dict[str, Any] = {
    **SMALL,
    "objective": {"metric": "loss", "goal": "maximize"},
    "trial": {**SMALL["trial"], "env": {"A": "1"}},
    "baseline": {"lr": 0.1},
    "constraints": [{"metric": "size", "at_most": 3}],
    "parallel": 2,
    "transfer": {"callable": "train:target", "top": 4, "eager": 0.5, "steps": 30, "resources": {"gpus": 0.5}},
}


def test_it_goes_over_protobuf_and_json() -> None:
    spec = parse_spec(STUDY)
    assert from_proto(to_proto(spec)) == spec == type(spec).stored(spec.model_dump(mode="json"))


def test_the_second_study_is_the_first_but_for_what_a_transfer_says() -> None:
    spec = parse_spec(STUDY)
    target = spec.target("small")
    assert target.sampler == BestOfSampler(study="small", eager=0.5)
    assert (target.policy.kind, target.max_trials, target.max_steps) == ("run_all", 4, 30)
    assert target.template is not None
    assert (target.template.callable, target.template.env) == ("train:target", {"A": "1"})
    assert target.resources.gpu_milli == 500
    assert (target.objective, target.constraints, target.space) == (
        spec.objective,
        spec.constraints,
        spec.space,
    )
    assert (target.baseline, target.transfer, target.max_parallel) == (None, None, 0)
    assert from_proto(to_proto(target)) == target


@pytest.mark.parametrize(
    ("changes", "field", "says"),
    [
        ({"transfer": {"callable": "t:t", "top": 10}}, "transfer.top", "more than the 9"),
        ({"transfer": {"callable": "t:t", "eager": 0}}, "transfer.eager", "above 0"),
        (
            {"transfer": {"callable": "t:t", "top": 1, "eager": 0.5}},
            "transfer.eager",
            "has no effect with top: 1",
        ),
        (
            {"sampler": {"kind": "best_of", "study": "a", "eager": 0.5}, "trials": 1, "transfer": None},
            "sampler.eager",
            "has no effect with trials: 1",
        ),
        ({"transfer": {"top": 2}}, "transfer.callable", "required"),
        ({"transfer": {"callable": "t:t", "steps": 0}}, "transfer.steps", "1"),
        ({"trial": {"command": ["python", "train.py"]}}, "transfer", "callable"),
        ({"sampler": {"kind": "best_of", "study": "a", "eager": 2}}, "sampler.eager", "at most 1"),
        (
            {"further_objectives": [{"metric": "b", "goal": "minimize"}], "policy": "run_all"},
            "transfer",
            "no best one",
        ),
    ],
)
def test_what_cannot_be_transferred_is_refused(changes: dict[str, Any], field: str, says: str) -> None:
    assert_refused({**STUDY, **changes}, field, says)
