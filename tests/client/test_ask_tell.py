"""Ask and tell: a loop of the user's own."""

import asyncio
import threading
import time
from typing import Any

import grpc
import pytest
from fake_study_service import FakeStudyService
from scripted_study import Script, params_of

from headrace import AsyncClient, Client
from headrace.client import Action, connection
from headrace.client.asking import Asking
from headrace.client.model import Lease, TrialRef
from headrace.errors import HeadraceError, InvalidFieldError, LeaseStaleError
from headrace.v1 import event_pb2, study_pb2, trial_pb2

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
    assert (trial.number, trial.step, trial.next_milestone) == (5, 0, 9), "it has no checkpoint"
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


@pytest.mark.parametrize(
    ("step", "metrics", "field", "message"),
    [
        (3, {"val_loss": "low"}, "metrics.val_loss", "is 'low' of type str"),
        (3, {"val_loss": {"mean": 1.0}}, "metrics.val_loss", "is a dict"),
        (3, 0.5, "metrics", "report() got 0.5 without a name"),
        (1.5, {"val_loss": 1.0}, "step", "is not a whole number of steps"),
        (-1, {"val_loss": 1.0}, "step", "is not a whole number of steps"),
        (1 << 63, {"val_loss": 1.0}, "step", "is not a whole number of steps"),
    ],
)
def test_a_report_that_makes_no_sense_is_refused_here(
    client: Client, fake: FakeStudyService, script: Script, step: Any, metrics: Any, field: str, message: str
) -> None:
    fake.add(script)
    fake.suggestions.append(suggestion(script, 5))
    trial = client.study("digits").ask()
    assert trial is not None
    with pytest.raises(InvalidFieldError) as refused:
        trial.report(step, metrics)
    (violation,) = refused.value.violations
    assert (violation.field, violation.message) == (field, message)
    assert not fake.requests["ReportTrial"]


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
    loop: Any = client.study("digits").ask_all()
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
    (back,) = fake.requests["ReleaseTrial"]
    assert back.lease.trial == "studies/digits/trials/3"
    client.close()
    assert len(fake.requests["ReleaseTrial"]) == 1


def test_closing_the_client_leaves_its_loops(fake: FakeStudyService, script: Script) -> None:
    fake.add(script)
    fake.suggestions.extend([suggestion(script, 5), suggestion(script, 3)])
    with Client(fake.address) as client:
        loop: Any = client.study("digits").ask_all()
        next(loop).complete()
    (back,) = fake.requests["ReleaseTrial"]
    assert back.lease.trial == "studies/digits/trials/3"


def test_a_trial_that_outlives_its_loop_asks_for_nothing(
    client: Client, fake: FakeStudyService, script: Script
) -> None:
    fake.add(script)
    fake.suggestions.append(suggestion(script, 5))
    loop: Any = client.study("digits").ask_all()
    asked = next(loop)
    loop.close()
    assert not fake.requests["ReleaseTrial"]
    asked.complete()
    assert not fake.requests["CompleteTrial"][0].HasField("next")
    assert asked.give_back().number == 5
    assert len(fake.requests["ReleaseTrial"]) == 1


def test_only_the_last_trial_of_a_loop_asks_ahead_and_once(
    client: Client, fake: FakeStudyService, script: Script
) -> None:
    """Where several are at work at once, each is yielded once."""
    fake.add(script)
    fake.suggestions.extend(suggestion(script, number) for number in (5, 3, 4, 2))
    loop: Any = client.study("digits").ask_all()
    first, second = next(loop), next(loop)
    first.complete()
    second.complete()
    second.complete()
    sent = [request.HasField("next") for request in fake.requests["CompleteTrial"]]
    assert sent == [False, True, False]
    assert [next(loop).number, next(loop).number] == [4, 2]


LEASE = Lease(lease_id="lease-1", trial=TrialRef("digits", 5), attempt=3)


def with_trial(number: int) -> study_pb2.SuggestTrialResponse:
    return study_pb2.SuggestTrialResponse(trial=trial_pb2.Trial(number=number))


def test_requests_that_are_out_at_once_are_not_the_same() -> None:
    """The answers of an end and of the loop differ: one does not wait for a model, and the other one does."""
    asking = Asking("digits", "me", None)
    asking.yielded(LEASE)
    ahead = asking.with_end_of(LEASE)
    assert ahead is not None
    mine = asking.begin()
    assert mine.request_id != ahead.request_id
    asking.note(ahead, NOTHING)
    asking.note(mine, with_trial(7))
    asking.note(mine, with_trial(7))
    assert asking.take() == with_trial(7)
    assert asking.take() is None


def test_a_request_that_failed_is_asked_again_and_one_that_is_out_when_the_loop_ends_as_well() -> None:
    asking = Asking("digits", "me", None)
    first = asking.begin()
    asking.fail(first)
    assert asking.begin() == first
    asking.yielded(LEASE)
    ahead = asking.with_end_of(LEASE)
    assert asking.with_end_of(LEASE) is None
    asking.note(first, with_trial(7))
    assert asking.leave() == ([with_trial(7)], [ahead])
    assert asking.leave() == ([], [])
    assert asking.take() is None


def test_a_trial_that_comes_beside_the_end_of_the_study_is_taken_first() -> None:
    asking = Asking("digits", "me", None)
    one, other = asking.begin(), asking.begin()
    asking.note(one, DONE)
    asking.note(other, with_trial(7))
    assert asking.take() == with_trial(7)
    assert asking.take() == DONE


async def test_an_end_that_is_cut_off_leaves_no_trial_behind(fake: FakeStudyService, script: Script) -> None:
    """Nobody hears of the trial that came with it."""
    fake.add(script)
    fake.suggestions.extend([suggestion(script, 5), suggestion(script, 3), suggestion(script, 3)])
    reached = threading.Event()

    def cut_off() -> None:
        reached.set()
        time.sleep(0.2)

    fake.finishing["CompleteTrial"] = cut_off
    async with AsyncClient(fake.address) as client:
        asked = await anext(client.study("digits").ask_all())
        ending = asyncio.ensure_future(asked.complete())
        await asyncio.to_thread(reached.wait, 5)
        ending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ending
    assert fake.requests["CompleteTrial"][0].next == fake.requests["SuggestTrial"][1]
    (back,) = fake.requests["ReleaseTrial"]
    assert back.lease.trial == "studies/digits/trials/3"


def test_leaving_does_not_wait_for_a_scheduler_that_is_gone(
    fake: FakeStudyService, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the client waits for its calls otherwise."""
    monkeypatch.setattr(connection, "LEAVING_S", 0.2)
    fake.add(script)
    fake.suggestions.extend([suggestion(script, 5), suggestion(script, 3)])
    fake.finishing["ReleaseTrial"] = lambda: fake.stopped.wait(60)
    client = Client(fake.address, timeout_s=60)
    loop = client.study("digits").ask_all()
    next(loop).complete()
    began = time.monotonic()
    client.close()
    assert time.monotonic() - began < 10
    assert len(fake.requests["ReleaseTrial"]) == 1


def test_a_refused_end_leaves_no_trial_behind_that_it_may_have_got(
    client: Client, fake: FakeStudyService, script: Script
) -> None:
    fake.add(script)
    fake.suggestions.extend([suggestion(script, 5), suggestion(script, 3), suggestion(script, 3)])
    fake.fail_next("CompleteTrial", LeaseStaleError("it is over"), after=True)
    loop: Any = client.study("digits").ask_all()
    asked = next(loop)
    with pytest.raises(LeaseStaleError):
        asked.complete()
    loop.close()
    assert fake.requests["CompleteTrial"][0].next == fake.requests["SuggestTrial"][1]
    (back,) = fake.requests["ReleaseTrial"]
    assert back.lease.trial == "studies/digits/trials/3"


async def test_the_async_loop_does_the_same(fake: FakeStudyService, script: Script) -> None:
    """Left by `break`: its generator ends some time later, when the client is closed."""
    fake.add(script)
    fake.suggestions.extend([suggestion(script, 5), suggestion(script, 3)])
    async with AsyncClient(fake.address) as client:
        async for asked in client.study("digits").ask_all():
            await asked.complete()
            break
    assert fake.requests["CompleteTrial"][0].next.study == "studies/digits"
    (back,) = fake.requests["ReleaseTrial"]
    assert back.lease.trial == "studies/digits/trials/3"


def test_the_end_of_a_trial_takes_no_result(client: Client, fake: FakeStudyService, script: Script) -> None:
    fake.add(script)
    fake.suggestions.append(suggestion(script, 5))
    trial = client.study("digits").ask()
    assert trial is not None
    with pytest.raises(
        InvalidFieldError, match=r"error: is neither a text nor an exception \(got 0.3\).*report"
    ):
        trial.complete(0.3)  # type: ignore[arg-type]
    assert not fake.requests["CompleteTrial"]
