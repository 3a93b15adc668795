"""Telling on lines: what goes wrong there is told again by a call of the same request."""

import asyncio
import subprocess
import sys
import threading
import time

import grpc
import pytest
from fake_study_service import FakeStudyService
from scripted_study import Script
from tcp_proxy import proxied

from headrace import AsyncClient, Client
from headrace.client import connection, lines
from headrace.client.sync import AskedTrial
from headrace.errors import CallCancelledError, LeaseStaleError
from headrace.v1 import event_pb2, study_pb2


@pytest.fixture(autouse=True)
def at_work(fake: FakeStudyService, script: Script) -> None:
    """There are trials to ask for, and they go on."""
    fake.add(script)
    trial = script.final.trials[5]
    lease = event_pb2.LeaseRef(lease_id="lease-1", trial=trial.name, epoch=3)
    fake.suggestions.extend([study_pb2.SuggestTrialResponse(trial=trial, lease=lease)] * 9)
    fake.decisions.append(event_pb2.Decision(action=event_pb2.DECISION_ACTION_CONTINUE))


def ask(client: Client) -> AskedTrial:
    asked = client.study("digits").ask()
    assert asked is not None
    return asked


def told(fake: FakeStudyService) -> list[str]:
    """The request ids that came on lines."""
    return [request.report.request_id for request in fake.requests["TellTrials"]]


def called(fake: FakeStudyService) -> list[str]:
    """All request ids of reports that were heard: of calls, and of those that a line passed on."""
    return [request.request_id for request in fake.requests["ReportTrial"]]


def test_reports_and_ends_are_told_on_one_line(client: Client, fake: FakeStudyService) -> None:
    asked = ask(client)
    for step in (2, 3, 4):
        assert asked.report(step, loss=0.5).goes_on
    asked.complete()
    kinds = [request.WhichOneof("request") for request in fake.requests["TellTrials"]]
    assert kinds == ["report", "report", "report", "complete"]
    assert fake.lines_opened == 1


@pytest.mark.parametrize("trouble", ["refuse", "break", "end", "lose"])
def test_what_has_no_answer_is_called_with_the_same_id(
    client: Client, fake: FakeStudyService, trouble: str
) -> None:
    asked = ask(client)
    asked.report(2, loss=0.5)
    fake.on_lines.append(trouble)
    assert asked.report(3, loss=0.5).goes_on
    first, *others = called(fake)
    assert [first, *dict.fromkeys(others)] == told(fake)
    assert len(others) == (2 if trouble == "lose" else 1)
    assert asked.report(4, loss=0.5).goes_on
    assert len(told(fake)) == 3
    assert fake.lines_opened == (1 if trouble == "refuse" else 2)


def test_an_end_whose_answer_is_lost_brings_the_same_trial(client: Client, fake: FakeStudyService) -> None:
    trials = client.study("digits").ask_all()
    asked = next(trials)
    asked.report(2, loss=0.5)
    fake.on_lines.append("lose")
    asked.complete()
    first, again = fake.requests["CompleteTrial"]
    assert first == again
    assert first.next.request_id
    next(trials)
    assert len(fake.requests["SuggestTrial"]) == 1


def test_a_refusal_says_why(client: Client, fake: FakeStudyService) -> None:
    asked = ask(client)
    fake.on_lines.append("refuse")
    fake.fail_next("ReportTrial", LeaseStaleError("the lease is over"))
    with pytest.raises(LeaseStaleError, match="the lease is over"):
        asked.report(2, loss=0.5)


def test_a_line_that_is_silent_is_left_in_time(
    client: Client, fake: FakeStudyService, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ask(client)
    asked.report(2, loss=0.5)
    monkeypatch.setattr(connection, "ATTEMPT_TIMEOUT_S", 0.4)
    fake.on_lines.append("be silent")
    began = time.monotonic()
    assert asked.report(3, loss=0.5).goes_on
    assert time.monotonic() - began < 5
    assert called(fake) == told(fake)


def test_lines_that_never_answer_are_done_without(
    client: Client, fake: FakeStudyService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a proxy that passes calls on, and no streams."""
    asked = ask(client)
    monkeypatch.setattr(connection, "ATTEMPT_TIMEOUT_S", 0.4)
    fake.on_lines.extend(["be silent"] * 3)
    for step in (2, 3, 4):
        assert asked.report(step, loss=0.5).goes_on
    assert fake.lines_opened == 1
    monkeypatch.setattr(lines, "REST_S", 0.0)
    fake.on_lines.clear()
    fresh = Client(fake.address)
    with fresh:
        ask(fresh).report(5, loss=0.5)
    assert fake.lines_opened == 2


async def test_what_cannot_be_sent_is_left_in_time(fake: FakeStudyService) -> None:
    """The other side reads nothing, so gRPC's thread that sends is stuck."""
    async with proxied(fake.address) as proxy:
        channel = grpc.insecure_channel(proxy.address)
        store = lines.BlockingLines(lambda: channel)
        short, long = (
            study_pb2.TellTrialsRequest(report=study_pb2.ReportTrialRequest(checkpoint_uri=uri))
            for uri in ("here", "x" * 8_000_000)
        )
        assert await asyncio.to_thread(store.tell, short, 5.0)
        for link in proxy.links:
            link.stall(down=False)
        began = time.monotonic()
        assert await asyncio.to_thread(store.tell, long, 0.5) is None
        assert time.monotonic() - began < 3
        for link in proxy.links:
            link.flow()  # what gRPC has begun to write it writes to its end, before it closes
        await asyncio.to_thread(channel.close)
        store.close()


def test_a_line_outlasts_the_time_limit_of_what_was_answered(
    client: Client, fake: FakeStudyService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "ATTEMPT_TIMEOUT_S", 0.2)
    asked = ask(client)
    asked.report(2, loss=0.5)
    time.sleep(0.6)
    asked.report(3, loss=0.5)
    assert (len(told(fake)), fake.lines_opened) == (2, 1)


def test_an_old_line_serves_no_more(
    client: Client, fake: FakeStudyService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "AGE_S", 0.0)
    asked = ask(client)
    for step in (2, 3):
        asked.report(step, loss=0.5)
    assert (len(told(fake)), fake.lines_opened) == (2, 2)


def test_a_scheduler_that_does_not_know_lines_is_called_and_asked_again_later(
    client: Client, fake: FakeStudyService, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.knows_lines = False
    asked = ask(client)
    asked.report(2, loss=0.5)
    fake.knows_lines = True
    asked.report(3, loss=0.5)
    assert (len(called(fake)), fake.lines_opened) == (2, 0)
    now = time.monotonic()
    monkeypatch.setattr("headrace.client.lines.time.monotonic", lambda: now + lines.REST_S + 1)
    asked.report(4, loss=0.5)
    assert (len(called(fake)), fake.lines_opened) == (3, 1)


def test_there_are_few_lines_and_calls_beside_them(
    client: Client, fake: FakeStudyService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "MOST", 1)
    trials = [ask(client) for _ in range(2)]
    fake.on_lines.append("be silent")
    monkeypatch.setattr(connection, "ATTEMPT_TIMEOUT_S", 4.0)
    slow = threading.Thread(target=trials[0].report, args=(2,), kwargs={"loss": 0.5})
    slow.start()
    while not told(fake):
        time.sleep(0.01)
    began = time.monotonic()
    trials[1].report(2, loss=0.5)
    assert time.monotonic() - began < 1.5
    slow.join()
    assert fake.lines_opened == 1


def test_threads_have_lines_of_their_own(client: Client, fake: FakeStudyService) -> None:
    trials = [ask(client) for _ in range(4)]
    together = threading.Barrier(4)
    goes_on = []

    def tell(asked: AskedTrial) -> None:
        together.wait()
        goes_on.extend([asked.report(step, loss=0.5).goes_on for step in range(2, 12)])

    threads = [threading.Thread(target=tell, args=(asked,)) for asked in trials]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert goes_on == [True] * 40
    assert len(set(told(fake))) == 40
    assert 1 <= fake.lines_opened <= 4


def test_idle_lines_end_also_where_nobody_closes_the_client(
    fake: FakeStudyService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the threads that they need, gRPC's and the one that sweeps."""
    monkeypatch.setattr(lines, "IDLE_S", 0.1)

    def senders() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if "ThreadPool" not in thread.name}

    before = senders()
    client = Client(fake.address)
    ask(client).report(2, loss=0.5)
    assert senders() - before
    deadline = time.monotonic() + 10
    while senders() - before and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not senders() - before


def test_a_process_ends_whose_client_was_never_closed(fake: FakeStudyService) -> None:
    program = f"""
from headrace import Client
asked = Client({fake.address!r}).study("digits").ask()
print(asked.report(2, loss=0.5).goes_on)
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "True\n", "")
    assert len(told(fake)) == 1


async def test_async_clients_tell_on_lines(fake: FakeStudyService, monkeypatch: pytest.MonkeyPatch) -> None:
    async with AsyncClient(fake.address, timeout_s=10) as client:
        study = client.study("digits")
        asked, other = await study.ask(), await study.ask()
        assert asked is not None
        assert other is not None
        await asyncio.gather(asked.report(2, loss=0.5), other.report(2, loss=0.5))
        assert 1 <= fake.lines_opened <= 2
        monkeypatch.setattr(connection, "ATTEMPT_TIMEOUT_S", 0.4)
        for trouble in ("refuse", "break", "end", "be silent"):
            fake.on_lines.append(trouble)
            assert (await asked.report(3, loss=0.5)).goes_on
        assert sorted(called(fake)) == sorted(told(fake))


async def test_closing_an_async_client_ends_what_is_being_told(fake: FakeStudyService) -> None:
    client = AsyncClient(fake.address, timeout_s=10)
    asked = await client.study("digits").ask()
    assert asked is not None
    fake.on_lines.append("be silent")
    telling = asyncio.create_task(asked.report(2, loss=0.5))
    while not told(fake):
        await asyncio.sleep(0.01)
    await client.close()
    with pytest.raises(CallCancelledError, match="closed"):
        await telling


async def test_a_task_that_is_cancelled_leaves_its_line(fake: FakeStudyService) -> None:
    async with AsyncClient(fake.address, timeout_s=10) as client:
        asked = await client.study("digits").ask()
        assert asked is not None
        fake.on_lines.append("be silent")
        telling = asyncio.create_task(asked.report(2, loss=0.5))
        while not told(fake):
            await asyncio.sleep(0.01)
        telling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await telling
        assert (await asked.report(3, loss=0.5)).goes_on
        assert fake.lines_opened == 2


async def test_async_clients_do_without_lines_where_they_are_not_known(fake: FakeStudyService) -> None:
    fake.knows_lines = False
    async with AsyncClient(fake.address, timeout_s=10) as client:
        asked = await client.study("digits").ask()
        assert asked is not None
        await asked.report(2, loss=0.5)
        fake.knows_lines = True
        await asked.report(3, loss=0.5)
        assert (len(called(fake)), fake.lines_opened) == (2, 0)


async def test_idle_lines_of_async_clients_end(
    fake: FakeStudyService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "IDLE_S", 0.1)
    async with AsyncClient(fake.address, timeout_s=10) as client:
        asked = await client.study("digits").ask()
        assert asked is not None
        await asked.report(2, loss=0.5)
        async with asyncio.timeout(5):
            while fake.lines_open:
                await asyncio.sleep(0.01)
        await asked.report(3, loss=0.5)
        assert fake.lines_opened == 2
