"""The scheduler decides as before: the logs of the drawn studies equal the stored ones, byte for byte."""

import pytest
from logged_studies import COUNT, digests, digests_of, kept, logs

EACH = 5
"""One in this many is checked here; `make guard` checks all."""
HOW = "a decision, an event or its order changed: see CONTRIBUTING, `make guard`"


@pytest.mark.cases(2)
@pytest.mark.parametrize("part", range(4))
def test_a_decision_changes_no_log(part: int) -> None:
    before = kept()
    assert len(before) == COUNT
    numbers = range(part, COUNT, 4 * EACH)
    changed = [number for number in numbers if digests(number) != before[number]]
    assert changed == [], HOW


def test_a_log_holds_what_is_compared() -> None:
    events = [event for log in logs(0).values() for event in log]
    assert {"trial_created", "trial_moved", "report_recorded", "study_moved"} <= {
        kind for _, kind, _, _ in events
    }
    assert all(detail for _, kind, _, detail in events if kind == "trial_moved")


def test_a_new_wording_changes_one_digest_and_a_decision_both() -> None:
    found = logs(0)
    before = digests_of(found)
    events = next(iter(found.values()))
    place = next(n for n, (_, kind, _, _) in enumerate(events) if kind == "trial_moved")
    number, kind, _, detail = events[place]
    events[place] = [number, kind, "said in other words", {**detail, "detail": "for another reason"}]
    worded = digests_of(found)
    assert worded.everything != before.everything
    assert worded.without_sentences == before.without_sentences
    events[place] = [number, kind, "said in other words", {**detail, "attempt": 99}]
    assert digests_of(found).without_sentences != before.without_sentences
