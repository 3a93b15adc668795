"""What the loop needs of a cluster manager.

An engine keeps no state in this process: every call asks the cluster manager. Calls raise `EngineError` with the
cluster manager's own words, and return within a time limit of their own. Each may be called by several loops at
once, and may be interrupted at any moment.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from headrace.errors import HeadraceError


class EngineError(HeadraceError):
    """The cluster manager refused a request, did not answer in time, or answered something unreadable."""


class Stage(Enum):
    """How far a member is. One that has ended is not listed."""

    PENDING = "pending"
    """Requested, and not started."""
    RUNNING = "running"
    """Started: its worker connects soon, is connected, or is about to exit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One worker that was requested and has not ended."""

    seat: int
    id: str
    """The engine's name for it, such as `1234`. Of several members on a seat, the first one listed keeps it."""
    stage: Stage
    worker: str
    """The name that its worker has in Headrace; empty until it is known."""
    why: str = ""
    """Why it is pending, in the engine's words."""
    held: bool = False
    """Whether it is pending and cannot start, because a turn began to withdraw it."""
    awaits_token: bool = False
    """Whether it can join now, and has no token that still works. Always false without tokens."""


class Engine(Protocol):
    """One launch in one cluster manager: what belongs to it is found by its name."""

    def members(self) -> Sequence[Member]:
        """All members of the launch, also those that another loop has requested. Raises `EngineError`."""
        ...

    def submit(self, seats: Collection[int]) -> None:
        """Requests one worker for each of these seats.

        If a seat is taken by then, the new member must not run while the other one does: it is rejected, or it
        stays pending. Raises `EngineError` at the first request that is refused or not answered. That one, and
        those before it, may have been carried out.
        """
        ...

    def withdraw(self, member: Member) -> None:
        """Takes back the request for a pending member whose seat is taken by another one. Does nothing if it has
        started or ended meanwhile. One that is held, alone on its seat, may start again. Raises `EngineError`.
        """
        ...

    def deliver(self, member: Member, secret: str) -> bool:
        """Hands a join token to a member that awaits one, so that only its worker and its user can read it.

        Returns False if another loop has delivered one meanwhile: this one is then not used. Raises
        `EngineError`.
        """
        ...

    def shown(self, seats: Collection[int]) -> str:
        """What `submit` would run, for people. Starts nothing."""
        ...
