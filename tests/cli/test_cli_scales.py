"""What is shown of scales that pilots find: at a study's creation, in its summary, in the gate's and in the
pilot's."""

from typing import Any

import pytest

from headrace.cli import gates, scales, views
from headrace.cli.summary import Summary
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
    "surrogate": {
        "model": "train:make_model",
        "scale": "auto",
        "pilot": {"steps": 1, "scales": [8, 4], "study": "small-scale"},
    },
}
CHOICE = study_pb2.ScaleChoice(
    scale=4,
    study="small-scale",
    least_kendall=0.8,
    most_regret=0.05,
    tried=[
        study_pb2.ScaleTried(scale=8, kendall=0.5),
        study_pb2.ScaleTried(scale=4, kendall=0.9, regret=0.0, agrees=True),
    ],
)


def info(spec: StudySpec, choice: study_pb2.ScaleChoice | None = None) -> StudyInfo:
    message = study_pb2.Study(name="studies/small", spec=to_proto(spec), scale_choice=choice)
    return convert.study(message)


def test_a_study_says_its_scale_and_why() -> None:
    study = info(parse_spec(STUDY), CHOICE)
    assert scales.lines_of(study) == [
        (
            "scale",
            "4, the smallest copy that ranks as the model does in study small-scale (τ ≥ 0.8, regret ≤ 0.05)",
        ),
        ("  scale 8", "τ 0.5, the first five failed: does not agree"),
        ("  scale 4", "τ 0.9, regret 0: agrees"),
    ]
    assert scales.lines_of(study)[0] in Summary(study=study).lines()
    assert scales.size_of(study) == "1/4 of its width"
    for shown in (views.study(study), Summary(study=study).json()):
        assert (shown["scale_choice"]["scale"], shown["scale_choice"]["study"]) == (4, "small-scale")
        assert shown["scale_choice"]["tried"][0] == {
            "scale": 8,
            "kendall": 0.5,
            "regret": None,
            "agrees": False,
        }


def test_before_the_pilot_has_chosen_it_says_who_will() -> None:
    study = info(parse_spec(STUDY))
    assert scales.lines_of(study) == [("scale", "auto: study small-scale has not chosen one")]
    assert (scales.said_at_creation(study) or "").startswith("study small-scale first finds how small")
    assert scales.own_pilot(study) == "small-scale"
    assert views.study(study)["scale_choice"] is None


def test_the_gate_says_what_it_checks() -> None:
    gate = parse_spec(STUDY).gate_study()
    assert gate is not None
    assert ("checks", "train:make_model at 1/4 of its width, trained with adamw") in gates.lines_of(
        info(gate, CHOICE)
    )


def test_a_pilot_says_what_it_compares_and_names_no_best_trial() -> None:
    pilot = info(parse_spec(STUDY).pilot_study([{"lr": 0.1 + one / 100} for one in range(10)]))
    assert scales.is_pilot(pilot)
    assert scales.lines_of(pilot)[0] == (
        "compares",
        "10 configurations on the model itself and on copies of 1/8, 1/4 of its width",
    )
    labels = [label for label, _ in Summary(study=pilot).lines()]
    assert ("best" in labels, "checkpoint" in labels, "gate" in labels) == (False, False, False)


@pytest.mark.parametrize("surrogate", [None, {"model": "train:make_model", "scale": 8}])
def test_others_have_nothing_to_say(surrogate: dict[str, Any] | None) -> None:
    study = info(parse_spec({**STUDY, "surrogate": surrogate}))
    assert (scales.lines_of(study), scales.said_at_creation(study), scales.is_pilot(study)) == (
        [],
        None,
        False,
    )
