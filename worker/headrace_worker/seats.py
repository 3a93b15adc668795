"""The members of a bundle: who is on the way, who is aboard, who leaves. No clock, no process.

    on its way → ready (its files are here) → aboard (the process was told of it) → leaves → over

A member that is told to end before it is aboard is over at once. One that is aboard is over when the process has let go
of it: with the turn after the one whose answer named it, or with the process. Until then its folder stays.
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
    # Its attempt has told, where it is to, what the process that it joined runs.
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
        """Whether it lives and nobody told it to end."""
        return self.lives and self.attempt.ending is None

    def settle(self, verdict: Verdict) -> None:
        """It is over; the first word counts."""
        if self.lives:
            self.over.set_result(verdict)

    def let_go(self) -> None:
        """It was told to end, and nothing of it runs any more."""
        ending = self.attempt.ending
        assert ending is not None
        self.settle(Verdict(outcome=ending.outcome, error=ending.error))


class Seats:
    """All members of a bundle. Whoever waits for a change of theirs is woken by `changed`."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._seats: dict[str, Seat] = {}
        self._news = asyncio.Event()

    def add(self, attempt: Attempt) -> Seat:
        """Takes a member."""
        seat = self._seats[attempt.lease.lease_id] = Seat(attempt)
        return seat

    def remove(self, lease_id: str) -> None:
        """Forgets a member; an unknown one is no error."""
        self._seats.pop(lease_id, None)

    def of(self, lease_id: str) -> Seat | None:
        """The member of this lease, unless it is over."""
        seat = self._seats.get(lease_id)
        return seat if seat is not None and seat.lives else None

    @property
    def living(self) -> list[Seat]:
        """All that are not over."""
        return [seat for seat in self._seats.values() if seat.lives]

    @property
    def staying(self) -> list[Seat]:
        """Those that nobody told to end."""
        return [seat for seat in self._seats.values() if seat.stays]

    @property
    def aboard(self) -> list[Seat]:
        """Those that the process was told of, and that are not over."""
        return [seat for seat in self.living if seat.aboard]

    @property
    def waiting(self) -> list[Seat]:
        """Those that may go aboard now: as many as there are seats that nobody stays on."""
        free = self.most - sum(seat.stays for seat in self.aboard)
        return [seat for seat in self.staying if seat.ready and not seat.aboard][: max(0, free)]

    @property
    def leaving(self) -> list[Seat]:
        """Those aboard that were told to end, of which the process has to be told yet."""
        return [seat for seat in self.aboard if not seat.stays and seat.told_in is None]

    def changed(self) -> None:
        """Wakes those that wait."""
        self._news.set()
        self._news = asyncio.Event()

    async def until(self, holds: Callable[[], object]) -> None:
        """Waits for a condition on what is here."""
        while not holds():
            await self._news.wait()
