"""`scale: auto` in a study: what is valid, the study that finds the scale, and the round trip over protobuf."""

from typing import Any

import pytest
from spec_samples import LEARNING_RATE, SMALL, assert_refused

from headrace.spec import Pilot, from_proto, parse_spec, to_proto
from headrace.spec.pilot import DEFAULT_SCALES, FEWEST, SCALE
from headrace_torch.agreement import LEAST_KENDALL, LEAST_PILOT

SURROGATE: dict[str, Any] = {"model": "train:make_model", "scale": "auto", "accept": ["dropout"]}
STUDY: dict[str, Any] = {
    **{name: value for name, value in SMALL.items() if name != "steps"},
    "space": {"lr": LEARNING_RATE, "dropout": {"type": "float", "low": 0.0, "high": 0.5}},
    "baseline": {"lr": 0.1, "dropout": 0.0},
    "policy": {"kind": "asha", "rungs": [3, 9]},
    "parallel": 2,
    "fuse": {"most": 4, "apart": ["dropout"]},
    "resources": {"gpus": 0.5},
    "surrogate": SURROGATE,
    "after": "before",
    "transfer": {"callable": "train:train", "resources": {"gpus": 1}},
}
TRIED = [{"lr": 0.1 + number / 100, "dropout": 0.1} for number in range(FEWEST)]


@pytest.mark.parametrize(
    "pilot",
    [{}, {"scales": [2, 8]}, {"steps": 1, "configurations": 20, "least_kendall": 0.0, "most_regret": 0.0}],
)
def test_it_goes_over_protobuf_and_json(pilot: dict[str, Any]) -> None:
    spec = parse_spec({**STUDY, "surrogate": {**SURROGATE, "pilot": pilot}})
    assert from_proto(to_proto(spec)) == spec == type(spec).stored(spec.model_dump(mode="json"))
    assert spec.surrogate is not None
    assert (spec.surrogate.scale, spec.surrogate.pilot) == (None, Pilot(**pilot))
    assert parse_spec({**STUDY, "surrogate": {**SURROGATE, "scale": "auto"}}).surrogate is not None


def test_the_smallest_copy_comes_first() -> None:
    assert Pilot(scales=(2, 8, 4)).candidates == (8, 4, 2)
    assert Pilot().candidates == DEFAULT_SCALES


def test_the_pilot_trains_each_configuration_on_the_model_and_on_copies() -> None:
    spec = parse_spec(STUDY)
    pilot = spec.pilot_study(TRIED)
    assert from_proto(to_proto(pilot)) == pilot
    assert [one[SCALE] for one in pilot.enqueued] == [s for s in (1, 16, 8, 4) for _ in TRIED]
    assert [one["lr"] for one in pilot.enqueued] == 4 * [one["lr"] for one in TRIED]
    assert (pilot.max_trials, pilot.max_steps, pilot.policy.kind, pilot.after) == (40, 3, "run_all", "before")
    assert pilot.surrogate is not None
    assert (pilot.surrogate.scale_by, pilot.surrogate.pilot, pilot.gate_study()) == (SCALE, None, None)
    assert (pilot.baseline, pilot.transfer, pilot.max_parallel) == (None, None, 0)
    assert pilot.template == spec.template
    # The copies of one scale share a process: a slot that can train the model has room for them.
    assert pilot.fuse is not None
    assert (pilot.fuse.most, pilot.fuse.apart) == (4, ("dropout", SCALE))
    assert pilot.resources.gpus == 1


def test_where_the_model_takes_several_slots_nothing_is_fused() -> None:
    transfer = {"callable": "train:train", "resources": {"gpus": 8}}
    pilot = parse_spec({**STUDY, "transfer": transfer}).pilot_study(TRIED)
    assert (pilot.fuse, pilot.resources.gpus) == (None, 8)


def test_the_bounds_are_the_librarys() -> None:
    assert (FEWEST, Pilot().least_kendall) == (LEAST_PILOT, LEAST_KENDALL)


@pytest.mark.parametrize(
    ("changes", "field", "says"),
    [
        ({"surrogate": {"scale": "auto"}}, "surrogate.model", "required"),
        ({"surrogate": {**SURROGATE, "scale": "atuo"}}, "surrogate.scale", "whole number or auto"),
        ({"surrogate": {**SURROGATE, "width": 8}}, "surrogate.pilot", "combined with width"),
        ({"surrogate": {**SURROGATE, "scale": 8, "pilot": {}}}, "surrogate.pilot", "combined with scale"),
        ({"gate": False}, "gate", "unchecked"),
        ({"policy": {"kind": "run_all"}, "steps": 9}, "surrogate.pilot.steps", "no rung before"),
        (
            {"surrogate": {**SURROGATE, "pilot": {"steps": 10}}},
            "surrogate.pilot.steps",
            "above the full budget",
        ),
        (
            {"surrogate": {**SURROGATE, "pilot": {"scales": [8, 1]}}},
            "surrogate.pilot.scales[1]",
            "at least 2",
        ),
        ({"surrogate": {**SURROGATE, "pilot": {"scales": [8, 8]}}}, "surrogate.pilot.scales[1]", "twice"),
        (
            {"surrogate": {**SURROGATE, "pilot": {"configurations": 9}}},
            "surrogate.pilot.configurations",
            "at least 10",
        ),
        (
            {"surrogate": {**SURROGATE, "pilot": {"least_kendall": 1.1}}},
            "surrogate.pilot.least_kendall",
            "from -1 to 1",
        ),
        (
            {"surrogate": {**SURROGATE, "pilot": {"most_regret": -1}}},
            "surrogate.pilot.most_regret",
            "negative",
        ),
        ({"surrogate": {**SURROGATE, "pilot": {"scale": 4}}}, "surrogate.pilot.scale", "not a known key"),
        (
            {"space": {**STUDY["space"], SCALE: {"type": "float", "low": 0.0, "high": 1.0}}},
            f"space.{SCALE}",
            "pilot's own",
        ),
        ({"surrogate": {"model": "a:b", "scale_by": "lr"}}, "surrogate.scale_by", "whole numbers from 1"),
        (
            {
                "further_objectives": [{"metric": "size", "goal": "minimize"}],
                "transfer": None,
                "policy": {"kind": "run_all"},
                "steps": 9,
            },
            "surrogate.scale",
            "several objectives",
        ),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], field: str, says: str) -> None:
    data = {name: value for name, value in {**STUDY, **changes}.items() if value is not None}
    assert_refused(data, field, says, alone=False)
