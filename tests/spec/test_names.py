"""Names that people choose: one rule and one sentence for each kind, wherever the name comes from."""

import pytest
import typer
from study_file_samples import MINIMAL

from headrace.errors import InvalidFieldError
from headrace.spec import check_study_id, names, parse_spec
from headrace.spec.yaml import read_yaml
from headrace.v1 import worker_pb2
from headrace_services.scheduler.session import messages
from headrace_worker import command


def refused(raised: pytest.ExceptionInfo[InvalidFieldError]) -> str:
    (violation,) = raised.value.violations
    assert "(got" not in str(violation), "the name stands in the sentence"
    return str(violation)


def test_a_study():
    with pytest.raises(InvalidFieldError) as raised:
        check_study_id("x y", field="name")
    assert refused(raised) == (
        "name: invalid study name 'x y': use lower-case letters, digits and -, beginning with a letter, "
        "63 characters at most. For example: x-y."
    )


@pytest.mark.parametrize("option", ["--name", "--label"])
def test_on_the_command_line_of_a_worker(option, tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
    monkeypatch.setattr("headrace_worker.daemon.Daemon.run", lambda _: pytest.fail("the worker started"))
    arguments = {"name": "x y"} if option == "--name" else {"label": ["x y=1"]}
    with pytest.raises(typer.BadParameter) as raised:
        command.worker(scheduler="127.0.0.1:1", **arguments)
    assert f"invalid {option.removeprefix('--').replace('name', 'worker')} name 'x y': use" in str(
        raised.value
    )


def test_of_a_worker_that_connects():
    with pytest.raises(InvalidFieldError) as raised:
        messages.greeting(
            worker_pb2.Hello(protocol=1, worker="x y", incarnation="1", labels={"my zone": "a"})
        )
    assert [violation.field for violation in raised.value.violations] == ["hello.worker", "hello.labels"]
    assert "hello.worker: invalid worker name 'x y': use letters" in str(raised.value)
    assert "invalid label name 'my zone': use letters" in str(raised.value)


@pytest.mark.parametrize(
    "rule",
    [names.STUDY, names.PARAMETER, names.METRIC, names.WORKER, names.LABEL],
    ids=lambda rule: rule.kind,
)
@pytest.mark.parametrize("name", ["x y", "", "!!", "9 lives", "É", "a\nb", "x" * 500, " Val Loss "])
def test_what_is_suggested_is_allowed(rule, name):
    suggested = rule.suggestion(name).removeprefix("For example: ").removesuffix(".")
    assert rule.admits(suggested)
    assert rule.admits(rule.example)
    assert not rule.admits(name)


@pytest.mark.parametrize(
    ("rule", "use"),
    [
        (names.STUDY, "lower-case letters, digits and -, beginning with a letter"),
        (names.PARAMETER, "letters, digits, _ . and -, beginning with a letter or _"),
        (names.METRIC, "letters, digits, _ . / @ and -, beginning with a letter or _"),
        (names.WORKER, "letters, digits, _ . and -, beginning with a letter, a digit or _"),
    ],
)
def test_a_rule_in_words(rule, use):
    assert rule.use == use


def test_a_name_that_is_no_text_is_shown_as_it_was_written():
    with pytest.raises(InvalidFieldError) as raised:
        parse_spec({**read_yaml(MINIMAL)[0], "name": 3})
    assert refused(raised).startswith("name: invalid study name 3: use lower-case letters, digits and -")


@pytest.mark.parametrize(("name", "said"), [("my\0study", "mystudy"), ("my\u200b study\x07", "my-study")])
def test_characters_that_cannot_be_seen_are_to_be_removed(name, said):
    with pytest.raises(InvalidFieldError) as raised:
        check_study_id(name, field="name")
    assert refused(raised).endswith(f"Remove the characters that cannot be seen. For example: {said}.")
