"""Checks of what users write, collected so that one answer names every field at fault."""

import difflib
import math
from collections.abc import Iterable, Mapping
from typing import Any

from headrace.errors import InvalidFieldError, Violation, show_value


class Checker:
    """Collects violations below a path; a checker of a deeper path shares the list."""

    def __init__(self, path: str, violations: list[Violation] | None = None) -> None:
        self._path = path
        self._violations: list[Violation] = [] if violations is None else violations
        self._before = len(self._violations)

    @property
    def clean(self) -> bool:
        """Whether no violation was found since this checker was made."""
        return len(self._violations) == self._before

    @property
    def violations(self) -> list[Violation]:
        """What was found, shared with every checker of the same tree."""
        return self._violations

    def below(self, field: str) -> "Checker":
        """A checker of a part."""
        return Checker(self._at(field), self._violations)

    def fail(self, field: str, value: object, message: str, remedy: str) -> None:
        """Records one field at fault."""
        shown = "" if value is None else show_value(value)
        self._violations.append(Violation(field=self._at(field), value=shown, message=message, remedy=remedy))

    def done(self) -> None:
        """Raises InvalidFieldError if anything is at fault."""
        if self._violations:
            raise InvalidFieldError(self._violations)

    def known(self, source: Mapping[str, Any], fields: Iterable[str]) -> None:
        """Checks that every key is known; an unknown key gets the nearest names."""
        allowed = sorted(fields)
        for key in source:
            if key not in allowed:
                self.fail(str(key), None, "is not a known field", nearest(str(key), allowed))

    def integer(
        self, source: Mapping[str, Any], field: str, *, low: int, high: int, default: int | None = None
    ) -> int:
        """A whole number within [low, high]; a substitute if it is at fault, so that checking can continue."""
        value = source.get(field, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if value is None:
            self.fail(field, None, "is missing", f"Give a whole number of at least {low}.")
            return low
        if isinstance(value, bool) or not isinstance(value, int):
            self.fail(field, value, "must be a whole number", "Write digits only.")
            return low
        if not low <= value <= high:
            self.fail(field, value, f"must be from {low} to {high}", "Check the number and its unit.")
            return low
        return value

    def number(
        self,
        source: Mapping[str, Any],
        field: str,
        *,
        low: float,
        high: float,
        unit: str = "",
        default: float | None = None,
    ) -> float:
        """A finite number within [low, high] `unit`."""
        value = source.get(field, default)
        if value is None:
            self.fail(field, None, "is missing", f"Give a number{' of ' + unit if unit else ''}.")
            return low
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            self.fail(field, value, "must be a finite number", "Write it without a unit.")
            return low
        if not low <= value <= high:
            limits = f"must be from {low:g} to {high:g} {unit}".rstrip()
            self.fail(field, value, limits, f"The unit is {unit}; check it." if unit else "Check it.")
            return low
        return float(value)

    def flag(self, source: Mapping[str, Any], field: str, *, default: bool) -> bool:
        """A boolean value."""
        value = source.get(field, default)
        if not isinstance(value, bool):
            self.fail(field, value, "must be true or false", "Write true or false.")
            return default
        return value

    def _at(self, field: str) -> str:
        return f"{self._path}.{field}" if self._path and field else self._path or field


def nearest(name: str, names: Iterable[str]) -> str:
    """A remedy that names the nearest existing names."""
    all_names = sorted(names)
    close = difflib.get_close_matches(name.lower(), all_names, n=3, cutoff=0.4)
    if close:
        return f"Did you mean {' or '.join(close)}?"
    return f"There are {', '.join(all_names)}."
