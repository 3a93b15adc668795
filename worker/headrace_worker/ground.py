"""Restores what a daemon depends on while it runs: its home and the socket for trials. Either may be deleted.

It checks with each heartbeat and before each attempt, which costs a few calls of `stat`. What is gone is made
again: the folder, the lock and the identity of the home, the outbox from its file that is still open, and the
socket at its old path. Running trials lose what they had in the home; nobody is charged for that.

If another daemon has taken the home's place, this one leaves: what it promises from then on would not outlast it.
While something cannot be made again, attempts end without having started, and the worker says why.
"""

import asyncio
import logging
from collections.abc import Callable

from headrace.errors import HeadraceError
from headrace_worker.home import AlreadyRunningError, Home
from headrace_worker.outbox import DurableOutbox
from headrace_worker.runtime_server import RuntimeServer

log = logging.getLogger(__name__)


class Ground:
    """Looks after one daemon's home and socket."""

    def __init__(
        self,
        home: Home,
        outbox: DurableOutbox,
        runtime: RuntimeServer,
        *,
        furnish: Callable[[], None],
        moved: Callable[[], None],
        lost: Callable[[str], None],
    ) -> None:
        """`furnish` restores what else belongs in a home that was made again, in any thread; `moved` says that its
        lock is a new one; `lost` says that another daemon has the home, and why this one leaves."""
        self._home, self._outbox, self._runtime = home, outbox, runtime
        self._furnish, self._moved, self._lost = furnish, moved, lost
        self._looking: asyncio.Task[str] | None = None
        self._unfinished = False
        """Whether making the home again was started but not finished."""
        self.trouble = ""
        """Why no trial can run here now, or nothing."""

    async def look(self) -> str:
        """Makes again what is gone; returns why no trial can run here now, or nothing. Concurrent calls share one
        check."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look(), name="look after the home")
        return await asyncio.shield(self._looking)

    async def close(self) -> None:
        """Waits for a check in progress: it would make again what the daemon's end removes."""
        if self._looking is not None:
            await asyncio.wait({self._looking})

    async def _look(self) -> str:
        try:
            if self._unfinished or not self._home.is_there:
                if not self._unfinished:
                    log.warning("the home %s is gone, and is created again", self._home.path)
                self._unfinished = True
                await asyncio.to_thread(self._home.make_again)
                await asyncio.to_thread(self._furnish)
                self._moved()
                self._unfinished = False
            if not self._outbox.is_there:
                await self._outbox.write_again()
            await self._runtime.keep()
        except AlreadyRunningError:
            self.trouble = f"another worker has taken the home {self._home.path}, which was deleted"
            self._lost(self.trouble)
        except (OSError, HeadraceError) as error:
            if not self.trouble:
                log.warning("no trial can run here: %s", error)
            self.trouble = f"no trial can run here: {error}"
        else:
            self.trouble = ""
        return self.trouble
