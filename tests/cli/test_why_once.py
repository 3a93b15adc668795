"""Reasons in `headrace why`: an error is shown in full once, and what blocks a trial comes before the policy's
reason."""

import pytest

from headrace.cli.why import ERROR_WIDTH, _once, _reason
from headrace.client.events import Action, DecisionMade, Event, Explanation

LONG = f"ValueError: {'x' * 300}\nmore of it"


def test_an_error_is_told_in_full_once() -> None:
    told: set[str] = set()
    assert _once(LONG, told) == LONG
    again = _once(f"{LONG} (attempt 2 of 2)", told)
    assert again.startswith("ValueError: xxx")
    assert again.endswith("x… (attempt 2 of 2)")
    assert len(again) == ERROR_WIDTH + len(" (attempt 2 of 2)")
    assert _once("OSError: other", told) == "OSError: other"


SENTENCE = "it is the best trial not promoted yet, so it is promoted to 3 steps"


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (f"trial 7 continues: {SENTENCE}", SENTENCE),
        (f"trial 7 paused: {SENTENCE}; its slot goes to trial 8", SENTENCE),
        (
            f"trial 7 paused by a user; otherwise it would continue: {SENTENCE}",
            f"paused by a user; otherwise it would continue: {SENTENCE}",
        ),
        (
            f"trial 7 paused: its study ends; otherwise it would continue: {SENTENCE}",
            f"its study ends; otherwise it would continue: {SENTENCE}",
        ),
    ],
)
def test_a_decision_says_first_what_holds_the_trial(message: str, reason: str) -> None:
    why = Explanation(
        rule="asha_promotion",
        bracket=0,
        rung=0,
        milestone=1,
        value=0.5,
        rank=1,
        results=3,
        kept=1,
        cutoff_value=0.5,
        sentence=SENTENCE,
        slot_goes_to=None,
    )
    made = DecisionMade(action=Action.PAUSE, explanation=why)
    event = Event(cursor=1, time=None, trial=7, message=message, detail=made)
    assert _reason(event, why) == reason
