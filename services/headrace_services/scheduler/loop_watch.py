"""How long the event loop stands still.

Everything in a scheduler shares one event loop, so whatever computes for long there (a large message, a policy that
is rebuilt, a garbage collection) delays every stream and every step. The watch wakes up a few dozen times a second
and sees how late it is. Being late is not always the scheduler's own doing: on a crowded machine its thread may be
ready and wait for a core. So the watch also says how much of the delay its thread was computing.
"""

import asyncio
import gc
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass

log = logging.getLogger(__name__)

TICK_S = 0.02
LONG_S = 0.05
"""What streams and steps should never wait for."""


@dataclass(slots=True)
class LoopWatch:
    """Stalls of the event loop since the start; `run` measures until it is cancelled."""

    longest_s: float = 0.0
    longest_computing_s: float = 0.0
    """The most that the loop's thread computed while something else was due, whichever stall that was."""
    long: int = 0
    """Stalls over `LONG_S`, and those of them in which the thread itself computed for so long."""
    long_computing: int = 0
    ticks: int = 0
    _collecting_since: float = 0.0
    _collected_s: float = 0.0
    """Spent on garbage since the last measurement, in any thread: all others wait meanwhile."""

    async def run(self) -> None:
        """Measure until cancelled."""
        gc.callbacks.append(self._collector)
        try:
            while True:
                self._collected_s = 0.0
                due, computed = time.monotonic() + TICK_S, time.thread_time()
                await asyncio.sleep(TICK_S)
                late_s = time.monotonic() - due
                self.note(late_s, min(late_s, time.thread_time() - computed))
        finally:
            gc.callbacks.remove(self._collector)

    def _collector(self, phase: str, _: Mapping[str, int]) -> None:
        if phase == "start":
            self._collecting_since = time.monotonic()
        else:
            self._collected_s += time.monotonic() - self._collecting_since

    def note(self, late_s: float, computing_s: float) -> None:
        """Take one measurement in."""
        self.ticks += 1
        self.longest_s = max(self.longest_s, late_s)
        self.longest_computing_s = max(self.longest_computing_s, computing_s)
        self.long += late_s > LONG_S
        self.long_computing += computing_s > LONG_S
        if computing_s > LONG_S:
            log.info(
                "the event loop stood still for %.0f ms, %.0f ms of it computing (%.0f ms collecting garbage)",
                late_s * 1e3,
                computing_s * 1e3,
                self._collected_s * 1e3,
            )

    def __str__(self) -> str:
        return (
            f"event loop: longest stall {self.longest_s * 1e3:.0f} ms, "
            f"longest computation {self.longest_computing_s * 1e3:.0f} ms; over {LONG_S * 1e3:.0f} ms: "
            f"{self.long} stalls, {self.long_computing} computations, of {self.ticks} measurements"
        )
