"""A command on a terminal of its own, with typed input and readable output."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Terminal:
    """A running `headrace` command on a pseudo-terminal."""

    def __init__(self, child: "subprocess.Popen[bytes]", master: int) -> None:
        self.child = child
        self._master = master
        self.seen = ""

    def read_until(self, pattern: str, timeout_s: float = 90.0) -> str:
        """Everything shown until the pattern appears."""
        deadline = time.monotonic() + timeout_s
        while not re.search(pattern, self.seen):
            ready, _, _ = select.select([self._master], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"no {pattern!r} in {self.seen!r}"
            self.seen += os.read(self._master, 65536).decode(errors="replace")
        return self.seen

    def read_to_end(self, timeout_s: float = 90.0) -> str:
        """Everything shown until the command ended."""
        deadline = time.monotonic() + timeout_s
        while True:
            ready, _, _ = select.select([self._master], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"no end after {self.seen!r}"
            try:
                self.seen += os.read(self._master, 65536).decode(errors="replace")
            except OSError:  # nobody has the other end open any more
                return self.seen

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())


@contextmanager
def terminal(*arguments: str, columns: int = 110, lines: int = 40) -> Iterator[Terminal]:
    """Runs `headrace ARGUMENTS` on a terminal of a given size, and kills it at the end if necessary."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    own = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    # Tests that run in the background of a script ignore SIGINT, and a command that they start would too.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    child = subprocess.Popen(
        [sys.executable, "-m", "headrace.cli", *arguments],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        env={**own, "TERM": "xterm-256color"},
    )
    signal.signal(signal.SIGINT, before)
    os.close(slave)
    try:
        yield Terminal(child, master)
    finally:
        child.kill()
        child.wait()
        os.close(master)
