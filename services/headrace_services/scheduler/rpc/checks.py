"""What is wrong with a request, gathered field by field so that the caller sees all of it at once."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from google.protobuf.duration_pb2 import Duration

from headrace.errors import InvalidFieldError, Violation, show_value

MAX_TEXT = 8192

T = TypeVar("T")


class Checks:
    """Collects violations; `done` raises them."""

    def __init__(self) -> None:
        self._violations: list[Violation] = []

    def note(self, field: str, value: object, message: str, remedy: str) -> None:
        """Note a violation, with the value that was found."""
        self._violations.append(
            Violation(field=field, value=show_value(value), message=message, remedy=remedy)
        )

    def take(self, check: Callable[[], T]) -> T | None:
        """What another check returns; None, with its violations noted, where it raises InvalidFieldError."""
        try:
            return check()
        except InvalidFieldError as error:
            self._violations += error.violations
            return None

    def text(self, field: str, value: str, *, required: bool = False, longest: int = MAX_TEXT) -> str:
        """A text that the database can hold."""
        if required and not value:
            self._violations.append(Violation(field=field, message="is required", remedy="Set it."))
        if len(value) > longest:
            self.note(field, value, f"is longer than {longest} characters", "Shorten it.")
        if "\0" in value:
            self.note(field, value, "holds a NUL character", "Remove it.")
        return value

    def names(self, field: str, values: Iterable[str]) -> None:
        """The keys of a map."""
        for name in values:
            self.text(f"{field}.{name}" if name else field, name, required=True, longest=256)

    def at_least(self, field: str, value: int, least: int) -> int:
        """An integer with a lower bound."""
        if value < least:
            self.note(field, value, f"is less than {least}", f"Give {least} or more.")
        return value

    def seconds(self, field: str, value: Duration, *, least: float, most: float) -> float:
        """A duration within bounds, in seconds."""
        seconds = value.seconds + value.nanos / 1e9
        if not least <= seconds <= most:
            self.note(field, f"{seconds:g} s", "is out of bounds", f"Give {least:g} s to {most:g} s.")
        return seconds

    def done(self) -> None:
        """Raise InvalidFieldError where anything was noted."""
        if self._violations:
            raise InvalidFieldError(self._violations)
