"""Following a study: the events after a cursor, each message with the study as of its last event or later.

The rows are authoritative. A commit on this replica wakes its watchers at once; commits elsewhere are found by
polling the study's cursor. Since cursors are assigned under the study's lock, reading "greater than the last one
sent" neither skips nor repeats an event, however many replicas write.

The study's status is more expensive than its events, so all watchers of a study on this replica share one snapshot
of it, taken at most every `SNAPSHOT_EVERY_S`. A watcher sends the events that the snapshot covers, up to
`MAX_EVENTS` in a message; later commits wait for the next snapshot.

Watchers at the same cursor also share their next message, and all of them share the query for the study's head.
Only a few messages are made at once. So waiting times do not grow with the number of watchers.

If the stream breaks, nothing is lost. The client continues from the last cursor that it saw, here or elsewhere; a
replica that shuts down ends its watches so that clients do that.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from math import inf

from sqlalchemy.ext.asyncio import AsyncEngine

from headrace.errors import DrainingError, InvalidFieldError, StudyNotFoundError, Violation
from headrace.v1 import study_pb2 as pb
from headrace_services.scheduler.core.records import Study
from headrace_services.scheduler.engine.hub import Hub
from headrace_services.scheduler.rpc import convert
from headrace_services.scheduler.rpc.pages import fitting
from headrace_services.scheduler.store import history, studies
from headrace_services.scheduler.store.database import transaction
from headrace_services.scheduler.store.studies import Head

POLL_S = 0.5
SNAPSHOT_EVERY_S = 0.5
AT_ONCE = 4
"""How many messages are made at once."""
MAX_EVENTS = 200
"""Events in a message: about 10 ms of the event loop."""


Make = Callable[[int], Awaitable[pb.Study]]
"""Makes the message of a study. Raises StudyNotFoundError."""


@dataclass(frozen=True, slots=True)
class _Page:
    """The message after a cursor, with the study as it was then."""

    cursor: int
    study: pb.Study
    response: pb.WatchStudyResponse


class Snapshot:
    """What the watchers of one study share: its head, its newest known message, and their next message."""

    def __init__(self, engine: AsyncEngine, study_id: int, make: Make, turns: asyncio.Semaphore) -> None:
        self.watchers = 0
        self._engine = engine
        self._make = make
        self._turns = turns
        self._study_id = study_id
        self._lock = asyncio.Lock()
        self._study: pb.Study | None = None
        self._taken_at = -inf
        self._heading = asyncio.Lock()
        self._head: Head | None = None
        self._head_at = -inf
        self._failure: Exception | None = None
        self._paging = asyncio.Lock()
        self._page: _Page | None = None

    async def head(self) -> Head | None:
        """The study's head, read after this was called; None if it was deleted."""
        clock = asyncio.get_running_loop().time
        asked_at = clock()
        async with self._heading:
            if self._head_at < asked_at:
                began = clock()
                self._failure = None
                try:
                    async with transaction(self._engine) as conn:
                        self._head = await studies.head(conn, self._study_id)
                except Exception as error:  # noqa: BLE001  (it is everybody's who waits here)
                    self._failure = error
                self._head_at = began
            if self._failure is not None:
                raise self._failure
            return self._head

    async def next(self, cursor: int) -> pb.WatchStudyResponse:
        """The next message: the study, and the events that it covers."""
        study = await self.beyond(cursor)
        async with self._paging:
            if self._page is None or self._page.cursor != cursor or self._page.study is not study:
                async with self._turns:
                    self._page = _Page(cursor, study, await self._read(cursor, study))
            return self._page.response

    async def _read(self, cursor: int, study: pb.Study) -> pb.WatchStudyResponse:
        async with transaction(self._engine) as conn:
            stored = await history.events_after(conn, self._study_id, cursor, MAX_EVENTS)
        covered = (convert.event(event) for event in stored if event.cursor <= study.status.cursor)
        return pb.WatchStudyResponse(events=fitting(covered, beside=study.ByteSize()), study=study)

    async def beyond(self, cursor: int) -> pb.Study:
        """The study, newer than `cursor` if there is anything newer. Raises StudyNotFoundError."""
        async with self._lock:
            if self._study is None or self._study.status.cursor <= cursor:
                loop = asyncio.get_running_loop()
                await asyncio.sleep(max(0.0, self._taken_at + SNAPSHOT_EVERY_S - loop.time()))
                self._taken_at = loop.time()
                self._study = await self._load()
            return self._study

    async def _load(self) -> pb.Study:
        return await self._make(self._study_id)


class Snapshots:
    """The snapshots of the studies that are watched on this replica."""

    def __init__(self, engine: AsyncEngine, make: Make) -> None:
        self._engine = engine
        self._make = make
        self._of: dict[int, Snapshot] = {}
        self._turns = asyncio.Semaphore(AT_ONCE)

    @asynccontextmanager
    async def of(self, study_id: int) -> AsyncIterator[Snapshot]:
        """The snapshot of a study, kept while someone watches it."""
        if study_id not in self._of:
            self._of[study_id] = Snapshot(self._engine, study_id, self._make, self._turns)
        snapshot = self._of[study_id]
        snapshot.watchers += 1
        try:
            yield snapshot
        finally:
            snapshot.watchers -= 1
            if not snapshot.watchers:
                del self._of[study_id]


async def watch(
    hub: Hub, snapshots: Snapshots, study: Study, after: int
) -> AsyncGenerator[pb.WatchStudyResponse]:
    """The events after a cursor until the study has ended; the first message is sent at once, with or without
    events."""
    _check_cursor(study, after)
    cursor, first = after, True
    async with hub.watching(study.id) as changed, snapshots.of(study.id) as snapshot:
        while True:
            if hub.closing:
                raise DrainingError("this scheduler is shutting down")
            head = await snapshot.head()
            if head is None:
                raise _deleted()
            if first or head.cursor > cursor:
                response = await snapshot.next(cursor)
                sent = [event.cursor for event in response.events] or [response.study.status.cursor]
                cursor, first = max(cursor, *sent), False  # without events: they were deleted by age
                yield response
            if cursor < head.cursor:
                continue
            if head.state.ended and not head.ending:
                return
            await changed.wait(POLL_S)


def _check_cursor(study: Study, after: int) -> None:
    if after <= study.cursor:
        return
    violation = Violation(
        field="after_cursor",
        value=str(after),
        message=f"is beyond the newest event, which is {study.cursor}",
        remedy="Give the cursor of the last event that you saw, or 0 for all events.",
    )
    raise InvalidFieldError([violation])


def _deleted() -> StudyNotFoundError:
    return StudyNotFoundError("the study was deleted while it was watched")
