"""The values of a filter's terms: numbers and times. Pure functions."""

from datetime import UTC, datetime
from math import isnan

from headrace import ages
from headrace.query.terms import Term


def as_number(text: str) -> float:
    """The number that a text writes. Raises ValueError, also for Python's `1_0`."""
    if "_" in text:
        raise ValueError(text)
    return float(text)


def number(term: Term, value: str) -> float:
    """A number. Raises InvalidFieldError; NaN is refused where a term orders values."""
    try:
        found = as_number(value)
    except ValueError:
        raise term.refused(
            f"compares with '{value}', which is not a number", "Give a number, such as 1e-3."
        ) from None
    if isnan(found) and term.operator != ":":
        raise term.refused("orders by NaN, and no value is above or below that", f"Write {term.key}:nan.")
    return found


def moment(term: Term, value: str, now: datetime) -> datetime:
    """A time: a date, a date with a time (UTC unless it says otherwise), or an age such as `7d` before now.

    Raises InvalidFieldError.
    """
    try:
        age = ages.parse(value)
    except ValueError:
        return _date(term, value)
    if age is None:
        raise term.refused(
            "compares with 'forever', which is not a time", "Give a date, or an age such as 7d."
        )
    try:
        return now - age
    except OverflowError:
        return datetime.min.replace(tzinfo=UTC)


def _date(term: Term, value: str) -> datetime:
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        raise term.refused(
            f"compares with '{value}', which is not a time",
            "Give a date such as 2026-11-30, a time such as 2026-11-30T14:00, or an age such as 12h or 7d.",
        ) from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
