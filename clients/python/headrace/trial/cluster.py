"""A trial under a worker daemon: the calls that it makes on its connection (`line`).

A report at a milestone waits as long as the scheduler needs.
"""

import os
import time
from datetime import timedelta

from headrace.grants import RANK
from headrace.trial import convert, ends, gang, job_signals, stacks, title
from headrace.trial.code import CodeTeller
from headrace.trial.line import Line
from headrace.trial.runtime import (
    INFEASIBLE,
    TOLD,
    UNREADABLE,
    Assignment,
    Decision,
    OwnEnd,
    Report,
    TrialRuntimeError,
)
from headrace.v1 import runtime_pb2

_TELL_S = 10.0


class _Processor:
    """The processor time of this process."""

    def __init__(self) -> None:
        self._began_s = 0.0

    def begin(self) -> None:
        """A trial has ended."""
        self._began_s = time.process_time()

    def since_last_trial(self) -> float:
        """In seconds, since the trial before this one or the start of the process."""
        return time.process_time() - self._began_s


_processor = _Processor()


class ClusterRuntime:
    """The runtime of a process that a worker daemon spawned."""

    def __init__(self, address: str, lease_id: str, rank: int | None = None) -> None:
        self._lease_id = lease_id
        self._rank = rank or 0
        self._in_gang = rank is not None
        # The processor time until the function was imported; None for a program that is no function.
        self._imports_s: float | None = None
        self._line = Line(address)
        self._code = CodeTeller(self._line, lambda: runtime_pb2.LoadedRequest(lease_id=lease_id))

    @classmethod
    def from_environment(cls) -> "ClusterRuntime":
        """Reads what the daemon passes: `HEADRACE_RUNTIME` and `HEADRACE_LEASE_ID`."""
        missing = [name for name in ("HEADRACE_RUNTIME", "HEADRACE_LEASE_ID") if not os.environ.get(name)]
        if missing:
            raise TrialRuntimeError(
                f"{' and '.join(missing)} not set: a worker starts this program; by hand, run the script itself"
            )
        rank = int(os.environ[RANK]) if RANK in os.environ else None
        if rank is not None:
            gang.die_with_parent()
            ends.open_line()
        title.show_trial(os.environ)
        job_signals.hold()
        return cls(os.environ["HEADRACE_RUNTIME"], os.environ["HEADRACE_LEASE_ID"], rank)

    def attach(self) -> Assignment:
        """Asks the daemon which trial this is and where it continues."""
        request = runtime_pb2.AttachRequest(
            lease_id=self._lease_id,
            rank=self._rank,
            finishes=not self._rank,
            stack_signal=stacks.show(),
        )
        answer = self._line.call(self._line.stub.Attach, request)
        self._code.begin(answer.assign.template)
        return convert.assignment(answer, rank=self._rank, in_gang=self._in_gang)

    def imported(self) -> None:
        """Reports the imported code, now that the function is imported."""
        self._imports_s = _processor.since_last_trial()
        self._code.tell()

    def restored(self, *, read_time_s: float) -> None:
        """Reports that the loop starts; rank 0 does so for its gang."""
        if self._rank:
            return
        self._line.call(self._line.stub.Restored, convert.restored(self._lease_id, read_time_s))

    def report(self, report: Report) -> Decision:
        """Sends the report; returns when there is a decision."""
        self._code.tell()
        request = convert.report(self._lease_id, report, rank=self._rank)
        return convert.decision(self._line.call(self._line.stub.Report, request).decision)

    def finish(self, *, error: str, traceback: str, own: OwnEnd = TOLD) -> None:
        """Reports how the program ended, and closes the connection. Does not report to a daemon that was given
        up: it counts the trial as lost, and the end of a script without its daemon is not the end of the
        training.

        The leader of a gang reports a rank's failure, because the first error of several is the cause."""
        if self._line.gone or (self._rank and not error):
            return
        said, trace = convert.head_of(error), convert.tail_of(traceback)
        if error and ends.speak(
            error=said, traceback=trace, unreadable=own.unreadable, infeasible=own.infeasible
        ):
            return
        request = convert.finish(self._lease_id, error=error, traceback=traceback, rank=self._rank, own=own)
        if self._imports_s is not None:
            request.processor.FromTimedelta(timedelta(seconds=_processor.since_last_trial()))
            request.processor_of_imports.FromTimedelta(timedelta(seconds=self._imports_s))
        self._line.call(self._line.stub.Finish, request)
        self._line.close()
        _processor.begin()

    def tell_end(self, end: "ends.End") -> None:
        """Reports how the rank ended that ended its gang; called by the leader."""
        request = convert.finish(
            self._lease_id,
            error=str(end) if end.error else "",
            traceback=end.traceback,
            rank=end.rank,
            exit_code=0 if end.error else end.code or 0,
            own=INFEASIBLE if end.infeasible else UNREADABLE if end.unreadable else TOLD,
        )
        self._line.call(self._line.stub.Finish, request, deadline_s=_TELL_S)
        self._line.close()
