"""How close a study is to its end by hours, in words: a date while a trial runs, and the remaining time while none
does."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from scripted_study import Script

from headrace.cli import wording
from headrace.cli.live import Picture
from headrace.client import convert
from headrace.client.model import StudyInfo, StudyState, UntilProgress
from headrace.spec.until import Until

NOW = datetime(2031, 5, 6, 7, 8, tzinfo=UTC)


@pytest.fixture
def study(script: Script) -> StudyInfo:
    """An active study with hours and a number of trials."""
    info = convert.study(script.final.study)
    spec = info.spec.model_copy(update={"until": Until(hours=2, no_improvement=20)})
    return replace(info, spec=spec, state=StudyState.ACTIVE)


@pytest.mark.parametrize(
    ("deadline", "left_s", "says"),
    [
        (datetime(2031, 5, 6, 7, 8, tzinfo=UTC), 3600.0, "2 hours (until 2031-05-0"),
        (None, 4800.0, "2 hours (1 h 20 min left, counted only while a trial runs)"),
        (None, None, "2 hours or 20 trials"),
    ],
    ids=["runs", "waits", "an earlier scheduler"],
)
def test_time_left_is_a_date_only_while_a_trial_runs(
    study: StudyInfo, deadline: datetime | None, left_s: float | None, says: str
) -> None:
    now = UntilProgress(tried=3, deadline=deadline, time_left_s=left_s)
    said = wording.until_now(replace(study, until=now))
    assert says in said
    assert "20 trials without improvement (3 now)" in said


def test_the_live_view_says_it_too(study: StudyInfo) -> None:
    waits = replace(study, until=UntilProgress(tried=0, deadline=None, time_left_s=4800.0))
    drawn = Picture(waits, expected_steps=None, now=NOW)._head(NOW).plain
    assert drawn.endswith(", at most 2 hours (1 h 20 min left, counted only while a trial runs)")
    assert (
        "at most"
        not in Picture(replace(waits, state=StudyState.COMPLETED), expected_steps=None, now=NOW)
        ._head(NOW)
        .plain
    )
