"""Where a trial hangs or crashes: Python's own `faulthandler`, into the trial's log.

A crash (SIGSEGV, SIGFPE, SIGABRT, SIGBUS, SIGILL) prints the stack before it ends the process. On a signal of its own
every thread's stack is printed, and the process goes on: the worker sends that one before it ends a process that hangs.
It is a real-time signal, for SIGUSR1 and SIGUSR2 belong to scripts and clusters, and SIGABRT reads as NCCL's watchdog.
"""

import faulthandler
import signal
import sys
from typing import Final

STACK_SIGNAL: Final = int(getattr(signal, "SIGRTMIN", -6)) + 6
"""0 where a system has no such signals."""


def show() -> int:
    """Prints stacks to stderr from now on. Returns the signal that asks for them; 0 where there is none.

    What the script has set up itself stays.
    """
    try:
        if not faulthandler.is_enabled():
            faulthandler.enable(sys.__stderr__ or sys.stderr)
        if not STACK_SIGNAL or signal.getsignal(STACK_SIGNAL) is not signal.SIG_DFL:
            return 0
        faulthandler.register(STACK_SIGNAL, sys.__stderr__ or sys.stderr, all_threads=True)
    except (AttributeError, OSError, RuntimeError, ValueError):  # its stderr is no file
        return 0
    return STACK_SIGNAL
