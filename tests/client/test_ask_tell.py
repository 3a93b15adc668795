"""Ask and tell: the user's own loop."""

import warnings
from typing import Any

import grpc
import numpy as np
import pytest
from fake_study_service import FakeStudyService
from scripted_study import Script, params_of

from headrace import AsyncClient, Client
from headrace.client import Action, AskedTrial
from headrace.errors import InvalidFieldError
from headrace.v1 import event_pb2, study_pb2

NOTHING = study_pb2.SuggestTrialResponse()
DONE = study_pb2.SuggestTrialResponse(done=True)


def suggestion(script: Script, number: int) -> study_pb2.SuggestTrialResponse:
    trial = script.final.trials[number]
    return study_pb2.SuggestTrialResponse(
        trial=trial,
        lease=event_pb2.LeaseRef(lease_id="lease-1", trial=trial.name, attempt=3),
        next_milestone=9,
    )


@pytest.fixture
def asked(client: Client, fake: FakeStudyService, script: Script) -> AskedTrial:
    """A trial from an ask."""
    fake.add(script)
    fake.suggestions.append(suggestion(script, 5))
    trial = client.study("digits").ask()
    assert trial is not None
    return trial


def test_a_loop_asks_reports_and_ends(client: Client, fake: FakeStudyService, script: Script) -> None:
    fake.add(script)
    fake.suggestions.extend([NOTHING, suggestion(script, 5), DONE])
    fake.decisions.append(event_pb2.Decision(action=event_pb2.DECISION_ACTION_CONTINUE, next_milestone=27))
    study = client.study("digits")
    trial = study.ask(lease_s=60)
    assert trial is not None
    assert (trial.number, trial.step, trial.next_milestone) == (5, 0, 9), "it has no checkpoint"
    assert trial.params == params_of(5)
    decision = trial.report(2, {"val/loss": 0.5}, checkpoint_uri="file:///here/", val_loss=0.25)
    assert decision.goes_on
    assert decision.next_milestone == 27
    sent = fake.requests["ReportTrial"][0]
    assert (sent.lease.lease_id, sent.lease.attempt, sent.step) == ("lease-1", 3, 2)
    assert dict(sent.metrics) == {"val/loss": 0.5, "val_loss": 0.25}
    assert sent.checkpoint_uri == "file:///here/"
    trial.complete(error=ValueError("bad"))
    assert fake.requests["CompleteTrial"][0].error == "ValueError: bad"
    assert study.ask() is None
    asked = fake.requests["SuggestTrial"]
    assert asked[0].client_id == asked[1].client_id
    assert asked[0].request_id != asked[1].request_id
    assert asked[0].lease_time.seconds == 60


def test_a_report_is_told_once(asked: AskedTrial, fake: FakeStudyService) -> None:
    fake.decisions.append(event_pb2.Decision(action=event_pb2.DECISION_ACTION_STOP, reason="rank 3 of 3"))
    fake.fail_next("ReportTrial", grpc.StatusCode.UNAVAILABLE, after=True)
    decision = asked.report(3, val_loss=1.0)
    assert decision.action is Action.STOP
    assert not decision.goes_on
    first, second = fake.requests["ReportTrial"]
    assert first == second


def test_asking_gives_up_in_time(client: Client, fake: FakeStudyService, script: Script) -> None:
    fake.add(script)
    fake.suggestions.extend([NOTHING] * 5)
    with pytest.raises(TimeoutError, match="digits"):
        client.study("digits").ask(timeout_s=0.1)


@pytest.mark.parametrize(
    ("step", "metrics", "field", "message"),
    [
        (3, {"val_loss": "low"}, "metrics.val_loss", "is 'low' of type str"),
        (3, {"val_loss": {"mean": 1.0}}, "metrics.val_loss", "is a dict"),
        (3, 0.5, "metrics", "report() got 0.5 without a name"),
        (1.5, {"val_loss": 1.0}, "step", "is not a whole number of steps"),
        (-1, {"val_loss": 1.0}, "step", "is not a whole number of steps"),
        (True, None, "step", "is not a whole number of steps"),
        (np.True_, {"val_loss": 1.0}, "step", "is not a whole number of steps"),
        (1 << 63, {"val_loss": 1.0}, "step", "is not a whole number of steps"),
    ],
)
def test_a_report_that_makes_no_sense_is_refused_here(
    asked: AskedTrial, fake: FakeStudyService, step: Any, metrics: Any, field: str, message: str
) -> None:
    with pytest.raises(InvalidFieldError) as refused:
        asked.report(step, metrics)
    (violation,) = refused.value.violations
    assert (violation.field, violation.message) == (field, message)
    assert not fake.requests["ReportTrial"]


def test_a_named_metric_that_is_no_number_is_refused_too(asked: AskedTrial) -> None:
    with pytest.raises(InvalidFieldError, match="val_loss"):
        asked.report(3, val_loss="low")  # type: ignore[arg-type]


def test_a_loop_over_all_trials_asks_after_each_end(
    client: Client, fake: FakeStudyService, script: Script
) -> None:
    fake.add(script)
    fake.suggestions.extend([suggestion(script, 5), suggestion(script, 3), DONE])
    numbers = []
    for asked in client.study("digits").ask_all(lease_s=60):
        numbers.append(asked.number)
        asked.complete()
        assert len(fake.requests["SuggestTrial"]) == len(fake.requests["CompleteTrial"]) == len(numbers)
    assert numbers == [5, 3]
    requests = fake.requests["SuggestTrial"]
    assert {(sent.study, sent.lease_time.seconds) for sent in requests} == {("studies/digits", 60)}
    assert len({sent.client_id for sent in requests}) == 1, "the whole loop is one client"
    assert len({sent.request_id for sent in requests}) == 3


def test_a_lost_answer_is_asked_for_with_the_same_id(
    client: Client, fake: FakeStudyService, script: Script
) -> None:
    """The caller may already have the trial; a new id would get another one."""
    fake.add(script)
    fake.suggestions.extend([suggestion(script, 5), DONE])
    fake.fail_next("SuggestTrial", grpc.StatusCode.UNAVAILABLE)
    assert [asked.number for asked in client.study("digits").ask_all()] == [5]
    lost, again, last = fake.requests["SuggestTrial"]
    assert lost == again
    assert last.request_id != again.request_id


def test_a_trial_outlives_its_loop(client: Client, fake: FakeStudyService, script: Script) -> None:
    fake.add(script)
    fake.suggestions.append(suggestion(script, 5))
    loop: Any = client.study("digits").ask_all()
    asked = next(loop)
    loop.close()
    assert not fake.requests["ReleaseTrial"]
    assert asked.complete().number == 5
    assert asked.give_back().number == 5
    assert len(fake.requests["ReleaseTrial"]) == 1


def test_several_trials_of_a_loop_may_be_at_work_at_once(
    client: Client, fake: FakeStudyService, script: Script
) -> None:
    fake.add(script)
    fake.suggestions.extend(suggestion(script, number) for number in (5, 3, 4))
    loop: Any = client.study("digits").ask_all()
    first, second = next(loop), next(loop)
    second.complete()
    first.complete()
    assert next(loop).number == 4
    assert len(fake.requests["SuggestTrial"]) == 3


async def test_the_async_loop_does_the_same(fake: FakeStudyService, script: Script) -> None:
    fake.add(script)
    fake.suggestions.extend([suggestion(script, 5), suggestion(script, 3), DONE])
    numbers = []
    async with AsyncClient(fake.address) as client:
        async for asked in client.study("digits").ask_all():
            numbers.append(asked.number)
            await asked.complete()
    assert numbers == [5, 3]
    assert len({sent.client_id for sent in fake.requests["SuggestTrial"]}) == 1


def test_the_end_of_a_trial_takes_no_result(asked: AskedTrial, fake: FakeStudyService) -> None:
    with pytest.raises(
        InvalidFieldError, match=r"error: is neither a string nor an exception \(got 0.3\).*report"
    ):
        asked.complete(0.3)  # type: ignore[arg-type]
    with pytest.raises(InvalidFieldError, match="reason"):
        asked.infeasible(None)  # type: ignore[arg-type]  # this is what is tested
    assert not fake.requests["CompleteTrial"]


@pytest.mark.parametrize("how", ["decision", "complete"])
def test_a_loop_is_warned_once_of_what_a_constraint_reads_and_nobody_reports(
    client: Client, fake: FakeStudyService, script: Script, how: str
) -> None:
    fake.add(script)
    fake.suggestions.extend([suggestion(script, 5), suggestion(script, 6)])
    stops = how == "decision"
    action = event_pb2.DECISION_ACTION_STOP if stops else event_pb2.DECISION_ACTION_CONTINUE
    fake.decisions.append(event_pb2.Decision(action=action))
    fake.missing_metrics = ["memory_gb", "recall"]
    said = "no 'memory_gb' and 'recall', which a constraint uses"
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("default")
        for _ in range(2):
            trial = client.study("digits").ask()
            assert trial is not None
            trial.report(3, val_loss=1.0)
            if not stops:
                trial.complete()
    (one,) = found
    assert said in str(one.message)
    assert "Study digits" in str(one.message)
    assert one.filename == __file__


@pytest.mark.parametrize("wrong", [0, 0.5, 31 * 86_400])
def test_a_lease_out_of_bounds_is_named_as_the_caller_names_it(client: Client, wrong: float) -> None:
    with pytest.raises(InvalidFieldError, match=r"lease_s: is out of bounds .* Give 1 to 2 592 000 s"):
        client.study("digits").ask(lease_s=wrong)
