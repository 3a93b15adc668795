"""Command lines with placeholders."""

from typing import Any

import pytest

from headrace.errors import InvalidFieldError
from headrace.spec import CommandLine, parse_spec


@pytest.mark.parametrize(
    ("args", "filled"),
    [
        (("run", "--lr={lr}"), ["run", "--lr=0.001"]),
        (("run", "{lr}", "{lr}-{depth}"), ["run", "0.001", "0.001-3"]),
        (("{trial}", "{seed}"), ["7", "99"]),
        (("{{lr}}", "a{{b"), ["{lr}", "a{b"]),
        (("{{{lr}}}",), ["{0.001}"]),
        (("--flag={flag}", "--{name}"), ["--flag=true", "--a b; rm -rf /"]),
        (("run", "--momentum={momentum}", "last"), ["run", "last"]),
        (("{tiny}",), ["1e-05"]),
        (("",), [""]),
    ],
)
def test_fill(args, filled):
    params = {"lr": 0.001, "depth": 3, "flag": True, "name": "a b; rm -rf /", "tiny": 1e-5}
    assert CommandLine(args=args).fill(params, trial=7, seed=99) == filled


def test_a_value_with_braces_is_not_filled_again():
    assert CommandLine(args=("{a}",)).fill({"a": "{trial}"}, trial=1, seed=2) == ["{trial}"]


def study_with(*command: str) -> Any:
    space = {
        "optimizer": {"type": "categorical", "values": ["sgd", "adam"]},
        "lr": {"type": "float", "low": 0.1, "high": 1.0},
        "momentum": {"type": "float", "low": 0.0, "high": 0.9, "when": {"optimizer": "sgd"}},
    }
    trial = {"command": list(command), "working_dir": "/w"}
    objective = {"metric": "loss", "goal": "minimize"}
    return parse_spec({"objective": objective, "space": space, "trial": trial, "trials": 3, "steps": 2})


@pytest.mark.parametrize(
    "command",
    [
        ("python", "t.py", "--momentum={momentum}", "--lr", "{lr}"),
        ("python", "t.py", "--lr", "{lr}", "{momentum}"),
        ("python", "t.py", "-1", "{momentum}"),
        ("python", "t.py", "--", "{momentum}"),
        ("python", "t.py", "--pair={lr}", "{momentum}"),
    ],
)
def test_a_conditional_argument_that_can_be_left_out(command: tuple[str, ...]) -> None:
    assert study_with(*command).template.command.args == command


@pytest.mark.parametrize("option", ["--momentum", "-m", "--sgd-momentum"])
def test_an_option_that_would_take_the_next_argument_is_refused(option: str) -> None:
    with pytest.raises(InvalidFieldError) as refused:
        study_with("python", "t.py", option, "{momentum}", "--lr", "{lr}")
    (violation,) = refused.value.violations
    assert violation.field == "trial.command[3]"
    assert f"but {option} before it is not" in violation.message
    assert violation.remedy == f"Write both as one argument: {option}={{momentum}}"


def test_a_program_that_may_not_be_there_is_refused() -> None:
    with pytest.raises(InvalidFieldError, match="is the program"):
        study_with("{momentum}", "t.py")
