"""What a bundle's process reports and is told: one call per turn, for all of its members.

    restored → reports, until all are durable → ended members → if the process waits: until there is something to say
    → at most PATIENCE_S for decisions → the answer

Like an ordinary trial, a member continues from a report only when the report is durable. The decision on a report
at its milestone is part of the answer to this turn if it comes soon, else of a later answer. The others continue
meanwhile.

A turn that is repeated because its answer was lost joins the first call or gets its answer. The process makes one
turn after another, so only the last one is kept. A new process starts with new turns.
"""

import asyncio
import logging
from contextlib import suppress
from functools import partial

from headrace.checkpoints import CheckpointInvalidError
from headrace.v1 import event_pb2, runtime_pb2, worker_pb2
from headrace_worker.exits import Ending
from headrace_worker.reports import LeaseOverError, ReportInvalidError, TooManyReportsError
from headrace_worker.seats import Seat, Seats

log = logging.getLogger(__name__)
PATIENCE_S = 0.005
"""How long members that may continue wait for the decisions on others."""
_Asked = asyncio.Task[event_pb2.Decision]


class TurnInvalidError(ValueError):
    """A turn out of order; the text is for whoever wrote the program."""


class Turns:
    """The turns of one process."""

    def __init__(self, seats: Seats) -> None:
        self._seats = seats
        self._last = 0
        self._answer: asyncio.Task[runtime_pb2.TurnResponse] | None = None
        # Reports that are not durable yet, and those that are not answered.
        self._storing: set[_Asked] = set()
        self._asked: set[_Asked] = set()
        self._say: dict[str, runtime_pb2.MemberDecision] = {}
        self._strangers: list[str] = []
        # Set when the process must end.
        self.over = False

    @property
    def pending(self) -> bool:
        """Whether the process is waiting for an answer now: its silence is then not its own."""
        return self._answer is not None and not self._answer.done()

    def attach(self) -> runtime_pb2.AttachBundleResponse:
        """Takes aboard the members that may come, and names those that are aboard."""
        self._board()
        members = [seat.attempt.attach() for seat in self._seats.aboard if seat.stays]
        return runtime_pb2.AttachBundleResponse(members=members, seats=self._seats.most)

    async def turn(self, request: runtime_pb2.TurnRequest) -> runtime_pb2.TurnResponse:
        """Handles a turn; cancelling the call does not cancel the turn. Raises `TurnInvalidError`,
        `LeaseOverError`."""
        if self._answer is None or request.sequence != self._last:
            if request.sequence <= self._last:
                raise TurnInvalidError(
                    f"sequence {request.sequence} is not the next turn: the last turn was {self._last}; count up"
                )
            if self.pending:
                raise TurnInvalidError(
                    f"turn {self._last} has no answer yet; repeat it before turn {request.sequence}"
                )
            self._last = request.sequence
            self._answer = asyncio.create_task(self._process(request), name=f"turn {request.sequence}")
        answer = self._answer
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            if answer.cancelled():
                raise LeaseOverError("the bundle's process has ended") from None
            raise  # only the call was cancelled

    def forget(self, lease_id: str) -> None:
        """All that the answer still says about this member is that it is gone."""
        self._say.pop(lease_id, None)

    async def close(self) -> None:
        """Drops what is in progress: the process is gone."""
        self.over = True
        if self._answer is not None:
            self._answer.cancel()
            await asyncio.gather(self._answer, return_exceptions=True)

    async def _process(self, request: runtime_pb2.TurnRequest) -> runtime_pb2.TurnResponse:
        ended = {finish.lease_id for finish in request.finished}
        for left in self._seats.aboard:
            if left.told_in is not None and left.attempt.lease.lease_id not in ended:
                left.let_go()
        restored = [(self._seats.of(one.lease_id), one) for one in request.restored]
        await asyncio.gather(*(seat.attempt.restored(one) for seat, one in restored if seat))
        for report in request.reports:
            self._ask(report)
        await self._seats.until(lambda: not self._storing)
        for finish in request.finished:
            if seat := self._seats.of(finish.lease_id):
                seat.attempt.finish(finish)
        if request.waits:
            await self._seats.until(self._has_news)
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                await self._seats.until(lambda: not self._asked)
        return self._respond(request.sequence)

    def _ask(self, report: runtime_pb2.ReportRequest) -> None:
        seat = self._seats.of(report.lease_id)
        if seat is None or not seat.aboard:
            self._strangers.append(report.lease_id)
            return
        if not seat.stays and not seat.attempt.decided:
            return  # it was killed meanwhile, as the answer says
        asked: _Asked

        def durable() -> None:
            self._storing.discard(asked)
            self._seats.changed()

        asked = asyncio.create_task(seat.attempt.report(report, durable), name=f"report of {report.lease_id}")
        self._storing.add(asked)
        self._asked.add(asked)
        asked.add_done_callback(partial(self._answered, seat))

    def _answered(self, seat: Seat, asked: _Asked) -> None:
        self._storing.discard(asked)
        self._asked.discard(asked)
        lease_id = seat.attempt.lease.lease_id
        error = None if asked.cancelled() else asked.exception()
        if error is None and not asked.cancelled():
            self._say[lease_id] = runtime_pb2.MemberDecision(lease_id=lease_id, decision=asked.result())
        elif isinstance(error, (ReportInvalidError, CheckpointInvalidError, TooManyReportsError)):
            self._refuse(seat, worker_pb2.EXIT_OUTCOME_FAILED, str(error))
        elif error is not None and not isinstance(error, LeaseOverError):
            log.error("%s: its report failed", seat.attempt.lease.trial, exc_info=error)
            self._refuse(seat, worker_pb2.EXIT_OUTCOME_LOST, f"the worker failed: {error}")
        self._seats.changed()

    def _refuse(self, seat: Seat, outcome: worker_pb2.ExitOutcome.ValueType, why: str) -> None:
        seat.attempt.fail(Ending(outcome=outcome, error=why))
        lease_id = seat.attempt.lease.lease_id
        self._say[lease_id] = runtime_pb2.MemberDecision(lease_id=lease_id, refused=why)

    def _has_news(self) -> bool:
        gone = [seat for seat in self._seats.leaving if not seat.attempt.decided]
        return bool(self.over or self._say or self._strangers or gone or self._seats.waiting)

    def _respond(self, sequence: int) -> runtime_pb2.TurnResponse:
        said, self._say = self._say, {}
        response = runtime_pb2.TurnResponse(gone=self._strangers)
        self._strangers = []
        for lease_id, decision in said.items():
            if seat := self._seats.of(lease_id):
                response.decisions.append(decision)
                if decision.refused or decision.decision.action != event_pb2.DECISION_ACTION_CONTINUE:
                    seat.told_in = sequence
        for seat in self._seats.leaving:
            if not seat.attempt.decided:  # else it gets that answer when it reports
                seat.told_in = sequence
                response.gone.append(seat.attempt.lease.lease_id)
        response.joined.extend(seat.attempt.attach() for seat in self._board())
        response.over = self.over
        return response

    def _board(self) -> list[Seat]:
        """Takes aboard the members that may come."""
        joining = [] if self.over else self._seats.waiting
        for seat in joining:
            seat.aboard = True
        return joining
