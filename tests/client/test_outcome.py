"""A study's figures count only work that was done: no time after its end, and no unfinished work as saved."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from scripted_study import Script

from headrace.cli.live import Picture
from headrace.cli.summary import Summary
from headrace.client import StudyInfo, StudyState, convert
from headrace.client.model import UntilProgress
from headrace.client.outcome import Outcome

CREATED = datetime(2031, 5, 6, tzinfo=UTC)


@pytest.fixture
def study(script: Script) -> StudyInfo:
    return replace(
        convert.study(script.final.study), created=CREATED, ended=CREATED + timedelta(hours=10), started=None
    )


def steps_of(study: StudyInfo) -> str:
    return dict(Summary(study=study).lines())["steps"]


def test_the_time_between_an_end_and_an_extension_is_no_wall_time(study: StudyInfo) -> None:
    assert Outcome(study).wall_time_s == 10 * 3600
    assert Outcome(replace(study, over_s=9 * 3600.0)).wall_time_s == 3600
    assert Outcome(replace(study, ended=None)).wall_time_s is None


def test_work_that_until_left_undone_is_not_saved(study: StudyInfo) -> None:
    near = UntilProgress(tried=3, deadline=None)
    own_end, cut_off = replace(study, until=near), replace(study, until=replace(near, ends_study=True))
    assert "79 % saved" in steps_of(own_end)
    assert Outcome(cut_off).saved_percent is None
    assert steps_of(cut_off).endswith("takes; the study ended before")
    stopped = replace(study, state=StudyState.STOPPED)
    assert steps_of(stopped).endswith("takes; the study ended before")
    assert "ended before" not in steps_of(replace(study, state=StudyState.ACTIVE, ended=None))


def test_trials_that_were_cancelled_are_named_beside_what_was_saved(study: StudyInfo) -> None:
    counts = replace(study.counts, failed=2, cancelled=1)
    said = "79 % saved, in part because 2 trials failed and 1 trial was cancelled)"
    assert said in steps_of(replace(study, counts=counts))


def test_the_estimate_begins_with_the_first_start(study: StudyInfo) -> None:
    """The study waited for an hour, and has done 10 of 100 steps in the 20 seconds since then."""
    begun = replace(study, state=StudyState.ACTIVE, ended=None, steps_spent=0, started=None)
    picture = Picture(begun, expected_steps=100, now=CREATED)
    started = CREATED + timedelta(hours=1)
    picture.study = replace(begun, started=started, steps_spent=10)
    assert picture.eta_s(started + timedelta(seconds=20)) == 180
    later = Picture(picture.study, expected_steps=100, now=started + timedelta(seconds=20))
    assert later.eta_s(started + timedelta(seconds=20)) == 180
