"""`headrace retry` and `headrace extend`: what is sent, what is said, and what is refused before anything is sent."""

import json

import pytest
from commands_run import Invoke
from fake_study_service import FakeStudyService
from scripted_study import race

from headrace.v1 import spec_pb2, study_pb2, trial_pb2

FAILED = trial_pb2.TERMINATION_REASON_FAILED


def test_all_failed_trials_or_named_ones_are_tried_again(fake: FakeStudyService, invoke: Invoke) -> None:
    done = invoke("retry", "digits")
    assert done.code == 0, done.err
    assert done.out.splitlines() == [
        "Study digits tries 2 trials again: 3, 5.",
        "2 other trials of it, which its end had cut off, may continue too.",
    ]
    assert json.loads(invoke("retry", "digits", "--failed", "--json").out) == {"trials": [3, 5], "others": 2}
    assert "1 trial again: 7" in invoke("retry", "digits", "7").out
    sent = [list(request.trial_numbers) for request in fake.requests["RetryTrials"]]
    assert sent == [[], [], [7]]


def test_a_retry_says_where_a_schedule_will_end_it_again(fake: FakeStudyService, invoke: Invoke) -> None:
    script = race("cycle")
    failed = next(one for one in script.final.trials if one.termination_reason == FAILED)
    failed.step = 9
    for last_step, past_end in ((9, "RAISES"), (9, "RISES"), (20, "RAISES")):
        ends = trial_pb2.PastEnd.Value(f"PAST_END_{past_end}")
        failed.schedules.add(name="sched", kind="OneCycleLR", last_step=last_step, past_end=ends)
    fake.add(script)
    for named in ((), (str(failed.number),)):
        (said,) = [
            line
            for line in " ".join(invoke("retry", "cycle", *named).err.split("\n")).split("Trial ")
            if "sched" in line
        ]
        assert f"{failed.number} failed where its OneCycleLR 'sched' ends, at step 9" in said
        assert "`if sched.last_epoch < sched.total_steps: sched.step()`" in said
    assert "sched" not in invoke("retry", "cycle", "0").err


def test_an_extension_names_the_trials_that_only_wait(fake: FakeStudyService, invoke: Invoke) -> None:
    script = race("waits")
    script.final.study.state = study_pb2.STUDY_STATE_ACTIVE
    for trial in script.final.trials[:3]:
        trial.state = trial_pb2.TRIAL_STATE_PAUSED
        trial.ClearField("milestone")
    script.final.trials[2].milestone = 81  # it waits for a slot
    fake.add(script)
    said = " ".join(invoke("extend", "waits", "--steps", "81").out.split())
    assert "Trials 0, 1 wait for the policy to continue them: see `headrace why waits 0`." in said
    script.final.study.state = study_pb2.STUDY_STATE_COMPLETED
    script.final.study.detail = "all trials have finished"
    assert (
        "It ended again immediately: all trials have finished."
        in invoke("extend", "waits", "--steps", "81").out
    )


def test_an_extension_says_what_there_is_now(fake: FakeStudyService, invoke: Invoke) -> None:
    script = race("more")
    script.final.study.state = study_pb2.STUDY_STATE_ACTIVE
    fake.add(script)
    done = invoke("extend", "more", "--trials", "5")
    assert (done.code, done.out) == (0, "Study more tries 32 configurations in total.\n")
    assert (
        "a full budget of 27 steps, with rungs at 1, 3, 9" in invoke("extend", "digits", "--steps", "81").out
    )
    assert json.loads(invoke("extend", "digits", "--trials", "1", "--json").out)["max_trials"] == 28


def test_an_extension_says_how_many_trials_repeat_a_point(fake: FakeStudyService, invoke: Invoke) -> None:
    script = race("few")
    space = script.final.study.spec.space
    del space[:]
    space.add(name="n").int.MergeFrom(spec_pb2.IntDomain(low=1, high=30))
    script.final.study.spec.ClearField("baseline")
    fake.add(script)
    assert "points" not in invoke("extend", "few", "--trials", "3").err
    said = " ".join(invoke("extend", "few", "--trials", "5").err.split())
    assert (
        "The space has 30 points and the study would have 32 trials: of the 5 trials added, 2 will repeat"
        in said
    )
    assert "create a study with a larger space, or extend by at most 3 trials." in said
    space[0].int.high = 6
    said = " ".join(invoke("extend", "few", "--trials", "5").err.split())
    assert (
        "The space has 6 points and the study would have 32 trials: of the 5 trials added, 5 will repeat"
        in said
    )
    assert "at most" not in said
    assert [one.trials for one in fake.requests["ExtendStudy"]] == [3, 5, 5]


def test_a_schedule_that_ends_before_the_new_budget_is_warned_of_before_anything_is_sent(
    fake: FakeStudyService, invoke: Invoke
) -> None:
    script = race("cycle")
    for last_step, past_end in ((27, trial_pb2.PAST_END_RAISES), (90, trial_pb2.PAST_END_RISES)):
        script.final.study.status.schedules.add(
            schedule=trial_pb2.Schedule(
                name="schedule", kind="OneCycleLR", last_step=last_step, past_end=past_end
            ),
            trials=3,
            first_trial=1,
        )
    fake.add(script)
    refused = invoke("extend", "cycle", "--steps", "81")
    assert (refused.code, fake.requests["ExtendStudy"]) == (2, [])
    said = " ".join(refused.err.split())
    assert "which ends at step 27: the learning rate is low there, and the schedule raises" in said
    assert "`if schedule.last_epoch < schedule.total_steps: schedule.step()`" in said
    assert (
        "Unless your script sets another learning rate there already, change it before you extend to" in said
    )
    assert "before each `optimizer.step()` past that step" in said
    assert "step 90" not in said
    assert "Add --yes" in said
    assert "which ends at step 27" in invoke("extend", "cycle", "--steps", "81", "--yes").err
    assert len(fake.requests["ExtendStudy"]) == 1
    assert not invoke("extend", "cycle", "--trials", "2").err.startswith("3 trials")
    shown = json.loads(invoke("show", "cycle", "--json").out)["schedules"]
    assert [(one["last_step"], one["past_end"], one["trials"]) for one in shown] == [
        (27, "raises", 3),
        (90, "rises", 3),
    ]


@pytest.mark.parametrize(
    ("kind", "past_end", "happens"),
    [
        (
            "PolynomialLR",
            "UNSPECIFIED",
            "the learning rate stays 0 from there on, so further steps train nothing",
        ),
        ("LinearLR", "UNSPECIFIED", "the learning rate stays 0 from there on"),
        ("SequentialLR of PolynomialLR", "UNSPECIFIED", "the learning rate stays 0 from there on"),
        (
            "CosineAnnealingLR",
            "RISES",
            "the learning rate is `eta_min`, by default 0, there, and rises again",
        ),
        ("SequentialLR of CosineAnnealingLR", "RISES", "the learning rate is `eta_min`, by default 0, there"),
    ],
)
def test_a_schedule_that_ends_at_a_low_rate_is_told_so(
    fake: FakeStudyService, invoke: Invoke, kind: str, past_end: str, happens: str
) -> None:
    """Holding such a schedule at its end, as for one that raises, would train nothing."""
    script = race("poly")
    script.final.study.status.schedules.add(
        schedule=trial_pb2.Schedule(
            name="schedule", kind=kind, last_step=27, past_end=trial_pb2.PastEnd.Value(f"PAST_END_{past_end}")
        ),
        trials=3,
        first_trial=1,
    )
    fake.add(script)
    said = " ".join(invoke("extend", "poly", "--steps", "81").err.split())
    assert f"3 trials track {kind} as 'schedule', which ends at step 27: {happens}" in said
    assert "before each `optimizer.step()` past that step" in said
    assert "schedule.step()`" not in said.replace("optimizer.step()`", "")


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (("extend", "digits"), "neither is given"),
        (("extend", "digits", "--trials", "1", "--steps", "81"), "both are given"),
        (("extend", "digits", "--trials", "0"), "--trials"),
        (("extend", "digits", "--steps", "-3"), "--steps"),
        (("retry", "digits", "3", "--failed"), "--failed means all trials"),
        (("retry", "digits", "-1"), ""),
    ],
)
def test_what_is_wrong_is_refused_before_anything_is_sent(
    fake: FakeStudyService, invoke: Invoke, command: tuple[str, ...], says: str
) -> None:
    refused = invoke(*command)
    assert refused.code == 2
    assert says in refused.err
    assert not fake.requests["ExtendStudy"] + fake.requests["RetryTrials"]
