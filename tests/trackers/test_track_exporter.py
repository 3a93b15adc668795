"""The exporter's loop, with a scripted study and a scripted target: silence, refusal, forgetting, stopping."""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from copied_study import info, story, updates
from scripted_study import Script

from headrace.client import convert
from headrace.client.events import Update
from headrace.client.model import Report, StudyInfo, TrialInfo
from headrace.errors import HeadraceError, PermissionDeniedError, StudyNotFoundError, UnreachableError
from headrace.track.everything import Everything
from headrace.track.exporter import LONGEST_PAUSE_S, Exporter, Stopped, Trouble
from headrace.track.tracker import AwayError, EventsGoneError, ForgottenError, RefusedError


@dataclass
class ScriptedStudy:
    """A handle of a study; `breaks` are raised by the next watches, after some updates."""

    script: Script
    breaks: list[tuple[int, HeadraceError]] = field(default_factory=list)
    asked: list[HeadraceError] = field(default_factory=list)
    """Raised by the next calls of `status`."""
    name: str = "digits"

    def status(self) -> StudyInfo:
        if self.asked:
            raise self.asked.pop(0)
        return info(self.script)

    def watch(self, after: int, on_break: Any) -> Iterator[Update]:
        assert callable(on_break)
        limit, error = self.breaks.pop(0) if self.breaks else (None, None)
        for number, update in enumerate(updates(self.script, after=after)):
            if number == limit and error is not None:
                raise error
            yield update

    def trials(self) -> list[TrialInfo]:
        return [convert.trial(trial) for trial in self.script.final.trials]

    def reports(self) -> list[Report]:
        return [convert.report(report) for report in self.script.reports]


@dataclass
class ScriptedTarget:
    """A target, and its sink of one study. `errors` are raised by the next writes."""

    errors: list[HeadraceError] = field(default_factory=list)
    at_open: list[HeadraceError] = field(default_factory=list)
    title: str = "the tracker"
    cursor: int = 0
    opened: list[bool] = field(default_factory=list)
    written: list[int] = field(default_factory=list)
    closed: list[bool] = field(default_factory=list)
    tables: int = 0

    def open(self, study: StudyInfo, say: Any, *, again: bool) -> "ScriptedTarget":
        assert study.uid
        assert callable(say)
        if self.at_open:
            raise self.at_open.pop(0)
        self.opened.append(again)
        if again:
            self.cursor, self.written = 0, []
        return self

    def write(self, update: Update) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.written += [event.cursor for event in update.events]
        self.cursor = self.written[-1]

    def write_tables(self, study: StudyInfo, trials: Sequence[TrialInfo], reports: Sequence[Report]) -> None:
        assert reports
        self.tables += len(trials)
        self.cursor = study.cursor

    def close(self, *, ended: bool) -> None:
        self.closed.append(ended)


@dataclass
class Site:
    """An exporter with a clock that only counts."""

    target: ScriptedTarget
    said: list[str] = field(default_factory=list)
    waited: list[float] = field(default_factory=list)
    stop_after: int | None = None
    """After how many waits with a pause the exporter is to end."""

    def wait(self, seconds: float) -> bool:
        if seconds:
            self.waited.append(seconds)
        return self.stop_after is not None and len(self.waited) >= self.stop_after

    def exporter(self, *, patient: bool = True) -> Exporter:
        return Exporter(
            target=self.target,
            say=self.said.append,
            trouble=Trouble("The tracker", self.said.append),
            scheduler=Trouble("The scheduler", self.said.append),
            wait=self.wait,
            patient=patient,
        )


MakeSite = Callable[..., tuple[ScriptedStudy, Site]]


@pytest.fixture
def make(script: Script) -> MakeSite:
    def made(
        errors: Iterable[HeadraceError] = (), at_open: Iterable[HeadraceError] = (), **study: Any
    ) -> Any:
        return ScriptedStudy(script, **study), Site(ScriptedTarget(list(errors), list(at_open)))

    return made


def whole(script: Script) -> list[int]:
    return list(range(1, len(script.events) + 1))


def test_a_study_is_copied_once_to_its_end(make: MakeSite, script: Script) -> None:
    study, site = make()
    final = site.exporter().follow(study)  # type: ignore[arg-type]
    assert final is not None
    assert final.state.ended
    assert site.target.written == whole(script)
    assert site.target.closed == [True]
    assert site.said == []


def test_a_tracker_that_is_down_is_said_once_and_the_same_write_is_repeated(
    make: MakeSite, script: Script
) -> None:
    study, site = make(errors=[AwayError("no usable answer.")] * 9)
    site.exporter().follow(study)  # type: ignore[arg-type]
    assert site.target.written == whole(script)
    assert site.said == [
        "The tracker: no usable answer. Trying again until it works.",
        "The tracker works again.",
    ]
    assert site.waited == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert max(site.waited) == LONGEST_PAUSE_S


def test_a_tracker_that_forgot_gets_everything_again(make: MakeSite, script: Script) -> None:
    study, site = make()
    site.target.cursor = 200
    site.target.errors = [ForgottenError("the run of trial 3 is gone.")]
    site.exporter().follow(study)  # type: ignore[arg-type]
    assert site.target.opened == [False, True]
    assert site.target.closed == [False, True]
    assert site.target.written == whole(script)
    assert site.said == [
        "the tracker: the run of trial 3 is gone. Writing digits again from its first event."
    ]


def test_rejected_credentials_end_the_command_for_one_study_and_not_with_all(
    make: MakeSite, script: Script
) -> None:
    study, site = make(at_open=[RefusedError("rejects the credentials.")])
    with pytest.raises(RefusedError):
        site.exporter(patient=False).follow(study)  # type: ignore[arg-type]
    study, site = make(at_open=[RefusedError("rejects the credentials.", remedy="Set them.")] * 3)
    site.exporter().follow(study)  # type: ignore[arg-type]
    assert site.target.written == whole(script)
    assert site.said[0] == "The tracker: rejects the credentials. Set them. Trying again until it works."


def test_a_scheduler_that_is_down_longer_than_a_watch_waits_is_followed_again(
    make: MakeSite, script: Script
) -> None:
    gone = UnreachableError("No scheduler answers.")
    study, site = make(breaks=[(0, gone), (5, gone), (9, gone)], asked=[gone, gone])
    site.exporter().follow(study)  # type: ignore[arg-type]
    assert site.target.written == whole(script)
    assert site.said[0].startswith("The scheduler: No scheduler answers.")
    assert site.said[1] == "The scheduler works again."


def test_a_deleted_study_is_over(make: MakeSite) -> None:
    study, site = make(breaks=[(4, StudyNotFoundError("There is no study digits."))])
    assert site.exporter().follow(study) is None  # type: ignore[arg-type]
    assert site.said == ["Study digits was deleted; the tracker keeps what it has."]
    assert site.target.closed == [False]


def test_a_token_that_is_revoked_ends_it(make: MakeSite) -> None:
    study, site = make(breaks=[(4, PermissionDeniedError("No."))])
    with pytest.raises(PermissionDeniedError):
        site.exporter().follow(study)  # type: ignore[arg-type]


def test_events_that_were_deleted_by_age_are_made_up_for_by_the_tables(
    make: MakeSite, script: Script
) -> None:
    study, site = make(errors=[EventsGoneError("gone")])
    site.exporter().follow(study)  # type: ignore[arg-type]
    assert site.target.tables == 28
    assert site.target.closed == [True]
    assert site.said == ["The events of digits were deleted by age: copying its trials and reports."]


def test_it_stops_while_a_tracker_is_down(make: MakeSite) -> None:
    study, site = make(errors=[AwayError("no usable answer.")] * 99)
    site.stop_after = 3
    with pytest.raises(Stopped):
        site.exporter().follow(study)  # type: ignore[arg-type]
    assert site.target.closed == [False]


class _Listed:
    """A client whose list of studies grows."""

    def __init__(self, lists: list[list[Script]]) -> None:
        self.lists = lists
        self.asked = 0

    def studies(self) -> list[StudyInfo]:
        self.asked += 1
        return [info(script) for script in self.lists[min(self.asked, len(self.lists)) - 1]]

    def study(self, name: str) -> ScriptedStudy:
        script = next(
            one for one in self.lists[min(self.asked, len(self.lists)) - 1] if info(one).name == name
        )
        return ScriptedStudy(script, name=name)


@dataclass
class _Many:
    """A target with a sink for each study."""

    title: str = "the tracker"
    sinks: dict[str, ScriptedTarget] = field(default_factory=dict)

    def open(self, study: StudyInfo, say: Any, *, again: bool) -> ScriptedTarget:
        return self.sinks.setdefault(study.name, ScriptedTarget()).open(study, say, again=again)


def test_all_studies_are_followed_and_those_that_come_later(script: Script) -> None:
    later = story("later")
    for moment in later.moments:
        moment.study.uid = "later"
    client, many, done, over = _Listed([[script], [script, later]]), _Many(), [], threading.Event()

    def finished(final: StudyInfo) -> None:
        done.append(final.name)
        if len(done) == 2:
            over.set()

    def wait(seconds: float) -> bool:
        return over.wait(min(seconds, 0.01))

    exporter = Exporter(
        target=many, say=print, trouble=Trouble("", print), scheduler=Trouble("", print), wait=wait
    )
    Everything(client=client, exporter=exporter, done=finished).run()  # type: ignore[arg-type]
    assert sorted(done) == ["digits", "later"]
    assert {name: sink.written for name, sink in many.sinks.items()} == {
        "digits": whole(script),
        "later": whole(later),
    }
    assert many.sinks["digits"].opened == [False]


def test_a_study_that_is_extended_after_its_end_is_followed_again(script: Script) -> None:
    """Its end is not the end: later events are copied from where the copy stopped."""
    shorter = story()
    del shorter.events[-40:], shorter.moments[-41:-1]
    shorter.moments[-1].study.status.cursor = len(shorter.events)
    client, many, over = _Listed([[shorter], [shorter], [script]]), _Many(), threading.Event()
    done: list[int] = []

    def finished(final: StudyInfo) -> None:
        done.append(final.cursor)
        if final.cursor == len(script.events):
            over.set()

    exporter = Exporter(
        target=many,
        say=print,
        trouble=Trouble("", print),
        scheduler=Trouble("", print),
        wait=lambda seconds: over.wait(min(seconds, 0.05)),
    )
    Everything(client=client, exporter=exporter, done=finished).run()  # type: ignore[arg-type]
    assert done == [len(shorter.events), len(script.events)]
    assert many.sinks["digits"].written == whole(script)
    assert many.sinks["digits"].opened == [False, False]
