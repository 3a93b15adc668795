"""Trial logs through the scheduler, whichever replica holds the worker's stream and whoever is left to read them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace
from typing import Any

import pytest
from session_site import TIMING, Replica, ScriptedWorker, serving, study, worker
from sqlalchemy import select, text, update
from sqlalchemy.ext.asyncio import AsyncEngine

from headrace.errors import (
    InvalidFieldError,
    LogGoneError,
    StoreAwayError,
    StudyNotFoundError,
    TrialNotFoundError,
    WorkerAwayError,
)
from headrace.spec.names import DEFAULT_PROJECT
from headrace.v1 import study_pb2 as pb
from headrace.v1 import worker_pb2
from headrace_services.scheduler.analysis import AnalysisPools
from headrace_services.scheduler.engine import log_reads
from headrace_services.scheduler.rpc import log_calls
from headrace_services.scheduler.rpc.caller import Caller, let_call
from headrace_services.scheduler.rpc.study_service import StudyServicer
from headrace_services.scheduler.session import log_asks
from headrace_services.scheduler.store import tables
from headrace_services.scheduler.store.log_reads import forget_old

TEXT = b"epoch 1\nepoch 2 \xff\n"
Answer = Callable[[worker_pb2.ReadLog], worker_pb2.LogChunk]


def of_text(ask: worker_pb2.ReadLog, *, live: bool = True, most: int = 8) -> worker_pb2.LogChunk:
    """Part of `TEXT`, in small pieces."""
    data = TEXT[ask.offset : ask.offset + most]
    return worker_pb2.LogChunk(id=ask.id, data=data, next_offset=ask.offset + len(data), live=live)


@asynccontextmanager
async def answering(scripted: ScriptedWorker, answer: Answer) -> AsyncIterator[list[worker_pb2.ReadLog]]:
    """The worker answers requests within the block."""
    asked: list[worker_pb2.ReadLog] = []

    async def run() -> None:
        while True:
            ask = await scripted.hears("read_log", count=len(asked) + 1)
            asked.append(ask)
            await scripted.say(log_chunk=answer(ask))

    task = asyncio.create_task(run())
    try:
        yield asked
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError, TimeoutError):
            await task


class Reader:
    """A client that reads a trial's log at a replica."""

    def __init__(self, replica: Replica, trial: str, project: str = DEFAULT_PROJECT) -> None:
        self.trial = trial
        self.project = project
        self.servicer = StudyServicer(replica.hub, AnalysisPools())
        self.servicer.logs = replica.logs

    async def read(self, cursor: str = "", within_s: float | None = None) -> pb.ReadLogResponse:
        request = pb.ReadLogRequest(name=self.trial, cursor=cursor)
        if within_s is not None:
            request.within.FromMilliseconds(int(within_s * 1000))
        context: Any = SimpleNamespace()
        let_call(Caller(peer="here", project=self.project))
        return await self.servicer.ReadLog(request, context)

    async def whole(self) -> tuple[bytes, pb.ReadLogResponse]:
        """Read until there is no more for now."""
        data, part = b"", await self.read()
        while part.data:
            data += part.data
            part = await self.read(part.next_cursor)
        return data, part

    async def until_told(self, words: str) -> None:
        """Read until the answer says that the worker disconnected: its row says so a moment later."""
        async with asyncio.timeout(60):
            while True:
                try:
                    await self.read()
                except WorkerAwayError as error:
                    if words in error.message:
                        return
                await asyncio.sleep(0.02)


@asynccontextmanager
async def running(engine: AsyncEngine, replica: Replica) -> AsyncIterator[tuple[ScriptedWorker, Any]]:
    """A worker at a replica, with a trial."""
    async with worker(replica) as scripted:
        await scripted.hello(protocol=1)
        site = await study(engine)
        replica.hub.kick(site.study_id)
        yield scripted, await scripted.hears("assign")


async def test_a_running_trial_is_read_at_either_replica(engine: AsyncEngine) -> None:
    async with (
        serving(engine, TIMING) as near,
        serving(engine, TIMING) as far,
        running(engine, far) as (scripted, assign),
        answering(scripted, of_text) as asked,
    ):
        for replica in (far, near):
            data, last = await Reader(replica, assign.lease.trial).whole()
            assert data == TEXT
            assert not last.complete
        assert {ask.lease.lease_id for ask in asked} == {assign.lease.lease_id}
        assert {ask.study_uid for ask in asked} == {assign.study_uid}
        async with engine.connect() as conn:
            assert not (await conn.execute(select(tables.log_read))).all()


async def test_a_trial_that_is_over_is_read_to_its_end_and_from_any_worker_of_the_store(
    engine: AsyncEngine,
) -> None:
    async with serving(engine, TIMING) as replica:
        async with running(engine, replica) as (scripted, assign):
            outcome = worker_pb2.EXIT_OUTCOME_FINISHED
            await scripted.report(assign.lease, 1, 1, 0.5)
            await scripted.say(exited=worker_pb2.Exited(sequence=2, lease=assign.lease, outcome=outcome))
            await scripted.hears("ack", lambda ack: 2 in ack.sequences)
            reader = Reader(replica, assign.lease.trial)
            async with answering(scripted, lambda ask: of_text(ask, live=False)):
                data, last = await reader.whole()
                assert (data, last.complete) == (TEXT, True)
        await reader.until_told("worker 'w', which ran attempt 1, is away, and no other")
        async with worker(replica) as other:
            hello = worker_pb2.Hello(worker="other", incarnation="1", log_dir="/l", protocol=1)
            await other.say(hello=hello)
            await other.hears("welcome")
            async with answering(other, lambda ask: of_text(ask, live=False)):
                data, last = await reader.whole()
                assert (data, last.complete) == (TEXT, True)
            gone = worker_pb2.LOG_TROUBLE_GONE
            async with answering(other, lambda ask: worker_pb2.LogChunk(id=ask.id, trouble=gone)):
                with pytest.raises(
                    LogGoneError, match="its log is not in the store of the connected workers"
                ):
                    await reader.read()
            away = worker_pb2.LOG_TROUBLE_AWAY
            async with answering(other, lambda ask: worker_pb2.LogChunk(id=ask.id, trouble=away)):
                with pytest.raises(StoreAwayError):
                    await reader.read()


async def test_an_attempt_whose_log_is_gone_is_noted_and_the_next_one_read(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(engine, TIMING) as replica, running(engine, replica) as (scripted, assign):
        lost = worker_pb2.EXIT_OUTCOME_LOST
        await scripted.say(exited=worker_pb2.Exited(sequence=1, lease=assign.lease, outcome=lost))
        second = await scripted.hears("assign", lambda one: one.lease.attempt == 2)

        def answer(ask: worker_pb2.ReadLog) -> worker_pb2.LogChunk:
            if ask.lease.lease_id == second.lease.lease_id:
                return of_text(ask)
            return worker_pb2.LogChunk(id=ask.id, trouble=worker_pb2.LOG_TROUBLE_GONE)

        async with answering(scripted, answer):
            part = await Reader(replica, assign.lease.trial).read()
        assert part.data == TEXT[:8]
        assert part.notes == ["attempt 1: its log is neither on worker 'w' nor in its store"]
        assert part.next_cursor == "2:8"
        monkeypatch.setattr(log_calls, "LOGS_KEPT", 1)
        async with answering(scripted, answer):
            part = await Reader(replica, assign.lease.trial).read()
        assert part.notes == ["attempts 1 to 1: the logs of the last 1 attempts are kept"]
        assert part.next_cursor == "2:8"


async def test_attempts_that_were_over_before_the_time_asked_for_are_passed_over(engine: AsyncEngine) -> None:
    async with serving(engine, TIMING) as replica, running(engine, replica) as (scripted, assign):
        lost = worker_pb2.EXIT_OUTCOME_LOST
        await scripted.say(exited=worker_pb2.Exited(sequence=1, lease=assign.lease, outcome=lost))
        await scripted.hears("assign", lambda one: one.lease.attempt == 2)
        await asyncio.sleep(0.2)
        knows = True

        def answer(ask: worker_pb2.ReadLog) -> worker_pb2.LogChunk:
            chunk = of_text(ask, live=ask.lease.attempt == 2)
            chunk.timed = knows and ask.HasField("within")
            return chunk

        reader = Reader(replica, assign.lease.trial)
        async with answering(scripted, answer) as asked:
            part = await reader.read(within_s=0.1)
            assert (part.data, part.next_cursor, list(part.notes)) == (TEXT[:8], "2:8", [])
            part = await reader.read(part.next_cursor, within_s=0.1)
            assert (part.data, part.next_cursor) == (TEXT[8:16], "2:16")
            part = await reader.read(within_s=3600)
            assert (part.data, part.next_cursor, list(part.notes)) == (TEXT[:8], "1:8", [])
            knows = False
            part = await reader.read(within_s=3600)
            assert part.notes == ["attempt 1: when it was printed is not known, so all of it is shown"]
        assert [(ask.lease.attempt, ask.HasField("within"), ask.within.seconds) for ask in asked] == [
            (2, True, 0), (2, False, 0), (1, True, 3600), (1, True, 3600),
        ]  # fmt: skip


async def test_a_worker_or_replica_that_does_not_answer_is_reported(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_asks, "PATIENCE_S", 0.2)
    monkeypatch.setattr(log_reads, "PATIENCE_S", 0.3)
    async with (
        serving(engine, TIMING) as near,
        serving(engine, TIMING) as far,
        running(engine, far) as (scripted, assign),
    ):
        with pytest.raises(WorkerAwayError, match="worker 'w' did not answer within"):
            await Reader(far, assign.lease.trial).read()
        with pytest.raises((WorkerAwayError, StoreAwayError)):
            await Reader(near, assign.lease.trial).read()
        async with engine.begin() as conn:
            await conn.execute(update(tables.log_read).values(time=text("now() - interval '1 hour'")))
            await forget_old(conn, 100)
            assert not (await conn.execute(select(tables.log_read))).all()
        await scripted.hang_up()
        await Reader(far, assign.lease.trial).until_told("which runs the trial, is not connected now")


ODD_TRIALS = (
    "", "STUDY", "STUDY/trials/", "STUDY/trials/1", "STUDY/trials/999999999999999999", "STUDY/trials/9" + "9" * 18,
    "STUDY/trials/-1", "STUDY/trials/+0", "STUDY/trials/0x0", "STUDY/trials/1e0", "STUDY/trials/0\n",
    "STUDY/trials/0\0", "STUDY/trials/٠", "STUDY/trials/0/../1", "STUDY/../STUDY/trials/0",
    "STUDY/trials/../../../etc/passwd", "studies/../trials/0", "studies/%2e%2e/trials/0", "studies/a\0b/trials/0",
    "studies/𝔘/trials/0", "studies/ѕ/trials/0", "studies/'; DROP TABLE study; --/trials/0", "studies//trials/0",
    "/etc/passwd", "file:///etc/passwd", "projects/theirs/STUDY/trials/0", "studies/" + "x" * 300_000 + "/trials/0",
)  # fmt: skip


async def test_odd_names_and_trials_of_others_are_asked_of_no_worker(engine: AsyncEngine) -> None:
    async with (
        serving(engine, TIMING) as replica,
        running(engine, replica) as (scripted, assign),
        answering(scripted, of_text) as asked,
    ):
        study_name = assign.lease.trial.rpartition("/trials/")[0]
        for odd in ODD_TRIALS:
            with pytest.raises((InvalidFieldError, StudyNotFoundError, TrialNotFoundError)):
                await Reader(replica, odd.replace("STUDY", study_name)).read()
        with pytest.raises(StudyNotFoundError):
            await Reader(replica, assign.lease.trial, project="theirs").read()
        assert not asked
        assert (await Reader(replica, assign.lease.trial).read()).data  # the names are wrong, not the reader


@pytest.mark.parametrize(
    "cursor", ["x", "0:1", "1", "1:-1", "1:2:3", "٣:0", "1:0\n", "9" * 10 + ":0", "1:" + "9" * 16]
)
async def test_a_cursor_of_another_call_is_refused(engine: AsyncEngine, cursor: str) -> None:
    async with serving(engine, TIMING) as replica:
        with pytest.raises(InvalidFieldError, match="cursor"):
            await Reader(replica, "studies/s/trials/0").read(cursor)
