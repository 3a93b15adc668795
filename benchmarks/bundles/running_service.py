"""`headrace up` with a home of its own, and a user's commands against it."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

START_S, RUN_S = 120, 1800


class Service:
    """`headrace` with a home of its own."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._environ = {**os.environ, "HEADRACE_HOME": str(home)}
        self._environ.pop("HEADRACE_ADDRESS", None)  # another service's: commands find this one by its home

    @property
    def address(self) -> str:
        """Its scheduler's address, while it is up."""
        return (self._home / "address").read_text().strip()

    def call(self, *words: str) -> str:
        """Run a command; returns its output."""
        done = subprocess.run(
            [sys.executable, "-m", "headrace.cli", *words],
            env=self._environ,
            check=True,
            capture_output=True,
            text=True,
            timeout=RUN_S,
        )
        return done.stdout

    @contextmanager
    def up(self, slots: int) -> Iterator[None]:
        """Serve while the block runs."""
        command = [sys.executable, "-m", "headrace.cli", "up", "--slots", str(slots), "--port", "0"]
        service = subprocess.Popen(command, env=self._environ, stdout=subprocess.DEVNULL)
        try:
            self._wait()
            yield
        finally:
            service.terminate()
            service.wait(60)

    def _wait(self) -> None:
        deadline = time.monotonic() + START_S
        while True:
            try:
                self.call("workers")
            except subprocess.CalledProcessError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(1)
            else:
                return
