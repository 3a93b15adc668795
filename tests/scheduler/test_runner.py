"""The runner of a study: what arrives while a step runs goes into the next one, in order, and nothing is forgotten."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from headrace.errors import DrainingError
from headrace_services.scheduler.arrivals import Accepted, Arrival, Kick, PauseTrial
from headrace_services.scheduler.step import runner as module
from headrace_services.scheduler.step.runner import StudyRunner
from headrace_services.scheduler.step.submissions import Settled, Submission
from headrace_services.scheduler.step.transaction import StepResult
from headrace_services.scheduler.store.requests import Request


class GatedRunner(StudyRunner):
    """A runner whose steps touch no database and end when they are let."""

    def __init__(self) -> None:
        super().__init__(None, 1, lambda *_: None)  # type: ignore[arg-type]
        self.batches: list[list[Arrival]] = []
        self.gate = asyncio.Event()

    async def _step(self, submissions: Sequence[Submission]) -> StepResult:
        self.batches.append([submission.arrival for submission in submissions])
        await self.gate.wait()
        settled = tuple(Settled(outcome=Accepted()) for _ in submissions)
        return StepResult(settled=settled, orders=(), cache=None, cursor=0, slots_left=False, again=False)


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
    return asyncio.create_task(runner.submit(Submission(arrival=PauseTrial(number=number), **fields)))


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
        assert runner.batches == [[PauseTrial(number=0)], [PauseTrial(number=1), Kick()]]


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
        order = [arrival.number for batch in runner.batches for arrival in batch]  # type: ignore[union-attr]
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
        request = Request(id="r", method="m", digest=b"")
        given_up = say(runner, 2, request=request)
        await turns()
        given_up.cancel()
        await asyncio.gather(given_up, return_exceptions=True)
        repeat = say(runner, 2, request=request)
        runner.gate.set()
        async with asyncio.timeout(5):
            await asyncio.gather(repeat, *others)


async def test_whoever_waits_when_a_runner_is_stopped_is_told() -> None:
    async with running() as runner:
        waiting = [say(runner, 0)]
        await turns()
        waiting.append(say(runner, 1))
        await turns()
    async with asyncio.timeout(5):
        answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(answer) for answer in answers] == [DrainingError] * 2
