"""The processes of a program that speak for its attempt, and how long a program may live on after them.

    leader asks ─────────────────────── leader says how it ended ── grace ── ended
    a shell's process trains, or fails ── says how it ended ── ten minutes ── ended, unless
                                                               ├── a process asks or reports: the limit is lifted
                                                               └── one that has asked still runs: the limit starts again

`last_words` decides whose word counts; this module has the clock.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

import psutil

from headrace_worker.exits import Finished
from headrace_worker.last_words import Heard, LastWords
from headrace_worker.process import alive

AFTER_STAGE_S = 600.0
"""How long a program may live, with none of its processes at work on the trial, after one of them trained or failed."""


class Speakers:
    """The processes of one attempt that speak for it."""

    def __init__(self, *, is_gang: bool, leader: Callable[[], int], end: Callable[[], None]) -> None:
        """`leader` names the process that the worker started, or 0. `end` gives the program its grace to exit."""
        self._words = LastWords(is_gang=is_gang)
        self._leader = leader
        self._end = end
        self._limit: asyncio.TimerHandle | None = None

    def asks(self, pid: int, *, promises: bool) -> None:
        """A process asks for the configuration. With `promises` it calls Finish, unless it is killed."""
        self._words.asks(pid, self._leader(), promises=promises)
        self.close()

    def reports(self, pid: int) -> None:
        """A process is about to report."""
        self._words.reports(pid, self._leader())
        self.close()

    def says(self, finished: Finished, pid: int | None = None) -> None:
        """A process says how it ended; None: the leader."""
        over, leader = self._words.over, self._leader()
        match self._words.says(leader if pid is None else pid, leader, finished):
            case Heard.END if not over:
                self.close()
                self._end()
            case Heard.STAGE:
                self._begin_limit()

    def exits(self, exit_code: int) -> None:
        """The program has ended."""
        self._words.exits(exit_code)

    def close(self) -> None:
        """Lifts the limit."""
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None

    @property
    def counted(self) -> Finished | None:
        """What the program said about its end; None: nothing."""
        return self._words.counted

    @property
    def done(self) -> bool:
        """The program said that its work has ended, or a stage of it did and no other has started."""
        return self._words.over or self._limit is not None

    @property
    def trainer_lost(self) -> bool:
        """A process other than the leader trained, and ended without saying how."""
        return self._words.missing

    def _begin_limit(self) -> None:
        self.close()
        self._limit = asyncio.get_running_loop().call_later(AFTER_STAGE_S, self._limit_is_over)

    def _limit_is_over(self) -> None:
        if self._words.works(_runs):
            self._begin_limit()
        else:
            self._end()


def _runs(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return alive(psutil.Process(pid))
    return False
