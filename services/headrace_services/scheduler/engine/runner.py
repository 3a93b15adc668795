"""Group commit: all inputs that arrive for a study while a cycle runs go into the next cycle.

A runner is an actor: one task, one bounded queue, one study. A cycle that the database does not accept is retried
within limits (`retries`). After that its inputs are answered with a DatabaseUnavailableError, and the next inputs
are tried from scratch. But later messages of the same stream get the same answer, since a worker's messages are
applied in order.

A cycle that fails for another reason is a defect. The runner finds its cause, and contains it:

- It runs the inputs of the batch one at a time, each with a new fold. Those that pass are accepted.
- An input that fails alone is refused with an InternalError, if a cycle without any input passes. So a poisoned
  message harms only its sender.
- If even that cycle fails, the study itself is at fault and is quarantined (`quarantine`): it ends as FAILED with the
  reason. The same happens if an input fails that must not (a user's stop, the end of a live lease), and after
  `MESSAGES_IN_ROW` messages of live leases that fail one after the other.

A fault of the database, or lack of memory, says nothing about the study: it is never quarantined for that.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from weakref import WeakSet

from sqlalchemy.ext.asyncio import AsyncEngine

from headrace.errors import DatabaseUnavailableError, DrainingError, HeadraceError, InternalError
from headrace_services.scheduler import measures
from headrace_services.scheduler.core.fold import Fold
from headrace_services.scheduler.core.inputs import ExitedArrived, Leased, LeaseExpired, PlaceNow, StopStudy
from headrace_services.scheduler.engine import quarantine
from headrace_services.scheduler.engine.cycle import CycleResult, run_cycle
from headrace_services.scheduler.engine.retries import cause, is_unavailable, retrying
from headrace_services.scheduler.engine.submissions import Settled, Submission
from headrace_services.scheduler.engine.turns import Turn, Turns
from headrace_services.scheduler.store.database import is_conflict, transaction
from headrace_services.scheduler.store.defects import reason_of
from headrace_services.scheduler.store.quarantine import holds

log = logging.getLogger(__name__)

MAX_BATCH = 256
MAX_QUEUE = 4096
LOOK_AGAIN_S = (0.05, 1.0)
"""The delay before a study looks again for free slots that other cycles had locked, which hold them for a few
milliseconds. It doubles at each further conflict, up to the second number: many studies must not keep each other
busy."""
MESSAGES_IN_ROW = 3
"""A study that fails on this many messages of its workers in a row cannot continue."""

Committed = Callable[[int, CycleResult], None]
"""Called with the study's id after each commit, before anyone is answered."""


@dataclass(slots=True)
class _Waiting:
    submission: Submission
    answer: asyncio.Future[Settled] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    is_let_in: bool = False
    """Whether it is a wake-up that was admitted. The next one is admitted once this is dropped."""


class StudyRunner:
    """Runs the cycles of one study on this replica."""

    def __init__(
        self, engine: AsyncEngine, study_id: int, committed: Committed, turns: Turns | None = None
    ) -> None:
        """`turns` are those of the replica's cycles that place trials."""
        self.study_id = study_id
        self._turns = turns or Turns()
        self._engine = engine
        self._committed = committed
        self._queue: asyncio.Queue[_Waiting] = asyncio.Queue(MAX_QUEUE)
        self._in_turn = asyncio.Lock()
        self._asked: str | None = None
        """Why a cycle is to look for something to place; None if none is needed."""
        self._coming: asyncio.Task[None] | None = None
        """The wake-up that waits to be admitted."""
        self._answered: str | None = None
        """The reason for which the present cycle looks."""
        self._looks_again: asyncio.TimerHandle | None = None
        self._look_again_s = LOOK_AGAIN_S[0]
        self._rest: asyncio.TimerHandle | None = None
        """The end of the first pause of a trial. If this replica dies, the sweep of another one notices it too."""
        self._requests: dict[str, _Waiting] = {}
        self._fold: Fold | None = None
        self._closing = False
        self._broken: str | None = None
        """Why the study is to be quarantined, or was."""
        self._is_quarantined = False
        self._failed_in_row = 0
        self._behind: WeakSet[object] = WeakSet()
        """Streams with an unanswered message: the worker sends it again on a new stream."""
        self.idle = asyncio.Event()
        self.idle.set()
        # It refers to itself: one for each cycle would be garbage that waits for a full collection.
        self._attempts = retrying(f"study {study_id}")

    async def submit(self, submission: Submission) -> Settled:
        """Put an input into the next cycle and wait until it is committed.

        This waits while the queue is full, in the order of the calls: if a worker's later message overtook an
        earlier one, the earlier one would look stale. Raises the HeadraceError that refused a command.
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
        # Repeats of a request may wait for its answer too; a worker's message is the only one that waits for its
        # own.
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

    def kick(self, why: str = "asked") -> None:
        """Request a search for something to place, by whichever cycle looks next or by one that is admitted for
        it."""
        if self._closing or self._asked is not None:
            return
        self._asked = why
        self.idle.clear()
        if self._coming is None:
            self._coming = asyncio.create_task(self._come_in(), name=f"wake-up of study {self.study_id}")

    async def _come_in(self) -> None:
        """Have a cycle look, as soon as a wake-up is admitted, unless one has looked by then.

        Until then the study's messages go first.
        """
        try:
            await self._turns.let_in.acquire()
            if self._asked is None and (self._broken is None or self._is_quarantined):
                self._turns.let_in.release()
            else:
                measures.WAKE_UPS.labels(self._asked or "quarantined").inc()
                await self._enqueue(_Waiting(Submission(input=PlaceNow()), is_let_in=True))
        finally:
            self._coming = None

    def _looks(self) -> None:
        """The present cycle has its turn. If it does not look for something to place after all, or fails, the
        wake-up is pending again."""
        self._answered, self._asked = self._asked, None

    @property
    def queued(self) -> int:
        """How many inputs wait."""
        return self._queue.qsize()

    def _look_again(self) -> None:
        self._looks_again = None
        self.kick("looks again")

    def _look_after(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        if self._rest is None or loop.time() + seconds < self._rest.when():
            if self._rest is not None:
                self._rest.cancel()
            self._rest = loop.call_later(seconds, self._rested)

    def _rested(self) -> None:
        self._rest = None
        self.kick("a pause is over")

    def quarantine(self, why: str) -> None:
        """End the study, whose rows cannot be read, before its next cycle."""
        self._broken = self._broken or why
        self.kick("quarantined")

    def close(self) -> None:
        """Accept no more inputs; queued ones are still run."""
        self._closing = True

    async def run(self) -> None:
        """Run cycles until cancelled; callers that still wait are then answered."""
        try:
            await self._run_cycles()
        finally:
            if self._coming is not None:
                self._coming.cancel()
            if self._rest is not None:
                self._rest.cancel()
            while not self._queue.empty():
                self._forget([self._queue.get_nowait()])

    async def _run_cycles(self) -> None:
        while True:
            batch = [await self._queue.get()]
            while len(batch) < MAX_BATCH and not self._queue.empty():
                batch.append(self._queue.get_nowait())
            if any(waiting.is_let_in for waiting in batch):
                self._asked = None
            try:
                await self._run_batch(batch)
            finally:
                self._forget(batch)
                if self._queue.empty() and self._asked is None:
                    self.idle.set()

    async def _run_batch(self, batch: list[_Waiting]) -> None:
        if self._broken is not None:
            await self._answer_quarantined(batch, self._broken)
            return
        batch = [waiting for waiting in batch if not self._is_overtaking(waiting)]
        if not batch:
            return
        try:
            result = await self._step([waiting.submission for waiting in batch])
        except Exception as error:
            self._fold = None
            if is_unavailable(error):
                self._give_up(batch, error)
                return
            log.exception("a cycle of study %s failed on %s inputs", self.study_id, len(batch))
            await self._isolate(batch, error)
            return
        self._settle(batch, result)

    def _is_overtaking(self, waiting: _Waiting) -> bool:
        """Whether an earlier message of the stream was left unanswered. Then this one must be too."""
        if waiting.submission.stream not in self._behind:
            return False
        self._leave(waiting, "an earlier message of this worker must come first")
        return True

    def _leave(self, waiting: _Waiting, why: str) -> None:
        """Answer that the database did not accept a submission; no later message may overtake it."""
        if waiting.submission.stream is not None:
            self._behind.add(waiting.submission.stream)
        _answer(waiting, Settled(outcome=DatabaseUnavailableError(why)))

    def _give_up(self, batch: list[_Waiting], error: Exception) -> None:
        """Answer that the database did not accept the batch."""
        log.warning(
            "study %s: the database did not accept %s inputs: %s", self.study_id, len(batch), cause(error)
        )
        for waiting in batch:
            self._leave(waiting, f"the database did not accept the cycle: {cause(error)}")

    def _settle(self, batch: list[_Waiting], result: CycleResult) -> None:
        self._committed(self.study_id, result)
        for waiting, settled in zip(batch, result.settled, strict=True):
            _answer(waiting, settled)
        if any(isinstance(waiting.submission.input, Leased) for waiting in batch):
            self._failed_in_row = 0
        if result.effects.again:
            self.kick("there is more")
        if result.effects.rests_s is not None:
            self._look_after(result.effects.rests_s)
        if not result.effects.look_again:
            self._look_again_s = LOOK_AGAIN_S[0]
        elif self._looks_again is None:
            after_s = self._look_again_s * random.uniform(0.5, 1.5)  # noqa: S311  # jitter
            self._looks_again = asyncio.get_running_loop().call_later(after_s, self._look_again)
            self._look_again_s = min(2 * self._look_again_s, LOOK_AGAIN_S[1])

    # --- defects ---------------------------------------------------------------------------------------

    async def _isolate(self, batch: list[_Waiting], error: Exception) -> None:
        """Find the input that causes a defect, and whether the study is at fault."""
        for waiting in batch:
            if self._broken is not None:
                await self._answer_quarantined([waiting], self._broken)
                continue
            if self._is_overtaking(waiting):
                continue
            try:
                result = await self._step([waiting.submission])
            except Exception as alone:  # noqa: BLE001  (whatever it is: it was logged above)
                self._fold = None
                error = alone
            else:
                self._settle([waiting], result)
                continue
            try:
                self._broken = await self._defect(waiting.submission, error)
            except Exception as away:  # noqa: BLE001  (it says so when it raises)
                self._give_up([waiting], away)
                continue
            if self._broken is not None:
                await self._answer_quarantined([waiting], self._broken)
                continue
            if is_conflict(error):  # bad luck; the input is fine
                self._leave(waiting, "the database did not accept the cycle")
                continue
            failure = InternalError(f"the scheduler failed on this: {reason_of(error)}")
            _answer(waiting, Settled(outcome=failure))

    async def _defect(self, submission: Submission, error: Exception) -> str | None:
        """Why the study is at fault for a cycle that failed on one input; None if the input is at fault, or
        neither.

        Raises if the database is the reason, or prevents finding it.
        """
        if is_unavailable(error):
            raise error
        if _says_nothing(error):
            return None
        kick = _Waiting(Submission(input=PlaceNow()))
        try:
            result = await self._step([kick.submission])
        except Exception as alone:
            self._fold = None
            if is_unavailable(alone):
                raise
            if _says_nothing(alone):
                return None
            log.exception("study %s cannot continue", self.study_id)
            return f"the scheduler cannot continue this study: {reason_of(alone)}"
        self._settle([kick], result)
        message = submission.input
        must = isinstance(message, ExitedArrived | LeaseExpired) and submission.render is None
        if isinstance(message, StopStudy):
            return f"the scheduler could not stop this study cleanly: {reason_of(error)}"
        if not isinstance(message, Leased) or submission.render is not None or not await self._holds(message):
            return None
        self._failed_in_row += 1
        if must or self._failed_in_row >= MESSAGES_IN_ROW:
            return f"the scheduler cannot process the messages of its trials: {reason_of(error)}"
        return None

    async def _holds(self, message: Leased) -> bool:
        """Whether a message's lease is live: a sender without a lease of the study cannot have it quarantined."""
        try:
            async for attempt in self._attempts:
                with attempt:
                    async with transaction(self._engine) as conn:
                        return await holds(conn, self.study_id, message)
        except Exception as error:
            if is_unavailable(error):
                raise
            return False  # a lease that no row could have
        raise AssertionError("the retries above end by returning or raising")

    async def _answer_quarantined(self, batch: list[_Waiting], why: str) -> None:
        """Quarantine the study if it is not yet, and answer its inputs as an ended study does."""
        submissions = [waiting.submission for waiting in batch]
        try:
            async for attempt in self._attempts:
                with attempt:
                    async with transaction(self._engine) as conn:
                        result = await quarantine.run(
                            conn, self.study_id, why, submissions, first=not self._is_quarantined
                        )
        except Exception as error:
            if is_unavailable(error):
                self._give_up(batch, error)
                return
            log.exception("study %s could not be quarantined", self.study_id)
            failure = InternalError(f"the study could not be quarantined: {reason_of(error)}")
            for waiting in batch:
                _answer(waiting, Settled(outcome=failure))
            return
        self._is_quarantined = True
        self._settle(batch, result)

    async def _step(self, submissions: Sequence[Submission]) -> CycleResult:
        async for attempt in self._attempts:
            with attempt:
                try:
                    return await self._transact(submissions)
                except SystemExit as error:  # from a package's policy: it would end the scheduler
                    raise RuntimeError(f"a cycle called sys.exit({error.code!r})") from error
        raise AssertionError("the retries above end by returning or raising")

    async def _transact(self, submissions: Sequence[Submission]) -> CycleResult:
        fold, self._fold = self._fold, None
        turn = Turn(self._turns, self._looks)
        self._answered = None
        began, outcome, has_looked = perf_counter(), "failed", False
        try:
            async with transaction(self._engine) as conn:
                result = await run_cycle(conn, self.study_id, submissions, fold, turn)
            outcome, has_looked = "committed", result.effects.looked
        finally:
            turn.give_up()
            if not has_looked and self._answered is not None:
                self.kick(self._answered)
            measures.CYCLES.labels(outcome).observe(perf_counter() - began)
        self._fold = result.fold
        return result

    def _forget(self, batch: list[_Waiting]) -> None:
        for waiting in batch:
            if waiting.is_let_in:
                self._turns.let_in.release()
            request = waiting.submission.request
            if request and self._requests.get(request.id) is waiting:
                del self._requests[request.id]
            if not waiting.answer.done():
                waiting.answer.set_exception(DrainingError("this scheduler is shutting down"))
                waiting.answer.exception()


def _answer(waiting: _Waiting, settled: Settled) -> None:
    if not waiting.answer.done():
        waiting.answer.set_result(settled)


def _says_nothing(error: BaseException) -> bool:
    """Whether neither the input nor the study caused an error."""
    return isinstance(error, MemoryError) or is_conflict(error)
