"""A transfer's plan in a spec: what is valid, what files mean, the round trip over protobuf, and who gets the
answer."""

import json
from pathlib import Path
from typing import Any

import pytest
from spec_samples import SMALL, assert_refused

from headrace.bounds import numbers
from headrace.errors import InvalidFieldError
from headrace.spec import StudySpec, from_proto, load_study_file, parse_spec, to_proto

MODEL = {"vocabulary": 512, "sequence": 64, "hidden": 64, "blocks": [{"count": 4, "heads": 4}]}
PLAN: dict[str, Any] = {
    "model": MODEL,
    "cluster": "a100-8",
    "target": "deepspeed",
    "batch": 32,
    "sequence": 64,
    "schedule": "1f1b",
    "chunks": 1,
    "zero": 2,
    "attention": "flash",
    "mode": "alpa",
    "method": "exact",
    "gradients": "bf16",
    "overlap": "none",
    "sequence_parallel": False,
    "usable_memory": 0.5,
    "seconds": 2.5,
    "budget": 7,
}
ANSWER: dict[str, Any] = {
    "degrees": {"data": 2, "tensor": 2, "optimizer": 2, "pipeline": 2, "micro_batches": 8, "expert": 1},
    "iteration_s": 0.25,
    "files": {"plan.json": "{}\n", "pipeline.py": "BOUNDARIES = [0, 3, 6]\n"},
}


def study(plan: dict[str, Any] | None = None, **transfer: Any) -> StudySpec:
    return parse_spec({**SMALL, "transfer": {"callable": "train:target", "plan": plan or PLAN, **transfer}})


def test_question_and_answer_go_over_protobuf_and_json() -> None:
    asked = study()
    assert asked.open_plan is not None
    assert asked.open_plan.question() == PLAN
    answered = asked.with_answer(ANSWER)
    assert (answered.open_plan, answered.plan and answered.plan.question()) == (None, PLAN)
    for spec in (asked, answered, answered.target("small"), study({"model": "gpt3-125m", "cluster": MODEL})):
        assert from_proto(to_proto(spec)) == spec == StudySpec.stored(spec.model_dump(mode="json"))


def test_the_files_go_to_the_target_and_to_nobody_else() -> None:
    answered = study(resources={"gpus": 8}).with_answer(ANSWER)
    target = answered.target("small")
    assert target.template is not None
    assert target.template.plan is not None
    assert target.template.plan.files == ANSWER["files"]
    assert str(target.template.plan) == (
        "data 2 × tensor 2 × pipeline 2, optimizer over 2, 8 micro-batches, 0.25 s an iteration (predicted)"
    )
    assert answered.transfer is not None
    kept = answered.transfer.without_files().plan
    assert kept is not None
    assert (str(kept.answer), kept.answered) == (str(target.template.plan), False)
    assert answered.template is not None
    assert answered.template.plan is None


def test_files_are_read_from_beside_the_study_file(tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "model.json").write_text(json.dumps(MODEL, indent=2))
    file = tmp_path / "study.yaml"
    trial = {**SMALL["trial"], "working_dir": "."}
    transfer = {"callable": "t:t", "plan": {"model": "small/model.json", "cluster": "a100-2"}}
    file.write_text(json.dumps({**SMALL, "name": "x", "trial": trial, "transfer": transfer}))
    plan = load_study_file(file).spec.open_plan
    assert plan is not None
    assert plan.question() == {"model": MODEL, "cluster": "a100-2"}


@pytest.mark.parametrize(
    ("changes", "field", "says"),
    [
        ({"model": "nowhere.json"}, "model", "No such file | relative to the study file"),
        ({"cluster": "broken.json"}, "cluster", "is not JSON | Correct the file"),
        ({"cluster": "list.json"}, "cluster", "one JSON object | Write {...}"),
        ({"model": 3}, "model", "must be a text"),
        ({"model": {"hidden": {1}}}, "model", "is not JSON | lists and mappings"),
        ({"model": "{no"}, "model", "is not JSON | lists and mappings"),
        ({"targets": "deepspeed"}, "targets", "is not a known key | Did you mean `target`?"),
        ({"batch": 0}, "batch", "at least 1"),
        ({"zero": 4}, "zero", "at most 3"),
        ({"sequence_parallel": "yes"}, "sequence_parallel", "true or false"),
    ],
)
def test_a_question_that_cannot_be_asked_is_refused(
    changes: dict[str, Any], field: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken.json").write_text("{]")
    (tmp_path / "list.json").write_text("[]")
    monkeypatch.chdir(tmp_path)
    transfer = {"callable": "train:target", "plan": {**PLAN, **changes}}
    assert_refused({**SMALL, "transfer": transfer}, f"transfer.plan.{field}", says)


def test_what_is_missing_is_named() -> None:
    with pytest.raises(InvalidFieldError) as refused:
        study({"batch": 3})
    assert [one.field for one in refused.value.violations] == ["transfer.plan.model", "transfer.plan.cluster"]


def test_a_file_is_named_by_study_files_alone() -> None:
    """A scheduler reads no file that a caller names."""
    message = to_proto(study())
    message.transfer.plan.request.question.model_name = "/etc/model.json"
    with pytest.raises(InvalidFieldError, match=r"transfer\.plan\.model: is a file, and none is read here"):
        from_proto(message)


@pytest.mark.parametrize(
    ("resources", "takes"),
    [
        ({"gpus": 8}, None),
        ({"gpus": 4}, 4),
        ({"gpus": 0.5}, 1),
        ({"cpus": 2, "processes": "per_slot"}, 2),
        ({"cpus": 8, "processes": "per_slot"}, None),
        ({"cpus": 2}, None),  # a launcher: what it starts, and where, is its own business
    ],
)
def test_the_plan_is_for_the_devices_that_a_target_takes(
    resources: dict[str, Any], takes: int | None
) -> None:
    asked = study(resources=resources)
    if takes is None:
        assert asked.with_answer(ANSWER).open_plan is None
        return
    with pytest.raises(InvalidFieldError) as refused:
        asked.with_answer(ANSWER)
    (found,) = refused.value.violations
    assert found.field == "transfer.plan.cluster"
    assert found.message == f"is for 8 devices, and a target trial takes {takes}"
    assert f"or plan for {takes}" in found.remedy


def test_files_are_few_and_have_plain_names() -> None:
    large = {"a.json": "é" * (numbers.PLAN_BYTES // 2), "b": "x"}
    with pytest.raises(
        InvalidFieldError, match=r"answer\.files: come to 262,145 bytes, more than the 262,144"
    ):
        study().with_answer({**ANSWER, "files": large})
    for name in ("../out", "/etc/passwd", ".hidden", "a/b", ""):
        with pytest.raises(InvalidFieldError, match="invalid file name"):
            study().with_answer({**ANSWER, "files": {name: "x"}})


@pytest.mark.parametrize(
    ("moved", "field"),
    [({"trial": {**SMALL["trial"], "plan": PLAN}}, "trial.plan"), ({"plan": PLAN}, "plan")],
)
def test_a_plan_in_another_place_is_told_its_own(moved: dict[str, Any], field: str) -> None:
    remedy = "It belongs under `transfer`, as in `transfer: {plan: …}`."
    assert_refused({**SMALL, **moved}, field, f"is not a known key | {remedy}")
