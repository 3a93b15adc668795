"""A surrogate and its gate in a study: what is valid, the study that checks, and the round trip over protobuf."""

from typing import Any

import pytest
from spec_samples import LEARNING_RATE, SMALL, assert_refused

from headrace.spec import Gate, from_proto, parse_spec, to_proto
from headrace.spec.surrogate import GATE, WORST_SLOPE

SURROGATE: dict[str, Any] = {
    "model": "train:make_model",
    "width": 16,
    "optimizer": "sgd",
    "inputs": "train:batch",
    "accept": ["dropout"],
}
STUDY: dict[str, Any] = {
    **SMALL,
    "trial": {**SMALL["trial"], "env": {"A": "1"}, "report_timeout_s": 5, "python": "/bin/python"},
    "space": {"lr": LEARNING_RATE, "dropout": {"type": "float", "low": 0.0, "high": 0.5}},
    "baseline": {"lr": 0.1, "dropout": 0.0},
    "retries": 3,
    "parallel": 2,
    "fuse": {"most": 4},
    "resources": {"gpus": 0.5},
    "surrogate": SURROGATE,
    "gate": {"widths": [32, 64]},
    "after": "before",
    "transfer": {"callable": "train:train", "resources": {"gpus": 8}},
}


def test_it_goes_over_protobuf_and_json() -> None:
    spec = parse_spec(STUDY)
    assert from_proto(to_proto(spec)) == spec == type(spec).stored(spec.model_dump(mode="json"))
    assert spec.gate == Gate(widths=(32, 64))


@pytest.mark.parametrize(("written", "is_off"), [(True, False), (False, True)])
def test_a_gate_may_be_a_switch(written: bool, is_off: bool) -> None:
    spec = parse_spec({**STUDY, "gate": written})
    assert spec.gate == Gate(off=is_off)
    assert (spec.gate_study() is None) == is_off
    assert from_proto(to_proto(spec)) == spec


def test_the_gate_is_a_study_of_one_trial_with_the_surrogate_and_the_space() -> None:
    spec = parse_spec(STUDY)
    gate = spec.gate_study()
    assert gate is not None
    assert gate.template is not None
    assert (gate.template.callable, gate.template.env, gate.template.python) == (
        GATE,
        {"A": "1"},
        "/bin/python",
    )
    assert (gate.template.report_timeout, gate.template.prestart) == (None, False)
    assert (gate.max_trials, gate.max_steps, gate.max_retries, gate.policy.kind) == (1, 2, 0, "run_all")
    assert (gate.surrogate, gate.gate, gate.space) == (spec.surrogate, spec.gate, spec.space)
    assert (gate.objective.metric, gate.after, gate.resources.gpu_milli) == (WORST_SLOPE, "before", 500)
    assert (gate.fuse, gate.transfer, gate.baseline, gate.max_parallel) == (None, None, None, 0)
    assert from_proto(to_proto(gate)) == gate


def test_a_gate_takes_one_device_of_several() -> None:
    gate = parse_spec({**STUDY, "fuse": None, "resources": {"gpus": 4, "processes": "per_slot"}}).gate_study()
    assert gate is not None
    assert (gate.resources.gpus, gate.resources.processes.value) == (1, "one")


def test_the_target_trains_the_model_itself_alone() -> None:
    target = parse_spec(STUDY).target("small")
    assert (target.surrogate, target.gate, target.after, target.fuse) == (None, None, None, None)
    assert target.resources.gpus == 8


def test_a_study_without_a_surrogate_has_no_gate() -> None:
    assert parse_spec({**STUDY, "surrogate": None, "gate": None}).gate_study() is None


@pytest.mark.parametrize(
    ("changes", "field", "says"),
    [
        ({"surrogate": {"model": "train:make_model"}}, "surrogate.width", "no scale"),
        ({"surrogate": {**SURROGATE, "scale": 8}}, "surrogate.scale", "combined with width"),
        ({"surrogate": {"width": 8}}, "surrogate.model", "required"),
        ({"surrogate": {**SURROGATE, "model": "train.py"}}, "surrogate.model", "module:function"),
        ({"surrogate": {**SURROGATE, "inputs": "batch"}}, "surrogate.inputs", "module:function"),
        ({"surrogate": {**SURROGATE, "width": 0}}, "surrogate.width", "at least 1"),
        ({"surrogate": {**SURROGATE, "optimizer": "lion"}}, "surrogate.optimizer", "known choice"),
        ({"surrogate": {**SURROGATE, "accept": ["drop_out"]}}, "surrogate.accept[0]", "not a parameter"),
        ({"surrogate": {**SURROGATE, "widht": 3}}, "surrogate.widht", "not a known key"),
        (
            {"trial": {"command": ["python", "train.py"]}, "fuse": None, "transfer": None},
            "surrogate",
            "callable",
        ),
        ({"surrogate": None}, "gate", "nothing to check"),
        ({"gate": 3}, "gate", "true, false or a mapping"),
        ({"gate": {"widths": [64, 64]}}, "gate.widths", "fewer than two"),
        ({"after": "No Name"}, "after", "lower-case"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], field: str, says: str) -> None:
    assert_refused({**STUDY, **changes}, field, says)
