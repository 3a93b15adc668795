"""A transfer's plan on the command line: what `run` refuses before anything starts, and what `show` says about it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commands_run import Invoke
from fake_study_service import FakeStudyService
from scripted_study import Script

from headrace.cli import views
from headrace.cli.summary import Summary
from headrace.client import convert
from headrace.client.model import StudyInfo
from headrace.spec import StudySpec, load_study_file

ANSWER: dict[str, Any] = {
    "degrees": {"data": 2, "tensor": 2, "pipeline": 2, "micro_batches": 1},
    "iteration_s": 1.5,
    "files": {"plan.json": "{}"},
}
SAID = "data 2 × tensor 2 × pipeline 2, 1 micro-batch, 1.5 s an iteration (predicted)"


def with_plan(study_file: Path, plan: str = "{model: gpt3-125m, cluster: a100-8}") -> Path:
    study_file.write_text(f"{study_file.read_text()}transfer:\n  callable: train:train\n  plan: {plan}\n")
    return study_file


@pytest.mark.parametrize(
    ("plan", "options", "code", "says"),
    [
        ("{model: model.json, cluster: a100-8}", [], 2, "transfer.plan.model: No such file or directory"),
        (
            "{model: gpt3-125m, cluster: a100-8}",
            ["--planner", "127.0.0.1:1"],
            1,
            "transfer.plan: No Headrace planner answers at 127.0.0.1:1",
        ),
    ],
)
def test_what_cannot_be_planned_starts_nothing(
    fake: FakeStudyService,
    invoke: Invoke,
    study_file: Path,
    plan: str,
    options: list[str],
    code: int,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "headrace.cli.run.local_service", lambda *_, **__: pytest.fail("a service is started")
    )
    monkeypatch.delenv("HEADRACE_ADDRESS")
    result = invoke("run", str(with_plan(study_file, plan)), "--local", *options)
    assert (result.code, result.out) == (code, "")
    assert says in result.err
    assert "Traceback" not in result.err


def test_a_summary_says_which_plan_is_followed(script: Script, study_file: Path) -> None:
    spec = load_study_file(with_plan(study_file)).spec.with_answer(ANSWER)

    def of(spec: StudySpec) -> StudyInfo:
        return replace(convert.study(script.final.study), spec=spec)

    assert ("plan", SAID) in Summary(study=of(spec.target("fresh"))).lines()
    assert ("target's plan", SAID) in Summary(study=of(spec)).lines()
    shown = json.loads(json.dumps(views.study(of(spec))["plan"]))
    assert (shown["degrees"]["tensor"], shown["files"]) == (2, ["plan.json"])
    assert views.study(convert.study(script.final.study))["plan"] is None
