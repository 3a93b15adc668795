"""How long finished things are kept. Pure functions."""

import re
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Final

from headrace.errors import InvalidFieldError, Violation

FOREVER: Final = "forever"
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400, "y": 365 * 86_400}
_AGE = re.compile(r"(\d{1,9}) *([smhdwy])")

Age = timedelta | None
"""How long something is kept after its end. None means forever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ages:
    """A retention age for each kind of data. Ages of a study's data count from the study's end; a live study
    has no age.
    """

    requests: Age = timedelta(days=1)
    """Answers to requests that change something. A request repeated within this time gets the same answer."""
    workers: Age = timedelta(days=7)
    """Workers that are gone, counted from when they were last seen."""
    events: Age = timedelta(days=90)
    """Events of trials and reports. Events of the study itself are kept."""
    reports: Age = timedelta(days=365)
    """Metrics between rungs. Reports at rungs and the last report of each trial are kept."""
    leases: Age = timedelta(days=90)
    """Attempts: the worker and slots that each ran on."""
    checkpoints: Age = timedelta(days=90)
    """Checkpoints, except those of the best trials and of the Pareto front."""
    logs: Age = timedelta(days=90)
    """Logs of trials on the workers."""
    code: Age = timedelta(days=30)
    """Shipped code that no study needs, counted from the end of the last study that used it, or from a
    client's last request for it.
    """
    studies: Age = None
    """The whole study, with its trials, best checkpoints and everything else, deleted as if by a user."""
    tombstones: Age = timedelta(days=365)
    """How long a deleted study is remembered, so that a worker that was offline can still delete its files."""


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
    try:
        return timedelta(seconds=int(match[1]) * _UNITS[match[2]])
    except OverflowError:
        raise ValueError(text) from None


def told(age: Age) -> str:
    """An age as text; the inverse of `parse`."""
    if age is None:
        return FOREVER
    seconds = int(age.total_seconds())
    unit = next((name for name in "dhm" if seconds % _UNITS[name] == 0), "s")
    return f"{seconds // _UNITS[unit]}{unit}" if seconds else "0"


def ages_of(given: list[str]) -> Ages:
    """Read `KIND=AGE` for some kinds; the others keep their defaults. Raises InvalidFieldError."""
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
