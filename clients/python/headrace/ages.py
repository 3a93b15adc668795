"""For how long what has ended is kept. Pure."""

import re
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Final

from headrace.errors import InvalidFieldError, Violation

FOREVER: Final = "forever"
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400, "y": 365 * 86_400}
_AGE = re.compile(r"(\d{1,9}) *([smhdwy])")

Age = timedelta | None
"""How long something is kept after its end; None is for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ages:
    """An age for each kind of thing. Those of a study count from the study's end; a live study has no age."""

    requests: Age = timedelta(days=1)
    """Answers to requests that change something: one that comes again within this time is answered as before."""
    workers: Age = timedelta(days=7)
    """Workers that are gone, from when they were last seen."""
    events: Age = timedelta(days=90)
    """Events of trials, and of reports. What happened to the study itself stays."""
    reports: Age = timedelta(days=365)
    """Metrics between rungs. The report at a rung stays, and so does each trial's last one."""
    leases: Age = timedelta(days=90)
    """Attempts: on which worker and slots each ran."""
    checkpoints: Age = timedelta(days=90)
    """Checkpoints, but for those of the best trials, and of the Pareto front."""
    logs: Age = timedelta(days=90)
    """Logs of trials on the workers."""
    code: Age = timedelta(days=30)
    """Shipped code that no study needs: from the end of the last study with it, or when a client asked for it last."""
    studies: Age = None
    """The study as a whole, with its trials, its best checkpoints and all the rest: deleted as by a user."""
    tombstones: Age = timedelta(days=365)
    """How long a deleted study is remembered, so that a worker that was away deletes its files."""


KINDS: Final = tuple(field.name for field in fields(Ages))


def parse(text: str) -> Age:
    """Read `90d`, `12h`, `0` or `forever`. Raises ValueError."""
    text = text.strip().lower()
    if text == FOREVER:
        return None
    if text == "0":
        return timedelta(0)
    match = _AGE.fullmatch(text)
    if match is None:
        raise ValueError(text)
    return timedelta(seconds=int(match[1]) * _UNITS[match[2]])


def told(age: Age) -> str:
    """An age as it is written; the inverse of `parse`."""
    if age is None:
        return FOREVER
    seconds = int(age.total_seconds())
    unit = next((name for name in "dhm" if seconds % _UNITS[name] == 0), "s")
    return f"{seconds // _UNITS[unit]}{unit}" if seconds else "0"


def ages_of(given: list[str]) -> Ages:
    """Read `KIND=AGE` for some kinds; the others have their defaults. Raises InvalidFieldError."""
    found: dict[str, Age] = {}
    for one in given:
        kind, _, age = one.partition("=")
        if kind.strip() not in KINDS:
            raise _refused(one, f"names no kind: those are {', '.join(KINDS)}")
        try:
            found[kind.strip()] = parse(age)
        except ValueError:
            raise _refused(one, f"has no age: '{age}' is none") from None
    return Ages(**found)


def _refused(value: str, message: str) -> InvalidFieldError:
    remedy = "Write KIND=AGE, for example events=30d, logs=12h, studies=2y or checkpoints=forever."
    return InvalidFieldError([Violation(field="--keep", value=value, message=message, remedy=remedy)])
