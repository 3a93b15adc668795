"""`headrace up` in a process."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ready_home import furnish

from headrace.home import address_in


@contextmanager
def service(home: Path, *options: str, **variables: str) -> Iterator[str]:
    """A real scheduler with its database, without a worker; yields its address."""
    furnish(home)
    command = [sys.executable, "-m", "headrace.cli", "up", "--home", str(home), "--port", "0", "--no-worker"]
    with (home / "up.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, *options], stdout=log, stderr=log, env={**os.environ, **variables}
        )
    try:
        deadline = time.monotonic() + 120
        while (address := address_in(home)) is None:
            assert process.poll() is None, (home / "up.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.2)  # it says no more than the file does
        yield address
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
