"""How the daemon ends: at once, or through a drain, which loses nothing.

    stays → drains: SIGTERM, a spot notice, a user → it is empty, or the grace is over → stops → gone
          ← a user takes the drain back              SIGINT, SIGHUP, a second SIGTERM ↗

While it drains, the scheduler places nothing here, and trials save at their next reports and resume elsewhere, as
when others need their slots. Attempts that have not started to train are given back at once, for they lose
nothing. Nobody is charged for those that the end of the grace cuts off.

What the daemon decides by itself is final. A user's drain may be taken back. If a user asked for it before the
daemon was started, it keeps trials off but the daemon stays: otherwise a process manager would restart it for
ever.

When it stops, trials are told to end, their leases are given up so that they are requeued at once, and the
scheduler gets a moment to acknowledge. When hurried, the daemon kills trials without waiting.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from headrace import worker_labels
from headrace_worker.attempt import Attempt
from headrace_worker.bundle import Bundle
from headrace_worker.courier import Courier
from headrace_worker.effects import Withdrawn
from headrace_worker.program import AFTER_TERM_S
from headrace_worker.session import Session
from headrace_worker.settings import WorkerSettings
from headrace_worker.standby import Standbys

log = logging.getLogger(__name__)
LOOK_EVERY_S = 1.0
_NEVER = float("inf")


class Leaving:
    """Carries out one daemon's exit."""

    def __init__(
        self,
        settings: WorkerSettings,
        attempts: Mapping[str, Attempt],
        bundles: Mapping[str, Bundle],
        *,
        session: Session,
        courier: Courier,
        standbys: Standbys,
        stop: Callable[[], None],
        over: Callable[[], None],
    ) -> None:
        """`over` starts the stop, and may be called more than once; `stop` does so too, and hurries when it is
        called again."""
        self._settings = settings
        self._attempts, self._bundles = attempts, bundles
        self._session, self._courier, self._standbys = session, courier, standbys
        self._stop, self._over = stop, over
        self._all_gone = asyncio.Event()
        self._own = self._users = ""
        self.terminated = self._leaves = False
        """Whether SIGTERM has arrived."""
        self._until = _NEVER
        self._timer: asyncio.TimerHandle | None = None
        self._closing: asyncio.Task[None] | None = None

    @property
    def drained(self) -> str:
        """The reason given for trials that a drain ends; empty while there is no drain."""
        why = self._own or self._users
        return f"worker '{self._settings.name}' is draining: {why}" if why else ""

    # Starting and ending a drain.

    def terminate(self) -> None:
        """SIGTERM: the first one drains, the second one stops."""
        if self.terminated:
            self._stop()
        else:
            self.terminated = True
            self.by_itself("SIGTERM")

    def by_itself(self, why: str) -> None:
        """Starts the daemon's own drain."""
        self._own = self._courier.core.leaving = self._own or why
        self._session.beat_soon()
        self._within(self._settings.drain_grace_s)
        self._send_away()

    def by_user(self, wish: Withdrawn) -> None:
        """A user drains the worker, or takes that back."""
        before = self.drained
        self._users, self._leaves = wish.reason, bool(wish.reason) and wish.leave
        if self._leaves and wish.grace_s is not None:
            self._within(wish.grace_s)
        if self.drained:
            self._send_away()
        elif before:
            log.info("the worker is no longer draining")
            self._standbys.reopen(enabled=self._settings.prestart)
            if self._timer is not None:
                self._timer.cancel()
                self._timer, self._until = None, _NEVER

    def came(self) -> None:
        """There is one more attempt."""
        self._all_gone.clear()

    def gone(self) -> None:
        """An attempt or a bundle has ended."""
        if not self._attempts and not self._bundles:
            self._all_gone.set()
            if self._own or self._leaves:
                self._over()

    def _within(self, grace_s: float) -> None:
        loop = asyncio.get_running_loop()
        if (until := loop.time() + grace_s) < self._until:
            if self._timer is not None:
                self._timer.cancel()
            self._until, self._timer = until, loop.call_at(until, self._over)

    def _send_away(self) -> None:
        log.info("%s: %d trials must leave", self.drained, len(self._attempts))
        self._closing = asyncio.create_task(self._standbys.close())
        for attempt in list(self._attempts.values()):
            if attempt.begun:
                attempt.reports.leave_soon()
            else:
                attempt.stop(AFTER_TERM_S, self.drained)
        self.gone()

    # Stopping.

    async def wind_down(self, hurry: asyncio.Event, acks_s: float) -> None:
        """Ends everything that runs, sooner once `hurry` is set. The scheduler has `acks_s` to receive the
        remaining messages."""
        log.info("stopping: ending %d trials", len(self._attempts))
        # First, so that slots that become free now are not given to the next trials.
        self._session.leave()
        await self._standbys.close()
        self._stop_all(self._settings.stop_grace_s)
        if self._attempts or self._bundles:
            self._all_gone.clear()
            gone = asyncio.create_task(self._all_gone.wait())
            hurried = asyncio.create_task(hurry.wait())
            await asyncio.wait({gone, hurried}, return_when=asyncio.FIRST_COMPLETED)
            hurried.cancel()
            self._stop_all(0.0)
            await gone
        with suppress(TimeoutError):
            async with asyncio.timeout(acks_s):
                await self._courier.emptied()
                await self._courier.delete_now()
                if worker_labels.EPHEMERAL in self._settings.labels:
                    await self._session.last_one()  # so that its row is removed at once

    def _stop_all(self, within_s: float) -> None:
        for attempt in list(self._attempts.values()):
            attempt.stop(within_s, self.drained)
        for bundle in list(self._bundles.values()):
            bundle.stop(within_s)


async def spot_notice(path: Path, noticed: Callable[[str], None]) -> None:
    """Check at intervals for the file that announces this machine's end, and report it once."""
    while not await asyncio.to_thread(path.exists):  # noqa: ASYNC110 - a file has no event
        await asyncio.sleep(LOOK_EVERY_S)
    noticed(f"spot notice {path}")
