"""ReadLog: what a trial printed, wherever its worker is.

The log of a trial is the concatenation of its attempts' logs. While an attempt runs, its worker reads the log from
its disk. Once it is over, its worker has put the log into the store, and any worker with that store can read it.
So a cursor is the number of an attempt and a position in its log, and any replica can continue from it.
"""
# ruff: noqa: ARG002  (every method takes the call's context)

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from google.protobuf.duration_pb2 import Duration

from headrace.checkpoints.small import LOGS_KEPT
from headrace.errors import (
    HeadraceError,
    InvalidFieldError,
    LogGoneError,
    StoreAwayError,
    Violation,
    WorkerAwayError,
    show_value,
)
from headrace.log_times import WHOLE
from headrace.v1 import event_pb2, worker_pb2
from headrace.v1 import study_pb2 as pb
from headrace_services.scheduler.core.lifecycle import State
from headrace_services.scheduler.core.records import Study, Trial
from headrace_services.scheduler.engine.log_reads import LogReads
from headrace_services.scheduler.rpc import names
from headrace_services.scheduler.rpc.calls import Calls, Context, find_study, require_trial
from headrace_services.scheduler.store import log_reads
from headrace_services.scheduler.store.database import transaction
from headrace_services.scheduler.store.log_reads import Attempt

OTHERS = 2
"""If a worker is away, how many other workers are asked for a log in its store."""
_CURSOR = re.compile(r"([0-9]{1,9}):([0-9]{1,15})")


@dataclass(slots=True)
class _Answer:
    """What a call has found so far."""

    attempt: int
    offset: int
    within: Duration | None
    """Read only what was written within this time; None for everything from the offset on."""
    data: bytes = b""
    notes: list[str] = field(default_factory=list)
    gone: HeadraceError | None = None

    def pass_over(self, attempts: int) -> None:
        """Skip attempts whose logs were deleted, up to this one."""
        if attempts < self.attempt:
            return
        self.notes.append(
            f"attempts {self.attempt} to {attempts}: the logs of the last {LOGS_KEPT} attempts are kept"
        )
        self.attempt, self.offset = attempts + 1, 0

    def is_older(self, attempt: Attempt) -> bool:
        """Whether the attempt ended before the requested time."""
        if self.within is None or attempt.over_s is None:
            return False
        return attempt.over_s > self.within.ToTimedelta().total_seconds()

    def skip(self, why: HeadraceError) -> None:
        """Skip this attempt, of which nothing can be read."""
        self.gone = why
        self.notes.append(f"attempt {self.attempt}: {why.message}")
        self.attempt, self.offset = self.attempt + 1, 0


class LogCalls(Calls):
    """Calls about logs of trials."""

    logs: LogReads | None = None

    async def ReadLog(self, request: pb.ReadLogRequest, context: Context) -> pb.ReadLogResponse:
        """The next part of a trial's log."""
        name = names.parse_trial(request.name)
        within = request.within if request.HasField("within") and not request.cursor else None
        found = _Answer(*_parse(request.cursor), within)
        while not found.data:
            async with transaction(self.hub.engine) as conn:
                study = await find_study(conn, name.study)
                trial = (await require_trial(conn, study, name.number)).trial
                found.pass_over(trial.attempt - LOGS_KEPT)
                attempt = await log_reads.attempt(conn, study.id, trial.number, found.attempt)
                others = await log_reads.connected(conn, OTHERS + 1)
            if found.attempt > trial.attempt:
                return _response(found, complete=trial.state is State.TERMINATED)
            if attempt is None or attempt.worker_id is None:
                found.skip(LogGoneError("it did not run on a worker"))
            elif found.is_older(attempt):
                found.attempt += 1
            elif await self._read(found, study, trial, attempt, others):
                return _response(found, complete=False)
        return _response(found, complete=False)

    async def _read(
        self, found: _Answer, study: Study, trial: Trial, attempt: Attempt, others: Sequence[int]
    ) -> bool:
        """Continue to read an attempt's log. Returns whether there is no more for now."""
        ask = worker_pb2.ReadLog(
            lease=event_pb2.LeaseRef(
                lease_id=attempt.lease_id,
                trial=names.trial_name(study.name, trial.number),
                attempt=attempt.number,
            ),
            study_uid=study.uid,
            offset=found.offset,
            within=found.within,
        )
        try:
            chunk = await self._chunk(ask, attempt, others)
        except LogGoneError as error:
            if attempt.live:
                return True  # its worker has not started it yet
            found.skip(error)
            return False
        found.data, found.offset = chunk.data, chunk.next_offset
        if found.within is not None and chunk.data and not chunk.timed:
            found.notes.append(f"attempt {attempt.number}: {WHOLE}")
        if chunk.data or chunk.live:
            return True
        if attempt.live:
            return True  # its end is not committed yet
        found.attempt, found.offset = attempt.number + 1, 0
        return False

    async def _chunk(
        self, ask: worker_pb2.ReadLog, attempt: Attempt, others: Sequence[int]
    ) -> worker_pb2.LogChunk:
        """Ask the attempt's worker or, if it is away, those that can read its log from the store."""
        assert attempt.worker_id is not None
        if attempt.here:
            return _sound(await self._ask(attempt.worker_id, ask), attempt)
        if attempt.live:
            raise WorkerAwayError(f"worker '{attempt.worker}', which runs the trial, is not connected now")
        able = [worker for worker in others if worker != attempt.worker_id][:OTHERS]
        if not able:
            raise WorkerAwayError(
                f"worker '{attempt.worker}', which ran attempt {attempt.number}, is away, and no other worker is "
                "connected that could read its log from the store"
            )
        failure: HeadraceError | None = None
        for worker_id in able:
            try:
                chunk = await self._ask(worker_id, ask)
            except WorkerAwayError as error:
                failure = error
                continue
            if chunk.trouble == worker_pb2.LOG_TROUBLE_UNSPECIFIED:
                return chunk
            if chunk.trouble == worker_pb2.LOG_TROUBLE_AWAY:
                failure = StoreAwayError("the store of the connected workers does not answer")
        raise failure or LogGoneError(
            f"its log is not in the store of the connected workers, and worker '{attempt.worker}' is away"
        )

    async def _ask(self, worker_id: int, ask: worker_pb2.ReadLog) -> worker_pb2.LogChunk:
        assert self.logs is not None, "a server that serves workers has it"
        return await self.logs.read(worker_id, ask)


def _sound(chunk: worker_pb2.LogChunk, attempt: Attempt) -> worker_pb2.LogChunk:
    match chunk.trouble:
        case worker_pb2.LOG_TROUBLE_UNSPECIFIED:
            return chunk
        case worker_pb2.LOG_TROUBLE_GONE:
            raise LogGoneError(f"its log is neither on worker '{attempt.worker}' nor in its store")
        case _:
            raise StoreAwayError(f"the disk or the store of worker '{attempt.worker}' does not answer")


def _response(found: _Answer, *, complete: bool) -> pb.ReadLogResponse:
    if complete and found.gone is not None and found.attempt == 2 and not found.data:
        raise found.gone  # of the only attempt
    return pb.ReadLogResponse(
        data=found.data,
        next_cursor=f"{found.attempt}:{found.offset}",
        complete=complete,
        notes=found.notes,
    )


def _parse(cursor: str) -> tuple[int, int]:
    if not cursor:
        return 1, 0
    parsed = _CURSOR.fullmatch(cursor)
    if parsed is None or not int(parsed[1]):
        raise InvalidFieldError(
            [
                Violation(
                    field="cursor",
                    value=show_value(cursor),
                    message="was not issued by this call",
                    remedy="Pass the `next_cursor` of the last answer unchanged, or none to start again.",
                )
            ]
        )
    return int(parsed[1]), int(parsed[2])
