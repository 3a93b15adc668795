"""The version of the session protocol, which workers and schedulers exchange when a session opens.

Each sends the newest version that it speaks, and the oldest that it still accepts from the other. They use the
older of the two newest. If that is too old for one of them, the session does not open, and both say which
program must be updated. Additions that the other side may ignore need no new version.
"""

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Spoken:
    """The versions that a program speaks."""

    newest: int
    oldest: int
    """The oldest version that it accepts from the other side."""
    release: str = ""
    """The release of Headrace, for people."""


def _release() -> str:
    try:
        return version("headrace")
    except PackageNotFoundError:  # run from a source tree
        return ""


SPOKEN: Final = Spoken(newest=1, oldest=1, release=_release())
"""What this release speaks. Version 1 is that of release 0.1.0."""


def why_not(ours: Spoken, theirs: Spoken, *, we: str, they: str) -> str:
    """Why the two cannot communicate, and what to update; empty if they can.

    `we` and `they` name the programs, such as "this scheduler" and "worker 'w1'".
    """
    if theirs.newest < ours.oldest:
        old, new, needed = (they, theirs), (we, ours), ours.oldest
    elif ours.newest < theirs.oldest:
        old, new, needed = (we, ours), (they, theirs), theirs.oldest
    else:
        return ""
    return (
        f"{_named(*old)} speaks version {old[1].newest} of the session protocol, and {_named(*new)} needs at least "
        f"version {needed}: update {old[0]}"
    )


def _named(who: str, what: Spoken) -> str:
    return f"{who} (headrace {what.release})" if what.release else who
