"""Deletes checkpoints and uploads that nobody needs any more, beside the daemon's other work.

`Retention` decides which; this module deletes them. What cannot be deleted now costs space and nothing else.
"""

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress

from headrace.checkpoints import CheckpointError, CheckpointStore
from headrace.v1 import trial_pb2
from headrace_worker.outbox import DurableOutbox
from headrace_worker.retention import PruneOrder, superseded

log = logging.getLogger(__name__)


class Cleaning:
    """Deletes in the store, in tasks of the daemon's group."""

    def __init__(self, store: CheckpointStore, outbox: DurableOutbox, tasks: asyncio.TaskGroup) -> None:
        self._store = store
        self._outbox = outbox
        self._tasks = tasks

    def prune(self, orders: Iterable[PruneOrder | None]) -> None:
        """Delete the checkpoints that later ones replace."""
        for order in orders:
            if order is not None:
                self._tasks.create_task(self._prune(order), name=f"prune {order.trial}")

    def abandoned(self, upload: "asyncio.Task[trial_pb2.CheckpointRef]", uri: str) -> None:
        """Delete the remains of an upload that nobody will report."""
        self._tasks.create_task(self._clear_away(upload, uri), name=f"clear {uri}")

    async def sweep(self) -> None:
        """Delete uploads that a crash left unfinished, or that were finished but never reported."""
        for uri in await self._outbox.uploads():
            try:
                await asyncio.to_thread(self._store.delete, uri)
            except (CheckpointError, OSError) as error:  # ValueError: it is in another store than today's
                log.warning("leftover upload %s is not deleted yet: %s", uri, error)
            else:
                await self._outbox.end_upload(uri)

    async def _prune(self, order: PruneOrder) -> None:
        try:
            names = await asyncio.to_thread(self._store.list, order.trial)
            for name in superseded(names, order):
                uri = self._store.uri(order.trial, name)
                if uri not in order.spared:
                    await asyncio.to_thread(self._store.delete, uri)
        except OSError as error:
            log.warning("%s: old checkpoints are not deleted yet: %s", order.trial, error)

    async def _clear_away(self, upload: "asyncio.Task[trial_pb2.CheckpointRef]", uri: str) -> None:
        await asyncio.wait({upload})
        with suppress(OSError):  # else it is deleted at the next start
            await asyncio.to_thread(self._store.delete, uri)
            await self._outbox.end_upload(uri)
