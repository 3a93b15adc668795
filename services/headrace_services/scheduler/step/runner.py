"""Group commit: everything that arrives for a study while a step runs goes into the next step.

A runner is an actor: one task, one bounded queue, one study. It retries for ever while the database is away
(whoever waits for an answer has a deadline of their own; a worker's messages lie on its disk), tries again at
once when it lost against another replica, and isolates an arrival that breaks a step by running the batch's
arrivals one at a time, so that one poisoned message never blocks a study.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import psycopg
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine
from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from headrace.errors import DatabaseUnavailableError, DrainingError, HeadraceError, InternalError
from headrace_services.scheduler.arrivals import Kick
from headrace_services.scheduler.step.cache import StudyCache
from headrace_services.scheduler.step.submissions import Settled, Submission
from headrace_services.scheduler.step.transaction import StepResult, run_step
from headrace_services.scheduler.store.database import KeptConnection, is_away, is_conflict
from headrace_services.scheduler.store.step_writes import is_stale_copy

log = logging.getLogger(__name__)

MAX_BATCH = 256
MAX_QUEUE = 4096
CONFLICT_ATTEMPTS = 20

Committed = Callable[[int, StepResult], None]
"""Called with the study's id after each commit, before anybody is answered."""


@dataclass(slots=True)
class _Waiting:
    submission: Submission
    answer: asyncio.Future[Settled] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class StudyRunner:
    """Runs the steps of one study on this replica."""

    def __init__(self, engine: AsyncEngine, study_id: int, committed: Committed) -> None:
        self.study_id = study_id
        self._connection = KeptConnection(engine)
        self._committed = committed
        self._queue: asyncio.Queue[_Waiting] = asyncio.Queue(MAX_QUEUE)
        self._in_turn = asyncio.Lock()
        self._kicked = False
        self._requests: dict[str, _Waiting] = {}
        self._cache: StudyCache | None = None
        self._closing = False
        self.idle = asyncio.Event()
        self.idle.set()
        # Each refers to itself: one for every step would be garbage that waits for a full collection.
        self._away = AsyncRetrying(
            retry=retry_if_exception(_is_away),
            wait=wait_random_exponential(multiplier=0.05, max=1),
            reraise=True,
        )
        self._lost = AsyncRetrying(
            retry=retry_if_exception(_lost_a_race),
            wait=wait_random_exponential(multiplier=0.01, max=0.2),
            stop=stop_after_attempt(CONFLICT_ATTEMPTS),
            reraise=True,
        )

    async def submit(self, submission: Submission) -> Settled:
        """Put an arrival into the next step and wait until it is committed.

        Waits while the queue is full, in the order of the calls: a worker's later message that overtook an
        earlier one would make that one look stale. Raises the HeadraceError that refused a command.
        """
        if self._closing:
            raise DrainingError("this scheduler is shutting down")
        request = submission.request
        waiting = self._requests.get(request.id) if request else None
        if waiting is None or waiting.submission.request != request:
            waiting = _Waiting(submission)
            if request:
                self._requests[request.id] = waiting
            await self._enqueue(waiting)
        # A request's answer may be waited for by its repeats too; a worker's message waits alone.
        settled = await (asyncio.shield(waiting.answer) if request else waiting.answer)
        if isinstance(settled.outcome, HeadraceError):
            raise settled.outcome
        return settled

    async def _enqueue(self, waiting: _Waiting) -> None:
        try:
            async with self._in_turn:
                self.idle.clear()
                await self._queue.put(waiting)
        except asyncio.CancelledError:
            self._forget([waiting])  # it will never run: a repeat must not wait for it
            raise

    def kick(self) -> None:
        """Ask for a step that looks for something to place: the next one, if there is one coming."""
        if self._closing:
            return
        if self._queue.empty():
            self.idle.clear()
            self._queue.put_nowait(_Waiting(Submission(arrival=Kick())))
        else:
            self._kicked = True

    def close(self) -> None:
        """Take no more arrivals; what is queued is still run."""
        self._closing = True

    async def run(self) -> None:
        """Run steps until cancelled; whoever still waits is told then."""
        try:
            await self._run_steps()
        finally:
            while not self._queue.empty():
                self._forget([self._queue.get_nowait()])
            await self._connection.give_back()

    async def _run_steps(self) -> None:
        while True:
            batch = [await self._queue.get()]
            while len(batch) < MAX_BATCH and not self._queue.empty():
                batch.append(self._queue.get_nowait())
            if self._kicked:
                self._kicked = False
                batch.append(_Waiting(Submission(arrival=Kick())))
            try:
                await self._run_batch(batch)
            finally:
                self._forget(batch)
                if self._queue.empty():
                    self.idle.set()
                    await self._connection.give_back()

    async def _run_batch(self, batch: list[_Waiting]) -> None:
        try:
            result = await self._step([waiting.submission for waiting in batch])
        except Exception as error:  # a defect: find the arrival that brings it about
            self._cache = None
            log.exception("a step of study %s failed on %s arrivals", self.study_id, len(batch))
            if len(batch) > 1:
                for waiting in batch:
                    await self._run_batch([waiting])
                return
            failure: HeadraceError = InternalError(
                f"the scheduler failed on this: {type(error).__name__}: {error}"
            )
            if is_conflict(error):  # bad luck, and nothing wrong with the arrival
                failure = DatabaseUnavailableError("the database did not take the step")
            _answer(batch[0], Settled(outcome=failure))
            return
        self._committed(self.study_id, result)
        for waiting, settled in zip(batch, result.settled, strict=True):
            _answer(waiting, settled)
        if result.again:
            self.kick()

    async def _step(self, submissions: Sequence[Submission]) -> StepResult:
        try:
            return await self._transact(submissions)
        except Exception as error:  # seldom; tenacity takes a while even where the first attempt succeeds
            if not (_is_away(error) or _lost_a_race(error)):
                raise
        async for attempt in self._away:
            with attempt:
                async for turn in self._lost:
                    with turn:
                        return await self._transact(submissions)
        raise AssertionError("the retries above end by returning or raising")

    async def _transact(self, submissions: Sequence[Submission]) -> StepResult:
        cache, self._cache = self._cache, None
        async with self._connection as conn:
            result = await run_step(conn, self.study_id, submissions, cache)
        self._cache = result.cache
        return result

    def _forget(self, batch: list[_Waiting]) -> None:
        for waiting in batch:
            request = waiting.submission.request
            if request and self._requests.get(request.id) is waiting:
                del self._requests[request.id]
            if not waiting.answer.done():
                waiting.answer.set_exception(DrainingError("this scheduler is shutting down"))
                waiting.answer.exception()


def _answer(waiting: _Waiting, settled: Settled) -> None:
    if not waiting.answer.done():
        waiting.answer.set_result(settled)


def _is_away(error: BaseException) -> bool:
    return isinstance(error, DatabaseUnavailableError) or (is_away(error) and not is_conflict(error))


def _lost_a_race(error: BaseException) -> bool:
    return (
        is_conflict(error)
        or is_stale_copy(error)
        or isinstance(error, (IntegrityError, psycopg.IntegrityError))
    )
