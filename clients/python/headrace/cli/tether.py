"""`python -m headrace.cli.tether ARGS`: the command `headrace ARGS`, which ends when its parent ends, however that is.

`headrace run --local` starts its service this way: a killed `run` must not leave a database and workers behind. Linux
sends the signal (PR_SET_PDEATHSIG); elsewhere the child lives on, as any background process would.
"""

import ctypes
import os
import signal
import sys

from headrace.cli import main

_PR_SET_PDEATHSIG = 1


def tether() -> None:
    """Asks the kernel for SIGTERM at the parent's death; ends at once if the parent is dead already."""
    if sys.platform != "linux":
        return
    parent = int(os.environ.pop("HEADRACE_TETHERED_TO", "0"))
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if parent and os.getppid() != parent:
        sys.exit(1)


if __name__ == "__main__":
    tether()
    main()
