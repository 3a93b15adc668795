"""A scripted study, a scripted target, and an exporter with a clock that only counts."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from copied_study import info, story, updates
from scripted_study import Script

from headrace.client import convert
from headrace.client.events import Event, Update
from headrace.client.model import Report, StudyInfo, TrialInfo
from headrace.errors import HeadraceError
from headrace.track.exporter import Exporter
from headrace.track.tracker import Start
from headrace.track.trouble import Trouble

BATCH = 7
"""Events in a message of a watch."""


@dataclass
class ScriptedStudy:
    """A handle of a study; `breaks` are raised by the next watches, after some updates."""

    script: Script
    breaks: list[tuple[int, HeadraceError]] = field(default_factory=list)
    asked: list[HeadraceError] = field(default_factory=list)
    """Raised by the next calls of `status`."""
    name: str = "digits"
    shown: int | None = None
    """After how many events the study is shown; all of them if None, and once a watch continues."""
    gone: Callable[[Event], bool] = lambda _: False
    """Which events were deleted by age."""
    on_trials: Callable[["ScriptedStudy"], None] = lambda _: None
    """Called after the trials were listed."""

    def status(self) -> StudyInfo:
        if self.asked:
            raise self.asked.pop(0)
        return info(self.script, self.shown)

    def watch(self, after: int, on_break: Any) -> Iterator[Update]:
        assert callable(on_break)
        limit, error = self.breaks.pop(0) if self.breaks else (None, None)
        if after:
            self.shown = None
        number = 0
        for update in updates(self.script, after=after, batch=BATCH):
            if all(map(self.gone, update.events)):
                continue
            if number == limit and error is not None:
                raise error
            number += 1
            yield Update(
                events=tuple(event for event in update.events if not self.gone(event)), study=update.study
            )
        if not number:
            yield Update(events=(), study=info(self.script))

    def events(self, after: int, *, until: int) -> Iterator[Event]:
        for update in updates(self.script, after=after):
            yield from (one for one in update.events if one.cursor <= until and not self.gone(one))

    def trials(self) -> list[TrialInfo]:
        moment = self.script.moments[(self.shown or 0) - 1]
        found = [convert.trial(trial) for trial in moment.trials]
        self.on_trials(self)
        return found

    def reports(self) -> list[Report]:
        events = self.script.events[: self.shown]
        count = sum(event.HasField("report_recorded") for event in events)
        return [convert.report(report) for report in self.script.reports[:count]]


@dataclass
class ScriptedTarget:
    """A target, and its sink of one study. `errors` are raised by the next writes."""

    errors: list[HeadraceError] = field(default_factory=list)
    at_open: list[HeadraceError] = field(default_factory=list)
    title: str = "the tracker"
    cursor: int = 0
    newest: int = 0
    opened: list[Start] = field(default_factory=list)
    written: list[int] = field(default_factory=list)
    closed: list[bool] = field(default_factory=list)
    tables: int = 0

    def open(self, study: StudyInfo, say: Any, start: Start) -> "ScriptedTarget":
        assert study.uid
        assert callable(say)
        if self.at_open:
            raise self.at_open.pop(0)
        self.opened.append(start)
        if start is not Start.RESUME:
            self.cursor, self.written = 0, []
        self.newest = self.cursor
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

    target: ScriptedTarget = field(default_factory=ScriptedTarget)
    said: list[str] = field(default_factory=list)
    waited: list[float] = field(default_factory=list)
    stop_after: int | None = None
    """After how many waits with a pause the exporter is to end."""

    def wait(self, seconds: float) -> bool:
        if seconds:
            self.waited.append(seconds)
        return self.stop_after is not None and len(self.waited) >= self.stop_after

    def exporter(self, target: Any = None, *, patient: bool = True) -> Exporter:
        return Exporter(
            target=target or self.target,
            say=self.said.append,
            trouble=Trouble("The tracker", self.said.append),
            scheduler=Trouble("The scheduler", self.said.append),
            wait=self.wait,
            patient=patient,
        )


class Listed:
    """A client whose list of studies changes; its handles show the studies as they are listed."""

    def __init__(self, lists: list[list[Script]]) -> None:
        self.lists = lists
        self.asked = 0
        self.handles: list[ScriptedStudy] = []

    def studies(self) -> list[StudyInfo]:
        self.asked += 1
        for handle in self.handles:
            handle.script = self._now(handle.name) or handle.script
        return [info(script) for script in self._listed()]

    def study(self, name: str) -> ScriptedStudy:
        script = self._now(name)
        assert script is not None
        self.handles.append(ScriptedStudy(script, name=name))
        return self.handles[-1]

    def _listed(self) -> list[Script]:
        return self.lists[min(self.asked, len(self.lists)) - 1]

    def _now(self, name: str) -> Script | None:
        return next((one for one in self._listed() if info(one).name == name), None)


@dataclass
class ManySinks:
    """A target with a sink for each study, by uid."""

    title: str = "the tracker"
    sinks: dict[str, ScriptedTarget] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)
    """The uids of studies that fail in a way that nobody expects."""

    def open(self, study: StudyInfo, say: Any, start: Start) -> ScriptedTarget:
        if study.uid in self.broken:
            raise RuntimeError("a defect")
        return self.sinks.setdefault(study.uid, ScriptedTarget()).open(study, say, start)


def whole(script: Script) -> list[int]:
    """The cursors of all events."""
    return list(range(1, len(script.events) + 1))


def named(name: str, uid: str) -> Script:
    """Another study."""
    script = story(name)
    for moment in script.moments:
        moment.study.uid = uid
    return script


def cut(events: int) -> Script:
    """The study with its last events missing: it ended earlier, or the scheduler's database was restored."""
    script = story()
    del script.events[-events:], script.moments[-events - 1 : -1]
    script.moments[-1].study.status.cursor = len(script.events)
    del script.reports[sum(event.HasField("report_recorded") for event in script.events) :]
    return script
