"""Group commit for heartbeats. Heartbeats of all sessions that arrive while the last group is written form the
next group, and so do the ends of streams.

One transaction for each heartbeat would be one commit for each worker and interval, and many workers would take
the connections that cycles need. A group that loses against another transaction (a cycle that frees slots, a
worker's Hello) is written again, because it speaks for all sessions of this replica.
"""

import asyncio
from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncEngine
from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from headrace.errors import DatabaseUnavailableError
from headrace_services.scheduler.store import heartbeats
from headrace_services.scheduler.store.database import is_conflict, transaction
from headrace_services.scheduler.store.heartbeats import Beat, Noted

CONFLICT_ATTEMPTS = 10


class Heartbeats:
    """Writes the heartbeats of this replica's sessions."""

    def __init__(self, engine: AsyncEngine, lease_ttl_s: float) -> None:
        self._engine = engine
        self._ttl_s = lease_ttl_s
        self._waiting: dict[tuple[int, int], tuple[Beat, asyncio.Future[Noted]]] = {}
        self._has_some = asyncio.Event()

    async def note(self, beat: Beat) -> Noted:
        """Write a heartbeat and return what the rows hold. Raises DatabaseUnavailableError."""
        return await asyncio.shield(self._put(beat))

    def ended(self, worker_id: int, session: int) -> None:
        """Record, soon, that a stream ended. If that fails, the leases expire anyway."""
        self._put(Beat(worker_id=worker_id, session=session, connected=False))

    def _put(self, beat: Beat) -> asyncio.Future[Noted]:
        session = (beat.worker_id, beat.session)
        _, answer = self._waiting.get(session) or (beat, asyncio.get_running_loop().create_future())
        self._waiting[session] = (beat, answer)
        self._has_some.set()
        return answer

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self._has_some.wait()
            self._has_some.clear()
            waiting, self._waiting = list(self._waiting.values()), {}
            try:
                noted = await self._write([beat for beat, _ in waiting])
            except Exception as error:  # noqa: BLE001  # the sessions decide; the next heartbeats are tried again
                for _, answer in waiting:
                    answer.set_exception(error)
                    answer.exception()  # perhaps nobody waits any more
            else:
                for beat, answer in waiting:
                    answer.set_result(noted[beat])

    async def _write(self, beats: Sequence[Beat]) -> dict[Beat, Noted]:
        lost = AsyncRetrying(
            retry=retry_if_exception(is_conflict),
            wait=wait_random_exponential(multiplier=0.01, max=0.2),
            stop=stop_after_attempt(CONFLICT_ATTEMPTS),
            reraise=True,
        )
        try:
            async for attempt in lost:
                with attempt:
                    async with transaction(self._engine) as conn:
                        return await heartbeats.note(conn, beats, self._ttl_s)
        except Exception as error:
            if is_conflict(error):
                raise DatabaseUnavailableError("the database did not accept the heartbeats") from error
            raise
        raise AssertionError("the retries above end by returning or raising")
