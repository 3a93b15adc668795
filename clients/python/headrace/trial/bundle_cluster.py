"""A bundle under a worker daemon: one call per turn carries all messages from and to its members.

Turns are numbered. A repeated turn has the same sequence, and the daemon gives the same answer.
"""

import os
from collections.abc import Iterable

from headrace.grants import BUNDLE
from headrace.trial import convert, stacks, title
from headrace.trial.bundle_runtime import Answer, Attached, Ended, Refused, Said, Seat
from headrace.trial.code import CodeTeller
from headrace.trial.line import Line
from headrace.trial.runtime import Decision, TrialRuntimeError
from headrace.v1 import runtime_pb2


class ClusterBundle:
    """The runtime of a bundle's process that a worker daemon spawned."""

    def __init__(self, address: str, grant_id: str) -> None:
        self._grant_id = grant_id
        self._line = Line(address)
        self._code = CodeTeller(self._line, lambda: runtime_pb2.LoadedRequest(grant_id=grant_id))
        self._sequence = 0
        self._attached = False

    @classmethod
    def from_environment(cls) -> "ClusterBundle":
        """Reads what the daemon passes: `HEADRACE_RUNTIME` and `HEADRACE_BUNDLE`."""
        if not os.environ.get("HEADRACE_RUNTIME"):
            raise TrialRuntimeError(f"{BUNDLE} is set and HEADRACE_RUNTIME is not: a worker sets both")
        title.show_trial(os.environ)
        return cls(os.environ["HEADRACE_RUNTIME"], os.environ[BUNDLE])

    def attach(self) -> Attached:
        """Asks the daemon for the current members."""
        stacks.show()  # prints the stacks of a crash; a hanging bundle is not asked for them
        request = runtime_pb2.AttachBundleRequest(grant_id=self._grant_id)
        answer = self._line.call(self._line.stub.AttachBundle, request)
        self._begin_code(answer.members)
        return Attached(members=tuple(map(_seat, answer.members)), seats=answer.seats, charges=True)

    def imported(self) -> None:
        """Reports the imported code, now that the function is imported."""
        self._code.tell()

    def _begin_code(self, members: Iterable[runtime_pb2.AttachResponse]) -> None:
        """The study, which follows from the first member."""
        if not self._attached and (first := next(iter(members), None)) is not None:
            self._attached = True
            self._code.begin(first.assign.template)

    def turn(self, said: Said) -> Answer:
        """Exchanges the messages of one turn."""
        self._code.tell()
        self._sequence += 1
        request = runtime_pb2.TurnRequest(
            grant_id=self._grant_id,
            sequence=self._sequence,
            restored=[convert.restored(lease, read_time_s) for lease, read_time_s in said.restored],
            reports=[convert.report(lease, report) for lease, report in said.reports],
            finished=[
                convert.finish(one.lease, error=one.error, traceback=one.traceback, own=one.own)
                for one in said.finished
            ],
            waits=said.waits,
        )
        answer = self._line.call(self._line.stub.Turn, request)
        self._begin_code(answer.joined)
        return Answer(
            decisions=tuple((one.lease_id, _verdict(one)) for one in answer.decisions),
            joined=tuple(map(_seat, answer.joined)),
            gone=tuple(answer.gone),
            over=answer.over,
        )

    def finish(self, end: Ended) -> None:
        """Reports how the program ended, and closes the connection. Does not report to a daemon that was given
        up.
        """
        if self._line.gone:
            return
        request = runtime_pb2.FinishBundleRequest(
            grant_id=self._grant_id,
            error=convert.head_of(end.error),
            traceback=convert.tail_of(end.traceback),
            out_of_memory=end.out_of_memory,
            of_each=end.of_each,
        )
        self._line.call(self._line.stub.FinishBundle, request)
        self._line.close()


def _seat(answer: runtime_pb2.AttachResponse) -> Seat:
    return Seat(lease=answer.assign.lease.lease_id, assignment=convert.assignment(answer))


def _verdict(told: runtime_pb2.MemberDecision) -> Decision | Refused:
    return Refused(reason=told.refused) if told.refused else convert.decision(told.decision)
