"""Studies whose events were deleted by age before they were copied: the tables make up for them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from copied_study import info, same, story, table, updates
from exporter_site import ScriptedStudy, Site
from fake_mlflow import LARGEST, FakeServer
from scripted_study import Script
from test_track_mlflow import points

from headrace.client.events import Event, Update
from headrace.client.model import StudyInfo
from headrace.track.tracker import RunsSink, Start, missing


class Target:
    """The double of MLflow as a target."""

    title = "MLflow"

    def open(self, study: StudyInfo, say: Any, start: Start) -> RunsSink:
        from headrace.track.mlflow_runs import MlflowTool  # the double, which is installed by now

        return RunsSink(MlflowTool("http://double").open(study, say, start))


def of_trials(first: int, last: int) -> Callable[[Event], bool]:
    """Events of trials, which are deleted by age; the study's own stay."""
    return lambda event: event.trial is not None and first <= event.cursor <= last


@pytest.mark.parametrize(
    ("first", "last"), [(1, 150), (50, 150), (1, 10_000), (50, 10_000)], ids=lambda cursor: str(cursor)
)
@pytest.mark.parametrize("batch", [7, 10_000])
def test_the_tables_make_up_for_events_that_are_gone(
    fake_server: FakeServer,
    script: Script,
    monkeypatch: pytest.MonkeyPatch,
    first: int,
    last: int,
    batch: int,
) -> None:
    """At the start, in the middle of a message, and at the end, where no event follows them."""
    monkeypatch.setattr("exporter_site.BATCH", batch)
    if first > 1:  # these were copied while they were there
        sink = Target().open(info(script), print, Start.RESUME)
        for update in updates(script):
            if update.events[-1].cursor < first:
                sink.write(update)
    site = Site()
    study = ScriptedStudy(script, gone=of_trials(first, last))
    final = site.exporter(Target()).follow(study)  # type: ignore[arg-type]
    assert final is not None
    same(points(fake_server), table(script), LARGEST)
    assert [line for line in site.said if "by age" in line] == [
        "Events of digits were deleted by age before they were copied: copying its trials and reports."
    ]


def test_what_happens_while_the_tables_are_read_is_copied_once(
    fake_server: FakeServer, script: Script
) -> None:
    """The study was extended after its events were deleted, and its trials report meanwhile."""
    site = Site()

    def move_on(study: ScriptedStudy) -> None:
        study.shown = 230

    study = ScriptedStudy(script, gone=of_trials(1, 150), shown=200, on_trials=move_on)
    site.exporter(Target()).follow(study)  # type: ignore[arg-type]
    same(points(fake_server), table(script), LARGEST)
    assert sum(run.stage == "active" for run in fake_server.runs.values()) == 28


def test_a_gap_is_found_wherever_it_is() -> None:
    script = story()
    (update,) = updates(script, batch=10_000)
    events = update.events
    assert not missing(update, 0)
    assert not missing(update, 40)
    assert not missing(replace(update, events=()), len(events))
    for lacking in (events[1:], events[:5] + events[6:], events[:-2] + events[-1:], ()):
        assert missing(Update(events=lacking, study=update.study), 0)
    active = Update(events=(), study=info(script, 100))  # the first message of a watch may be without events
    assert not missing(active, 90)
