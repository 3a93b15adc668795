"""The first minute of a replica that serves.

A scheduler that was killed must be back soon. So modules that its workers' first reports do not need are imported
when they are first used, and at the latest a few seconds after the replica started to serve. A thread imports them
(`imported`): an import on the event loop would block it for up to 100 ms, while the thread yields to the loop
every 5 ms.

Objects from the start and the first streams stay to the end, so they are excluded from later garbage collections:
with hundreds of streams a collection that visits all of them blocks the event loop for 50 to 100 ms.
"""

import asyncio
import gc
import sys
from importlib import import_module
from typing import Final

DRAWS: Final = "numpy"
"""What proposals draw with."""
LATER: Final = (DRAWS, "headrace.code")
SETTLING_S: Final = (5.0, 10.0, 15.0, 30.0, 60.0)
"""Pauses between these steps, while workers connect, statements are compiled and code is imported."""


async def imported(name: str) -> None:
    """Import a module, unless it is already imported."""
    if name not in sys.modules:
        await asyncio.to_thread(import_module, name)


async def settle() -> None:
    """Import what is needed sooner or later, and exclude lasting objects from garbage collections."""
    for pause_s in SETTLING_S:
        await asyncio.sleep(pause_s)
        for name in LATER:
            await imported(name)
        gc.collect(1)  # old garbage at this point is never collected; it is little
        gc.freeze()
