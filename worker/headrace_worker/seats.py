"""The members of a bundle: who is on the way, who is aboard, who leaves. No clock, no process.

    on its way → ready (its files are here) → aboard (the process was told of it) → leaves → over

A member that is told to end before it is aboard is over at once. One that is aboard is over when the process has
released it: with the turn after the one whose answer named it, or when the process ends. Until then its folder
stays.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from headrace_worker.attempt import Attempt
from headrace_worker.exits import Verdict
from headrace_worker.logs import AttemptLog


@dataclass(slots=True, eq=False)
class Seat:
    """One member."""

    attempt: Attempt
    over: "asyncio.Future[Verdict]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    ready: bool = False
    aboard: bool = False
    # Whether its attempt has told the scheduler, if it must, what the process that it joined runs.
    announced: bool = False
    # The turn whose answer tells the process that this member leaves.
    told_in: int | None = None
    # The member's own log, once it is open.
    log: AttemptLog | None = None
    # How long the bundle's log was when this member went aboard.
    printed_at: int | None = None

    @property
    def lives(self) -> bool:
        """Whether it is not over."""
        return not self.over.done()

    @property
    def stays(self) -> bool:
        """Whether it is not over and has not been told to end."""
        return self.lives and self.attempt.ending is None

    def settle(self, verdict: Verdict) -> None:
        """It is over; the first verdict counts."""
        if self.lives:
            self.over.set_result(verdict)

    def let_go(self) -> None:
        """It was told to end, and none of it is left."""
        ending = self.attempt.ending
        assert ending is not None
        self.settle(Verdict(outcome=ending.outcome, error=ending.error))


class Seats:
    """All members of a bundle. `changed` wakes whoever waits for a change."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._seats: dict[str, Seat] = {}
        self._news = asyncio.Event()

    def add(self, attempt: Attempt) -> Seat:
        """Adds a member."""
        seat = self._seats[attempt.lease.lease_id] = Seat(attempt)
        return seat

    def remove(self, lease_id: str) -> None:
        """Removes a member; an unknown one is no error."""
        self._seats.pop(lease_id, None)

    def of(self, lease_id: str) -> Seat | None:
        """The member of this lease, unless it is over."""
        seat = self._seats.get(lease_id)
        return seat if seat is not None and seat.lives else None

    @property
    def living(self) -> list[Seat]:
        """All members that are not over."""
        return [seat for seat in self._seats.values() if seat.lives]

    @property
    def staying(self) -> list[Seat]:
        """Members that have not been told to end."""
        return [seat for seat in self._seats.values() if seat.stays]

    @property
    def aboard(self) -> list[Seat]:
        """Members that the process was told of, and that are not over."""
        return [seat for seat in self.living if seat.aboard]

    @property
    def waiting(self) -> list[Seat]:
        """Members that may go aboard now: at most as many as there are free seats."""
        free = self.most - sum(seat.stays for seat in self.aboard)
        return [seat for seat in self.staying if seat.ready and not seat.aboard][: max(0, free)]

    @property
    def leaving(self) -> list[Seat]:
        """Members aboard that were told to end, if the process has not been told yet."""
        return [seat for seat in self.aboard if not seat.stays and seat.told_in is None]

    def changed(self) -> None:
        """Wakes those that wait."""
        self._news.set()
        self._news = asyncio.Event()

    async def until(self, holds: Callable[[], object]) -> None:
        """Waits for a condition on the members."""
        while not holds():
            await self._news.wait()
