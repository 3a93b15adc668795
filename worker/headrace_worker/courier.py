"""Takes durable messages to the outbox and tells the session that there is something to send."""

import asyncio
from collections.abc import Sequence

from headrace.v1 import event_pb2, worker_pb2
from headrace_worker.outbox import DurableOutbox
from headrace_worker.session_core import Effect, Forget, SessionCore


class Courier:
    """The outbox and the session's core, kept in step: first on disk, then known, then sent."""

    def __init__(self, outbox: DurableOutbox, core: SessionCore) -> None:
        self.outbox = outbox
        self.core = core
        # Something is to be sent, or the session is to be ended.
        self.wake = asyncio.Event()
        self._emptied = asyncio.Event()

    async def post(
        self,
        lease: event_pb2.LeaseRef,
        request: worker_pb2.SessionRequest,
        *,
        upload: str = "",
        awaits_decision: bool = False,
    ) -> int:
        """Makes a `Report` or `Restored` durable and returns its sequence; the session sends it when it can."""
        sequence = await self.outbox.append(lease.lease_id, request, upload=upload)
        self.core.appended(sequence, lease, awaits_decision=awaits_decision)
        self.wake.set()
        return sequence

    async def post_exit(self, exited: worker_pb2.Exited) -> None:
        """Makes an `Exited` durable, with which the lease ends."""
        request = worker_pb2.SessionRequest(exited=exited)
        sequence = await self.outbox.append_exit(exited.lease.lease_id, request)
        effects = self.core.appended(sequence, exited.lease, exited=True)
        self.wake.set()
        await self.forget(effects)

    async def forget(self, effects: Sequence[Effect]) -> None:
        """Deletes from the outbox what these effects say."""
        for effect in effects:
            if isinstance(effect, Forget):
                await self.outbox.delete(effect.sequences)
        if self.core.unacknowledged == 0:
            self._emptied.set()

    async def emptied(self) -> None:
        """Waits until the scheduler has everything."""
        while self.core.unacknowledged:
            self._emptied.clear()
            await self._emptied.wait()
