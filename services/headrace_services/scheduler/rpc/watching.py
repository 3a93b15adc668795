"""Following a study: the events after a cursor, each message with the study as of its last event or later.

Who is authoritative: the rows. A commit on this replica wakes its watchers at once, commits elsewhere are found
by polling the study's cursor. Since cursors are given out under the study's lock, reading "greater than the last
one sent" neither skips nor repeats an event, however many replicas write.

The study's status costs more than its events, so all watchers of a study on this replica share one snapshot of
it, taken at most every `SNAPSHOT_EVERY_S`. A watcher sends the events that the snapshot covers, up to
`MAX_EVENTS` a message; what has been committed since waits for the next snapshot.

What is lost when the stream breaks: nothing. The client goes on from the last cursor that it saw, here or
elsewhere; a replica that shuts down ends its watches so that clients do that.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
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

POLL_S = 0.5
SNAPSHOT_EVERY_S = 0.5
MAX_EVENTS = 200
"""In a message: about 10 ms of the event loop."""


Make = Callable[[int], Awaitable[pb.Study]]
"""Makes the message of a study. Raises StudyNotFoundError."""


class Snapshot:
    """The newest known message of one study, shared by its watchers."""

    def __init__(self, study_id: int, make: Make) -> None:
        self.watchers = 0
        self._make = make
        self._study_id = study_id
        self._lock = asyncio.Lock()
        self._study: pb.Study | None = None
        self._taken_at = -inf

    async def beyond(self, cursor: int) -> pb.Study:
        """The study, newer than `cursor` if there is anything newer. Raises StudyNotFoundError."""
        async with self._lock:
            if self._study is None or self._study.status.cursor <= cursor:
                loop = asyncio.get_running_loop()
                await asyncio.sleep(max(0.0, self._taken_at + SNAPSHOT_EVERY_S - loop.time()))
                self._taken_at = loop.time()
                self._study = await self._take()
            return self._study

    async def _take(self) -> pb.Study:
        return await self._make(self._study_id)


class Snapshots:
    """The snapshots of the studies that are watched on this replica."""

    def __init__(self, make: Make) -> None:
        self._make = make
        self._of: dict[int, Snapshot] = {}

    @asynccontextmanager
    async def of(self, study_id: int) -> AsyncIterator[Snapshot]:
        """The snapshot of a study, kept while somebody watches it."""
        snapshot = self._of.setdefault(study_id, Snapshot(study_id, self._make))
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
    """The events after a cursor until the study has ended; the first message comes at once, events or none."""
    _check_cursor(study, after)
    cursor, first = after, True
    async with hub.watching(study.id) as changed, snapshots.of(study.id) as snapshot:
        while True:
            if hub.closing:
                raise DrainingError("this scheduler is shutting down")
            async with transaction(hub.engine) as conn:
                head = await studies.head(conn, study.id)
            if head is None:
                raise _deleted()
            if first or head.cursor > cursor:
                response = await _next(hub.engine, snapshot, study.id, cursor)
                cursor, first = max([cursor, *(event.cursor for event in response.events)]), False
                yield response
            if cursor < head.cursor:
                continue
            if head.state.ended and not head.ending:
                return
            await changed.wait(POLL_S)


async def _next(engine: AsyncEngine, snapshot: Snapshot, study_id: int, cursor: int) -> pb.WatchStudyResponse:
    """The next message: the study, and the events that it covers."""
    message = await snapshot.beyond(cursor)
    async with transaction(engine) as conn:
        stored = await history.events_after(conn, study_id, cursor, MAX_EVENTS)
    covered = (convert.event(event) for event in stored if event.cursor <= message.status.cursor)
    return pb.WatchStudyResponse(events=fitting(covered, beside=message.ByteSize()), study=message)


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
