"""What is shown of gates: at a study's creation, in its summary, and in the gate's own."""

from typing import Any

import pytest

from headrace.cli import gates
from headrace.client import convert
from headrace.client.model import StudyInfo
from headrace.spec import StudySpec, parse_spec, to_proto
from headrace.v1 import study_pb2

STUDY: dict[str, Any] = {
    "objective": {"metric": "loss", "goal": "minimize"},
    "trial": {"callable": "train:train", "working_dir": "/data"},
    "space": {"lr": {"type": "float", "low": 1e-4, "high": 1.0}},
    "trials": 9,
    "steps": 9,
    "surrogate": {"model": "train:make_model", "width": 16},
}


def info(spec: StudySpec) -> StudyInfo:
    return convert.study(study_pb2.Study(name="studies/small", spec=to_proto(spec)))


@pytest.mark.parametrize(
    ("gate", "says", "own"),
    [
        ({"study": "small-gate"}, "study small-gate, which first checks", "small-gate"),
        ({"study": "other-gate", "key": "a"}, "passed before, in study other-gate: the same model", None),
        (False, "OFF (gate: false): nothing checks", None),
    ],
)
def test_a_study_says_how_its_copy_is_checked(gate: Any, says: str, own: str | None) -> None:
    study = info(parse_spec({**STUDY, "gate": gate}))
    assert (gates.said_of(study) or "").startswith(says)
    assert gates.own_gate(study) == own


def test_a_study_that_trains_says_that_its_gate_has_passed() -> None:
    spec = to_proto(parse_spec({**STUDY, "gate": {"study": "small-gate"}}))
    study = study_pb2.Study(name="studies/small", spec=spec, state=study_pb2.STUDY_STATE_FAILED)
    assert "first checks" in (gates.said_of(convert.study(study)) or "")
    study.status.steps_spent = 1
    assert gates.said_of(convert.study(study)) == (
        "passed, in study small-gate: the small copy represents the model"
    )


def test_a_gate_gives_its_verdict() -> None:
    checking = parse_spec(STUDY).gate_study()
    assert checking is not None
    study = study_pb2.Study(
        name="studies/small-gate", spec=to_proto(checking), state=study_pb2.STUDY_STATE_COMPLETED
    )
    assert ("verdict", "passed: the small copy represents the model") in gates.lines_of(convert.study(study))


def test_others_have_nothing_to_say() -> None:
    assert gates.said_of(info(parse_spec({**STUDY, "surrogate": None}))) is None
    checking = parse_spec(STUDY).gate_study()
    assert checking is not None
    study = info(checking)
    assert gates.is_gate(study)
    assert gates.said_of(study) is None
    assert gates.lines_of(study) == [("checks", "train:make_model at width 16, trained with adamw")]
