"""The first minute of a replica that serves.

A scheduler that was killed must be back soon. So what only some studies and calls need (`LATER`) is imported by the
first that needs it, and by a thread, a moment after the replica began to serve: inline it would stop the event loop for
up to 100 ms. The thread shares the interpreter with the loop, which waits for 5 ms at most.

What the start and the first streams have made stays to the end, so it is excluded from later garbage collections: with
hundreds of streams one that looks at all of it stops the event loop for 50 to 100 ms.
"""

import asyncio
import gc
from importlib import import_module
from typing import Final

LATER: Final = ("numpy", "headrace.code")
"""What proposals need, and what those who ship code need."""
PAUSE_S: Final = 1.0
"""Until they are imported: workers come back first."""
SETTLING_S: Final = (4.0, 10.0, 15.0, 30.0, 60.0)
"""Pauses after that, while statements are compiled and workers connect."""


async def settle() -> None:
    """Import what is needed later, and exclude what stays from garbage collections."""
    await asyncio.sleep(PAUSE_S)
    for name in LATER:
        await asyncio.to_thread(import_module, name)
    for pause_s in SETTLING_S:
        await asyncio.sleep(pause_s)
        gc.collect(1)  # what is old already and garbage is lost to the collections; it is little
        gc.freeze()
