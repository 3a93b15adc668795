"""What stands behind a bundle: who its members are, where their reports go, and who decides on each.

`BundleRuntime` is the whole of it; `bundle_cluster` speaks to the worker daemon, `bundle_solo` makes a bundle of one of
an ordinary trial, and `bundle_local` serves a run by hand.
"""

from dataclasses import dataclass
from typing import Protocol

from headrace.trial.runtime import TOLD, Assignment, Decision, OwnEnd, Report


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """A member that is there, or joins."""

    # What the runtime calls it in all that follows.
    lease: str
    assignment: Assignment


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached:
    """A bundle at the start of its process."""

    members: tuple[Seat, ...]
    # How many members the process may hold.
    seats: int
    # Whether the other side looks for the member to charge, where the program fails and names none.
    charges: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """A member that ended by itself: with success where `error` is empty."""

    lease: str
    error: str = ""
    traceback: str = ""
    own: OwnEnd = TOLD


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How the program of a bundle ended: with success where `error` is empty."""

    error: str = ""
    traceback: str = ""
    # An allocation failed: there were too many members.
    out_of_memory: bool = False
    # Each member would fail so: the program failed before its function was called, the model cannot be fused, or single
    # members met the same error.
    of_each: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What the members have to say in a turn."""

    # Members that were taken in from a checkpoint since the last turn, and how long it took to read.
    restored: tuple[tuple[str, float], ...] = ()
    reports: tuple[tuple[str, Report], ...] = ()
    finished: tuple[Finish, ...] = ()
    # No member can train: the call returns when there is something to say.
    waits: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A report that was not taken: its member fails."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the members are told in a turn. A decision may be on a report of an earlier turn."""

    decisions: tuple[tuple[str, Decision | Refused], ...] = ()
    joined: tuple[Seat, ...] = ()
    # Members whose leases are over: nothing that they still do counts.
    gone: tuple[str, ...] = ()
    # No member is left: the program is to end.
    over: bool = False


class BundleRuntime(Protocol):
    """The other side of a bundle."""

    def attach(self) -> Attached:
        """The members that are there."""

    def turn(self, said: Said) -> Answer:
        """Passes on what is said, and returns what there is to say; see `Said.waits`."""

    def finish(self, end: Ended) -> None:
        """The program ended."""
