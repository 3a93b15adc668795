"""The conditions of a parameter as a study file writes them, under `when`."""

from collections.abc import Mapping
from typing import Any, Final

from headrace.spec.problems import Loc, Problem

_OPERATORS: Final = {
    ">=": "at_least",
    ">": "above",
    "<=": "at_most",
    "<": "below",
    "in": "values",
    "==": "values",
}
_EXAMPLE: Final = '`{">=": 64}`'


def spelt_out(when: Mapping[Any, Any], loc: Loc, problems: list[Problem]) -> list[dict[str, Any]]:
    """The conditions under the spec's names."""
    return [
        {"parameter": parent, **_compared(wanted, (*loc, str(parent)), problems)}
        for parent, wanted in when.items()
    ]


def _compared(wanted: object, loc: Loc, problems: list[Problem]) -> dict[str, Any]:
    """One condition's values or bounds: `sgd`, `[sgd, adam]`, `{">=": 64, "<": 256}`."""
    if not isinstance(wanted, Mapping):
        return {"values": _listed(wanted)}
    found: dict[str, Any] = {}
    for operator, operand in wanted.items():
        key = _OPERATORS.get(str(operator))
        if key is None:
            remedy = f"Write one of {', '.join(_OPERATORS)}, as in {_EXAMPLE}."
            message = "is not a known comparison"
            problems.append(Problem(loc=loc, value=operator, message=message, remedy=remedy))
        else:
            found[key] = _listed(operand) if key == "values" else operand
    if not wanted:
        problems.append(Problem(loc=loc, message="has no comparison", remedy=f"Write one, as in {_EXAMPLE}."))
    return found or {"values": []}  # the spec adds nothing: this place already has a problem


def _listed(values: object) -> list[Any] | tuple[Any, ...]:
    return values if isinstance(values, list | tuple) else [values]
