"""Times as people write them: a duration (`90s`, `15m`, `12h`, `30d`), or a start time."""

import re
from datetime import datetime, timedelta
from typing import Final

from headrace.bounds.numbers import SECONDS
from headrace.errors import InvalidFieldError, Violation

_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_LIFETIME: Final = re.compile(r"([0-9]{1,6})([smhd])")


def lifetime_of(text: str, field: str) -> timedelta:
    """The duration in a text; `field` names the option. Raises InvalidFieldError."""
    found = _parsed(text)
    if not found:
        raise _refused(text, field, "is not a time", "Write, for example, 90s, 15m, 12h or 30d.")
    return found


def seconds_of(text: str | None, field: str) -> float | None:
    """The duration of an option in seconds; None if the option was not given. Raises InvalidFieldError."""
    return None if text is None else lifetime_of(text, field).total_seconds()


def since_of(text: str, field: str, now: datetime) -> timedelta:
    """How long before `now` (timezone-aware) a given moment is: `10m`, `2h`, or an ISO 8601 time, which is local
    without an offset. At most `SECONDS`; `field` names the option. Raises InvalidFieldError.
    """
    remedy = "Write how long ago, for example 10m, 2h or 1d, or when: 2026-01-31T12:00 or 2026-01-31T12:00Z."
    if (since := _parsed(text)) is None:
        try:
            since = now - datetime.fromisoformat(text.strip()).astimezone()
        except (ValueError, OverflowError, OSError):  # not a time, or too early for this time zone
            raise _refused(text, field, "is not a time", remedy) from None
    if since < timedelta(0):
        raise _refused(text, field, "lies ahead", remedy)
    return min(since, timedelta(seconds=SECONDS))


def _parsed(text: str) -> timedelta | None:
    found = _LIFETIME.fullmatch(text.strip())
    return None if found is None else timedelta(**{_UNITS[found[2]]: int(found[1])})


def _refused(text: str, field: str, message: str, remedy: str) -> InvalidFieldError:
    return InvalidFieldError([Violation(field=field, value=repr(text), message=message, remedy=remedy)])
