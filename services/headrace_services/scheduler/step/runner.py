"""Group commit: everything that arrives for a study while a step runs goes into the next step.

A runner is an actor: one task, one bounded queue, one study. It retries for ever while the database is away
(whoever waits for an answer has a deadline of their own; a worker's messages lie on its disk), and tries again at
once when it lost against another replica.

A step that fails otherwise is a defect. The runner finds out whose it is, and keeps it there:

- It runs the arrivals of the batch one at a time, each without the copies that the steps before left behind. Those that
  pass are taken.
- One that fails alone is refused with an InternalError, if a step without any arrival passes. So a poisoned message
  harms nobody but its sender.
- Where even that step fails the study itself is at fault, and is set aside (`aside`): it ends as FAILED with the
  reason. The same follows from an arrival that must not fail (a user's stop, the end of a live lease), and from
  `MESSAGES_IN_ROW` messages of live leases that fail one after the other.

A fault of the database, or want of memory, says nothing about the study: it is never set aside for that.
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
from headrace_services.scheduler.arrivals import ExitedArrived, Kick, Leased, LeaseExpired, StopStudy
from headrace_services.scheduler.step import aside
from headrace_services.scheduler.step.cache import StudyCache
from headrace_services.scheduler.step.submissions import Settled, Submission
from headrace_services.scheduler.step.transaction import StepResult, run_step
from headrace_services.scheduler.store.database import KeptConnection, is_away, is_conflict
from headrace_services.scheduler.store.defects import reason_of
from headrace_services.scheduler.store.step_writes import is_stale_copy

log = logging.getLogger(__name__)

MAX_BATCH = 256
MAX_QUEUE = 4096
CONFLICT_ATTEMPTS = 20
MESSAGES_IN_ROW = 3
"""A study that cannot take so many messages of its workers one after the other cannot go on."""

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
        self._broken: str | None = None
        """Why the study is to be set aside, or was."""
        self._is_aside = False
        self._failed_in_row = 0
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

    def set_aside(self, why: str) -> None:
        """End the study, whose rows cannot be read, before its next step."""
        self._broken = self._broken or why
        self.kick()

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
        if self._broken is not None:
            await self._answer_aside(batch, self._broken)
            return
        try:
            result = await self._step([waiting.submission for waiting in batch])
        except Exception as error:
            self._cache = None
            log.exception("a step of study %s failed on %s arrivals", self.study_id, len(batch))
            await self._isolate(batch, error)
            return
        self._take(batch, result)

    def _take(self, batch: list[_Waiting], result: StepResult) -> None:
        self._committed(self.study_id, result)
        for waiting, settled in zip(batch, result.settled, strict=True):
            _answer(waiting, settled)
        if any(isinstance(waiting.submission.arrival, Leased) for waiting in batch):
            self._failed_in_row = 0
        if result.again:
            self.kick()

    # --- defects ---------------------------------------------------------------------------------------

    async def _isolate(self, batch: list[_Waiting], error: Exception) -> None:
        """Find the arrival that brings a defect about, and whether it is the study's."""
        for waiting in batch:
            if self._broken is not None:
                await self._answer_aside([waiting], self._broken)
                continue
            try:
                result = await self._step([waiting.submission])
            except Exception as alone:  # noqa: BLE001  (whatever it is: it was logged above)
                self._cache = None
                error = alone
            else:
                self._take([waiting], result)
                continue
            self._broken = await self._defect(waiting.submission, error)
            if self._broken is not None:
                await self._answer_aside([waiting], self._broken)
                continue
            failure: HeadraceError = InternalError(f"the scheduler failed on this: {reason_of(error)}")
            if is_conflict(error):  # bad luck, and nothing wrong with the arrival
                failure = DatabaseUnavailableError("the database did not take the step")
            _answer(waiting, Settled(outcome=failure))

    async def _defect(self, submission: Submission, error: Exception) -> str | None:
        """Why the study is at fault for a step that failed on one arrival; None where the arrival is, or nobody."""
        if _says_nothing(error):
            return None
        kick = _Waiting(Submission(arrival=Kick()))
        try:
            result = await self._step([kick.submission])
        except Exception as alone:
            self._cache = None
            if _says_nothing(alone):
                return None
            log.exception("study %s cannot go on", self.study_id)
            return f"the scheduler cannot go on with this study: {reason_of(alone)}"
        self._take([kick], result)
        arrival = submission.arrival
        must = isinstance(arrival, ExitedArrived | LeaseExpired) and submission.respond is None
        if isinstance(arrival, StopStudy):
            return f"the scheduler could not stop this study in order: {reason_of(error)}"
        if (
            not isinstance(arrival, Leased)
            or submission.respond is not None
            or not await self._holds(arrival)
        ):
            return None
        self._failed_in_row += 1
        if must or self._failed_in_row >= MESSAGES_IN_ROW:
            return f"the scheduler cannot take the messages of its trials: {reason_of(error)}"
        return None

    async def _holds(self, arrival: Leased) -> bool:
        """Whether an arrival's lease is live: who speaks for another's study cannot have it set aside."""
        try:
            async for attempt in self._away:
                with attempt:
                    async with self._connection as conn:
                        return await aside.holds(conn, self.study_id, arrival)
        except Exception:  # noqa: BLE001  (a lease that no row could have)
            return False
        raise AssertionError("the retries above end by returning or raising")

    async def _answer_aside(self, batch: list[_Waiting], why: str) -> None:
        """Set the study aside, if it is not yet, and answer what arrived for it as one that has ended does."""
        submissions = [waiting.submission for waiting in batch]
        try:
            async for attempt in self._away:
                with attempt:
                    async with self._connection as conn:
                        result = await aside.run(
                            conn, self.study_id, why, submissions, first=not self._is_aside
                        )
        except Exception as error:
            log.exception("study %s could not be set aside", self.study_id)
            failure = InternalError(f"the study could not be set aside: {reason_of(error)}")
            for waiting in batch:
                _answer(waiting, Settled(outcome=failure))
            return
        self._is_aside = True
        self._take(batch, result)

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


def _says_nothing(error: BaseException) -> bool:
    """Whether an error is neither the arrival's nor the study's doing."""
    return isinstance(error, MemoryError) or is_conflict(error)


def _lost_a_race(error: BaseException) -> bool:
    return (
        is_conflict(error)
        or is_stale_copy(error)
        or isinstance(error, (IntegrityError, psycopg.IntegrityError))
    )
