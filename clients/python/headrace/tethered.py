"""Children that end with this process: `headrace ARGS` on a tether (`headrace.cli.tether`)."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Final

STOP_TIMEOUT_S: Final = 60.0


@contextmanager
def tethered(
    args: Sequence[str], *, stdout: int | IO[bytes], stderr: IO[bytes]
) -> Iterator["subprocess.Popen[bytes]"]:
    """Runs `headrace ARGS` while in this context, in its own session, and stops it cleanly at the end."""
    reading, writing = os.pipe()
    try:
        with subprocess.Popen(
            [sys.executable, "-m", "headrace.cli.tether", str(reading), *args],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
            pass_fds=(reading,),
        ) as child:
            try:
                yield child
            finally:
                stop(child)
    finally:
        os.close(reading)
        os.close(writing)


def stop(child: "subprocess.Popen[bytes]") -> None:
    """Stops a child cleanly, and by force if that takes too long."""
    if child.poll() is not None:
        return
    child.send_signal(signal.SIGTERM)
    try:
        child.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
