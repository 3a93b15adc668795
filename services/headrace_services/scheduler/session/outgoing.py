"""What a session sends to its worker: one bounded queue, one writer. A worker that does not read is cut off."""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import groupby

import grpc

from headrace.v1 import worker_pb2
from headrace_services.scheduler.core.inputs import Assignment, Cancellation, Order, Preemption
from headrace_services.scheduler.session import messages
from headrace_services.scheduler.session.known_studies import KnownStudies
from headrace_services.scheduler.session.proofs import Proofs
from headrace_services.scheduler.store.defects import reason_of
from headrace_services.scheduler.store.workers import StudyInfo

log = logging.getLogger(__name__)

MAX_OUTGOING = 8192
"""Twice as many as a worker may hold leases: all its assignments may be sent at once."""

DECISIONS_AT_ONCE = 64
"""In one message; each decision may name all checkpoints of its trial."""

Defective = Callable[[int, str], None]
"""Called with the id of a study whose trials cannot be assigned, and why."""
Write = Callable[[worker_pb2.SessionResponse], object]
"""grpc.aio's write, which is a coroutine function."""


class StreamBrokeError(Exception):
    """A message could not be written: the connection is gone."""


class SlowWorkerError(Exception):
    """The worker does not read what it is sent; it is cut off and will reconnect."""


class Outgoing:
    """The messages to one worker, in the order in which they were added."""

    def __init__(
        self,
        worker: str,
        studies: KnownStudies,
        proofs: Proofs,
        *,
        patience_s: float,
        defective: Defective,
    ) -> None:
        self._worker = worker
        self._studies = studies
        self._proofs = proofs
        self._defective = defective
        self._patience_s = patience_s
        self._queue: asyncio.Queue[worker_pb2.SessionResponse | Order] = asyncio.Queue(MAX_OUTGOING)
        self._overflow = asyncio.Event()
        self._writing_since: float | None = None

    def put(self, message: worker_pb2.SessionResponse | Order) -> None:
        """Send a message soon; never waits."""
        try:
            self._queue.put_nowait(message)
        except asyncio.QueueFull:
            self._overflow.set()

    @property
    def waiting(self) -> int:
        """How many messages wait to be written."""
        return self._queue.qsize()

    def acknowledge(self, sequence: int) -> None:
        """Acknowledge that a durable message is settled."""
        self.put(worker_pb2.SessionResponse(ack=worker_pb2.Ack(sequences=[sequence])))

    async def written(self) -> None:
        """Wait until everything is written."""
        await self._queue.join()

    async def write_to(self, write: Write) -> None:
        """Write until cancelled. Raises StreamBrokeError."""
        while True:
            batch = [await self._queue.get()]
            await asyncio.sleep(0)  # let others that the same commit woke add their messages
            while not self._queue.empty():
                batch.append(self._queue.get_nowait())
            others, sequences = _parted(batch)
            others = _together(others)
            for message in others:
                response = await self._response(message)
                if response is None:
                    continue
                if message is others[-1]:
                    response.acknowledged.extend(sequences)
                    sequences = []
                await self._write(write, response)
            if sequences:
                await self._write(write, worker_pb2.SessionResponse(ack=worker_pb2.Ack(sequences=sequences)))
            for _ in batch:
                self._queue.task_done()

    async def _write(self, write: Write, response: worker_pb2.SessionResponse) -> None:
        self._writing_since = time.monotonic()
        try:
            await write(response)  # type: ignore[misc]  # grpc.aio's write is a coroutine function
        except grpc.aio.InternalError:
            raise StreamBrokeError(f"the stream of worker '{self._worker}' broke") from None
        self._writing_since = None

    async def cut_off_when_slow(self) -> None:
        """Cut off a worker that does not read; it reads what it missed in its next session. Raises SlowWorkerError."""
        while not self._is_stuck():
            with suppress(TimeoutError):
                async with asyncio.timeout(self._patience_s / 8):
                    await self._overflow.wait()
        raise SlowWorkerError(f"worker '{self._worker}' does not read what it is sent")

    def _is_stuck(self) -> bool:
        """Whether the queue is full, or one message has been waiting to be written for too long."""
        since = self._writing_since
        return self._overflow.is_set() or (since is not None and time.monotonic() - since > self._patience_s)

    async def _response(
        self, message: worker_pb2.SessionResponse | Order
    ) -> worker_pb2.SessionResponse | None:
        if isinstance(message, worker_pb2.SessionResponse):
            return message
        budget = message.lease.budget or 0 if isinstance(message, Assignment) else 0
        study = await self._studies.by_id(message.lease.study_id, budget=budget)
        if study is None:
            return None
        match message:
            case Assignment():
                return self._assignment(study, message)
            case Cancellation():
                lease = messages.lease_ref(message.lease, study.name)
                return worker_pb2.SessionResponse(
                    cancel=worker_pb2.Cancel(lease=lease, reason=message.reason)
                )
            case Preemption():
                lease = messages.lease_ref(message.lease, study.name)
                return worker_pb2.SessionResponse(
                    vacate=worker_pb2.Vacate(lease=lease, reason=message.reason)
                )

    def _assignment(self, study: StudyInfo, message: Assignment) -> worker_pb2.SessionResponse | None:
        try:
            assign = messages.assign(study, message.trial, message.lease)
            assign.lease.proof = self._proofs.of(message.lease.id)
        except Exception as error:
            log.exception("trial %s of study '%s' cannot be assigned", message.trial.number, study.name)
            why = f"trial {message.trial.number} cannot be given to a worker: {reason_of(error)}"
            self._defective(study.id, why)
            return None
        return worker_pb2.SessionResponse(assign=assign)


def _parted(
    batch: list[worker_pb2.SessionResponse | Order],
) -> tuple[list[worker_pb2.SessionResponse | Order], list[int]]:
    """The messages, and the sequences to acknowledge after them: a worker never asks again about what is
    acknowledged.

    The answer to a heartbeat is a message of its own.
    """
    acks = [m for m in batch if isinstance(m, worker_pb2.SessionResponse) and m.ack.sequences]
    others = [m for m in batch if not (isinstance(m, worker_pb2.SessionResponse) and m.ack.sequences)]
    return others, [sequence for ack in acks for sequence in ack.ack.sequences]


def _together(
    others: list[worker_pb2.SessionResponse | Order],
) -> list[worker_pb2.SessionResponse | Order]:
    """The same messages, with consecutive decisions merged into one."""
    found: list[worker_pb2.SessionResponse | Order] = []
    for _, run in groupby(others, key=_decides):
        listed = list(run)
        if len(listed) == 1 or not _decides(listed[0]):
            found += listed
            continue
        for first in range(0, len(listed), DECISIONS_AT_ONCE):
            some = listed[first : first + DECISIONS_AT_ONCE]
            told = [one.decision for one in some if isinstance(one, worker_pb2.SessionResponse)]
            found.append(worker_pb2.SessionResponse(decisions=worker_pb2.Decisions(decisions=told)))
    return found


def _decides(message: worker_pb2.SessionResponse | Order) -> bool:
    return isinstance(message, worker_pb2.SessionResponse) and message.HasField("decision")
