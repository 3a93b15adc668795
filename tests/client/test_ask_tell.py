"""Ask and tell: a loop of the user's own."""

import grpc
import pytest
from fake_study_service import FakeStudyService
from scripted_study import Script, params_of

from headrace import AsyncClient, Client
from headrace.client import Action
from headrace.errors import HeadraceError, LeaseStaleError
from headrace.v1 import event_pb2, study_pb2

NOTHING = study_pb2.SuggestTrialResponse()
DONE = study_pb2.SuggestTrialResponse(done=True)


def suggestion(script: Script, number: int) -> study_pb2.SuggestTrialResponse:
    trial = script.final.trials[number]
    return study_pb2.SuggestTrialResponse(
        trial=trial,
        lease=event_pb2.LeaseRef(lease_id="lease-1", trial=trial.name, epoch=3),
        next_milestone=9,
    )


def test_a_loop_asks_reports_and_ends(client: Client, fake: FakeStudyService, script: Script) -> None:
    fake.add(script)
    fake.suggestions.extend([NOTHING, suggestion(script, 5), DONE])
    fake.decisions.append(event_pb2.Decision(action=event_pb2.DECISION_ACTION_CONTINUE, next_milestone=27))
    study = client.study("digits")
    trial = study.ask(lease_s=60)
    assert trial is not None
    assert (trial.number, trial.step, trial.next_milestone) == (5, 1, 9)
    assert trial.params == params_of(5)
    decision = trial.report(2, {"val/loss": 0.5}, checkpoint_uri="file:///here/", val_loss=0.25)
    assert decision.goes_on
    assert decision.next_milestone == 27
    sent = fake.requests["ReportTrial"][0]
    assert (sent.lease.lease_id, sent.lease.epoch, sent.step) == ("lease-1", 3, 2)
    assert dict(sent.metrics) == {"val/loss": 0.5, "val_loss": 0.25}
    assert sent.checkpoint_uri == "file:///here/"
    trial.complete(error=ValueError("bad"))
    assert fake.requests["CompleteTrial"][0].error == "ValueError: bad"
    assert study.ask() is None
    asked = fake.requests["SuggestTrial"]
    assert asked[0].client_id == asked[1].client_id
    assert asked[0].request_id != asked[1].request_id
    assert asked[0].lease_time.seconds == 60


def test_a_report_is_told_once(client: Client, fake: FakeStudyService, script: Script) -> None:
    fake.add(script)
    fake.suggestions.append(suggestion(script, 5))
    fake.decisions.append(event_pb2.Decision(action=event_pb2.DECISION_ACTION_STOP, reason="rank 3 of 3"))
    trial = client.study("digits").ask()
    assert trial is not None
    fake.fail_next("ReportTrial", grpc.StatusCode.UNAVAILABLE, after=True)
    decision = trial.report(3, val_loss=1.0)
    assert decision.action is Action.STOP
    assert not decision.goes_on
    first, second = fake.requests["ReportTrial"]
    assert first == second


def test_asking_gives_up_in_time(client: Client, fake: FakeStudyService, script: Script) -> None:
    fake.add(script)
    fake.suggestions.extend([NOTHING] * 5)
    with pytest.raises(TimeoutError, match="digits"):
        client.study("digits").ask(timeout_s=0.1)


def test_a_metric_that_is_no_number_is_refused_here(
    client: Client, fake: FakeStudyService, script: Script
) -> None:
    fake.add(script)
    fake.suggestions.append(suggestion(script, 5))
    trial = client.study("digits").ask()
    assert trial is not None
    with pytest.raises(HeadraceError, match="val_loss"):
        trial.report(3, val_loss="low")  # type: ignore[arg-type]


def test_a_loop_over_all_trials_asks_with_the_end_of_the_last_one(
    client: Client, fake: FakeStudyService, script: Script
) -> None:
    fake.add(script)
    fake.suggestions.extend([suggestion(script, 5), suggestion(script, 3), DONE])
    numbers = []
    for asked in client.study("digits").ask_all(client_id="me", lease_s=60):
        numbers.append(asked.number)
        asked.complete()
    assert numbers == [5, 3]
    (first,) = fake.requests["SuggestTrial"]
    requests = [first, *(sent.next for sent in fake.requests["CompleteTrial"])]
    assert {(sent.study, sent.client_id, sent.lease_time.seconds) for sent in requests} == {
        ("studies/digits", "me", 60)
    }
    assert len({sent.request_id for sent in requests}) == 3


def test_a_loop_asks_again_where_the_end_brought_nothing(
    client: Client, fake: FakeStudyService, script: Script
) -> None:
    fake.add(script)
    fake.suggestions.extend([suggestion(script, 5), NOTHING, suggestion(script, 3), DONE])
    numbers = []
    for asked in client.study("digits").ask_all():
        numbers.append(asked.number)
        asked.complete()
    assert numbers == [5, 3]
    ended, asked_again = fake.requests["CompleteTrial"][0], fake.requests["SuggestTrial"][1]
    assert ended.next.request_id != asked_again.request_id


def test_a_lost_answer_is_asked_for_with_the_same_id(
    client: Client, fake: FakeStudyService, script: Script
) -> None:
    """The trial that came with it is the caller's already; a new id would get a further one."""
    fake.add(script)
    fake.suggestions.extend([suggestion(script, 5), suggestion(script, 3), suggestion(script, 3), DONE])
    loop = client.study("digits").ask_all()
    asked = next(loop)
    fake.fail_next("CompleteTrial", LeaseStaleError("it is over"), after=True)
    with pytest.raises(LeaseStaleError):
        asked.complete()
    assert next(loop).number == 3
    assert fake.requests["CompleteTrial"][0].next == fake.requests["SuggestTrial"][1]


def test_leaving_a_loop_gives_back_what_nobody_took(
    client: Client, fake: FakeStudyService, script: Script
) -> None:
    fake.add(script)
    fake.suggestions.extend([suggestion(script, 5), suggestion(script, 3)])
    for asked in client.study("digits").ask_all():
        asked.complete()
        break
    ended, back = fake.requests["CompleteTrial"]
    assert ended.HasField("next")
    assert back.release
    assert not back.HasField("next")
    assert back.lease.trial == "studies/digits/trials/3"


def test_leaving_a_loop_within_a_trial_leaves_that_one_to_the_caller(
    client: Client, fake: FakeStudyService, script: Script
) -> None:
    fake.add(script)
    fake.suggestions.append(suggestion(script, 5))
    loop = client.study("digits").ask_all()
    asked = next(loop)
    loop.close()
    assert not fake.requests["CompleteTrial"]
    assert asked.give_back().number == 5
    (sent,) = fake.requests["CompleteTrial"]
    assert sent.release
    assert not sent.HasField("next")


async def test_the_async_loop_does_the_same(fake: FakeStudyService, script: Script) -> None:
    fake.add(script)
    fake.suggestions.extend([suggestion(script, 5), suggestion(script, 3)])
    async with AsyncClient(fake.address) as client:
        loop = client.study("digits").ask_all()
        async for asked in loop:
            await asked.complete()
            break
        await loop.aclose()
    ended, back = fake.requests["CompleteTrial"]
    assert ended.next.study == "studies/digits"
    assert back.release
