"""Which process's word on the end of a program counts, if several of its processes speak.

A command runs stages one after the other, a launcher starts ranks, and a script starts helpers that ask for the
configuration too. Each of them says how it ended. The leader, which the worker started, speaks for its program. If
it never asked for the configuration, as with a shell or a launcher, the process that reported last speaks, or
without any report the one that asked last. If the program then ends with an error, the first error of a process
that reported counts, and without one the first error of any other process: of ranks that fail together, one names
the cause.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from enum import Enum, auto

from headrace_worker.exits import Finished


class Heard(Enum):
    """What a process's last word means for its program."""

    END = auto()
    """The program has ended its work."""
    STAGE = auto()
    """A process that trained, or that failed, has ended its work; the program may have more to do."""
    ASIDE = auto()
    """A helper has ended its work."""


class LastWords:
    """What the processes of one attempt have said."""

    def __init__(self, *, is_gang: bool) -> None:
        """In a gang, the leader knows how each rank ended, and reports it."""
        self._is_gang = is_gang
        self._leader = 0
        self._asked: dict[int, bool] = {}
        """By process, in order: whether it has promised to say how it ended, unless it is killed."""
        self._reporters: list[int] = []
        self._said: dict[int, Finished] = {}
        self._over = False
        self._failed = False

    def asks(self, pid: int, leader: int, *, promises: bool) -> None:
        """A process asks for the configuration. With `promises` it says how it ended, unless it is killed."""
        self._leader = leader or self._leader
        self._asked.pop(pid, None)
        self._asked[pid] = promises
        if pid != self._leader:
            self._said.pop(pid, None)  # the system reuses the number of a process that is gone

    def reports(self, pid: int, leader: int) -> None:
        """A process reports."""
        self._leader = leader or self._leader
        self._reporters = [*(one for one in self._reporters if one != pid), pid]

    def says(self, pid: int, leader: int, finished: Finished) -> Heard:
        """A process says how it ended; its first word counts."""
        self._leader = leader or self._leader
        self._said.setdefault(pid, finished)
        trained = pid in self._reporters
        if pid == self._leader or (self._is_gang and trained):
            self._over = True
            return Heard.END
        if self._is_gang or self._leader in self._asked:
            return Heard.ASIDE
        return Heard.STAGE if trained or finished.error else Heard.ASIDE

    def exits(self, exit_code: int) -> None:
        """The program has ended."""
        self._failed = exit_code != 0

    def works(self, lives: Callable[[int], bool]) -> bool:
        """Whether a process that asked for the configuration is still at work."""
        return any(pid not in self._said and lives(pid) for pid in self._asked)

    @property
    def over(self) -> bool:
        """The program has said that its work has ended."""
        return self._over

    @property
    def counted(self) -> Finished | None:
        """The word that counts, with what the process that trained saved when it ended; None if there is none."""
        trained = self._said.get(self._trainer)
        if (word := self._said.get(self._leader)) is not None:
            if word.error or word.last is not None or trained is None or trained.error:
                return word
            return replace(word, last=trained.last, unsaved=trained.unsaved, by_itself=trained.by_itself)
        if self._leader in self._asked:
            return None  # it was killed, or its exit status tells the outcome
        reporters = [self._said[one] for one in self._reporters if one in self._said]
        if self._is_gang:
            return next(iter(reporters), None)
        if self._failed:
            return _first_error(reporters) or trained or _first_error(self._said.values())
        return trained

    @property
    def missing(self) -> bool:
        """Whether the process that trained is not the leader, had promised to say how it ended, and did not: it
        was probably killed."""
        trainer = self._trainer
        promised = self._asked.get(trainer, False) and trainer not in self._said
        return promised and not self._is_gang and trainer != self._leader

    @property
    def _trainer(self) -> int:
        if self._reporters:
            return self._reporters[-1]
        return self._leader if self._leader in self._asked else next(reversed(self._asked), 0)


def _first_error(words: Iterable[Finished]) -> Finished | None:
    return next((word for word in words if word.error), None)
