"""The process of a trial: whether it lives, how long it has computed, and signals that reach no other process."""

import os
import signal
import time
from contextlib import suppress

from headrace_torch.bubble_shm import started_ticks

_CPU_CLOCK = 2
"""The kernel's number for the clock of a whole process's computing (`clock_getcpuclockid`)."""


class TrialProcess:
    """A process that took a gate. The descriptor stays that process's, whoever gets its number later."""

    def __init__(self, pid: int, started: int) -> None:
        """`started` is what the trial wrote: a process of that number which started at another time is not it."""
        self.pid, self.started = pid, started
        self._descriptor: int | None = None
        with suppress(OSError):
            self._descriptor = os.pidfd_open(pid)
        if started_ticks(pid) != started:
            self.close()

    @property
    def alive(self) -> bool:
        """Whether it runs, stopped or not."""
        if self._descriptor is None or started_ticks(self.pid) != self.started:
            self.close()
        return self._descriptor is not None

    def computed_ns(self) -> int:
        """Returns the computing time of all its threads; 0 where it has ended."""
        try:
            return time.clock_gettime_ns(~self.pid << 3 | _CPU_CLOCK)
        except OSError:
            return 0

    def send(self, number: signal.Signals) -> None:
        """Sends a signal; nothing happens where it has ended, or is another user's."""
        if self._descriptor is not None:
            with suppress(OSError):
                signal.pidfd_send_signal(self._descriptor, number)

    def close(self) -> None:
        """Lets the process go."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
