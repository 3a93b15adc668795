"""The hub of a replica: one runner for each study, and the watchers of its commits.

Runners are made on demand, and closed when a study has ended or has been quiet for a while. So a replica's memory
grows with the active studies, not with all that ever existed. Commits on this replica wake its watchers; watchers
on other replicas poll the cursor. After a commit the orders go to the session of their worker, on this replica or,
by a notification, on another one. The session's reconciliation repeats what was lost.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncEngine

from headrace.errors import DrainingError
from headrace_services.scheduler.core.inputs import Order
from headrace_services.scheduler.engine.cycle import CycleResult
from headrace_services.scheduler.engine.runner import StudyRunner
from headrace_services.scheduler.engine.submissions import Settled, Submission
from headrace_services.scheduler.engine.turns import Turns
from headrace_services.scheduler.store import studies, workers

log = logging.getLogger(__name__)

IDLE_AFTER_S = 60.0

Deliver = Callable[[Iterable[Order]], None]
Propose = Callable[[int, int], None]
"""Called with a study's id and the number of proposals it needs."""


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
    """Takes inputs for studies and passes on the results."""

    def __init__(self, engine: AsyncEngine, tasks: asyncio.TaskGroup) -> None:
        self.engine = engine
        self.closing = False
        self._tasks = tasks
        self._runners: dict[int, _Entry] = {}
        self._turns = Turns()
        self._watchers: dict[int, set[Changed]] = {}
        self._deliver: Deliver | None = None
        self._propose: Propose | None = None
        self._wake_waiting: asyncio.Event = asyncio.Event()

    def deliver_with(self, deliver: Deliver) -> None:
        """Set the function that delivers orders to the workers."""
        self._deliver = deliver

    def propose_with(self, propose: Propose) -> None:
        """Set the function that has proposals computed."""
        self._propose = propose

    @property
    def queued(self) -> int:
        """How many inputs wait for a cycle."""
        return sum(entry.runner.queued for entry in list(self._runners.values()))

    @property
    def studies(self) -> int:
        """How many studies have a runner here."""
        return len(self._runners)

    async def submit(self, study_id: int, submission: Submission) -> Settled:
        """Put an input into the study's next cycle, and return when it is committed.

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

    def kick(self, study_id: int, why: str = "asked") -> None:
        """Ask for a cycle that looks for something to place."""
        if not self.closing:
            self._entry(study_id).runner.kick(why)

    def quarantine(self, study_id: int, why: str) -> None:
        """End a study, soon, because some of its rows cannot be read."""
        if not self.closing:
            log.error("study %s is quarantined: %s", study_id, why)
            self._entry(study_id).runner.quarantine(why)

    def wake_waiting_studies(self) -> None:
        """Offer free slots to all active studies, soon."""
        self._wake_waiting.set()

    @asynccontextmanager
    async def watching(self, study_id: int) -> AsyncIterator[Changed]:
        """Give a watcher an event to wait for."""
        changed = Changed()
        self._watchers.setdefault(study_id, set()).add(changed)
        try:
            yield changed
        finally:
            self._watchers[study_id].discard(changed)
            if not self._watchers[study_id]:
                del self._watchers[study_id]

    async def run_waking(self) -> None:
        """When a free slot was left over, wake the studies that could use it. Also wake ended studies that still
        have trials to terminate, since the replica that was doing so may be gone. Run until cancelled."""
        while True:
            await self._wake_waiting.wait()
            self._wake_waiting.clear()
            try:
                async with self.engine.connect() as conn:
                    waiting = await workers.studies_waiting_for_slots(conn)
                    waiting += await studies.ending(conn)
            except Exception:
                log.warning(
                    "could not look for studies that wait for a slot; the next sweep will", exc_info=True
                )
                continue
            for study_id in waiting:
                self.kick(study_id, "slots are left over")

    def drop_idle(self) -> None:
        """Close the runners that have not been used for a while."""
        now = asyncio.get_running_loop().time()
        for study_id, entry in list(self._runners.items()):
            if not entry.users and entry.runner.idle.is_set() and now - entry.last_used > IDLE_AFTER_S:
                self._remove(study_id)

    async def drain(self) -> None:
        """Accept no more inputs, finish those that are queued, and stop the runners.

        If this is cancelled before the queues are empty, it still stops the runners. What was not committed by
        then was not acknowledged either.
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

    def _entry(self, study_id: int) -> _Entry:
        entry = self._runners.get(study_id)
        if entry is None:
            runner = StudyRunner(self.engine, study_id, self._committed, self._turns)
            task = self._tasks.create_task(runner.run(), name=f"study {study_id}")
            entry = _Entry(runner, task, asyncio.get_running_loop().time())
            self._runners[study_id] = entry
        return entry

    def _remove(self, study_id: int) -> None:
        entry = self._runners.pop(study_id)
        entry.runner.close()
        entry.task.cancel()

    def _committed(self, study_id: int, result: CycleResult) -> None:
        if self._deliver is not None:
            self._deliver(result.effects.orders)
        for changed in self._watchers.get(study_id, ()):
            changed.set()
        for other in result.effects.wake:
            self.kick(other, "left to it")
        if result.effects.proposals_wanted and self._propose is not None:
            self._propose(study_id, result.effects.proposals_wanted)
        if result.effects.slots_left:
            self.wake_waiting_studies()
