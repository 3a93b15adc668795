"""The sessions of this replica, and how orders find theirs.

An order for a worker whose stream is here goes to its session at once. For other workers one notification is sent
through Postgres. The replica that holds the stream then reads the worker's leases. Decisions need no notification:
they return the way the report came.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

import psycopg
from sqlalchemy.ext.asyncio import AsyncEngine
from tenacity import AsyncRetrying, retry_if_exception_type, wait_random_exponential

from headrace.v1 import worker_pb2
from headrace_services.scheduler.core.inputs import Order
from headrace_services.scheduler.store import workers
from headrace_services.scheduler.store.database import transaction

log = logging.getLogger(__name__)

LISTEN_CHECK_S = 30.0


class Session(Protocol):
    """What the registry needs of a session."""

    def order(self, order: Order) -> None:
        """Send an assignment or a cancellation."""

    def look_again(self) -> None:
        """Compare what the worker holds with the rows."""

    def is_heard(self, within_s: float) -> bool:
        """Whether a message of the worker arrived this recently, or is being handled."""

    def drain(self) -> None:
        """Ask the worker to connect to another replica."""

    async def read_log(self, ask: worker_pb2.ReadLog) -> worker_pb2.LogChunk:
        """Ask the worker for a part of a log."""

    @property
    def to_say(self) -> int:
        """How many messages wait to be written to the worker."""

    @property
    def unacknowledged(self) -> int:
        """How many messages the worker keeps, as its last heartbeat said."""


class Registry:
    """Sessions by worker."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._sessions: dict[int, Session] = {}
        self._greeting = Counter[str]()
        """Workers, by name, whose Hello is being written."""
        self._elsewhere: set[int] = set()
        self._has_elsewhere = asyncio.Event()
        self._hearers: dict[str, Callable[[str], None]] = {}

    def add(self, worker_id: int, session: Session) -> None:
        """Register a worker's newest session."""
        self._sessions[worker_id] = session

    def remove(self, worker_id: int, session: Session) -> None:
        """Forget a session, unless a newer one took its place."""
        if self._sessions.get(worker_id) is session:
            del self._sessions[worker_id]

    @contextmanager
    def greeting(self, name: str) -> Iterator[None]:
        """A worker said Hello: it lives, although the rows show it only after this block."""
        self._greeting[name] += 1
        try:
            yield
        finally:
            self._greeting -= Counter({name: 1})  # entries that are at 0 are dropped

    def is_heard(self, worker_id: int, name: str, within_s: float) -> bool:
        """Whether a worker sent something to this replica this recently, or a message of it waits here to be
        handled."""
        session = self._sessions.get(worker_id)
        return self._greeting[name] > 0 or (session is not None and session.is_heard(within_s))

    @property
    def connected(self) -> list[Session]:
        """The sessions of this replica."""
        return list(self._sessions.values())

    def deliver(self, orders: Iterable[Order]) -> None:
        """Deliver orders to their workers."""
        for order in orders:
            session = self._sessions.get(order.worker_id)
            if session is not None:
                session.order(order)
            else:
                self._elsewhere.add(order.worker_id)
                self._has_elsewhere.set()

    def find(self, worker_id: int) -> Session | None:
        """A worker's session, if this replica holds it."""
        return self._sessions.get(worker_id)

    def hear(self, channel: str, hearer: Callable[[str], None]) -> None:
        """Register a listener for the notifications of another channel, before `run_listening`."""
        self._hearers[channel] = hearer

    def drain(self) -> None:
        """Ask all workers to connect to another replica."""
        for session in self._sessions.values():
            session.drain()

    async def run_notifying(self) -> None:
        """Notify other replicas of orders for their workers. Runs until cancelled."""
        while True:
            await self._has_elsewhere.wait()
            self._has_elsewhere.clear()
            ids, self._elsewhere = sorted(self._elsewhere), set()
            try:
                async with transaction(self._engine) as conn:
                    await workers.notify(conn, ids)
            except Exception:
                log.warning("could not notify other replicas; their sessions will find out", exc_info=True)

    async def run_listening(self) -> None:
        """Listen for orders that other replicas have for workers here. Runs until cancelled."""
        again = AsyncRetrying(
            retry=retry_if_exception_type((psycopg.Error, OSError)),
            wait=wait_random_exponential(multiplier=0.2, max=2),
        )
        async for attempt in again:
            with attempt:
                await self._listen()

    async def _listen(self) -> None:
        url = self._engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
        async with await psycopg.AsyncConnection.connect(url, autocommit=True, connect_timeout=5) as conn:
            for channel in (workers.CHANNEL, *self._hearers):
                await conn.execute(f"LISTEN {channel}")
            for session in self._sessions.values():
                session.look_again()
            while True:
                async for notice in conn.notifies(timeout=LISTEN_CHECK_S):
                    if hearer := self._hearers.get(notice.channel):
                        hearer(notice.payload)
                        continue
                    session_here = (
                        self._sessions.get(int(notice.payload)) if notice.payload.isdecimal() else None
                    )
                    if session_here is not None:
                        session_here.look_again()
                await conn.execute("SELECT 1")
