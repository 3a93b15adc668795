"""`headrace add`: configurations from the command line or a file, all or none."""

import json
from pathlib import Path

import pytest
from commands_run import Invoke
from fake_study_service import FakeStudyService

from headrace.client import convert


def sent(fake: FakeStudyService) -> list[dict[str, object]]:
    (request,) = fake.requests["AddTrials"]
    return [dict(convert.params(parameters)) for parameters in request.parameters]


def test_configurations_are_given_one_by_one(fake: FakeStudyService, invoke: Invoke) -> None:
    one, two = "{lr: 0.01, kind: a}", '{"lr": 3, "kind": "b"}'
    done = invoke("add", "digits", "--params", one, "--params", two)
    assert done.code == 0, done.err
    assert sent(fake) == [{"lr": 0.01, "kind": "a"}, {"lr": 3, "kind": "b"}]
    assert done.out.splitlines()[0] == "Trial 100 of study digits: lr=0.01 kind=a"


def test_configurations_of_a_file(fake: FakeStudyService, invoke: Invoke, tmp_path: Path) -> None:
    file = tmp_path / "more.yaml"
    file.write_text("- {lr: 0.01, deep: true}\n- {lr: 0.02, deep: false}\n")
    shown = json.loads(invoke("add", "digits", "--file", str(file), "--json").out)
    assert [trial["trial"] for trial in shown] == [100, 101]
    assert sent(fake) == [{"lr": 0.01, "deep": True}, {"lr": 0.02, "deep": False}]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "No configuration given"),
        (("--params", "[1, 2]"), "--params [1, 2] is not a configuration"),
        (("--params", "{lr: [1]}"), "is not a configuration"),
        (("--params", "{}"), "is not a configuration"),
        (("--params", "{lr: 1, lr: 2}"), "is not a configuration"),
        (("--params", "{lr: 1"), "is not valid YAML"),
        (("--file", "none.yaml"), "none.yaml cannot be read"),
        (("--file", "mapping.yaml"), "mapping.yaml is not a list of configurations"),
        (("--file", "items.yaml"), "items.yaml, item 1 is not a configuration"),
    ],
)
def test_what_is_no_configuration_is_refused_before_anything_is_sent(
    fake: FakeStudyService,
    invoke: Invoke,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mapping.yaml").write_text("lr: 0.01\n")
    Path("items.yaml").write_text("- {lr: 0.01}\n- 3\n")
    refused = invoke("add", "digits", *arguments)
    assert refused.code == 2
    assert said in " ".join(refused.err.split())
    assert not fake.requests["AddTrials"]
