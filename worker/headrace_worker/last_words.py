"""Whose word on the end of a program counts, where several of its processes speak.

A command runs stages one after the other, a launcher starts ranks, and a script starts helpers that ask for the
configuration too. Each of them says how it ended. The leader, which the worker started, speaks for its program. Where
it never asked for the configuration, as a shell or a launcher, the process that reported last does, or without a report
the one that asked last.
"""

from dataclasses import replace
from enum import Enum, auto

from headrace_worker.exits import Finished


class Heard(Enum):
    """What a process's last word means for its program."""

    END = auto()
    """The program is at its end."""
    STAGE = auto()
    """The process that trained is at its end; the program may have more to do."""
    ASIDE = auto()
    """A helper is at its end."""


class LastWords:
    """What the processes of one attempt have said."""

    def __init__(self, *, is_gang: bool) -> None:
        """Of a gang the leader knows how each rank ended, and tells."""
        self._is_gang = is_gang
        self._leader = 0
        self._asked: list[int] = []  # those that have promised a word at any end but a kill
        self._reporters: list[int] = []
        self._said: dict[int, Finished] = {}
        self._over = False

    def asks(self, pid: int, leader: int, *, promises: bool) -> None:
        """A process asks for the configuration. With `promises` it says a word at any end but a kill."""
        self._leader = leader or self._leader
        self._asked = [one for one in self._asked if one != pid] + [pid] * promises

    def reports(self, pid: int, leader: int) -> None:
        """A process reports."""
        self._leader = leader or self._leader
        self._reporters = [*(one for one in self._reporters if one != pid), pid]

    def says(self, pid: int, leader: int, finished: Finished) -> Heard:
        """A process says how it ended; its first word counts."""
        self._leader = leader or self._leader
        self._said.setdefault(pid, finished)
        if pid == self._leader or (self._is_gang and (pid in self._reporters or finished.error)):
            self._over = True
            return Heard.END
        return Heard.STAGE if not self._leader_asked and pid in self._reporters else Heard.ASIDE

    @property
    def over(self) -> bool:
        """The program has said that it is at its end."""
        return self._over

    @property
    def counted(self) -> Finished | None:
        """The word that counts, with what the process that trained saved at its end; None: nobody's."""
        trained = self._said.get(self._trainer)
        if (word := self._said.get(self._leader)) is not None:
            if word.error or word.last is not None or trained is None or trained.error:
                return word
            return replace(word, last=trained.last, unsaved=trained.unsaved, by_itself=trained.by_itself)
        if self._leader_asked:
            return None  # it was killed, or its exit status says it
        if self._is_gang:
            return next(
                (self._said[one] for one in (*self._reporters, *self._said) if one in self._said), None
            )
        return trained

    @property
    def missing(self) -> bool:
        """The process that trained is not the leader, had promised a word, and said none: it was probably killed."""
        trainer = self._trainer
        return (
            not self._is_gang
            and trainer in self._asked
            and trainer != self._leader
            and trainer not in self._said
        )

    @property
    def _leader_asked(self) -> bool:
        return self._leader in self._asked

    @property
    def _trainer(self) -> int:
        if self._reporters:
            return self._reporters[-1]
        return self._leader if self._leader_asked else next(reversed(self._asked), 0)
