"""Writes durable messages to the outbox, tells the session that there is something to send, and deletes what was
acknowledged.

The outbox and the session's core stay in step: a message is first on disk, then known to the core, then sent.
Deleting is lazy and in batches. A message that was acknowledged but not yet deleted is at worst sent again after
the daemon dies, and the stream never waits for the disk.
"""

import asyncio
import logging
from collections.abc import Iterable

from headrace.v1 import event_pb2, worker_pb2
from headrace_worker.effects import Forget
from headrace_worker.outbox import DurableOutbox, Entry
from headrace_worker.session_core import SessionCore

log = logging.getLogger(__name__)


class Courier:
    """Connects the attempts, the disk and the stream."""

    def __init__(self, outbox: DurableOutbox, core: SessionCore) -> None:
        self.outbox = outbox
        self.core = core
        # Set when something must be sent, or the session must end.
        self.wake = asyncio.Event()
        self._posting: set[asyncio.Task[int]] = set()
        self._done: set[int] = set()
        self._refused: dict[int, str] = {}
        self._to_delete = asyncio.Event()
        self._acknowledged = asyncio.Event()

    async def post(
        self,
        lease: event_pb2.LeaseRef,
        request: worker_pb2.SessionRequest,
        *,
        upload: str = "",
        awaits_decision: bool = False,
    ) -> int:
        """Makes a `Report` or `Restored` durable and returns its sequence; the session sends it when it can.

        Once started it is completed, even if the caller is cancelled.
        """

        async def work() -> int:
            sequence = await self.outbox.append(lease.lease_id, request, upload=upload)
            size = request.ByteSize()
            self.core.appended(sequence, lease, awaits_decision=awaits_decision, size_bytes=size)
            self.wake.set()
            return sequence

        return await self._carried_through(asyncio.create_task(work()))

    async def post_exit(self, exited: worker_pb2.Exited) -> int:
        """Makes an `Exited` durable, which ends the lease. Once started it is completed."""

        async def work() -> int:
            request = worker_pb2.SessionRequest(exited=exited)
            sequence = await self.outbox.append_exit(exited.lease.lease_id, request)
            for effect in self.core.appended(sequence, exited.lease, exited=True):
                if isinstance(effect, Forget):
                    self.forget(effect.sequences)
            self.wake.set()
            return sequence

        return await self._carried_through(asyncio.create_task(work()))

    async def room_for(self, lease_id: str, most: int, most_bytes: int) -> None:
        """Waits until the lease has fewer messages in the outbox, and fewer bytes."""
        while (kept := self.core.kept(lease_id)).messages >= most or kept.size_bytes >= most_bytes:
            self._acknowledged.clear()
            await self._acknowledged.wait()

    async def unsent(self, limit: int) -> tuple[list[Entry], bool]:
        """Reads what must be sent next, in order, and says whether more may follow."""
        if not self.core.unsettled or self.core.appended_through <= self.core.sent_through:
            return [], False
        entries = await self.outbox.after(self.core.sent_through, limit)
        ready: list[Entry] = []
        for entry in entries:
            if self.core.knows(entry.sequence):
                ready.append(entry)
            elif entry.sequence not in self._done and entry.sequence not in self._refused:
                return ready, False  # on disk, but its `appended` is about to follow, and wakes the writer
        if entries and not ready:
            self.core.sent(entries[-1].sequence)  # all of it is acknowledged and only not yet deleted
        return ready, len(entries) == limit

    def forget(self, sequences: Iterable[int]) -> None:
        """Deletes these messages, soon."""
        self._done.update(sequences)
        self._to_delete.set()
        self._acknowledged.set()

    def reject(self, sequence: int, reason: str) -> None:
        """Removes a rejected message from the outbox, soon, and keeps it with the reason."""
        log.error("message %d was rejected: %s", sequence, reason)
        self._refused[sequence] = reason
        self._to_delete.set()

    def acknowledged(self) -> None:
        """The scheduler acknowledged something."""
        self._acknowledged.set()

    async def clean(self) -> None:
        """Deletes for as long as the daemon runs; one of its tasks."""
        while True:
            await self._to_delete.wait()
            self._to_delete.clear()
            await self.delete_now()

    async def delete_now(self) -> None:
        """Deletes what must be deleted, and stores what was rejected."""
        for sequence, reason in list(self._refused.items()):
            await self.outbox.reject(sequence, reason)
            self._refused.pop(sequence, None)  # the daemon's end may be deleting too
            self.wake.set()
        batch = sorted(self._done)
        if batch:
            await self.outbox.delete(batch)
            self._done.difference_update(batch)
            self.wake.set()

    async def emptied(self) -> None:
        """Waits until the scheduler has everything."""
        while self.core.unacknowledged:
            self._acknowledged.clear()
            await self._acknowledged.wait()

    async def _carried_through(self, task: asyncio.Task[int]) -> int:
        self._posting.add(task)
        task.add_done_callback(self._posting.discard)
        return await asyncio.shield(task)
