"""A scripted study with awkward metrics, as the exporter sees it, and what a copy of it must contain."""

import copy
import math
from collections.abc import Iterable, Mapping

from scripted_study import Script, race

from headrace.client import convert, convert_events
from headrace.client.events import Update
from headrace.client.model import StudyInfo
from headrace.track.tracker import RunsSink, Start, Tool

UID = "0123456789abcdef"
AWKWARD = {"loss@val": 0.25, "a//b": 1.0, "_private": 2.0, "ok_u40_": 3.0, "größe": 4.0}
Points = dict[tuple[int, str], list[tuple[int, float]]]


class KilledError(BaseException):
    """The exporter was killed here."""


def story(name: str = "digits") -> Script:
    """A study that ran to its end. Trial 1 has metrics with awkward names, trial 2 NaN, trial 3 infinities."""
    script = copy.deepcopy(race(name))
    for moment in script.moments:
        moment.study.uid = UID
    for event in script.events:
        if event.WhichOneof("detail") == "report_recorded":
            _awkward(event.trial_number, event.report_recorded.metrics)
    for report in script.reports:
        _awkward(report.trial_number, report.metrics)
    return script


def _awkward(trial: int, metrics: "dict[str, float]") -> None:
    match trial:
        case 1:
            for name, value in AWKWARD.items():
                metrics[name] = value
        case 2:
            metrics["accuracy"] = math.nan
        case 3:
            metrics["accuracy"], metrics["more"] = math.inf, -math.inf


def info(script: Script, events: int | None = None) -> StudyInfo:
    """The study after so many events."""
    return convert.study(script.moments[-1 if events is None else events - 1].study)


def updates(script: Script, *, after: int = 0, batch: int = 7) -> Iterable[Update]:
    """The updates that a watch yields."""
    order = script.spec.space
    for first in range(after, len(script.events), batch):
        part = script.events[first : first + batch]
        yield Update(
            events=tuple(convert_events.event(event, order=order) for event in part),
            study=info(script, first + len(part)),
        )


def table(script: Script) -> Points:
    """The points of the table of reports, by trial and metric."""
    found: Points = {}
    for report in script.reports:
        for name, value in report.metrics.items():
            found.setdefault((report.trial_number, name), []).append((report.step, value))
    return found


def copied(tool: Tool, script: Script, said: list[str], *, batch: int = 7, again: bool = False) -> RunsSink:
    """Copies the study, as a process that is new does: from the position that the tracker has."""
    runs = tool.open(info(script), said.append, Start.REREAD if again else Start.RESUME)
    sink = RunsSink(runs)
    for update in updates(script, after=sink.cursor, batch=batch):
        sink.write(update)
    sink.close(ended=True)
    return sink


def same(
    found: Mapping[tuple[int, str], list[tuple[int, float]]], expected: Points, largest: float = math.inf
) -> None:
    """Every point is there once. Infinities may be stored as `largest`."""

    def shown(points: Iterable[tuple[int, float]]) -> list[tuple[int, str]]:
        clipped = (
            (step, max(-largest, min(largest, value)) if value == value else value) for step, value in points
        )
        return sorted((step, repr(float(value))) for step, value in clipped)

    assert found.keys() == expected.keys(), sorted(found.keys() ^ expected.keys())
    for key, points in expected.items():
        assert shown(found[key]) == shown(points), key
