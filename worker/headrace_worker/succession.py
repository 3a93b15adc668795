"""How a daemon takes over from the previous one on its home, once a scheduler has accepted it (`home`).

    accepted → clean up after the predecessor → delete its socket and scratch files → the home is this daemon's own
    → attempts run

Before that it changes nothing outside its home: it may be a second one, on a copy. Sweeping and tidying come
later, as they delete in the store.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from headrace_worker.courier import Courier
from headrace_worker.disk import clear_away
from headrace_worker.home import Home, bury_predecessor
from headrace_worker.outbox import RecordedLease

log = logging.getLogger(__name__)


class Succession:
    """One daemon's takeover from the previous one."""

    def __init__(self, home: Home, recorded: Sequence[RecordedLease], courier: Courier) -> None:
        """`recorded` are the leases that the previous daemon held."""
        self._home, self._recorded, self._courier = home, recorded, courier
        self._taken = asyncio.Event()
        self.over = asyncio.Event()
        """Set when attempts may run."""

    def taken(self) -> None:
        """A scheduler has accepted this daemon, for the first time or again."""
        self._taken.set()

    async def run(self, delete_socket: Callable[[], None], folders: Sequence[Path]) -> None:
        """Waits until a scheduler has accepted the daemon, and cleans up; empties the folders."""
        await self._taken.wait()
        if copied := self._home.copied:
            log.warning(
                "%s was copied or moved, or the machine has restarted: no process and no upload that is noted there is "
                "touched",
                self._home.path,
            )
        await bury_predecessor(self._courier, self._home.path, self._recorded, copied=copied)
        await asyncio.to_thread(delete_socket)
        for folder in folders:
            await asyncio.to_thread(clear_away, folder)
        if copied:
            await self._courier.outbox.forget_uploads()
        try:
            await asyncio.to_thread(self._home.settle)
        except OSError as error:  # a full disk: the next daemon takes these records for another place's
            log.warning("%s cannot be written: %s", self._home.path, error)
