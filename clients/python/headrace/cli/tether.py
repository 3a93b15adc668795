"""`python -m headrace.cli.tether FD ARGS`: the command `headrace ARGS`, which ends when its parent ends.

`headrace run --local` starts its service this way: a killed `run` must not leave a database and workers behind.
The parent holds the writing end of a pipe and never writes. When the parent is gone, the kernel closes that end,
the read here returns, and this process gets one SIGTERM, as if somebody had stopped it. (Linux's
PR_SET_PDEATHSIG would send one for every thread of a killed parent, and a second one means "at once" to
`headrace up`.)
"""

import os
import signal
import sys
import threading

from headrace.cli import main


def tether(pipe: int) -> None:
    """Sends this process SIGTERM when the other end of the pipe is closed."""

    def wait() -> None:
        os.read(pipe, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="tether", daemon=True).start()


if __name__ == "__main__":
    tether(int(sys.argv[1]))
    main(sys.argv[2:])
