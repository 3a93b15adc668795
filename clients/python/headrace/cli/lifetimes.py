"""How long a token works, as people write it: `90d`, `12h`, `never`."""

import re
from datetime import timedelta
from typing import Final

from headrace.cli.failure import USAGE, CommandError

NEVER: Final = "never"
_UNITS: Final = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_LONGEST: Final = timedelta(days=3660)


def lifetime(text: str, option: str) -> timedelta | None:
    """The time that a text says; None for `never`. Raises CommandError."""
    if text == NEVER:
        return None
    found = re.fullmatch(r"([0-9]{1,6})([mhdw])", text)
    span = timedelta(**{_UNITS[found[2]]: int(found[1])}) if found else timedelta()
    if not timedelta() < span <= _LONGEST:
        raise CommandError(
            f"{option}: is no time of up to ten years (got {text!r}).",
            remedy=f"Write it as 30m, 12h, 90d or 4w, or {NEVER}.",
            code=USAGE,
        )
    return span
