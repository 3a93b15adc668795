"""The process of a trial: whether it is alive, its CPU time, and signals that reach no other process."""

import os
import signal
import time
from contextlib import suppress

from headrace_torch.bubble_shm import started_ticks

_CPU_CLOCK = 2
"""The kernel's number for the CPU-time clock of a whole process (`clock_getcpuclockid`)."""


class TrialProcess:
    """A process that took a gate. The descriptor keeps referring to it, even if its number is reused."""

    def __init__(self, pid: int, started: int) -> None:
        """`started` is what the trial wrote: a process with that number that started at another time is a
        different one."""
        self.pid, self.started = pid, started
        self._descriptor: int | None = None
        with suppress(OSError):
            self._descriptor = os.pidfd_open(pid)
        if started_ticks(pid) != started:
            self.close()

    @property
    def alive(self) -> bool:
        """Whether it exists, stopped or not."""
        if self._descriptor is None or started_ticks(self.pid) != self.started:
            self.close()
        return self._descriptor is not None

    def computed_ns(self) -> int:
        """Returns the CPU time of all its threads; 0 if it has ended."""
        try:
            return time.clock_gettime_ns(~self.pid << 3 | _CPU_CLOCK)
        except OSError:
            return 0

    def send(self, number: signal.Signals) -> None:
        """Sends a signal; nothing happens if the process has ended, or belongs to another user."""
        if self._descriptor is not None:
            with suppress(OSError):
                signal.pidfd_send_signal(self._descriptor, number)

    def close(self) -> None:
        """Closes the descriptor."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
