"""Watching over broken connections: every event once and in order, whatever happens to the streams."""

from typing import Any

import grpc
import pytest
from fake_study_service import FakeStudyService
from scripted_study import Script, race

from headrace import AsyncClient, Client
from headrace.errors import CallCancelledError, HeadraceError, StudyNotFoundError
from headrace.v1 import study_pb2

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


def test_a_watch_sees_every_event_to_the_end(client: Client, fake: FakeStudyService, script: Script) -> None:
    fake.add(script, shown=1)
    updates = list(client.study("digits").watch())
    assert [e.cursor for u in updates for e in u.events] == list(range(1, len(script.events) + 1))
    assert updates[-1].study.state.ended


def test_a_watch_of_an_ended_study_sees_every_event(
    client: Client, fake: FakeStudyService, script: Script
) -> None:
    """The first message says that the study has ended, and contains five of its events."""
    fake.add(script)
    fake.watch_tells_of_now = True
    fake.cut_watch_after.append((2, None))
    updates = list(client.study("digits").watch())
    assert updates[0].study.state.ended
    assert [e.cursor for u in updates for e in u.events] == list(range(1, len(script.events) + 1))


@pytest.mark.parametrize("code", [UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, None])
def test_a_cut_watch_continues_where_it_was(
    client: Client, fake: FakeStudyService, script: Script, code: grpc.StatusCode | None
) -> None:
    fake.add(script, shown=1)
    fake.cut_watch_after.extend([(3, code), (0, code), (7, code)])
    cursors = [e.cursor for u in client.study("digits").watch() for e in u.events]
    assert cursors == list(range(1, len(script.events) + 1))
    assert [r.after_cursor for r in fake.requests["WatchStudy"]] == [0, 15, 15, 50]


def test_a_watch_outlives_a_scheduler_that_is_away_for_longer_than_a_call(
    fake: FakeStudyService, script: Script
) -> None:
    fake.add(script, shown=1)
    fake.cut_watch_after.extend([(2, None), (2, UNAVAILABLE)])
    broken: list[HeadraceError] = []
    with Client(fake.address, timeout_s=0.3) as client:
        client.studies()
        fake.fail_next("GetStudy", *[UNAVAILABLE] * 3)
        updates = client.study("digits").watch(on_break=broken.append)
        assert [e.cursor for u in updates for e in u.events] == list(range(1, len(script.events) + 1))
    assert 1 <= len(broken) <= 2
    assert all(fake.address in error.message for error in broken)


@pytest.mark.timeout(120)
def test_a_watch_says_soon_that_nobody_answers_after_a_stream_that_ended_well(script: Script) -> None:
    class Frozen(FakeStudyService):
        """It keeps its connections, but answers nothing after the first stream."""

        def GetStudy(self, request: Any, context: grpc.ServicerContext) -> Any:
            self.stopped.wait()
            return super().GetStudy(request, context)

    fake = Frozen()
    try:
        fake.add(script, shown=1)
        fake.cut_watch_after.append((2, None))
        told: list[HeadraceError] = []

        def tell(error: HeadraceError) -> None:
            told.append(error)
            client.close()

        with Client(fake.address) as client:
            assert len(list(client.study("digits").watch(on_break=tell))) == 2
        assert told
    finally:
        fake.stop()


def test_closing_the_client_ends_a_watch(fake: FakeStudyService, script: Script) -> None:
    fake.add(script, shown=1)
    fake.watch_delay_s = 0.05
    client = Client(fake.address)
    seen = []
    for update in client.study("digits").watch():
        seen.append(update)
        client.close()
    assert 1 <= len(seen) <= 3


def test_what_a_server_repeats_is_dropped(client: Client, fake: FakeStudyService, script: Script) -> None:
    fake.add(script, shown=1)
    fake.repeat_on_watch = 4
    fake.cut_watch_after.extend([(2, UNAVAILABLE), (2, None)])
    cursors = [e.cursor for u in client.study("digits").watch() for e in u.events]
    assert cursors == list(range(1, len(script.events) + 1))


def test_a_watch_begins_after_a_cursor(client: Client, fake: FakeStudyService, script: Script) -> None:
    fake.add(script)
    last = len(script.events)
    assert [e.cursor for u in client.study("digits").watch(after=last - 2) for e in u.events] == [
        last - 1,
        last,
    ]


def test_a_watch_of_an_ended_study_without_news_ends(
    client: Client, fake: FakeStudyService, script: Script
) -> None:
    fake.add(script)
    assert list(client.study("digits").watch(after=len(script.events))) == []


def test_a_watch_of_no_study_is_an_error(client: Client) -> None:
    with pytest.raises(StudyNotFoundError):
        list(client.study("nope").watch())


def test_a_watch_may_be_left_early(client: Client, fake: FakeStudyService, script: Script) -> None:
    fake.add(script, shown=1)
    fake.watch_delay_s = 0.01
    for update in client.study("digits").watch():
        assert update.events[0].cursor == 1
        break
    assert client.study("digits").status().name == "digits"


def test_wait_returns_the_ended_study(client: Client, fake: FakeStudyService, script: Script) -> None:
    fake.add(script, shown=1)
    assert client.study("digits").wait().counts.completed == 4
    assert client.study("digits").wait(timeout_s=0.0).state.ended


@pytest.mark.filterwarnings("error")
def test_wait_warns_of_a_study_that_failed(client: Client, fake: FakeStudyService) -> None:
    script = race()
    script.final.study.state = study_pb2.STUDY_STATE_FAILED
    script.final.study.detail = "the first 3 trials failed"
    fake.add(script, shown=len(script.events))
    with pytest.raises(UserWarning, match="Study digits has failed: the first 3 trials failed"):
        client.study("digits").wait()


async def test_an_async_wait_warns_too(fake: FakeStudyService) -> None:
    script = race()
    script.final.study.state = study_pb2.STUDY_STATE_FAILED
    fake.add(script, shown=len(script.events))
    async with AsyncClient(fake.address) as client:
        with pytest.warns(UserWarning, match="Study digits has failed"):
            await client.study("digits").wait()


@pytest.mark.timeout(120)
def test_wait_gives_up_in_time(client: Client, fake: FakeStudyService, script: Script) -> None:
    fake.add(script, shown=1)
    fake.watch_delay_s = 600.0
    with pytest.raises(TimeoutError):
        client.study("digits").wait(timeout_s=0.3)


async def test_the_async_client_has_the_same_surface(fake: FakeStudyService, script: Script) -> None:
    fake.add(script, shown=1)
    fake.cut_watch_after.append((3, UNAVAILABLE))
    fake.fail_next("GetStudy", UNAVAILABLE, UNAVAILABLE)
    async with AsyncClient(fake.address, timeout_s=60) as client:
        study = client.study("digits")
        assert (await study.status()).name == "digits"
        cursors = [e.cursor async for u in study.watch() for e in u.events]
        assert cursors == list(range(1, len(script.events) + 1))
        assert len(await study.trials()) == 28
        assert (await study.wait()).state.ended
        assert (await study.trial(5).explain()).trial.number == 5
        with pytest.raises(HeadraceError):
            await client.study("nope").status()
        assert (await study.dataframe()).shape[0] == 28


async def test_an_async_watch_ends_with_its_client(fake: FakeStudyService, script: Script) -> None:
    fake.add(script, shown=1)
    fake.watch_delay_s = 0.05
    client = AsyncClient(fake.address, timeout_s=60)
    seen = 0
    async for _ in client.study("digits").watch():
        seen += 1
        if seen == 2:
            await client.close()
    assert seen < len(script.events) / fake.batch


async def test_a_cancelled_watch_is_cancelled(fake: FakeStudyService, script: Script) -> None:
    fake.add(script, shown=1)
    fake.watch_delay_s = 5.0
    async with AsyncClient(fake.address, timeout_s=60) as client:
        with pytest.raises(TimeoutError):
            await client.study("digits").wait(timeout_s=0.3)


async def test_a_closed_client_says_so(fake: FakeStudyService) -> None:
    waiting, blocking = AsyncClient(fake.address), Client(fake.address)
    assert await waiting.studies() == blocking.studies() == []
    await waiting.close()
    blocking.close()
    with pytest.raises(CallCancelledError, match="client is closed"):
        await waiting.studies()
    with pytest.raises(CallCancelledError, match="client is closed"):
        blocking.studies()


def test_both_clients_have_the_same_methods() -> None:
    from headrace.client import aio, sync

    for name in ("Client", "Study", "Trial", "AskedTrial"):
        blocking, waiting = getattr(sync, name), getattr(aio, f"Async{name}")
        mine = {n for n in dir(blocking) if not n.startswith("_")}
        theirs = {n for n in dir(waiting) if not n.startswith("_")}
        only_blocking = {"plot"} if name == "Study" else set()  # pictures in a notebook
        assert mine - only_blocking == theirs
        assert all(getattr(blocking, n).__doc__ for n in mine)


def test_a_client_that_waits_or_fetches_results_is_warned_of_edited_code(
    client: Client, fake: FakeStudyService
) -> None:
    script = race()
    fake.add(script, shown=len(script.events))
    study = client.study("digits")
    study.wait()  # warnings are errors
    status = script.final.study.status
    status.code_changed.append("train.py")
    status.best.code_changed.append("train.py")
    best = status.best.name.rpartition("/")[2]
    for call in (study.wait, study.result):
        with pytest.warns(
            UserWarning, match=rf"train.py changed since .* The best trial, {best}, ran other code"
        ):
            call()
