"""How long the event loop stands still.

Everything in a scheduler shares one event loop, so whatever computes for long there (a large message, a policy that
is rebuilt, a garbage collection) delays every stream and every step. The watch wakes up a few dozen times a second
and sees how late it is.

Being late is not always the scheduler's own doing: on a crowded machine its thread may be ready and wait for a core.
The kernel counts that time (`/proc/thread-self/schedstat`), and the watch tells three things apart: the whole stall;
what of it was the scheduler's own, which is all but the wait for a core, so also what the thread waited for in another
thread of this process; and what the thread itself computed. Both parts are measured from one wake-up to the next; so
the computation is rather too much, by what was computed before the watch was due.
"""

import asyncio
import gc
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger(__name__)

TICK_S = 0.02
LONG_S = 0.05
"""What streams and steps should never wait for."""
_SCHEDSTAT = Path("/proc/thread-self/schedstat")


@dataclass(slots=True)
class LoopWatch:
    """Stalls of the event loop since the start; `run` measures until it is cancelled."""

    longest_s: float = 0.0
    longest_own_s: float = 0.0
    """The longest without the time in which the loop's thread was ready and no core was free."""
    longest_computing_s: float = 0.0
    """The most that the loop's thread computed while something else was due, whichever stall that was."""
    long: int = 0
    """Stalls over `LONG_S`, and those that were longer than that without the wait for a core."""
    long_own: int = 0
    ticks: int = 0
    _collecting_since: float = 0.0
    _collected_s: float = 0.0
    """Spent on garbage since the last measurement, in any thread: all others wait meanwhile."""

    async def run(self) -> None:
        """Measure until cancelled."""
        gc.callbacks.append(self._collector)
        try:
            with _wait_for_cores() as waited_s:
                due, computed, waited = time.monotonic(), time.thread_time(), waited_s()
                while True:
                    self._collected_s = 0.0
                    due += TICK_S
                    await asyncio.sleep(TICK_S)
                    before = computed, waited
                    now, computed, waited = time.monotonic(), time.thread_time(), waited_s()
                    self.note(now - due, computing_s=computed - before[0], waiting_s=waited - before[1])
                    due = now
        finally:
            gc.callbacks.remove(self._collector)

    def _collector(self, phase: str, _: Mapping[str, int]) -> None:
        if phase == "start":
            self._collecting_since = time.monotonic()
        else:
            self._collected_s += time.monotonic() - self._collecting_since

    def note(self, late_s: float, *, computing_s: float, waiting_s: float) -> None:
        """Take one measurement in: how late it is, and what the thread did since the one before."""
        computing_s = min(late_s, computing_s)
        own_s = max(computing_s, late_s - waiting_s)
        self.ticks += 1
        self.longest_s = max(self.longest_s, late_s)
        self.longest_own_s = max(self.longest_own_s, own_s)
        self.longest_computing_s = max(self.longest_computing_s, computing_s)
        self.long += late_s > LONG_S
        self.long_own += own_s > LONG_S
        if own_s > LONG_S:
            log.info(
                "the event loop stood still for %.0f ms: computing %.0f ms, without a core %.0f ms "
                "(collecting garbage for %.0f ms)",
                late_s * 1e3,
                computing_s * 1e3,
                waiting_s * 1e3,
                self._collected_s * 1e3,
            )

    def __str__(self) -> str:
        return (
            f"event loop: longest stall {self.longest_s * 1e3:.0f} ms, "
            f"{self.longest_own_s * 1e3:.0f} ms without the wait for a core, "
            f"longest computation {self.longest_computing_s * 1e3:.0f} ms; over {LONG_S * 1e3:.0f} ms: "
            f"{self.long} stalls, {self.long_own} without the wait for a core, of {self.ticks} measurements"
        )


@contextmanager
def _wait_for_cores() -> Iterator[Callable[[], float]]:
    """A clock of how long this thread was ready and had no core; it stands still where the kernel does not say."""
    try:
        file = _SCHEDSTAT.open("rb", buffering=0)
    except OSError:
        yield lambda: 0.0
        return

    def waited_s() -> float:
        return int(os.pread(file.fileno(), 96, 0).split()[1]) / 1e9

    with file:
        yield waited_s
