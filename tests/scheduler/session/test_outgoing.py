"""What a session writes: in batches, in order, and with limited patience."""

import asyncio
from typing import cast

import pytest

from headrace.v1 import event_pb2, worker_pb2
from headrace_services.scheduler.core.inputs import Cancellation
from headrace_services.scheduler.core.records import Lease
from headrace_services.scheduler.session import outgoing as module
from headrace_services.scheduler.session.known_studies import KnownStudies
from headrace_services.scheduler.session.outgoing import DECISIONS_AT_ONCE, Outgoing, SlowWorkerError
from headrace_services.scheduler.session.proofs import Proofs
from headrace_services.scheduler.store.workers import StudyInfo


class NoStudies:
    """Stands for studies that were all deleted."""

    async def by_id(self, study_id: int, *, budget: int = 0) -> StudyInfo | None:  # noqa: ARG002
        del study_id
        return None


def outgoing(patience_s: float = 60.0) -> Outgoing:
    studies, proofs = cast("KnownStudies", NoStudies()), Proofs(b"secret")
    return Outgoing("w", studies, proofs, patience_s=patience_s, defective=lambda *_: None)


async def written(messages: Outgoing) -> list[worker_pb2.SessionResponse]:
    """Everything that was queued so far, as it is written."""
    wrote: list[worker_pb2.SessionResponse] = []

    async def write(response: worker_pb2.SessionResponse) -> None:
        wrote.append(response)

    writing = asyncio.create_task(messages.write_to(write))
    await messages.written()
    writing.cancel()
    return wrote


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def decision(sequence: int) -> worker_pb2.SessionResponse:
    said = worker_pb2.LeaseDecision(report_sequence=sequence, decision=event_pb2.Decision())
    return worker_pb2.SessionResponse(decision=said)


async def test_what_is_acknowledged_is_acknowledged_behind_the_last_answer() -> None:
    messages = outgoing()
    messages.acknowledge(1)
    messages.put(decision(1))
    messages.acknowledge(2)
    messages.put(worker_pb2.SessionResponse(ack=worker_pb2.Ack(heartbeat=7)))
    messages.put(decision(2))
    first, beat, last = await written(messages)
    assert (list(first.acknowledged), list(beat.acknowledged)) == ([], [])
    assert beat.ack.heartbeat == 7
    assert list(last.acknowledged) == [1, 2]


async def test_decisions_that_are_there_at_once_go_as_one_message_in_their_place() -> None:
    messages = outgoing()
    for sequence in (1, 2):
        messages.put(decision(sequence))
        messages.acknowledge(sequence)
    messages.put(worker_pb2.SessionResponse(ack=worker_pb2.Ack(heartbeat=7)))
    messages.put(decision(3))
    for sequence in range(100, 100 + DECISIONS_AT_ONCE + 2):
        messages.put(decision(sequence))
    first, beat, full, rest = await written(messages)
    assert [one.report_sequence for one in first.decisions.decisions] == [1, 2]
    assert beat.ack.heartbeat == 7
    assert len(full.decisions.decisions) == DECISIONS_AT_ONCE
    assert [one.report_sequence for one in rest.decisions.decisions] == [163, 164, 165]
    assert [list(one.acknowledged) for one in (first, beat, full, rest)] == [[], [], [], [1, 2]]


async def test_an_acknowledgement_whose_company_falls_away_goes_alone() -> None:
    messages = outgoing()
    lease = Lease(
        id="l",
        study_id=1,
        number=0,
        attempt=1,
        worker_id=1,
        incarnation="1",
        client_id="",
        ttl_s=None,
        grant=None,
    )
    messages.put(Cancellation(worker_id=1, lease=lease, reason="of a study that was deleted"))
    messages.acknowledge(3)
    (alone,) = await written(messages)
    assert list(alone.ack.sequences) == [3]


async def test_a_message_that_is_not_taken_within_the_patience_ends_the_session() -> None:
    messages = outgoing(patience_s=0.2)
    stuck = asyncio.Event()

    async def write(_: worker_pb2.SessionResponse) -> None:
        await stuck.wait()

    messages.put(decision(1))
    writing = asyncio.create_task(messages.write_to(write))
    with pytest.raises(SlowWorkerError):
        async with asyncio.timeout(60):
            await messages.cut_off_when_slow()
    writing.cancel()


async def test_a_worker_with_more_messages_than_the_queue_holds_is_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is lost: the worker reads it in its next session."""
    monkeypatch.setattr(module, "MAX_OUTGOING", 2)
    messages = outgoing()
    watching = asyncio.create_task(messages.cut_off_when_slow())
    for sequence in (1, 2, 3):
        assert not watching.done()
        messages.put(decision(sequence))
        await turns()
    assert watching.done(), "the third message does not fit"
    with pytest.raises(SlowWorkerError):
        await watching


async def test_a_worker_that_takes_every_message_in_time_is_not_cut_off() -> None:
    messages = outgoing(patience_s=0.4)

    async def write(_: worker_pb2.SessionResponse) -> None:
        await asyncio.sleep(0.05)

    watching = asyncio.create_task(messages.cut_off_when_slow())
    writing = asyncio.create_task(messages.write_to(write))
    for sequence in range(16):  # together they take twice the patience
        messages.put(decision(sequence))
    await messages.written()
    assert not watching.done()
    watching.cancel()
    writing.cancel()
