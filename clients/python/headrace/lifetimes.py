"""Times as people write them: how long something lasts (`90s`, `15m`, `12h`, `30d`), or since when."""

import re
from datetime import datetime, timedelta
from typing import Final

from headrace.bounds.numbers import SECONDS
from headrace.errors import InvalidFieldError, Violation

_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_LIFETIME: Final = re.compile(r"([0-9]{1,6})([smhd])")


def lifetime_of(text: str, field: str) -> timedelta:
    """The time that a text says; `field` names the option. Raises InvalidFieldError."""
    found = _parsed(text)
    if not found:
        raise _refused(text, field, "is not a time", "Write, for example, 90s, 15m, 12h or 30d.")
    return found


def since_of(text: str, field: str, now: datetime) -> timedelta:
    """How long before `now` (aware) the moment is that a text says: `10m`, `2h`, or a time as of ISO 8601, local where
    it names no offset. At most `SECONDS`; `field` names the option. Raises InvalidFieldError."""
    remedy = "Write how long ago, for example 10m, 2h or 1d, or when: 2026-01-31T12:00 or 2026-01-31T12:00Z."
    if (since := _parsed(text)) is None:
        try:
            since = now - datetime.fromisoformat(text.strip()).astimezone()
        except (ValueError, OverflowError, OSError):  # none, or so early that this zone has no time
            raise _refused(text, field, "is not a time", remedy) from None
    if since < timedelta(0):
        raise _refused(text, field, "lies ahead", remedy)
    return min(since, timedelta(seconds=SECONDS))


def _parsed(text: str) -> timedelta | None:
    found = _LIFETIME.fullmatch(text.strip())
    return None if found is None else timedelta(**{_UNITS[found[2]]: int(found[1])})


def _refused(text: str, field: str, message: str, remedy: str) -> InvalidFieldError:
    return InvalidFieldError([Violation(field=field, value=repr(text), message=message, remedy=remedy)])
