"""Follows one study and writes its updates to one sink, through every failure.

The states of a copy: opening (the sink reads back its position), following (events are written as they come), and
done (the study has ended and everything is written). Every failure leads back to opening or following:

- `AwayError`, `RefusedError`: the same call again, after a pause that grows to a minute.
- `ForgottenError`: open again, and read from the first event.
- `EventsGoneError`: the tables of trials and reports once, then done.
- The scheduler does not answer: the watch is opened again where it was.
- The study was deleted: done; the tracker keeps its copy.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from headrace.client import Study
from headrace.client.model import StudyInfo
from headrace.errors import HeadraceError, StudyNotFoundError
from headrace.track.tracker import AwayError, EventsGoneError, ForgottenError, RefusedError, Say, Sink

T = TypeVar("T")
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0


class Stopped(Exception):  # noqa: N818 - not an error
    """The exporter is to end."""


class Target(Protocol):
    """What `--to` names."""

    @property
    def title(self) -> str:
        """For people."""

    def open(self, study: StudyInfo, say: Say, *, again: bool) -> Sink:
        """The sink of a study."""


class Trouble:
    """Says once that something does not answer, and once that it does again. Shared by the threads of a target, one
    for each study.
    """

    def __init__(self, title: str, say: Say) -> None:
        self._title, self._say = title, say
        self._lock = threading.Lock()
        self._said: dict[str, str] = {}

    def failed(self, error: HeadraceError, study: str = "") -> None:
        """A call for a study failed."""
        with self._lock:
            new = study not in self._said and error.message not in self._said.values()
            self._said.setdefault(study, error.message)
        if new:
            remedy = f" {error.remedy}" if error.remedy else ""
            self._say(f"{self._title}: {error.message}{remedy} Trying again until it works.")

    def worked(self, study: str = "") -> None:
        """A call for a study succeeded."""
        with self._lock:
            over = self._said.pop(study, None) is not None and not self._said
        if over:
            self._say(f"{self._title} works again.")


@dataclass(frozen=True, kw_only=True)
class Exporter:
    """Copies studies to one target."""

    target: Target
    say: Say
    trouble: Trouble
    scheduler: Trouble
    wait: Callable[[float], bool]
    """Waits this many seconds; True if the exporter is to end, at once."""
    patient: bool = True
    """Whether to go on trying if the target rejects the credentials when a study is opened."""

    def follow(self, study: Study) -> StudyInfo | None:
        """Copies a study until it has ended; returns it, or None if it was deleted. Raises Stopped."""
        again = False
        while True:
            try:
                return self._followed(study, again=again)
            except ForgottenError as error:
                self.say(
                    f"{self.target.title}: {error.message} Writing {study.name} again from its first event."
                )
                again = True
                if self.wait(FIRST_PAUSE_S):
                    raise Stopped from None
            except StudyNotFoundError:
                self.say(f"Study {study.name} was deleted; {self.target.title} keeps what it has.")
                return None

    def _followed(self, study: Study, *, again: bool) -> StudyInfo:
        info = self._asked(study.status)
        sink = self._tried(
            study, lambda: self.target.open(info, self.say, again=again), give_up=not self.patient
        )
        ended = False
        try:
            while not ended:
                self._read(study, sink)
                info = self._asked(study.status)
                ended = info.state.ended and info.cursor <= sink.cursor
        finally:
            if not ended:
                sink.close(ended=False)
        self._tried(study, lambda: sink.close(ended=True))
        return info

    def _read(self, study: Study, sink: Sink) -> None:
        """Writes updates until the watch ends."""
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                for update in study.watch(after=sink.cursor, on_break=self.scheduler.failed):
                    self.scheduler.worked()
                    pause_s = FIRST_PAUSE_S
                    self._tried(study, partial(sink.write, update))
                    self._go_on()
            except EventsGoneError:
                self._copy_tables(study, sink)
                return
            except HeadraceError as error:
                pause_s = self._paused(error, pause_s)
            else:
                self._go_on()  # the client may have been closed, which ends watches
                return

    def _go_on(self) -> None:
        if self.wait(0):
            raise Stopped

    def _copy_tables(self, study: Study, sink: Sink) -> None:
        self.say(f"The events of {study.name} were deleted by age: copying its trials and reports.")
        after = self._asked(study.status)
        while True:  # until nothing happened in between
            info, trials, reports = after, self._asked(study.trials), self._asked(study.reports)
            after = self._asked(study.status)
            if after.cursor == info.cursor:
                break
        self._tried(study, partial(sink.write_tables, info, trials, reports))

    def _asked(self, ask: Callable[[], T]) -> T:
        """The scheduler's answer, however long it takes."""
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                answer = ask()
            except HeadraceError as error:
                pause_s = self._paused(error, pause_s)
            else:
                self.scheduler.worked()
                return answer

    def _paused(self, error: HeadraceError, pause_s: float) -> float:
        """The next pause, after this one; raises an error that is not the scheduler's silence."""
        if not error.retryable:
            raise error
        self.scheduler.failed(error)
        if self.wait(pause_s):
            raise Stopped
        return min(LONGEST_PAUSE_S, 2 * pause_s)

    def _tried(self, study: Study, call: Callable[[], T], *, give_up: bool = False) -> T:
        """The result of a call to the target, however long it takes."""
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                result = call()
            except (AwayError, RefusedError) as error:
                if give_up and isinstance(error, RefusedError):
                    raise
                self.trouble.failed(error, study.name)
                if self.wait(pause_s):
                    raise Stopped from None
                pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)
            else:
                self.trouble.worked(study.name)
                return result
