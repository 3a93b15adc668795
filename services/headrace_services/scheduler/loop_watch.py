"""The longest stall of the event loop.

All parts of a scheduler share one event loop, so a long computation or a blocking call delays every stream and
every cycle. The watch repeatedly sleeps for `TICK_S`, and measures how late it wakes up.

On a busy machine the loop's thread may be ready and wait for a core. The scheduler does not cause that wait, so it
is not part of a stall. The kernel counts it in `/proc/thread-self/schedstat`; without that file it counts as part
of the stall. `late_within` includes it: messages wait, whatever the reason.
"""

import asyncio
import logging
import time
from collections import deque
from pathlib import Path

from headrace_services.scheduler.measures import LOOP_LAG

log = logging.getLogger(__name__)

TICK_S = 0.02
LONG_S = 0.05
"""Streams and cycles should never wait this long. A longer stall is logged."""
REMEMBERED_S = 600.0
"""How long the watch remembers when the loop was late."""
_SCHEDSTAT = Path("/proc/thread-self/schedstat")


class LoopWatch:
    """Watches the event loop that `run` runs in."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        """The longest stall so far."""
        self._late = deque[tuple[float, float]]()
        """When the loop was late by more than `LONG_S`, and by how much."""

    async def run(self) -> None:
        """Measure until cancelled."""
        computed, waited = time.thread_time(), _waited_for_a_core_s()
        while True:
            due = time.monotonic() + TICK_S
            await asyncio.sleep(TICK_S)
            now = time.monotonic()
            late_s = now - due
            if late_s > LONG_S:
                self._late.append((now, late_s))
            while self._late and self._late[0][0] < now - REMEMBERED_S:
                self._late.popleft()
            computed_before, computed = computed, time.thread_time()
            waited_before, waited = waited, _waited_for_a_core_s()
            self.note(late_s, computing_s=computed - computed_before, waiting_s=waited - waited_before)

    def note(self, late_s: float, *, computing_s: float, waiting_s: float) -> None:
        """Add one measurement: how late it is, and what the thread did since the previous one.

        Part of the wait may be from before the measurement was due. So a stall is at least as long as the thread
        computed.
        """
        stall_s = max(late_s - waiting_s, min(late_s, computing_s))
        self.longest_s = max(self.longest_s, stall_s)
        LOOP_LAG.observe(max(0.0, stall_s))
        if stall_s > LONG_S:
            log.info("the event loop was blocked for %.0f ms", stall_s * 1e3)

    def late_within(self, seconds: float) -> float:
        """For how long, within the last `seconds`, arriving messages could not be handled."""
        since = time.monotonic() - seconds
        return sum(min(late_s, at - since) for at, late_s in self._late if at > since)

    def __str__(self) -> str:
        return f"event loop: longest stall {self.longest_s * 1e3:.0f} ms, without waits for a core"


def _waited_for_a_core_s() -> float:
    """How long this thread has been ready without a core; 0 if the kernel does not report it."""
    try:
        return int(_SCHEDSTAT.read_bytes().split()[1]) / 1e9
    except OSError:
        return 0.0
