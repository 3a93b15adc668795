"""Where a trial hangs or crashes: Python's own `faulthandler`, into the trial's log.

A crash (SIGSEGV, SIGFPE, SIGABRT, SIGBUS, SIGILL) prints the stack before it ends the process. Another signal
prints every thread's stack, and the process continues: the worker sends it before it ends a hanging process. It
is a real-time signal, because SIGUSR1 and SIGUSR2 belong to scripts and clusters, and SIGABRT would look like
NCCL's watchdog.
"""

import faulthandler
import signal
import sys
from typing import Final

STACK_SIGNAL: Final = int(getattr(signal, "SIGRTMIN", -6)) + 6
"""0 if a system has no such signals."""


def show() -> int:
    """Prints stacks to stderr from now on. Returns the signal that requests them; 0 if there is none.

    Handlers that the script has set up itself are kept.
    """
    try:
        if not faulthandler.is_enabled():
            faulthandler.enable(sys.__stderr__ or sys.stderr)
        if not STACK_SIGNAL or signal.getsignal(STACK_SIGNAL) is not signal.SIG_DFL:
            return 0
        faulthandler.register(STACK_SIGNAL, sys.__stderr__ or sys.stderr, all_threads=True)
    except (AttributeError, OSError, RuntimeError, ValueError):  # its stderr is not a file
        return 0
    return STACK_SIGNAL
