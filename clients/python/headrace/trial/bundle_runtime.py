"""The other side of a bundle: who its members are, where their reports go, and who decides on each.

`BundleRuntime` is the interface. `bundle_cluster` talks to the worker daemon, `bundle_solo` turns an ordinary
trial into a bundle of one, and `bundle_local` serves a run by hand.
"""

from dataclasses import dataclass
from typing import Protocol

from headrace.trial.runtime import TOLD, Assignment, Decision, OwnEnd, Report


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """A member that is present, or joins."""

    # The runtime's name for it in all later messages.
    lease: str
    assignment: Assignment


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached:
    """A bundle at the start of its process."""

    members: tuple[Seat, ...]
    # The most members that the process may have.
    seats: int
    # Whether the other side finds the member to charge if the program fails and names none.
    charges: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """A member that ended by itself; successfully if `error` is empty."""

    lease: str
    error: str = ""
    traceback: str = ""
    own: OwnEnd = TOLD


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How the program of a bundle ended; successfully if `error` is empty."""

    error: str = ""
    traceback: str = ""
    # An allocation failed: there were too many members.
    out_of_memory: bool = False
    # Each member would fail the same way: the program failed before its function was called, the model cannot be
    # fused, or single members met the same error.
    of_each: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """The messages from the members in a turn."""

    # Members that joined from a checkpoint since the last turn, and how long reading it took.
    restored: tuple[tuple[str, float], ...] = ()
    reports: tuple[tuple[str, Report], ...] = ()
    finished: tuple[Finish, ...] = ()
    # No member can train: the call returns when there is a message for one.
    waits: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A rejected report: its member fails."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The messages to the members in a turn. A decision may be about a report from an earlier turn."""

    decisions: tuple[tuple[str, Decision | Refused], ...] = ()
    joined: tuple[Seat, ...] = ()
    # Members whose leases are over: nothing that they do now counts.
    gone: tuple[str, ...] = ()
    # No member is left: the program should end.
    over: bool = False


class BundleRuntime(Protocol):
    """The other side of a bundle."""

    def attach(self) -> Attached:
        """The current members."""

    def turn(self, said: Said) -> Answer:
        """Sends the members' messages, and returns the answers; see `Said.waits`."""

    def finish(self, end: Ended) -> None:
        """The program ended."""
