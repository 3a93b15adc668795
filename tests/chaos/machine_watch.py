"""How long this machine let a process wait: for a core, and for a commit.

A scenario that promises times runs this beside it, so that a time that was missed can be told from a machine that stood
still: the thread asks for nothing but to wake up, and for one empty commit on the scenario's Postgres now and then.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import psycopg

TICK_S = 0.02
COMMIT_EVERY_S = 0.2
WORTH_NOTING_S = 0.02


@dataclass(slots=True)
class MachineWatch:
    """What was noted, as pairs of the time (seconds of the epoch) at the end of a wait, and its length."""

    core: list[tuple[float, float]] = field(default_factory=list)
    commit: list[tuple[float, float]] = field(default_factory=list)

    def waited_s(self, begin: float, end: float) -> dict[str, float]:
        """The longest waits in a span of time."""
        return {
            name: round(max((wait for at, wait in noted if begin <= at <= end + wait), default=0.0), 3)
            for name, noted in (("core_s", self.core), ("commit_s", self.commit))
        }

    def _wake(self, over: threading.Event) -> None:
        while not over.is_set():
            began = time.monotonic()
            time.sleep(TICK_S)
            self._note(self.core, time.monotonic() - began - TICK_S)

    def _commit(self, over: threading.Event, database_url: str) -> None:
        with psycopg.connect(database_url, autocommit=True) as conn:
            while not over.wait(COMMIT_EVERY_S):
                began = time.monotonic()
                conn.execute("SELECT pg_logical_emit_message(true, 'watch', '')")
                self._note(self.commit, time.monotonic() - began)

    def _note(self, noted: list[tuple[float, float]], wait_s: float) -> None:
        if wait_s > WORTH_NOTING_S:
            noted.append((time.time(), wait_s))


@contextmanager
def watched_machine(database_url: str) -> Iterator[MachineWatch]:
    """Watch until the block ends."""
    watch, over = MachineWatch(), threading.Event()
    threads = [
        threading.Thread(target=watch._wake, args=(over,)),
        threading.Thread(target=watch._commit, args=(over, database_url)),
    ]
    for thread in threads:
        thread.start()
    try:
        yield watch
    finally:
        over.set()
        for thread in threads:
            thread.join()
