"""What an adapter does for the exporter, and how it fails.

A `Tool` is a tracker; `open` returns its copy of one study, a `Runs`. A `Sink` is what the exporter writes updates
to: `RunsSink` turns them into entries for a `Runs`, and the webhook is one itself.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Protocol

from headrace.client.events import Update
from headrace.client.model import Report, StudyInfo, TrialInfo
from headrace.errors import HeadraceError
from headrace.track import entries
from headrace.track.entries import Entry

Say = Callable[[str], None]
"""Prints one line for people."""


class AwayError(HeadraceError):
    """The tracker does not answer, or fails. The write may have been done or not; it is tried again."""


class RefusedError(HeadraceError):
    """The tracker rejects the credentials, or what it is asked for needs a person."""


class ForgottenError(HeadraceError):
    """The tracker lacks what it had: the study must be read from its first event."""


class EventsGoneError(HeadraceError):
    """Events of the study that were not copied yet were deleted by age."""


class Start(Enum):
    """How a study is opened."""

    RESUME = "resume"
    """Reading continues where the tracker says."""
    REREAD = "reread"
    """The study is read from its first event; runs skip what they have."""
    SET_ASIDE = "set aside"
    """What the tracker has is kept under another name, and the study is copied from its first event."""


class Runs(Protocol):
    """A tracker's copy of one study."""

    cursor: int
    """Where to start reading: every run has the events up to here."""
    newest: int
    """The newest event that any run had when the study was opened."""

    def write(self, trial: int, found: Sequence[Entry]) -> None:
        """Writes entries of one trial, in order, without those that its run has. Repeatable after any failure."""

    def advance(self, cursor: int) -> None:
        """Every entry up to `cursor` has been written."""

    def close(self, *, ended: bool) -> None:
        """Lets go of the study; `ended` if it has ended and everything is written."""


class Tool(Protocol):
    """A tracker. Each study is opened by one thread."""

    @property
    def title(self) -> str:
        """For people: `MLflow at http://…`."""

    def open(self, study: StudyInfo, say: Say, start: Start) -> Runs:
        """The copy of a study, created if there is none."""


class Sink(Protocol):
    """Where the exporter writes a study's updates."""

    @property
    def cursor(self) -> int:
        """Where to start reading."""

    @property
    def newest(self) -> int:
        """The newest event that was there when the study was opened."""

    def write(self, update: Update) -> None:
        """Writes the new events. Repeatable after any failure. Raises EventsGoneError, with nothing written, if
        some are missing.
        """

    def write_tables(self, study: StudyInfo, trials: Sequence[TrialInfo], reports: Sequence[Report]) -> None:
        """Writes a study as of its cursor from its tables, because events were deleted by age."""

    def close(self, *, ended: bool) -> None:
        """Lets go of the study."""


def missing(update: Update, cursor: int) -> bool:
    """Whether an update lacks events after `cursor`: cursors have no gaps until events are deleted by age."""
    new = [event.cursor for event in update.events if event.cursor > cursor]
    if not new:  # the study's last events may be among the deleted ones
        return update.study.state.ended and update.study.cursor > cursor
    return new != list(range(cursor + 1, cursor + 1 + len(new)))


class RunsSink:
    """Writes updates as entries of runs."""

    def __init__(self, runs: Runs, pages: str = "") -> None:
        """`pages` is where the console shows the study's trials: the address of one without its number."""
        self._runs, self._pages = runs, pages
        self.cursor, self.newest = runs.cursor, runs.newest

    def write(self, update: Update) -> None:
        """Writes the new events of each trial, then moves the cursor."""
        if missing(update, self.cursor):
            raise EventsGoneError(f"Events of {update.study.name} were deleted by age.")
        new = [event for event in update.events if event.cursor > self.cursor]
        if not new:
            return
        for trial, found in entries.by_trial(new).items():
            self._write(trial, found)
        self.cursor = new[-1].cursor
        self._runs.advance(self.cursor)

    def write_tables(self, study: StudyInfo, trials: Sequence[TrialInfo], reports: Sequence[Report]) -> None:
        """Writes each trial at once."""
        for trial, found in entries.of_tables(study.cursor, trials, reports).items():
            self._write(trial, found)
        self.cursor = study.cursor
        self._runs.advance(self.cursor)

    def _write(self, trial: int, found: list[Entry]) -> None:
        self._runs.write(trial, entries.linked(found, f"{self._pages}{trial}") if self._pages else found)

    def close(self, *, ended: bool) -> None:
        """Lets go of the study."""
        self._runs.close(ended=ended)
