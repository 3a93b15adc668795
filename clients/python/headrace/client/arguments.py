"""Numbers that a caller passes to a method of the SDK. NumPy's are accepted like Python's; an error names what
is not a number.

Whether a number is within its bounds is for the scheduler to check: its errors name its own field and the
bounds. If the SDK has a different name for the field, the SDK checks it.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic_core import PydanticCustomError

from headrace.bounds.kinds import Span
from headrace.errors import InvalidFieldError, Violation, show_value
from headrace.metrics import plain_scalar
from headrace.spec.scalars import check_value, existing

_INT64 = 1 << 63


def whole_number(field: str, value: object, remedy: str, *, least: int = -_INT64) -> int:
    """A whole number that fits in 64 bits; 3.0 is accepted. Raises `InvalidFieldError`."""
    number = plain_scalar(value)
    if isinstance(number, float) and number.is_integer():
        number = int(number)
    if isinstance(number, bool) or not isinstance(number, int) or not -_INT64 <= number < _INT64:
        raise _refusal(field, value, "is not a whole number", remedy)
    if number < least:
        raise _refusal(field, value, f"is below {least}", remedy)
    return number


def whole_numbers(field: str, values: object, remedy: str) -> list[int]:
    """One or more whole numbers, none below 0. Raises `InvalidFieldError`."""
    several = isinstance(values, Iterable) and not isinstance(values, str | bytes) and not _is_scalar(values)
    found: list[Any] = list(values) if several and isinstance(values, Iterable) else [values]
    return [whole_number(field, value, remedy, least=0) for value in found]


def seconds(field: str, value: object, *, endless: bool = False, within: Span | None = None) -> float:
    """A time in seconds; with `endless` it may be infinite. Raises `InvalidFieldError`."""
    number = plain_scalar(value)
    is_number = isinstance(number, int | float) and not isinstance(number, bool)
    if not is_number or math.isnan(number) or (math.isinf(number) and not endless):
        raise _refusal(field, value, "is not a number of seconds", f"Give a number, such as {field}=30.")
    if within is not None and not within.least_s <= number <= within.most_s:
        raise _refusal(field, value, "is out of bounds", f"Give {within}.")
    return float(number)


def timeout(value: object, field: str = "timeout_s") -> float | None:
    """The longest time to wait; None: no limit. Raises `InvalidFieldError`."""
    return None if value is None else seconds(field, value, endless=True)


def parameters(field: str, given: Mapping[str, object]) -> dict[str, Any]:
    """The values of a configuration, by name. Raises `InvalidFieldError`."""
    found: dict[str, Any] = {}
    for name, value in existing(given).items():
        try:
            found[name] = check_value(value)
        except PydanticCustomError as error:
            why = error.context or {}
            raise _refusal(f"{field}.{name}", value, why["message"], why["remedy"]) from None
    return found


def cursor(after: object) -> int:
    """The position in a study's log after which to continue. Raises `InvalidFieldError`."""
    return whole_number("after", after, "Give the cursor of an event, or 0 for all.")


def _is_scalar(value: object) -> bool:
    return plain_scalar(value) is not value


def _refusal(field: str, value: object, message: str, remedy: str) -> InvalidFieldError:
    return InvalidFieldError(
        [Violation(field=field, value=show_value(value), message=message, remedy=remedy)]
    )
