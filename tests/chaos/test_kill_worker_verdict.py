"""What the scenario of killed workers excuses: nothing but a trial that had no step left to run."""

from datetime import UTC, datetime
from types import SimpleNamespace

import ledger
import pytest
from scenario_freeze_worker import RUNGS
from scenario_kill_worker import STEP_S, complete_by_then

KILLED_AT = 1_000.0


@pytest.mark.parametrize(
    ("step", "attempt", "after_s", "excused"),
    [
        (RUNGS[-1], 2, -0.01, True),
        (RUNGS[-1], 2, STEP_S / 2, True),
        (RUNGS[-1], 2, STEP_S + 0.01, False),
        (RUNGS[-1] - 1, 2, -0.01, False),
        (RUNGS[-1], 3, -0.01, False),
    ],
    ids=["before", "on its way", "too late", "a step short", "another attempt"],
)
def test_a_kill_is_excused_by_the_full_budget_alone(
    step: int, attempt: int, after_s: float, excused: bool
) -> None:
    when = datetime.fromtimestamp(KILLED_AT + after_s, UTC)
    report = SimpleNamespace(number=7, attempt=attempt, step=step, time=when)
    tables = ledger.Tables(trials=[], reports=[report], leases=[], events=[])
    found = complete_by_then(tables, {(7, 2): (KILLED_AT, "at once")})
    assert found == ({(7, 2)} if excused else set())
