"""How long the daemon stays on a machine that was lent to it: until it is idle, or until its lifetime ends.

It then leaves as it does after SIGTERM (`leaving`). A lifetime is counted from the start of the daemon, joining
included, and ends with the daemon gone: the drain starts early enough for trials to save, for those that do not
save to be ended, and for the scheduler to receive the last messages. Idle time is counted from the end of the last
trial, or from when it has joined. A machine that is suspended does not age.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from headrace.errors import HeadraceError, InvalidFieldError, Violation

T = TypeVar("T")

LAST_S = 10.0
"""How long the daemon takes to exit once its trials have ended: the last messages, the last logs."""
LOOK_EVERY_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StayLimits:
    """The limits of a daemon's stay, in seconds; None: no limit."""

    idle_s: float | None = None
    lifetime_s: float | None = None
    leave_s: float = 0.0
    """How long before the end of its lifetime it starts to drain."""

    @classmethod
    def of(
        cls,
        *,
        idle_s: float | None,
        lifetime_s: float | None,
        drain_grace_s: float,
        stop_grace_s: float,
    ) -> "StayLimits":
        """Raises InvalidFieldError if a lifetime is too short to leave in."""
        leave_s = drain_grace_s + stop_grace_s + LAST_S
        if lifetime_s is not None and lifetime_s <= leave_s:
            violation = Violation(
                field="--lifetime",
                value=f"{lifetime_s:g} s",
                message=f"is too short: leaving takes up to {leave_s:g} s",
                remedy="Give a longer one, or lower --drain-grace or --stop-grace.",
            )
            raise InvalidFieldError([violation])
        return cls(idle_s=idle_s, lifetime_s=lifetime_s, leave_s=leave_s)

    def over(self, *, age_s: float, idle_s: float) -> str:
        """Why a daemon of this age that was idle for this long leaves; empty while it stays."""
        if self.lifetime_s is not None and age_s >= self.lifetime_s - self.leave_s:
            return f"its lifetime of {_time(self.lifetime_s)} ends"
        if self.idle_s is not None and idle_s >= self.idle_s:
            return f"idle for {_time(self.idle_s)}"
        return ""


class Stay:
    """One daemon's stay. `clock` returns seconds, and never goes back."""

    def __init__(self, limits: StayLimits, clock: Callable[[], float]) -> None:
        self._limits, self._clock = limits, clock
        self._began = self._busy_at = clock()

    def look(self, *, busy: bool) -> str:
        """Why the daemon leaves now; empty while it stays. `busy`: whether it has a trial."""
        now = self._clock()
        if busy:
            self._busy_at = now
        return self._limits.over(age_s=now - self._began, idle_s=now - self._busy_at)

    async def until_over(self, busy: Callable[[], bool]) -> str:
        """Waits for the end of the stay; returns why it is over."""
        while not (why := self.look(busy=busy())):  # noqa: ASYNC110  # a clock has no event
            await asyncio.sleep(LOOK_EVERY_S)
        return why

    async def within(self, joins: "asyncio.Task[T]") -> T:
        """The result of joining. Raises HeadraceError if the stay is over before a scheduler answers."""
        over = asyncio.create_task(self.until_over(lambda: False))
        try:
            await asyncio.wait({joins, over}, return_when=asyncio.FIRST_COMPLETED)
            if joins.done():
                self._busy_at = self._clock()
                return joins.result()
            raise HeadraceError(
                f"This worker leaves before a scheduler let it join: {over.result()}.",
                remedy="Its log says what it waited for.",
            )
        finally:
            over.cancel()
            joins.cancel()


def _time(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g}{unit}"
    return f"{seconds:g}s"
