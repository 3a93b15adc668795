"""The causes to which the event loop's stalls are attributed."""

import asyncio
import time

import pytest

from headrace_services.scheduler.loop_watch import TICK_S, LoopWatch


async def watched(occupy_s: float, *, computing: bool) -> LoopWatch:
    """Watch a loop that blocks once, computing or asleep."""
    watch = LoopWatch()
    watching = asyncio.create_task(watch.run())
    await asyncio.sleep(2 * TICK_S)
    began = time.thread_time()
    if computing:
        while time.thread_time() - began < occupy_s:
            pass
    else:
        time.sleep(occupy_s)  # noqa: ASYNC251  # as a driver does that blocks
    await asyncio.sleep(2 * TICK_S)
    watching.cancel()
    return watch


@pytest.mark.full
async def test_a_computation_is_a_stall() -> None:
    assert (await watched(0.12, computing=True)).longest_s >= 0.12 - TICK_S


async def test_how_long_the_loop_was_late_is_known_for_a_while() -> None:
    watch = await watched(0.2, computing=False)
    assert watch.late_within(60) >= 0.15
    assert watch.late_within(0) == 0


@pytest.mark.full
async def test_what_blocks_the_thread_is_a_stall() -> None:
    watch = await watched(0.12, computing=False)
    assert watch.longest_s >= 0.12 - TICK_S - 0.05  # it may wait for a core when it wakes up


def test_a_wait_for_a_core_is_none(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    watch = LoopWatch()
    watch.note(0.3, computing_s=0.01, waiting_s=0.295)
    assert watch.longest_s == 0.01
    watch.note(0.1, computing_s=0.04, waiting_s=0.07)
    watch.note(0.01, computing_s=0.03, waiting_s=0.0)
    assert watch.longest_s == 0.04
    assert not caplog.messages
    watch.note(0.09, computing_s=0.06, waiting_s=0.01)
    assert caplog.messages == ["the event loop was blocked for 80 ms"]
    assert str(watch) == "event loop: longest stall 80 ms, without waits for a core"
