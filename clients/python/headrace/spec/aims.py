"""A study described by a call in Python: its objectives by direction, and everything else under the keys of a
study file.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from headrace.errors import InvalidFieldError, Violation, show_value
from headrace.spec.file import parse_spec
from headrace.spec.objective import Goal
from headrace.spec.study import StudySpec

VALUE: Final = "value"
"""The objective's default name: the value that the function returns is minimized."""

Names = str | Sequence[str]
"""One metric, or several."""


def spec_of_call(
    space: object,
    *,
    minimize: Names,
    maximize: Names,
    scope: str | None = None,
    k: int | None = None,
    **settings: Any,
) -> StudySpec:
    """The spec for a call such as `optimize(fn, space, minimize="loss", trials=20)`; None leaves a setting out.

    Raises `InvalidFieldError` with every violation, under the names used in the call.
    """
    wanted = [("minimize", Goal.MINIMIZE, name) for name in names_of("minimize", minimize)]
    wanted += [("maximize", Goal.MAXIMIZE, name) for name in names_of("maximize", maximize)]
    objectives = [{"metric": name, "goal": goal.value} for _, goal, name in wanted]
    objectives = objectives or [{"metric": VALUE, "goal": Goal.MINIMIZE.value}]
    counts = {"scope": scope, "k": k}
    first = objectives[0] | {key: value for key, value in counts.items() if value is not None}
    data: dict[str, Any] = {"space": space, "objective": first}
    if objectives[1:]:
        data["further_objectives"] = objectives[1:]
    data |= {key: value for key, value in settings.items() if value is not None}
    try:
        return parse_spec(data)
    except InvalidFieldError as error:
        named = {f"further_objectives[{place}].metric": one[0] for place, one in enumerate(wanted[1:])}
        named |= {"objective.metric": wanted[0][0]} if wanted else {}
        named |= {"objective.scope": "scope", "objective.k": "k"}
        raise InvalidFieldError(
            replace(one, field=named.get(one.field, one.field)) for one in error.violations
        ) from None


def names_of(argument: str, given: object) -> list[str]:
    """The metrics that an argument names."""
    names = [given] if isinstance(given, str) else given
    if isinstance(names, Sequence) and all(isinstance(name, str) for name in names):
        return list(names)
    message, remedy = "names no metric", f'Write {argument}="loss", or a list of names.'
    raise InvalidFieldError(
        [Violation(field=argument, value=show_value(given), message=message, remedy=remedy)]
    )


def require_mapping(space: object) -> None:
    """Raises `InvalidFieldError` if the space is not a mapping. The spec finds its other problems."""
    if not isinstance(space, Mapping):
        remedy = 'Write it as {"lr": {"type": "float", "low": 1e-4, "high": 1e-1, "log": True}}.'
        violation = Violation(
            field="space", value=show_value(space), message="must be a mapping by parameter", remedy=remedy
        )
        raise InvalidFieldError([violation])
