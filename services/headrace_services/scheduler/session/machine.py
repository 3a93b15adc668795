"""What a session learns about its worker's machine and devices, and what it passes on to the daemon."""

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from sqlalchemy.ext.asyncio import AsyncEngine

from headrace.bounds.sessions import TROUBLE
from headrace.errors import DatabaseUnavailableError
from headrace.v1 import worker_pb2
from headrace_services.scheduler.core.records import Lease
from headrace_services.scheduler.session import messages
from headrace_services.scheduler.session.doubts import Doubts
from headrace_services.scheduler.session.refusals import Durable
from headrace_services.scheduler.session.wishes import Wishes
from headrace_services.scheduler.store import checkpoint_stores, machines, workers
from headrace_services.scheduler.store.database import transaction
from headrace_services.scheduler.store.heartbeats import asked_to_leave
from headrace_services.scheduler.store.workers import Greeting

log = logging.getLogger(__name__)


class Machine:
    """One worker's machine, as its session records it."""

    def __init__(
        self,
        engine: AsyncEngine,
        greeting: Greeting,
        worker_id: int,
        session: int,
        *,
        store: checkpoint_stores.Known | None,
        say: Callable[[worker_pb2.SessionResponse], None],
    ) -> None:
        self._engine = engine
        self._name = greeting.name
        self._worker_id = worker_id
        self._session = session
        self._doubts = Doubts(engine, greeting.name, worker_id)
        self._store, self._store_url = store, greeting.store.url if greeting.store else ""
        defects = {device.index: device.defect for device in greeting.devices if device.defect}
        self.wishes = Wishes(say, defects=defects, leaving=greeting.leaving)

    async def heard(self, heartbeat: worker_pb2.Heartbeat) -> bool:
        """Take failed devices, or the whole worker, out of the cluster before later messages are handled.

        Returns whether trials must be told to leave.
        """
        await self._look_at_store(heartbeat.store_id)
        if new := self.wishes.new_defects(heartbeat):
            log.warning("worker '%s' has failed devices: %s", self._name, new)
            async with transaction(self._engine) as conn:
                await workers.note_defects(conn, self._worker_id, self._session, new)
            self.wishes.note_defects(new)
        leaving = TROUBLE.kept(heartbeat.leaving)
        changed = leaving != self.wishes.leaving
        if changed:
            log.info("worker '%s' %s", self._name, f"leaves: {leaving}" if leaving else "stays")
            async with transaction(self._engine) as conn:
                await machines.leaves(conn, self._worker_id, self._session, leaving)
            self.wishes.leaving = leaving
        return changed or bool(new)

    def store_order(self) -> worker_pb2.StoreOrder | None:
        """The answer to the worker about its store."""
        return None if self._store is None else messages.store_order(self._store)

    async def _look_at_store(self, identity: str) -> None:
        """Record that the worker has found the marker of its store: from then on no worker makes another one."""
        if self._store is not None and not self._store.seen and identity and identity == self._store.id:
            async with transaction(self._engine) as conn:
                await checkpoint_stores.seen(conn, self._store_url, identity)
            self._store = replace(self._store, seen=True)

    async def ended(self, exited: worker_pb2.Exited) -> None:
        """Quarantine devices on which attempts failed again and again, before the trial of the last one is placed."""
        await self._doubts.ended(exited)
        if exited.device_failures < machines.FAILURES_IN_ROW:
            return
        words = TROUBLE.kept(f"{exited.device_failures} trials in a row failed there: {exited.device_words}")
        async with transaction(self._engine) as conn:
            found = await machines.quarantine(conn, self._worker_id, exited.lease.lease_id, words)
        if found:
            log.warning("worker '%s': devices %s are quarantined: %s", self._name, list(found), words)

    async def reached(self, message: Durable) -> bool:
        """Record that an attempt reached its program. Returns whether the worker gets trials again because of it."""
        return await self._doubts.reached(message)

    async def try_again(self) -> bool:
        """Let trials start again if the worker's suspension is over. Returns whether it was."""
        return await self._doubts.try_again()

    async def heed(self) -> tuple[tuple[Lease, str], ...]:
        """Pass on what users ask of the daemon. Returns the leases that must leave, with the reason."""
        async with transaction(self._engine) as conn:
            wish = await machines.wish_of(conn, self._worker_id)
            known = self.wishes.defects
            sound = await machines.sound(conn, self._worker_id, known) if known else frozenset()
            leaving = await asked_to_leave(conn, self._worker_id)
        self.wishes.tell(wish)
        self.wishes.forgive(sound)
        return leaving

    async def ask_again(self) -> None:
        """A trial was placed while the worker was being drained; the next heartbeat asks it to leave."""
        with suppress(DatabaseUnavailableError):
            async with transaction(self._engine) as conn:
                await machines.restate(conn, self._worker_id)
