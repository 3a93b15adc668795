"""Checks of a request that is within its bounds. They collect all violations, so that the caller sees them at
once."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from google.protobuf.duration_pb2 import Duration

from headrace.errors import InvalidFieldError, Violation, show_value

T = TypeVar("T")


class Checks:
    """Collects violations; `done` raises them together."""

    def __init__(self) -> None:
        self._violations: list[Violation] = []

    def note(self, field: str, value: object, message: str, remedy: str) -> None:
        """Record a violation, with the value that was found."""
        self._violations.append(
            Violation(field=field, value=show_value(value), message=message, remedy=remedy)
        )

    def run(self, check: Callable[[], T]) -> T | None:
        """Return the result of another check; None, with its violations recorded, if it raises InvalidFieldError."""
        try:
            return check()
        except InvalidFieldError as error:
            self._violations += error.violations
            return None

    async def run_later(self, check: Awaitable[T]) -> T | None:
        """The same for an asynchronous check."""
        try:
            return await check
        except InvalidFieldError as error:
            self._violations += error.violations
            return None

    def required(self, field: str, value: str) -> None:
        """A text that must be set."""
        if not value:
            self._violations.append(Violation(field=field, message="is required", remedy="Set it."))

    def at_least(self, field: str, value: int, least: int) -> int:
        """An integer with a lower bound."""
        if value < least:
            self.note(field, value, f"is less than {least}", f"Give {least} or more.")
        return value

    def seconds(self, field: str, value: Duration, *, least: float, most: float) -> float:
        """A duration within bounds, in seconds."""
        seconds = value.seconds + value.nanos / 1e9
        if not least <= seconds <= most:
            self.note(field, f"{seconds:g} s", "is out of bounds", f"Give {least:g} s to {most:.10g} s.")
        return seconds

    def done(self) -> None:
        """Raise InvalidFieldError if anything was recorded."""
        if self._violations:
            raise InvalidFieldError(self._violations)
