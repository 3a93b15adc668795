"""What an adapter does for the exporter, and how it fails.

A `Tool` is a tracker; `open` returns its copy of one study, a `Runs`. A `Sink` is what the exporter writes updates
to: `RunsSink` turns them into entries for a `Runs`, and the webhook is one itself.
"""

from collections.abc import Callable, Sequence
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
    """The study's events were deleted by age."""


class Runs(Protocol):
    """A tracker's copy of one study."""

    cursor: int
    """Where to start reading: every run has the events up to here."""

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

    def open(self, study: StudyInfo, say: Say, *, again: bool) -> Runs:
        """The copy of a study, created if there is none. With `again` its `cursor` is 0: it is read from its
        first event."""


class Sink(Protocol):
    """Where the exporter writes a study's updates."""

    cursor: int

    def write(self, update: Update) -> None:
        """Writes the new events. Repeatable after any failure."""

    def write_tables(self, study: StudyInfo, trials: Sequence[TrialInfo], reports: Sequence[Report]) -> None:
        """Writes an ended study whose events were deleted by age."""

    def close(self, *, ended: bool) -> None:
        """Lets go of the study."""


class RunsSink:
    """Writes updates as entries of runs."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self.cursor = runs.cursor

    def write(self, update: Update) -> None:
        """Raises EventsGoneError if events before these are missing."""
        new = [event for event in update.events if event.cursor > self.cursor]
        if not new:
            return
        if new[0].cursor != self.cursor + 1:
            raise EventsGoneError(f"The events of {update.study.name} were deleted by age.")
        for trial, found in entries.by_trial(new).items():
            self._runs.write(trial, found)
        self.cursor = new[-1].cursor
        self._runs.advance(self.cursor)

    def write_tables(self, study: StudyInfo, trials: Sequence[TrialInfo], reports: Sequence[Report]) -> None:
        """Writes each trial at once."""
        for trial, found in entries.of_tables(study.cursor, trials, reports).items():
            self._runs.write(trial, found)
        self.cursor = study.cursor
        self._runs.advance(self.cursor)

    def close(self, *, ended: bool) -> None:
        """Lets go of the study."""
        self._runs.close(ended=ended)
