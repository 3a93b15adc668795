"""Garbage collections that do not stop the event loop for long.

A full collection looks at every object there is: code, statements that were compiled once, results that a policy
keeps. With hundreds of streams that took 50 to 100 ms, every few seconds. So what has lived long enough to stay is
put aside now and then (`gc.freeze`), and full collections look at the rest. Objects put aside are freed as ever when
nothing refers to them; only cycles among them wait, for the collection that looks at everything. That one takes 130 ms
with 256 streams, so it comes when there may be something to find: when what was put aside has grown by a quarter, and
once a day, for objects are counted here and not what they hold. What is not put aside is collected when the process
has grown, too: a call that ends by an exception can leave a cycle that holds its request, and callers choose how large
and how many those are.
"""

import asyncio
import gc
from math import ceil

import psutil

SOON_S = (5.0, 10.0, 15.0, 30.0, 60.0)
"""Pauses after the start, while code is imported, statements are compiled and workers connect."""
SELDOM = 1000
"""How many collections of the middle generation make a full one; Python's own 10 made one every few seconds."""
OFTEN_S = 600.0
GROWN = 1.25
"""How many times as much must have been put aside as there was at least since the last look at everything."""
LOOK_S = 5.0
GROWN_BYTES = 32 * 1024**2
"""By how much the process may grow before it is collected."""
DAY = 144
"""How many turns pass at most without a look at everything."""


def put_aside() -> None:
    """Collect, and keep what is left out of later collections."""
    gc.collect()
    gc.freeze()


def look_at_everything() -> None:
    """Collect also what was put aside."""
    gc.unfreeze()
    put_aside()


async def run() -> None:
    """Collect for ever, until cancelled."""
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, SELDOM)
    for pause_s in SOON_S:
        await asyncio.sleep(pause_s)
        gc.freeze()  # without looking: what is garbage by now waits for the collection of everything
    least, turns, size = gc.get_freeze_count(), 0, _resident_bytes()
    while True:
        await _pause(size)
        put_aside()
        size = _resident_bytes()
        turns += 1
        if (aside := gc.get_freeze_count()) > GROWN * least or turns == DAY:
            await asyncio.sleep(0)  # others have their turn
            look_at_everything()
            least, turns, size = gc.get_freeze_count(), 0, _resident_bytes()
        least = min(least, aside)


async def _pause(size: int) -> None:
    """Wait for the next turn, or until the process has grown beyond its size."""
    for _ in range(ceil(OFTEN_S / LOOK_S)):
        await asyncio.sleep(min(LOOK_S, OFTEN_S))
        if _resident_bytes() > size + GROWN_BYTES:
            return


def _resident_bytes() -> int:
    return int(psutil.Process().memory_info().rss)
