"""How long this machine kept a process waiting: for a core, and for a commit.

A scenario that promises times runs this beside it. It distinguishes a missed time from a machine that stalled. It
is a process of its own that only wakes up, and makes one empty commit on the scenario's Postgres now and then. It
records each significant wait as a line: what was waited for, when the wait ended (seconds since the epoch), and
how long it was.
"""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

TICK_S = 0.02
COMMIT_EVERY_S = 0.2
WORTH_NOTING_S = 0.02


@dataclass(frozen=True, slots=True)
class MachineWatch:
    """The recorded waits, in a file."""

    path: Path

    def waited_s(self, begin: float = 0.0, end: float = float("inf")) -> dict[str, float]:
        """The longest waits in a span of time, for a core and for a commit."""
        longest = {"core": 0.0, "commit": 0.0}
        for line in self.path.read_text().splitlines():
            name, at, wait = line.split()
            if begin <= float(at) <= end + float(wait):
                longest[name] = max(longest[name], float(wait))
        return longest


@contextmanager
def watched_machine(database_url: str, path: Path) -> Iterator[MachineWatch]:
    """Watch until the block ends."""
    with path.open("w") as notes:
        process = subprocess.Popen(
            [sys.executable, __file__, database_url], stdout=notes, start_new_session=True
        )
    try:
        yield MachineWatch(path)
    finally:
        process.terminate()
        process.wait()


def _note(name: str, wait_s: float) -> None:
    if wait_s > WORTH_NOTING_S:
        print(f"{name} {time.time():.3f} {wait_s:.3f}", flush=True)


def _wake() -> None:
    while True:
        began = time.monotonic()
        time.sleep(TICK_S)
        _note("core", time.monotonic() - began - TICK_S)


def _commit(database_url: str) -> None:
    import psycopg

    with psycopg.connect(database_url, autocommit=True) as conn:
        while True:
            time.sleep(COMMIT_EVERY_S)
            began = time.monotonic()
            conn.execute("SELECT pg_logical_emit_message(true, 'watch', '')")
            _note("commit", time.monotonic() - began)


if __name__ == "__main__":
    threading.Thread(target=_wake, daemon=True).start()
    _commit(sys.argv[1])
