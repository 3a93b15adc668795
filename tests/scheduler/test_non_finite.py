"""What a user's program reports may be NaN or infinite. Rows and events store it as text: in JSON it would be
null."""

import math
from collections.abc import Iterator
from datetime import UTC, datetime
from types import SimpleNamespace

import msgspec
import pytest
from msgspec.structs import replace

from headrace_services.scheduler.core import events
from headrace_services.scheduler.core.inputs import ReportArrived
from headrace_services.scheduler.core.policies import Explanation
from headrace_services.scheduler.core.records import (
    Checkpoint,
    Decision,
    Exploit,
    Lease,
    Report,
    RungEntry,
    Trial,
)
from headrace_services.scheduler.store import exploits, rows
from headrace_services.scheduler.store.pipeline import as_json

NUMBERS = {math.nan: "NaN", math.inf: "Infinity", -math.inf: "-Infinity"}
STUDY = SimpleNamespace(id=1, now=datetime(2026, 1, 1, tzinfo=UTC))
CHECKPOINT = Checkpoint(uri="file:///c", step=1, size_bytes=1, manifest_sha256="0", write_time_s=0.1)


def written(x: float) -> Iterator[object]:
    """What a cycle writes for a report whose metrics are all `x`, and for what a policy derives from it."""
    metrics = {"loss": x, "other": x}
    trial = Trial(
        study_id=1, number=0, params={}, milestone=1, value=x, best_value=x, metrics=metrics, detail="d"
    )
    yield rows.trial_columns(trial)
    decision = Decision(action="CONTINUE", next_milestone=3, reason="r")
    report = Report(
        number=0,
        attempt=1,
        sequence=1,
        step=1,
        metrics=metrics,
        checkpoint=CHECKPOINT,
        train_time_s=0.1,
        decision=decision,
    )
    yield rows.report_columns(STUDY, report)
    entry = RungEntry(number=0, bracket=0, rung=0, milestone=1, step=1, value=x, arrival=1)
    yield rows.rung_columns(STUDY, entry, 1, 2)
    exploit = Exploit(
        number=0, rung=0, donor=1, checkpoint=CHECKPOINT, donor_value=x, previous_params={}, params={}
    )
    yield exploits.exploit_columns(1, exploit, 1)
    report = ReportArrived(
        lease_id="l", number=0, attempt=1, sequence=1, step=1, metrics=metrics, checkpoint=None
    )
    lease = Lease(
        id="l",
        study_id=1,
        number=0,
        attempt=1,
        worker_id=1,
        incarnation="i",
        client_id="",
        ttl_s=None,
        grant=None,
    )
    explanation = Explanation(
        rule="asha",
        bracket=0,
        rung=0,
        milestone=1,
        value=x,
        rank=1,
        results=1,
        kept=1,
        cutoff_value=x,
        sentence="s",
        expected_value=x,
        expected_spread=x,
        probability=x,
    )
    for event in (
        events.report_recorded(lease, 1, report),
        events.rung_recorded(entry),
        events.decision_made(0, "CONTINUE", explanation, "s"),
        events.trial_exploited("s", exploit),
    ):
        yield rows.event_columns(1, 1, event)


def count(value: object, wanted: object) -> int:
    """How often a JSON value contains another one."""
    if isinstance(value, dict):
        return sum(count(part, wanted) for part in value.values())
    if isinstance(value, list):
        return sum(count(part, wanted) for part in value)
    return int(value == wanted)


@pytest.mark.parametrize(("number", "text"), NUMBERS.items(), ids=NUMBERS.values())
def test_a_number_that_is_not_finite_is_text_wherever_it_is_written(number: float, text: str) -> None:
    finite = [msgspec.json.decode(as_json(part)) for part in written(0.5)]
    odd = [msgspec.json.decode(as_json(part)) for part in written(number)]
    assert [count(part, text) for part in odd] == [count(part, 0.5) for part in finite]
    assert [count(part, None) for part in odd] == [count(part, None) for part in finite]
    assert all(count(part, 0.5) for part in finite)


def test_it_comes_back_as_it_was() -> None:
    for number, text in NUMBERS.items():
        trial = replace(Trial(study_id=1, number=0, params={}, milestone=1), metrics={"loss": number})
        stored = msgspec.json.decode(as_json(rows.trial_columns(trial)["metrics"]))
        assert stored == {"loss": text}
        (found,) = rows.metrics_of_json(stored).values()
        assert found == number or (math.isnan(found) and math.isnan(number))
