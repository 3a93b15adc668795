"""How long something lasts, as people write it: `90s`, `15m`, `12h`, `30d`."""

import re
from datetime import timedelta
from typing import Final

from headrace.errors import InvalidFieldError, Violation

_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_LIFETIME: Final = re.compile(r"([0-9]{1,6})([smhd])")


def lifetime_of(text: str, field: str) -> timedelta:
    """The time that a text says; `field` names the option. Raises InvalidFieldError."""
    found = _LIFETIME.fullmatch(text.strip())
    if found is None or int(found[1]) == 0:
        violation = Violation(
            field=field,
            value=repr(text),
            message="is not a time",
            remedy="Write, for example, 90s, 15m, 12h or 30d.",
        )
        raise InvalidFieldError([violation])
    return timedelta(**{_UNITS[found[2]]: int(found[1])})
