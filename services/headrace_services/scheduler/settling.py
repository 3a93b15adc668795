"""The first minute of a replica that serves.

A scheduler that was killed must be back soon. So what its workers' first reports do without is imported when somebody
needs it, and at the latest a few seconds after the replica began to serve. A thread imports it (`imported`): inline it
would stop the event loop for up to 100 ms, while the thread lets the loop have its turn every 5 ms.

What the start and the first streams have made stays to the end, so it is excluded from later garbage collections: with
hundreds of streams one that looks at all of it stops the event loop for 50 to 100 ms.
"""

import asyncio
import gc
import sys
from importlib import import_module
from typing import Final

DRAWS: Final = "numpy"
"""What proposals are drawn with."""
LATER: Final = (DRAWS, "headrace.code")
SETTLING_S: Final = (5.0, 10.0, 15.0, 30.0, 60.0)
"""Pauses, while workers connect, statements are compiled and code is imported."""


async def imported(name: str) -> None:
    """Import a module, unless it is there."""
    if name not in sys.modules:
        await asyncio.to_thread(import_module, name)


async def settle() -> None:
    """Import what is needed sooner or later, and exclude what stays from garbage collections."""
    for pause_s in SETTLING_S:
        await asyncio.sleep(pause_s)
        for name in LATER:
            await imported(name)
        gc.collect(1)  # what is old already and garbage is lost to the collections; it is little
        gc.freeze()
