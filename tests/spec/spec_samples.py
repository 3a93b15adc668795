"""Plain data of a valid study, and how to spoil it in one place."""

import copy
from typing import Any

from headrace.errors import InvalidFieldError, Violation
from headrace.spec import parse_spec

SOUND: dict[str, Any] = {
    "objective": {"metric": "val_loss", "goal": "minimize"},
    "space": {
        "optimizer": {"type": "categorical", "values": ["sgd", "adam"]},
        "lr": {"type": "float", "low": 1e-5, "high": 0.1, "log": True},
        "momentum": {
            "type": "float",
            "low": 0.0,
            "high": 0.99,
            "conditions": [{"parameter": "optimizer", "values": ["sgd"]}],
        },
        "depth": {"type": "int", "low": 1, "high": 9, "step": 2},
    },
    "policy": {"kind": "asha", "eta": 3, "rungs": [1, 3, 9, 27]},
    "template": {"callable": "train:train", "working_dir": "/studies"},
    "max_trials": 27,
    "max_steps": 27,
    "baseline": {"optimizer": "sgd", "lr": 0.001, "momentum": 0.9, "depth": 3},
}
DELETE = object()
LEARNING_RATE = {"type": "float", "low": 1e-4, "high": 1.0}
SMALL: dict[str, Any] = {
    "objective": {"metric": "loss", "goal": "minimize"},
    "trial": {"callable": "train:train", "working_dir": "/data"},
    "space": {"lr": LEARNING_RATE},
    "trials": 9,
    "steps": 9,
}
"""A valid study in the words of a study file."""


def spoiled(**changes: Any) -> dict[str, Any]:
    """The valid study with values set (or deleted) at paths; `__` goes one level down."""
    data = copy.deepcopy(SOUND)
    for path, value in changes.items():
        *parents, last = path.split("__")
        place = data
        for parent in parents:
            place = place.setdefault(parent, {})
        if value is DELETE:
            del place[last]
        else:
            place[last] = value
    return data


def violations(data: Any) -> dict[str, Violation]:
    """What is wrong with the data, by field path."""
    raised: tuple[Violation, ...] = ()
    try:
        parse_spec(data)
    except InvalidFieldError as error:
        raised = error.violations
    found = {violation.field: violation for violation in raised}
    assert len(found) == len(raised), "a field is reported twice"
    return found


def assert_says(found: Violation, expected: str) -> None:
    """`expected` is part of the message, ` | ` and part of the remedy, which may be left out."""
    message, _, remedy = expected.partition(" | ")
    assert message in found.message
    assert remedy in found.remedy
    assert found.remedy.endswith((".", "?"))
    assert "\n" not in str(found)


def assert_refused(data: Any, field: str, expected: str, *, alone: bool = True) -> None:
    """The field is at fault, alone or among others, with the expected words (as in `assert_says`)."""
    found = violations(data)
    assert list(found) == [field] if alone else field in found
    assert_says(found[field], expected)
