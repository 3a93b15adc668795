"""The runner of a study: what arrives during a cycle goes into the next one, in order, and nothing is lost."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlalchemy.pool import QueuePool
from study_site import StudySite, lock_study, make_spec

from headrace.errors import DatabaseUnavailableError, DrainingError
from headrace_services.scheduler.core.inputs import Accepted, Input, PauseTrial, PlaceNow
from headrace_services.scheduler.core.plan import Effects
from headrace_services.scheduler.engine import retries
from headrace_services.scheduler.engine import runner as module
from headrace_services.scheduler.engine.cycle import CycleResult
from headrace_services.scheduler.engine.runner import StudyRunner
from headrace_services.scheduler.engine.submissions import Settled, Submission
from headrace_services.scheduler.engine.turns import LET_IN, Turns
from headrace_services.scheduler.store.database import transaction
from headrace_services.scheduler.store.requests import Request


class GatedRunner(StudyRunner):
    """A runner whose cycles do not touch a database, and end when a test allows it."""

    def __init__(self, turns: Turns | None = None) -> None:
        super().__init__(None, 1, lambda *_: None, turns)  # type: ignore[arg-type]
        self.batches: list[list[Input]] = []
        self.gate = asyncio.Event()

    async def _step(self, submissions: Sequence[Submission]) -> CycleResult:
        self.batches.append([submission.input for submission in submissions])
        await self.gate.wait()
        settled = tuple(Settled(outcome=Accepted()) for _ in submissions)
        return CycleResult(settled=settled, effects=Effects(), fold=None)


@asynccontextmanager
async def running() -> AsyncIterator[GatedRunner]:
    runner = GatedRunner()
    task = asyncio.create_task(runner.run())
    try:
        yield runner
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def say(runner: StudyRunner, number: int, **fields: Any) -> "asyncio.Task[Settled]":
    return asyncio.create_task(runner.submit(Submission(input=PauseTrial(number=number), **fields)))


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_kick_is_not_lost_because_something_else_is_queued() -> None:
    async with running() as runner:
        first = say(runner, 0)
        await turns()
        second = say(runner, 1)
        await turns()
        runner.kick()
        runner.kick()
        runner.gate.set()
        await asyncio.gather(first, second)
        assert runner.batches == [[PauseTrial(number=0)], [PauseTrial(number=1), PlaceNow()]]


async def test_messages_go_before_a_wake_up_that_is_not_let_in_yet() -> None:
    async with running() as runner:
        for _ in range(LET_IN):
            await runner._turns.let_in.acquire()
        runner.gate.set()
        runner.kick()
        await say(runner, 0)
        assert runner.batches == [[PauseTrial(number=0)]]
        assert not runner.idle.is_set(), "the wake-up is still to come"
        runner._turns.let_in.release()
        async with asyncio.timeout(60):
            await runner.idle.wait()
        assert runner.batches[1:] == [[PlaceNow()]]
        assert not runner._turns.let_in.locked(), "and the next one is let in"


async def test_a_runner_that_is_stopped_lets_the_next_wake_ups_in() -> None:
    turns_of_all = Turns()
    for stopped_after in (0, 10):
        runner = GatedRunner(turns_of_all)
        task = asyncio.create_task(runner.run())
        waiting = say(runner, 0)
        await turns()
        runner.kick()
        await turns(stopped_after)
        task.cancel()
        await asyncio.gather(task, waiting, return_exceptions=True)
        await turns()
    for _ in range(LET_IN):
        async with asyncio.timeout(1):
            await turns_of_all.let_in.acquire()


class LookingRunner(StudyRunner):
    """A runner whose cycles look for slots, and do not touch a database."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, failing: int = 0, only_learning: int = 0) -> None:
        super().__init__(None, 1, lambda *_: None)  # type: ignore[arg-type]
        self.batches: list[list[Input]] = []

        async def run_cycle(_: Any, __: int, submissions: Sequence[Submission], *args: Any) -> CycleResult:
            self.batches.append([submission.input for submission in submissions])
            await args[-1].acquire()
            if len(self.batches) <= failing:
                raise DatabaseUnavailableError("away")
            settled = tuple(Settled(outcome=Accepted()) for _ in submissions)
            effects = Effects(looked=len(self.batches) > only_learning)
            return CycleResult(settled=settled, effects=effects, fold=None)

        monkeypatch.setattr(module, "transaction", lambda _: nullcontext())
        monkeypatch.setattr(module, "run_cycle", run_cycle)


@pytest.mark.parametrize(("failing", "only_learning"), [(0, 0), (1, 0), (0, 1)])
async def test_a_cycle_that_waits_for_its_turn_answers_the_wake_ups_of_that_time(
    failing: int, only_learning: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless the cycle fails, or places nothing after all: then another cycle looks instead."""
    monkeypatch.setattr(retries, "AWAY_S", 0)
    runner = LookingRunner(monkeypatch, failing=failing, only_learning=only_learning)
    task = asyncio.create_task(runner.run())
    await runner._turns.placing.acquire()
    for _ in range(LET_IN):
        await runner._turns.let_in.acquire()
    message = say(runner, 0)
    await turns()
    runner.kick()
    assert runner.batches == [[PauseTrial(number=0)]]
    runner._turns.placing.release()
    await asyncio.gather(message, return_exceptions=True)
    runner._turns.let_in.release()
    async with asyncio.timeout(60):
        await runner.idle.wait()
    await turns()
    assert runner.batches[1:] == [[PlaceNow()]] * (failing + only_learning)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_full_queue_keeps_the_order_of_arrival(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_QUEUE", 2)
    monkeypatch.setattr(module, "MAX_BATCH", 1)
    async with running() as runner:
        waiting = [say(runner, number) for number in range(6)]
        await turns()
        runner.gate.set()
        for number in range(6, 40):
            waiting.append(say(runner, number))
            await asyncio.sleep(0)
        await asyncio.gather(*waiting)
        order = [one.number for batch in runner.batches for one in batch]  # type: ignore[union-attr]
        assert order == list(range(40))


async def test_a_repeat_does_not_wait_for_a_request_that_was_given_up_before_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_QUEUE", 1)
    async with running() as runner:
        others = [say(runner, 0)]
        await turns()
        others.append(say(runner, 1))
        await turns()
        request = Request(project="default", id="r", method="m", digest=b"")
        given_up = say(runner, 2, request=request)
        await turns()
        given_up.cancel()
        await asyncio.gather(given_up, return_exceptions=True)
        repeat = say(runner, 2, request=request)
        runner.gate.set()
        async with asyncio.timeout(60):
            await asyncio.gather(repeat, *others)


async def test_callers_that_wait_when_a_runner_is_stopped_are_told() -> None:
    async with running() as runner:
        waiting = [say(runner, 0)]
        await turns()
        waiting.append(say(runner, 1))
        await turns()
    async with asyncio.timeout(60):
        answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(answer) for answer in answers] == [DrainingError] * 2


async def test_a_runner_that_is_stopped_in_the_middle_of_a_cycle_leaves_no_lock(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor a connection of the pool, even with more work in its queue."""
    site = await StudySite(engine, make_spec()).create()
    locked = asyncio.Event()

    async def stuck(conn: AsyncConnection, *_: Any) -> CycleResult:
        await lock_study(conn, site.study_id)
        locked.set()
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(module, "run_cycle", stuck)
    runner = StudyRunner(engine, site.study_id, lambda *_: None)
    task = asyncio.create_task(runner.run())
    waiting = [say(runner, number) for number in range(3)]
    await locked.wait()
    waiting.append(say(runner, 3))
    await turns()
    task.cancel()
    await asyncio.gather(task, *waiting, return_exceptions=True)
    assert isinstance(engine.pool, QueuePool)
    assert engine.pool.checkedout() == 0
    async with asyncio.timeout(60), transaction(engine) as conn:
        assert await lock_study(conn, site.study_id) is not None


class Stream:
    """A stream over which messages arrive."""


class AwayRunner(GatedRunner):
    """A runner whose database is away for the first cycle."""

    async def _step(self, submissions: Sequence[Submission]) -> CycleResult:
        result = await super()._step(submissions)
        if len(self.batches) == 1:
            raise DatabaseUnavailableError("away")
        return result


async def test_no_message_overtakes_one_of_its_stream_that_was_left_unanswered() -> None:
    runner, one, other = AwayRunner(), Stream(), Stream()
    task = asyncio.create_task(runner.run())
    first = say(runner, 1, stream=one)
    await turns()
    behind, beside, command = say(runner, 2, stream=one), say(runner, 3, stream=other), say(runner, 4)
    await turns()
    runner.gate.set()
    found = await asyncio.gather(first, behind, beside, command, return_exceptions=True)
    assert [isinstance(each, DatabaseUnavailableError) for each in found] == [True, True, False, False]
    again = Stream()  # the worker has reconnected, and sends both again
    await asyncio.gather(say(runner, 1, stream=again), say(runner, 2, stream=again))
    taken = [one.number for batch in runner.batches[1:] for one in batch]
    assert taken == [3, 4, 1, 2]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
