"""When a folder is shipped, what the study then shows of its code, and what `--dry-run` lists."""

import json
import subprocess
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from headrace import Client
from headrace.cli.shipping import described, progress
from headrace.client.shipping import prepared, ships
from headrace.code.folder import FolderError
from headrace.errors import InvalidFieldError
from headrace.spec import StudySpec, from_proto, load_study_file, parse_spec, to_proto
from headrace.spec.code import Code

HERE, THERE = "127.0.0.1:7440,localhost:7441", "tls://cluster.example:7440"
DIGEST = "ab" * 32


def spec(folder: Path | str, **trial: Any) -> StudySpec:
    return parse_spec(
        {
            "objective": {"metric": "loss", "goal": "minimize"},
            "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
            "trials": 2,
            "steps": 2,
            "trial": {"callable": "train:train", "working_dir": str(folder), **trial},
        }
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("def train(t): pass\n")
    return tmp_path


@pytest.mark.parametrize(
    ("address", "code", "choice", "shipped"),
    [
        (HERE, None, None, False),
        (THERE, None, None, True),
        (HERE, "ship", None, True),
        (THERE, "folder", None, False),
        (HERE, "folder", True, True),
        (THERE, "ship", False, False),
    ],
)
def test_the_rule(project: Path, address: str, code: str | None, choice: bool | None, shipped: bool) -> None:
    asked = spec(project, **({} if code is None else {"code": code}))
    assert asked.template is not None
    assert ships(asked.template, address, choice) is shipped
    found = prepared(asked, address, choice)
    assert (found.folder is not None) is shipped
    assert found.spec.template is not None
    named = found.spec.template.code
    if shipped:
        assert found.folder is not None
        assert named == Code(ship=True, digest=found.folder.manifest.digest, size_bytes=19, files=1)
    else:
        assert named is None or (named.ship, named.digest) == (False, "")


def test_a_folder_that_only_the_workers_have_is_not_shipped() -> None:
    asked = spec("/nowhere/here")
    assert prepared(asked, THERE).spec is asked
    with pytest.raises(FolderError, match="is not a folder here, so it cannot be shipped"):
        prepared(asked, THERE, True)


def test_the_commit_is_recorded_whether_it_is_shipped_or_not(project: Path) -> None:
    identity = ["-c", "user.name=n", "-c", "user.email=e@x"]
    for args in (["init", "-q"], ["add", "."], [*identity, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", "-C", str(project), *args], check=True)
    here, there = prepared(spec(project), HERE).spec.template, prepared(spec(project), THERE).spec.template
    assert here is not None
    assert there is not None
    assert here.code is not None
    assert there.code is not None
    assert here.code.commit == there.code.commit != ""
    assert (here.code.dirty, here.code.digest) == (False, "")
    (project / "train.py").write_text("def train(t): ...\n")
    again = prepared(spec(project), THERE).spec.template
    assert again is not None
    assert again.code is not None
    assert again.code.dirty
    assert described(again.code).endswith(f"(1 file, 18 B), git commit {again.code.commit[:12]} with changes")


def test_requirements_must_be_shipped_too(project: Path) -> None:
    (project / "requirements.txt").write_text("numpy\n")
    assert prepared(spec(project, requirements="requirements.txt"), THERE).folder is not None
    (project / ".headraceignore").write_text("requirements.txt\n")
    with pytest.raises(InvalidFieldError, match=r"trial\.requirements"):
        prepared(spec(project, requirements="requirements.txt"), THERE)


@pytest.mark.parametrize(
    ("trial", "field"),
    [
        ({"code": "send"}, "trial.code"),
        ({"code": {"digest": "x" * 64, "ship": True}}, "trial.code.digest"),
        ({"code": {"digest": DIGEST}}, "trial.code.digest"),
        ({"code": {"commit": "main"}}, "trial.code.commit"),
        ({"requirements": "../requirements.txt"}, "trial.requirements"),
        ({"requirements": "/etc/requirements.txt"}, "trial.requirements"),
        ({"requirements": "environment.yml"}, "trial.requirements"),
    ],
)
def test_bad_fields_are_named(project: Path, trial: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidFieldError) as refused:
        spec(project, **trial)
    assert [one.field for one in refused.value.violations] == [field]
    assert refused.value.violations[0].remedy


def test_the_contract_keeps_all_of_it(project: Path) -> None:
    code = {"ship": True, "digest": DIGEST, "size_bytes": 7, "files": 2, "commit": "c" * 40, "dirty": True}
    for trial in ({}, {"code": "ship"}, {"code": "folder"}, {"code": code, "requirements": "a/uv.lock"}):
        found = spec(project, **trial)
        assert from_proto(to_proto(found)) == found
        assert StudySpec.model_validate(found.model_dump(mode="json")) == found


def test_the_file_says_it(project: Path) -> None:
    file = project / "study.yaml"
    file.write_text(
        "name: s\nobjective: {metric: loss, goal: minimize}\nspace: {x: {type: float, low: 0, high: 1}}\n"
        "trials: 2\nsteps: 2\ntrial: {callable: 'train:train', code: ship, requirements: uv.lock}\n"
    )
    template = load_study_file(file).spec.template
    assert template is not None
    assert (template.code, template.requirements) == (Code(ship=True), "uv.lock")


def test_a_client_on_this_machine_ships_nothing_and_asks_nothing(
    client: Client, fake: Any, project: Path
) -> None:
    client.create_study("s", spec(project))
    [request] = fake.requests["CreateStudy"]
    assert not request.spec.template.HasField("code")


def test_an_upload_that_takes_longer_than_a_second_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    class Quiet:
        class errors:  # noqa: N801 - an output's
            is_terminal = False

        def status(self, _: str) -> Any:
            return nullcontext(lambda _: None)

        def note(self, text: str) -> None:
            told.append(text)

    with progress(Quiet()) as on_bytes:  # type: ignore[arg-type]
        for second, sent in ((0.2, 1), (0.9, 2), (1.1, 3), (1.9, 4), (3.2, 5)):
            now[0] = 100.0 + second
            on_bytes(sent << 20, 10 << 20)
    assert told == ["Shipping the code: 3.0 MiB of 10.0 MiB", "Shipping the code: 5.0 MiB of 10.0 MiB"]


def test_described_says_nothing_of_what_is_not_known() -> None:
    assert described(Code(ship=False)) == ""
    assert json.loads(json.dumps(Code(ship=True).model_dump()))["ship"] is True
