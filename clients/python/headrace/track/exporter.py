"""Copies one study to one target, through every failure.

A copy proceeds in turns. A turn asks for the study, opens the sink if it is not open (the sink then reads back its
position), and writes events. Every failure ends the turn, and the next one begins where the sink is:

- `AwayError`, `RefusedError`, or a scheduler that does not answer: another turn, after a pause that grows to a minute.
- `ForgottenError`: the sink is opened again, and the study is read from its first event.
- `EventsGoneError`: the tables of trials and reports are copied, then the events after them.
- The tracker is ahead of the scheduler, whose database was restored: what the tracker has is set aside.
- The study was deleted, whether or not another one has its name now: done; the tracker keeps its copy.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from headrace.client import Study
from headrace.client.model import StudyInfo
from headrace.errors import HeadraceError, InvalidFieldError, StudyNotFoundError
from headrace.track import entries
from headrace.track.tracker import (
    AwayError,
    EventsGoneError,
    ForgottenError,
    RefusedError,
    Say,
    Sink,
    Start,
)
from headrace.track.trouble import Trouble

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
MOST_UPDATES = 50
"""After how many updates a turn that does not follow the study ends, so that other studies get theirs."""


class Stopped(Exception):  # noqa: N818 - not an error
    """The exporter is to end."""


class Target(Protocol):
    """What `--to` names."""

    @property
    def title(self) -> str:
        """For people."""

    def open(self, study: StudyInfo, say: Say, start: Start) -> Sink:
        """The sink of a study."""


@dataclass(kw_only=True)
class Copy:
    """A study and its sink. Used by one thread at a time."""

    study: Study
    uid: str = ""
    """Empty until the first turn, if the study is known by its name only."""
    sink: Sink | None = None
    start: Start = Start.RESUME

    def close(self) -> None:
        """Lets go of the sink: the next turn opens it again."""
        sink, self.sink = self.sink, None
        if sink is not None:
            with suppress(HeadraceError):  # what it could not store is written again
                sink.close(ended=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """How a turn ended."""

    final: StudyInfo | None = None
    """The study, if it has ended and is copied."""
    deleted: bool = False
    failed: bool = False
    """Whether the next turn should wait."""


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
        copy = Copy(study=study)
        pause_s, before = FIRST_PAUSE_S, -1
        try:
            while True:
                turn = self.turn(copy, to_end=True)
                if turn.final is not None or turn.deleted:
                    return turn.final
                cursor = copy.sink.cursor if copy.sink is not None else -1
                if cursor > before:
                    pause_s, before = FIRST_PAUSE_S, cursor
                if self.wait(pause_s if turn.failed else 0):
                    raise Stopped
                if turn.failed:
                    pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)
        finally:
            copy.close()

    def turn(self, copy: Copy, *, to_end: bool) -> Turn:
        """Copies what there is; with `to_end` what comes too, until the study has ended. Raises Stopped, and errors
        that are neither the target's nor a silent scheduler's.
        """
        name = copy.study.name
        try:
            final = self._turn(copy, to_end=to_end)
        except ForgottenError as error:
            copy.close()
            copy.start = Start.REREAD
            self.trouble.failed(error, name, f"Writing {name} again from its first event.")
            return Turn(failed=True)
        except (AwayError, RefusedError) as error:
            if not self.patient and copy.sink is None and isinstance(error, RefusedError):
                raise
            self.trouble.failed(error, name)
            return Turn(failed=True)
        except StudyNotFoundError as error:
            self.trouble.over(name)
            self.say(f"{error.message.rstrip('.')}; {self.target.title} keeps what it has.")
            return Turn(deleted=True)
        except HeadraceError as error:
            self._go_on()
            if not error.retryable:
                raise
            self.scheduler.failed(error)
            return Turn(failed=True)
        return Turn(final=final)

    def _turn(self, copy: Copy, *, to_end: bool) -> StudyInfo | None:
        info = self._status(copy)
        sink = copy.sink = self._opened(copy, info)
        if sink.cursor < info.cursor or (to_end and not info.state.ended):
            self._read(copy, sink, None if to_end else info.cursor)
            self._go_on()  # the client may have been closed, which ends watches
            info = self._status(copy)
        if not info.state.ended or info.cursor != sink.cursor:
            return None
        sink.close(ended=True)
        self.trouble.worked(copy.study.name)
        copy.sink = None
        return info

    def _status(self, copy: Copy) -> StudyInfo:
        info = copy.study.status()
        self.scheduler.worked()
        copy.uid = copy.uid or info.uid
        _require_same(copy, info)
        return info

    def _opened(self, copy: Copy, info: StudyInfo) -> Sink:
        if copy.sink is not None and copy.sink.cursor <= info.cursor:
            return copy.sink
        copy.close()
        sink = self.target.open(info, self.say, copy.start)
        if max(sink.cursor, sink.newest) > info.cursor:
            with suppress(HeadraceError):
                sink.close(ended=False)
            info = self._status(copy)  # as of now: the tracker's events were there before it was asked
            if max(sink.cursor, sink.newest) > info.cursor:
                self.say(
                    f"{self.target.title} is ahead of the scheduler, whose database was restored: the copy of "
                    f"{info.name} is set aside, and a new one begins."
                )
                copy.start = Start.SET_ASIDE  # also if that fails now
            sink = self.target.open(info, self.say, copy.start)
        copy.start = Start.RESUME
        return sink

    def _read(self, copy: Copy, sink: Sink, until: int | None) -> None:
        """Writes updates until the study has ended, or up to a cursor."""
        try:
            for number, update in enumerate(
                copy.study.watch(after=sink.cursor, on_break=self.scheduler.failed), 1
            ):
                self.scheduler.worked()
                _require_same(copy, update.study)
                sink.write(update)
                self.trouble.worked(copy.study.name)
                self._go_on()
                if until is not None and (sink.cursor >= until or number >= MOST_UPDATES):
                    return
        except EventsGoneError:
            self._copy_tables(copy, sink)
        except InvalidFieldError:
            if copy.study.status().cursor >= sink.cursor:
                raise
            # The database was restored: the next turn sees that the sink is ahead.

    def _copy_tables(self, copy: Copy, sink: Sink) -> None:
        """Copies the tables as of a cursor. What happens while they are read is left to later events."""
        self.say(
            f"Events of {copy.study.name} were deleted by age before they were copied: copying its trials and reports."
        )
        before = self._status(copy)
        trials, reports = copy.study.trials(), copy.study.reports()
        later = tuple(copy.study.events(before.cursor, until=self._status(copy).cursor))
        sink.write_tables(before, *entries.as_of(trials, reports, later))
        self.trouble.worked(copy.study.name)

    def _go_on(self) -> None:
        if self.wait(0):
            raise Stopped


def _require_same(copy: Copy, info: StudyInfo) -> None:
    if info.uid != copy.uid:
        raise StudyNotFoundError(f"Study {copy.study.name} was deleted, and another one has its name now")
