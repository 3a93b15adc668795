"""The hub of a replica: one runner a study, and whoever waits for news of it.

Runners are made on demand and closed when a study has ended or been quiet for a while, so a replica's memory
follows the studies at work, not all there ever were. Commits on this replica wake watchers here; other
replicas' watchers poll the cursor. After a commit the orders go to the session of their worker, on this
replica or, by a notification, on another one; whatever gets lost is repeated by the session's reconciliation.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncEngine

from headrace.errors import DrainingError
from headrace_services.scheduler.arrivals import Order
from headrace_services.scheduler.step.runner import StudyRunner
from headrace_services.scheduler.step.submissions import Settled, Submission
from headrace_services.scheduler.step.transaction import StepResult
from headrace_services.scheduler.store import workers

log = logging.getLogger(__name__)

IDLE_AFTER_S = 60.0

Deliver = Callable[[Iterable[Order]], None]
Propose = Callable[[int, int], None]
"""Called with a study's id and how many proposals it wants."""


class Changed:
    """Lets a watcher wait for the next commit to a study on this replica."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        """Wake the watcher."""
        self._event.set()

    async def wait(self, timeout_s: float) -> None:
        """Return after the next commit, or after `timeout_s` at the latest."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
        except TimeoutError:
            pass
        self._event.clear()


@dataclass(slots=True)
class _Entry:
    runner: StudyRunner
    task: asyncio.Task[None]
    last_used: float
    users: int = 0


class Hub:
    """Takes what arrives for studies and hands out what follows from it."""

    def __init__(self, engine: AsyncEngine, tasks: asyncio.TaskGroup) -> None:
        self.engine = engine
        self.closing = False
        self._tasks = tasks
        self._runners: dict[int, _Entry] = {}
        self._watchers: dict[int, set[Changed]] = {}
        self._deliver: Deliver | None = None
        self._propose: Propose | None = None
        self._spread: asyncio.Event = asyncio.Event()
        self._streams: set[asyncio.Timeout] = set()

    def deliver_with(self, deliver: Deliver) -> None:
        """Say who takes orders to the workers."""
        self._deliver = deliver

    def propose_with(self, propose: Propose) -> None:
        """Say who has proposals computed."""
        self._propose = propose

    async def submit(self, study_id: int, submission: Submission) -> Settled:
        """Put an arrival into the study's next step; returns when it is committed.

        Raises the HeadraceError that refused a command, and DrainingError while shutting down.
        """
        if self.closing:
            raise DrainingError("this scheduler is shutting down")
        entry = self._entry(study_id)
        entry.users += 1
        try:
            return await entry.runner.submit(submission)
        finally:
            entry.users -= 1
            entry.last_used = asyncio.get_running_loop().time()

    def kick(self, study_id: int) -> None:
        """Ask for a step that looks for something to place."""
        if not self.closing:
            self._entry(study_id).runner.kick()

    def set_aside(self, study_id: int, why: str) -> None:
        """End a study of which something cannot be read, soon."""
        if not self.closing:
            log.error("study %s is set aside: %s", study_id, why)
            self._entry(study_id).runner.set_aside(why)

    def spread(self) -> None:
        """Offer free slots to all active studies, soon."""
        self._spread.set()

    @asynccontextmanager
    async def watching(self, study_id: int) -> AsyncIterator[Changed]:
        """Give a watcher something to wait on."""
        changed = Changed()
        self._watchers.setdefault(study_id, set()).add(changed)
        try:
            yield changed
        finally:
            self._watchers[study_id].discard(changed)
            if not self._watchers[study_id]:
                del self._watchers[study_id]

    @asynccontextmanager
    async def until_drained(self) -> AsyncIterator[None]:
        """Serve a stream that has no end of its own; the block is left early when this replica has been drained.

        Raises DrainingError while shutting down.
        """
        if self.closing:
            raise DrainingError("this scheduler is shutting down")
        serving = asyncio.timeout(None)
        self._streams.add(serving)
        try:
            async with serving:
                yield
        except TimeoutError:
            if not serving.expired():
                raise
        finally:
            self._streams.discard(serving)

    async def run_spreading(self) -> None:
        """Kick the studies that could use a free slot, when one was left over. Runs until cancelled."""
        while True:
            await self._spread.wait()
            self._spread.clear()
            try:
                async with self.engine.connect() as conn:
                    waiting = await workers.studies_waiting_for_slots(conn)
            except Exception:
                log.warning(
                    "could not look for studies that wait for a slot; the next sweep will", exc_info=True
                )
                continue
            for study_id in waiting:
                self.kick(study_id)

    def drop_idle(self) -> None:
        """Close the runners that nobody has used for a while."""
        now = asyncio.get_running_loop().time()
        for study_id, entry in list(self._runners.items()):
            if not entry.users and entry.runner.idle.is_set() and now - entry.last_used > IDLE_AFTER_S:
                self._remove(study_id)

    async def drain(self) -> None:
        """Take no more arrivals, finish those that are queued, and stop the runners.

        Cancelled before the queues are empty, it stops the runners all the same; what was not committed by then
        was not acknowledged either.
        """
        self.closing = True
        for watchers in self._watchers.values():
            for changed in watchers:
                changed.set()
        for entry in self._runners.values():
            entry.runner.close()
        try:
            for entry in list(self._runners.values()):
                await entry.runner.idle.wait()
        finally:
            for study_id in list(self._runners):
                self._remove(study_id)
            for serving in self._streams:
                serving.reschedule(asyncio.get_running_loop().time())

    def _entry(self, study_id: int) -> _Entry:
        entry = self._runners.get(study_id)
        if entry is None:
            runner = StudyRunner(self.engine, study_id, self._committed)
            task = self._tasks.create_task(runner.run(), name=f"study {study_id}")
            entry = _Entry(runner, task, asyncio.get_running_loop().time())
            self._runners[study_id] = entry
        return entry

    def _remove(self, study_id: int) -> None:
        entry = self._runners.pop(study_id)
        entry.runner.close()
        entry.task.cancel()

    def _committed(self, study_id: int, result: StepResult) -> None:
        if self._deliver is not None:
            self._deliver(result.orders)
        for changed in self._watchers.get(study_id, ()):
            changed.set()
        for other in result.kicks:
            self.kick(other)
        if result.proposals_wanted and self._propose is not None:
            self._propose(study_id, result.proposals_wanted)
        if result.slots_left:
            self.spread()
