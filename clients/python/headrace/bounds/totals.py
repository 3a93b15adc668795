"""Bounds on the total of several fields of a message, each of which alone may be larger.

A spec is checked and stored in some tens of milliseconds: its space is small in total, and a large space is
checked against few configurations at once.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from headrace.bounds import numbers as n
from headrace.bounds.kinds import Fault, number


@dataclass(frozen=True, slots=True, kw_only=True)
class Total:
    """A sum or a product of counts, at most `most`. `count` does not look into entries, so it is cheap."""

    field: str
    what: str
    most: int
    count: Callable[[Any], int]
    remedy: str

    def __str__(self) -> str:
        return f"{number(self.most)} {self.what}"

    def check(self, message: Any) -> list[Fault]:
        """What is wrong with a message, if anything is."""
        count = self.count(message)
        if count <= self.most:
            return []
        said = f"comes to {count} {self.what}, which is more than {self.most}"
        return [Fault(path=self.field, message=said, remedy=self.remedy)]


def _parameters(spec: Any) -> list[Any]:
    """The parameters; another check bounds their number."""
    return list(spec.space[: n.PARAMETERS])


def _conditions(spec: Any) -> Iterator[Any]:
    return (one for parameter in _parameters(spec) for one in parameter.conditions[: n.CONDITIONS])


def _condition_count(spec: Any) -> int:
    return sum(1 for _ in _conditions(spec))


def _value_count(spec: Any) -> int:
    choices = sum(len(parameter.categorical.values) for parameter in _parameters(spec))
    return choices + sum(len(condition.values) for condition in _conditions(spec))


def _check_count(spec: Any) -> int:
    return len(spec.enqueued) * (len(_parameters(spec)) + _condition_count(spec))


TOTALS: Final[dict[str, tuple[Total, ...]]] = {
    "StudySpec": (
        Total(
            field="space",
            what="conditions in all",
            most=n.CONDITIONS_IN_ALL,
            count=_condition_count,
            remedy="Put a condition on the first parameter of a branch, or leave out what does not vary.",
        ),
        Total(
            field="space",
            what="values in all, of categorical parameters and of conditions",
            most=n.VALUES_IN_ALL,
            count=_value_count,
            remedy="List fewer values, or use an int parameter for long lists of numbers.",
        ),
        Total(
            field="enqueued",
            what="configurations times parameters and conditions",
            most=n.CONFIGURATION_CHECKS,
            count=_check_count,
            remedy="Enqueue fewer, and add the others with AddTrials.",
        ),
    ),
}
"""Totals by message."""
