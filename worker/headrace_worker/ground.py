"""What a daemon stands on: its home and the socket for trials. Either may be deleted while it runs.

It looks with each heartbeat and before each attempt, which costs a few calls of `stat`. What is gone is made again: the
folder, the lock and the identity of the home, the outbox from what is still open of it, and the socket at its old path.
What trials that run had in the home is lost to them, which nobody is charged for.

Where another daemon has taken the home's place, this one leaves: what it promises from then on would not outlast it.
While something cannot be made again, attempts end without having begun, and the worker says why.
"""

import asyncio
import logging
from collections.abc import Callable

from headrace_worker.home import AlreadyRunningError, Home
from headrace_worker.outbox import DurableOutbox
from headrace_worker.runtime_server import RuntimeServer

log = logging.getLogger(__name__)


class Ground:
    """Looks after one daemon's ground."""

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
        """`furnish` puts back into a home that was made again what else belongs there, in any thread; `moved` says that
        its lock is another one; `lost` that another daemon has the home, and why this one leaves."""
        self._home, self._outbox, self._runtime = home, outbox, runtime
        self._furnish, self._moved, self._lost = furnish, moved, lost
        self._looking: asyncio.Task[str] | None = None
        self._unfinished = False
        """Whether making the home again was begun and not ended."""
        self.trouble = ""
        """Why no trial can run here now, or nothing."""

    async def look(self) -> str:
        """Makes again what is gone; returns why no trial can run here now, or nothing. Calls share a look."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look(), name="look after the home")
        return await asyncio.shield(self._looking)

    async def close(self) -> None:
        """Waits for a look that is under way: it would make again what the daemon's end removes."""
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
        except OSError as error:
            if not self.trouble:
                log.warning("no trial can run here: %s", error)
            self.trouble = f"no trial can run here: {error}"
        else:
            self.trouble = ""
        return self.trouble
