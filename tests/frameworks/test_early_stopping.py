"""Trials that stop early by themselves, in a plain loop, in Lightning and in the Trainer. Through a real service
with pauses and kills they reach the values, the end and the checkpoint of an undisturbed run. Their results stay
when their study is extended past the end of their schedules."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from forked import launch_segment
from stopping_site import (
    BUDGET,
    METRICS,
    PROGRAMS,
    cluster,
    connect,
    disturb,
    disturbed,
    ended,
    kept,
    undisturbed,
)

from headrace.check import render, run_check
from headrace.check.snapshot import End

LRS = [0.05, 0.0003]
"""The first rate learns the labels by heart and stops early; the second has the whole budget, and its schedule
ends."""
NEEDS = {"plain": "torch", "with_lightning": "pytorch_lightning", "with_transformers": "transformers"}


@pytest.mark.full
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("program", METRICS)
def test_pauses_and_kills_change_nothing_of_a_trial_that_stops_early(tmp_path: Path, program: str) -> None:
    if find_spec(NEEDS[program]) is None:
        pytest.skip(f"{NEEDS[program]} is not installed")
    with cluster(tmp_path / "site", slots=2) as site, connect(site) as client:
        expected = undisturbed(client, program, LRS, "undisturbed")
        assert [one.outcome for one in expected] == ["completed", "completed"]
        assert [one.steps < BUDGET for one in expected] == [True, False]
        assert "not saved" not in client.study("undisturbed").trial(0).info().detail
        assert disturbed(site, client, program, LRS, "disturbed") == expected
        hurt = client.study("disturbed").trial(0).info()
        assert hurt.attempt >= expected[0].steps, "it paused at each step"
        assert hurt.interruptions >= 1, "and was killed on the way"
        for steps in (BUDGET + 3, BUDGET + 6):  # the schedule raises after its end
            studies = [client.study(name) for name in ("undisturbed", "disturbed")]
            for study in studies:
                with pytest.warns(UserWarning, match=f"OneCycleLR .*step {BUDGET}"):
                    study.extend(steps=steps)
            disturb(site, client, "disturbed", number=1)
            undisturbed_now, disturbed_now = (ended(client, study.name, len(LRS)) for study in studies)
            assert disturbed_now == undisturbed_now
            assert [one.outcome for one in disturbed_now] == ["completed", "failed"]
            assert disturbed_now[0] == expected[0]
            for study in studies:
                completed = study.trial(1).info()
                assert (completed.counts_as, completed.score) == ("completed", expected[1].values[BUDGET])
                assert kept(completed) == expected[1].saved
                best = study.best()
                assert best is not None
                assert best.score == min(one.values[one.steps] for one in expected)


def test_the_program_in_a_loop_of_its_own_passes_the_check(tmp_path: Path) -> None:
    """This is in the first tier. The frameworks are not, because they take seconds to import."""
    report = run_check(
        PROGRAMS / "plain.py", params={"lr": LRS[0]}, folder=tmp_path, limit_s=6000, launch=launch_segment
    )
    assert report.passed, render(report)
    assert report.end is End.RETURNED
    assert 2 < report.steps < BUDGET
    assert report.restored_after[-1] == report.last_step, (
        "a process that resumes at the end trains no further step"
    )
