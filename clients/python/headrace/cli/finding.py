"""What `headrace doctor` finds."""

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """The result of a check."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's output."""

    level: Level
    what: str
    text: str
    remedy: str = ""
