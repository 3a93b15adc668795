"""The scalar types of a study: numbers, texts and parameter values that mean the same in every encoding.

A spec travels as YAML, protobuf and JSON (which the scheduler stores as JSONB), and must come back equal, with
bools, integers and floats kept distinct. So bools are not integers, 3.0 is accepted as an integer where one is
required, NaN and infinities are rejected, integers fit in 64 bits, and texts contain neither NUL (which Postgres
rejects) nor lone surrogates (which protobuf rejects).

JSONB stores numbers as decimals and prints 1e16 as 10000000000000000, which reads back as an integer. So floats
of that size inside a `Value` are written as `{"float": 1e16}` in JSON.
"""

import math
import sys
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Annotated, Any, Final

from pydantic import PlainSerializer, PlainValidator

from headrace.bounds import numbers
from headrace.metrics import plain_scalar
from headrace.spec.problems import fault

INT64_MAX: Final = 2**63 - 1
INT64_MIN: Final = -(2**63)
_WHOLE_IN_JSONB: Final = 1e16


def meaning(value: object) -> tuple[bool, object]:
    """The key that values with the same meaning share: 1 and 1.0 do, 1 and true do not."""
    return (isinstance(value, bool), value)


def integer_within(low: int, high: int) -> Callable[[Any], int]:
    """A validator for whole numbers in [low, high]."""

    def check(value: Any) -> int:
        whole = _whole(value)
        if whole is None:
            raise fault("must be a whole number", "Write it without quotes and without a fraction.")
        if not low <= whole <= high:
            bound = f"at least {low}" if whole < low else f"at most {high}"
            raise fault(f"must be {bound}", f"Choose a number from {low} to {high}.")
        return whole

    return check


def _whole(value: object) -> int | None:
    match plain_scalar(value):
        case bool():
            return None
        case int() as number:
            return number
        case float() as number if number.is_integer():
            return int(number)
        case _:
            return None


def _real(value: Any) -> float:
    value = plain_scalar(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        remedy = "Write it without quotes, such as 0.1 or 1e-4."
        if isinstance(value, str) and "e" in value and _is_real(value):
            remedy += f" PyYAML reads {value} as text: give the file's path, or write it with a point, as in 1.0e-4."
        raise fault("must be a number", remedy)
    return _finite(value)


def _is_real(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _finite(value: float) -> float:
    try:
        real = float(value)
    except OverflowError:
        real = math.inf
    if not math.isfinite(real):
        raise fault("must be a finite number", "NaN and infinity have no place here; write a number.")
    return real


def text_of(value: Any) -> str:
    """A text that every encoding of a spec can represent."""
    if not isinstance(value, str):
        raise fault("must be a text", "Put it in quotes.")
    if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
        raise fault("must not hold a NUL character or a lone surrogate", "Remove it.")
    return value


def _flag(value: Any) -> bool:
    value = plain_scalar(value)
    if not isinstance(value, bool):
        raise fault("must be true or false", "Write true or false, without quotes.")
    return value


def check_value(value: Any) -> bool | int | float | str:
    """A parameter's value, with its type preserved; also reads the JSON form of a large float. NumPy scalars are
    accepted like Python's.
    """
    value = plain_scalar(value)
    match value:
        case bool():
            return value
        case int():
            if not INT64_MIN <= value <= INT64_MAX:
                raise fault("does not fit 64 bits", "Write it as a float, such as 1e19.")
            return value
        case float():
            return _finite(value)
        case str():
            return text_of(value)
        case {"float": int() | float() as number, **rest} if not rest and not isinstance(number, bool):
            return _finite(number)
        case _:
            remedy = "Write a word for it, such as none." if value is None else "Write one plain value."
            raise fault("must be a number, a text, true or false", remedy)


def existing(values: Any) -> Any:
    """A configuration without values that are None or `pandas.NA`, which rows of a data frame have for missing
    parameters.
    """
    if not isinstance(values, Mapping):
        return values
    pandas = sys.modules.get("pandas")
    missing = None if pandas is None else pandas.NA
    return {name: value for name, value in values.items() if value is not None and value is not missing}


def value_to_json(value: float | str) -> float | str | dict[str, float]:
    """A value as JSON from which JSONB restores its type."""
    if isinstance(value, float) and abs(value) >= _WHOLE_IN_JSONB:
        return {"float": value}
    return value


def _duration(value: Any) -> timedelta:
    if isinstance(value, timedelta):
        duration = value
    else:
        seconds = _real(value)
        if abs(seconds) > numbers.SECONDS:
            raise fault(f"must be at most {numbers.SECONDS} seconds", "Leave it out for no limit.")
        duration = timedelta(seconds=seconds)
    if not timedelta(0) <= duration <= timedelta(seconds=numbers.SECONDS):
        raise fault("must be a number of seconds, 0 or more", "Write it as seconds, such as 30.")
    return duration


Value = Annotated[
    bool | int | float | str,
    PlainValidator(check_value),
    PlainSerializer(value_to_json, return_type=Any, when_used="json"),
]
Real = Annotated[float, PlainValidator(_real)]
Integer = Annotated[int, PlainValidator(integer_within(INT64_MIN, INT64_MAX))]
Steps = Annotated[int, PlainValidator(integer_within(1, numbers.STEPS))]
Bytes = Annotated[int, PlainValidator(integer_within(0, numbers.BYTES))]
Count = Annotated[int, PlainValidator(integer_within(1, numbers.COUNT))]
CountOrZero = Annotated[int, PlainValidator(integer_within(0, numbers.COUNT))]
Slots = Annotated[int, PlainValidator(integer_within(1, numbers.DEVICES))]
SlotsOrZero = Annotated[int, PlainValidator(integer_within(0, numbers.DEVICES))]
Milli = Annotated[int, PlainValidator(integer_within(0, 999))]
Seed = Annotated[int, PlainValidator(integer_within(0, INT64_MAX))]
Text = Annotated[str, PlainValidator(text_of)]
Flag = Annotated[bool, PlainValidator(_flag)]
Duration = Annotated[
    timedelta,
    PlainValidator(_duration),
    PlainSerializer(timedelta.total_seconds, return_type=float, when_used="json"),
]
