"""Processes of a pool: callers take turns, and each is answered or refused, whatever happens to a process."""

import asyncio
import os
import pickle
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from headrace.errors import InternalError, TooLargeError
from headrace_services.sandbox import Limits, Pool, Run, Tell
from headrace_services.sandbox.pool import Worker
from headrace_services.sandbox.queue import Queue

LIMITS = Limits(memory_bytes=256 * 1024 * 1024, time_s=20.0, wait_s=20.0, waiting=8, each=4)
DEADLINE_S = 60.0


def dying() -> Run:
    """Work that kills its process."""

    def run(*_: object) -> bytes:
        os._exit(1)

    return run


def sleeping() -> Run:
    """Work that takes the requested number of seconds and returns it."""

    def run(_: str, request: bytes, tell: Tell) -> bytes:
        tell(b"began")
        time.sleep(float(request))
        return request

    return run


def failing_once(marker: Path) -> Run:
    """Work whose first process does not start."""
    if not marker.exists():
        marker.touch()
        os._exit(1)
    return sleeping()


async def test_a_process_that_dies_fails_its_call_and_is_replaced() -> None:
    pool = Pool(dying, 1, LIMITS)
    try:
        for _ in range(2):
            with pytest.raises(InternalError, match="died"):
                await pool.result("any", b"")
    finally:
        await pool.close()


async def test_callers_take_turns() -> None:
    queue: Queue[str] = Queue(LIMITS, 9)
    names = {queue.join(caller): f"{caller}{place}" for place, caller in enumerate("aaabbc")}
    taken = [names[place] for place in iter(queue.next, None)]
    assert taken == ["a0", "b3", "c5", "a1", "b4", "a2"]


async def test_a_new_caller_goes_before_the_one_that_was_served_last() -> None:
    queue: Queue[str] = Queue(LIMITS, 9)
    queue.join("a")
    queue.next()
    queue.join("a")
    new = queue.join("b")
    assert queue.next() is new


async def test_a_caller_may_have_so_many_calls_wait_and_others_more() -> None:
    queue: Queue[str] = Queue(LIMITS, 9)
    for _ in range(LIMITS.each):
        queue.join("a")
    with pytest.raises(TooLargeError, match="4 calls of this caller already wait"):
        queue.join("a")
    for _ in range(LIMITS.waiting - LIMITS.each):
        queue.join("b")
    with pytest.raises(TooLargeError, match="8 calls already wait"):
        queue.join("c")


async def test_a_caller_that_has_gone_away_has_no_turn() -> None:
    queue: Queue[str] = Queue(LIMITS, 9)
    first, second = queue.join("a"), queue.join("b")
    first.cancel()
    assert queue.next() is second


async def test_one_of_several_processes_is_left_to_other_callers() -> None:
    queue: Queue[str] = Queue(LIMITS, 2)
    first, second = queue.join("a"), queue.join("a")
    assert queue.next() is first
    assert queue.next() is None
    other = queue.join("b")
    assert queue.next() is other
    queue.ended("a")
    assert queue.next() is second


async def test_a_caller_with_many_requests_holds_up_nobody_else() -> None:
    """All calls of one caller take longer than this test may."""
    pool = Pool(sleeping, 2, replace(LIMITS, time_s=DEADLINE_S * 2))
    busy: list[asyncio.Future[bytes]] = []
    try:
        async with asyncio.timeout(DEADLINE_S):
            busy += [asyncio.ensure_future(pool.result("any", b"600", caller="a")) for _ in range(4)]
            assert [await pool.result("any", b"0", caller="b") for _ in range(3)] == [b"0"] * 3
            first, *others = busy
            first.cancel()  # its caller gets its own next call
            assert await pool.result("any", b"0", caller="b") == b"0"
            for one in others:
                one.cancel()
            await asyncio.gather(*busy, return_exceptions=True)
            assert await pool.result("any", b"0", caller="a") == b"0"
    finally:
        await pool.close()
        await asyncio.gather(*busy, return_exceptions=True)
    assert not pool._queue._served


async def test_a_wait_has_its_limit_in_which_no_start_is_counted() -> None:
    pool = Pool(sleeping, 1, replace(LIMITS, wait_s=0.1))
    try:
        async with asyncio.timeout(DEADLINE_S):
            assert await pool.result("any", b"0") == b"0"
            busy = pool.ask("any", b"10")
            await anext(busy)
            with pytest.raises(TooLargeError, match=r"no process was free .* within 0.1 s"):
                await pool.result("any", b"0")
            await busy.aclose()
    finally:
        await pool.close()


async def test_a_process_that_does_not_start_fails_one_call_and_another_start_is_tried(
    tmp_path: Path,
) -> None:
    pool = Pool(partial(failing_once, tmp_path / "failed"), 1, LIMITS)
    try:
        async with asyncio.timeout(DEADLINE_S):
            first, second = await asyncio.gather(
                pool.result("any", b"0"), pool.result("any", b"0"), return_exceptions=True
            )
    finally:
        await pool.close()
    assert isinstance(first, InternalError)
    assert "did not start" in first.message
    assert second == b"0"


async def test_a_process_that_died_while_it_was_idle_fails_one_call() -> None:
    pool = Pool(sleeping, 1, LIMITS)
    try:
        async with asyncio.timeout(DEADLINE_S):
            assert await pool.result("any", b"0") == b"0"
            (idle,) = pool._free
            idle.process.kill()
            idle.process.join()
            with pytest.raises(InternalError, match="died"):
                await pool.result("any", b"0")
            assert await pool.result("any", b"0") == b"0"
    finally:
        await pool.close()


async def test_a_process_given_to_a_call_that_goes_away_serves_the_next() -> None:
    pool = Pool(sleeping, 1, LIMITS)
    try:
        async with asyncio.timeout(DEADLINE_S):
            assert await pool.result("any", b"0") == b"0"
            busy = pool.ask("any", b"0.1")
            await anext(busy)
            waiting = asyncio.ensure_future(pool.result("any", b"0"))
            await anext(busy)
            await busy.aclose()  # the process is passed on
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            assert await pool.result("any", b"0") == b"0"
    finally:
        await pool.close()


def test_a_process_whose_parent_was_killed_ends_when_the_time_of_its_call_is_over() -> None:
    """The parent's clock does not end it here: nobody watches it."""
    worker = Worker(sleeping, replace(LIMITS, time_s=0.5))
    worker.pipe.send_bytes(pickle.dumps(("any", b"60")))
    worker.process.join(DEADLINE_S)
    assert worker.process.exitcode == -signal.SIGALRM
    worker.kill()


STARVED = """
import resource
from headrace_services.sandbox import process

def hoard(task, request, tell):
    held = []
    while True:
        held.append(bytearray(int(request)))

resource.setrlimit(resource.RLIMIT_AS, (400 * 2**20, resource.RLIM_INFINITY))
for size in (2**20, 4096, 600, 64) * 3:
    kind, _ = process._answer(hoard, "task", str(size).encode(), 1, lambda progress: None)
    assert kind is process.Answer.ERROR
"""


@pytest.mark.full
def test_a_call_that_took_the_last_byte_is_refused_anyway() -> None:
    """The refusal needs memory too, which the call must release first."""
    done = subprocess.run([sys.executable, "-c", STARVED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
