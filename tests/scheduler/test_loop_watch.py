"""What the event loop's stalls are put down to."""

import asyncio
import time

from headrace_services.scheduler.loop_watch import TICK_S, LoopWatch


async def watched(occupy_s: float, *, computing: bool) -> LoopWatch:
    """Watch a loop that stands still once, computing or asleep."""
    watch = LoopWatch()
    watching = asyncio.create_task(watch.run())
    while not watch.ticks:
        await asyncio.sleep(TICK_S)
    began = time.thread_time()
    if computing:
        while time.thread_time() - began < occupy_s:
            pass
    else:
        time.sleep(occupy_s)  # noqa: ASYNC251  # as a driver does that blocks
    before = watch.ticks
    while watch.ticks == before:
        await asyncio.sleep(TICK_S)
    watching.cancel()
    return watch


async def test_a_computation_is_the_schedulers_own() -> None:
    watch = await watched(0.12, computing=True)
    assert watch.longest_s >= watch.longest_own_s >= watch.longest_computing_s >= 0.12 - TICK_S
    assert watch.long >= watch.long_own >= 1


async def test_what_blocks_the_thread_is_the_schedulers_own() -> None:
    watch = await watched(0.12, computing=False)
    assert watch.longest_own_s >= 0.12 - TICK_S - 0.05  # it may wait for a core when it wakes up
    assert watch.longest_computing_s < watch.longest_own_s


def test_a_wait_for_a_core_is_not() -> None:
    watch = LoopWatch()
    watch.note(0.3, computing_s=0.01, waiting_s=0.295)
    watch.note(0.1, computing_s=0.04, waiting_s=0.07)
    watch.note(0.01, computing_s=0.03, waiting_s=0.0)
    assert (watch.long, watch.long_own) == (2, 0)
    assert watch.longest_computing_s == 0.04
    assert "300 ms, 40 ms without the wait for a core, longest computation 40 ms" in str(watch)
