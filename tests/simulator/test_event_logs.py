"""The scheduler decides as it did: the logs of drawn studies are those that were kept, byte for byte."""

import json

import pytest
from logged_studies import COUNT, KEPT, digest, logs

EACH = 5
"""One in so many is looked at here; `make guard` looks at all."""
HOW = "a decision, an event or its order changed: see CONTRIBUTING, `make guard`"


@pytest.mark.cases(2)
@pytest.mark.parametrize("part", range(4))
def test_a_decision_changes_no_log(part: int) -> None:
    kept = json.loads(KEPT.read_text())
    assert len(kept) == COUNT
    numbers = range(part, COUNT, 4 * EACH)
    changed = [number for number in numbers if digest(number) != kept[str(number)]]
    assert changed == [], HOW


def test_a_log_holds_what_is_compared() -> None:
    events = [event for log in logs(0).values() for event in log]
    assert {"trial_created", "trial_moved", "report_recorded", "study_moved"} <= {
        kind for _, kind, _, _ in events
    }
    assert all(detail for _, kind, _, detail in events if kind == "trial_moved")
