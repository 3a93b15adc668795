"""`headrace retry` and `headrace extend`: what is sent, what is said, and what is refused before anything is sent."""

import json

import pytest
from commands_run import Invoke
from fake_study_service import FakeStudyService


def test_all_failed_trials_or_named_ones_are_tried_again(fake: FakeStudyService, invoke: Invoke) -> None:
    done = invoke("retry", "digits")
    assert done.code == 0, done.err
    assert done.out.splitlines() == [
        "Study digits tries 2 trials again: 3, 5.",
        "2 other trials of it, which its end had cut off, may go on too.",
    ]
    assert json.loads(invoke("retry", "digits", "--failed", "--json").out) == {"trials": [3, 5], "others": 2}
    assert "1 trial again: 7" in invoke("retry", "digits", "7").out
    sent = [list(request.trial_numbers) for request in fake.requests["RetryTrials"]]
    assert sent == [[], [], [7]]


def test_an_extension_says_what_there_is_now(fake: FakeStudyService, invoke: Invoke) -> None:
    done = invoke("extend", "digits", "--trials", "5")
    assert (done.code, done.out) == (0, "Study digits tries 32 configurations in all.\n")
    assert (
        "a full budget of 27 steps, with rungs at 1, 3, 9" in invoke("extend", "digits", "--steps", "81").out
    )
    assert json.loads(invoke("extend", "digits", "--trials", "1", "--json").out)["max_trials"] == 28


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
