"""The arguments of `headrace worker` that need more than a type: names, labels, and options that exclude each other."""

from collections.abc import Sequence
from typing import Final

import typer

from headrace import worker_labels
from headrace.errors import InvalidFieldError, Violation
from headrace.spec import names

LABEL: Final = "KEY=VALUE"


def labels_of(items: Sequence[str], *, ephemeral: bool = False) -> dict[str, str]:
    """The labels of `--label KEY=VALUE`, and Headrace's own. Raises typer.BadParameter."""
    labels = {}
    for item in items:
        key, equals, value = item.partition("=")
        if not key or not equals:
            raise typer.BadParameter(f"{item!r} is not {LABEL}", param_hint="--label")
        if key.startswith(worker_labels.OWN):
            said = f"{key!r} begins like Headrace's own labels. Choose a name without {worker_labels.OWN}"
            raise typer.BadParameter(said, param_hint="--label")
        labels[checked(names.LABEL, key, "--label")] = value
    if ephemeral:
        labels[worker_labels.EPHEMERAL] = worker_labels.YES
    return labels


def checked(rule: names.NameRule, name: str, option: str) -> str:
    """The name, if it follows the rule. Raises typer.BadParameter."""
    problem = rule.problem(name)
    if problem is not None:
        raise typer.BadParameter(f"{problem.message}. {problem.remedy}", param_hint=option)
    return name


def run_as_with_bubbles() -> InvalidFieldError:
    """The error for two options that exclude each other."""
    violation = Violation(
        field="--run-as",
        message="cannot be combined with --bubbles, whose gates belong to the job's user",
        remedy="Start two workers, or leave one of the options out.",
    )
    return InvalidFieldError([violation])
