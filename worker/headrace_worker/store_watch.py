"""Whether the worker's store is there, as its marker says (`headrace.checkpoints.marker`), and how it is set up.

Who is authoritative: the scheduler's database, for the id that belongs to a store's address. The worker says in its
Hello which address it uses and which id it finds there. Welcome answers with the id that must be there, and tells the
first worker that uses an address to write the marker. Nothing starts here before that answer.

Later the worker checks again every few seconds, in a separate thread, so that a file system that hangs blocks
nothing else. While the store is away, the worker's heartbeats say so, trials that start are given back, and trials
that save wait.
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from headrace.checkpoints import CheckpointStore, StoreUnavailableError
from headrace.v1 import worker_pb2

log = logging.getLogger(__name__)

LOOK_S = 5.0


class StoreWatch:
    """Watches one store."""

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")
        self._order = worker_pb2.StoreOrder()
        self._ordered = asyncio.Event()
        self._setting_up = threading.Lock()
        self._soon = asyncio.Event()
        self._seen = asyncio.Event()
        self._there = asyncio.Event()
        self._is_awaited = self._is_set_up = False
        self.appeared: Callable[[], None] = lambda: None
        """Called when the store is seen for the first time, if a scheduler is waiting for that."""
        self.found = worker_pb2.Store(url=store.url, unseen=True)
        """What is there, as last seen."""
        self.trouble = ""
        """Why the store is away; empty while it is available."""

    async def seen(self, within_s: float) -> None:
        """Returns when the store has been seen, or has not answered for this long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._seen.wait()

    def ordered(self, order: worker_pb2.StoreOrder) -> None:
        """A scheduler said what it knows about the store."""
        if not order.id:
            self._is_awaited = True
            return
        self._order = order
        self._store.expected = order.id
        self._is_set_up = self._is_set_up and not order.set_up
        self._ordered.set()
        self._soon.set()

    async def run(self) -> None:
        """Checks until cancelled."""
        while True:
            self._soon.clear()
            await self._look()
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._soon.wait()

    async def until_there(self) -> None:
        """Returns when the store is available, as its marker says."""
        await self._there.wait()

    async def require(self) -> None:
        """Waits until a scheduler has said what the store is. Raises `StoreUnavailableError` if it is not
        available."""
        await self._ordered.wait()
        await asyncio.to_thread(self._require)

    def close(self) -> None:
        """Stops checking; a check that hangs is left alone."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _look(self) -> None:
        look = self._require if self._ordered.is_set() else self._store.identity
        try:
            found = await asyncio.get_running_loop().run_in_executor(self._thread, look)
        except StoreUnavailableError as error:
            self.found.id = ""
            self._there.clear()
            self._note(str(error))
            return
        self.found.id, self.found.unseen = found, False
        self._note("")
        self._seen.set()
        if look == self._require:
            self._there.set()
        if self._is_awaited:
            self._is_awaited = False
            self.appeared()

    def _require(self) -> str:
        """The id of the store, which is set up if necessary. Raises `StoreUnavailableError`."""
        try:
            with self._setting_up:
                self._set_up()
        except StoreUnavailableError:
            raise
        except OSError as error:
            raise StoreUnavailableError(f"store {self._store.url} cannot be set up: {error}") from error
        self._store.require()
        return self._store.identity()

    def _set_up(self) -> None:
        """Writes the marker, once: if it vanishes later, the store has gone away."""
        if self._is_set_up:
            return
        if self._order.set_up:
            self._store.set_up(self._order.id, used=self._order.used)
        self._is_set_up = True

    def _note(self, trouble: str) -> None:
        if trouble and trouble != self.trouble:
            log.warning("%s; trials wait until it answers", trouble)
        elif self.trouble and not trouble:
            log.warning("store %s answers again", self._store.url)
        self.trouble = trouble
