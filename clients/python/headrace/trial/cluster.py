"""A trial under a worker daemon: unary gRPC over the daemon's Unix socket.

The daemon outlives a lost scheduler, and a trial does not outlive its daemon (the kernel kills it). So a
daemon that cannot be reached is retried for seconds, not for ever. A report at a milestone waits as long as
the scheduler needs: each call has a deadline, and a call that runs into it is simply repeated with the same
sequence.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import grpc
import tenacity
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from headrace.grants import DEFAULT_RANK_PATIENCE_S, RANK
from headrace.trial import ends, gang, title
from headrace.trial.runtime import Action, Assignment, DaemonGone, Decision, Report, TrialRuntimeError
from headrace.v1 import event_pb2, runtime_pb2, runtime_pb2_grpc, spec_pb2

# An attach may fetch a checkpoint from far away; a milestone may wait for a scheduler that is being restarted.
_DEADLINE_S = 600.0
_UNREACHABLE_FOR_S = 15.0
_TELL_S = 10.0
# Of an error's text and of a traceback, which may hold whole tensors; the worker keeps less.
_TOLD_CHARACTERS = 16 << 10

_ACTIONS = {
    event_pb2.DECISION_ACTION_CONTINUE: Action.CONTINUE,
    event_pb2.DECISION_ACTION_PAUSE: Action.PAUSE,
    event_pb2.DECISION_ACTION_STOP: Action.STOP,
}
_Answer = TypeVar("_Answer", bound=Message)


class ClusterRuntime:
    """The runtime of a process that a worker daemon spawned."""

    def __init__(self, address: str, lease_id: str, rank: int | None = None) -> None:
        self._address = address
        self._lease_id = lease_id
        self._rank = rank or 0
        self._in_gang = rank is not None
        # A daemon never lies behind a proxy, whatever the environment says.
        self._channel = grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)])
        self._stub = runtime_pb2_grpc.TrialRuntimeServiceStub(self._channel)
        self._gone = False

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
        return cls(os.environ["HEADRACE_RUNTIME"], os.environ["HEADRACE_LEASE_ID"], rank)

    def attach(self) -> Assignment:
        """Asks the daemon who this trial is and where it continues."""
        request = runtime_pb2.AttachRequest(lease_id=self._lease_id, rank=self._rank)
        answer = self._call(lambda: self._stub.Attach(request, timeout=_DEADLINE_S))
        values = answer.parameters.values
        return Assignment(
            trial=answer.trial,
            params={
                name: getattr(values[name], values[name].WhichOneof("kind") or "") for name in sorted(values)
            },
            max_steps=answer.max_steps,
            next_milestone=answer.next_milestone,
            seed=answer.seed,
            metric=answer.metric,
            further_metrics=tuple(answer.further_metrics),
            constraint_metrics=tuple(answer.constraint_metrics),
            rungs=tuple(answer.rungs),
            restore_dir=Path(answer.restore_dir) if answer.restore_dir else None,
            resume_step=answer.resume_step,
            last_step=answer.last_step,
            checkpoint_dir=Path(answer.checkpoint_dir) if answer.checkpoint_dir else None,
            slots=tuple(answer.slots),
            rank=self._rank,
            ranks=max(1, len(answer.slots)) if self._in_gang else 1,
            rank_patience_s=_patience_s(answer.template),
            target=answer.template.callable,
            working_dir=answer.template.working_dir,
        )

    def restored(self, *, read_time_s: float) -> None:
        """Says that the loop begins; rank 0 speaks for its gang."""
        if self._rank:
            return
        request = runtime_pb2.RestoredRequest(lease_id=self._lease_id, read_time=_duration(read_time_s))
        self._call(lambda: self._stub.Restored(request, timeout=_DEADLINE_S))

    def report(self, report: Report) -> Decision:
        """Passes the report on; returns when there is a decision."""
        request = runtime_pb2.ReportRequest(
            lease_id=self._lease_id,
            sequence=report.sequence,
            step=report.step,
            metrics=report.metrics,
            checkpoint_dir=str(report.checkpoint_dir or ""),
            train_time=_duration(report.train_time_s),
            save_time=_duration(report.save_time_s),
            rank=self._rank,
            warnings=report.warnings,
        )
        decision = self._call(lambda: self._stub.Report(request, timeout=_DEADLINE_S)).decision
        action = _ACTIONS.get(decision.action)
        if action is None:
            raise TrialRuntimeError(
                f"the worker answered with the unknown decision {decision.action}; it is newer than this Headrace"
            )
        return Decision(action=action, next_milestone=decision.next_milestone, reason=decision.reason)

    def finish(self, *, error: str, traceback: str) -> None:
        """Says how the program ended, and closes the connection. A daemon that was given up is told nothing: it counts
        the trial as lost, and the end of a script that lost its daemon is no end of the training.

        The failure of a rank is its gang's leader's to tell: the first error of several is the cause."""
        if self._gone or (self._rank and not error):
            return
        if error and ends.speak(error=error[:_TOLD_CHARACTERS], traceback=traceback[-_TOLD_CHARACTERS:]):
            return
        request = runtime_pb2.FinishRequest(
            lease_id=self._lease_id,
            error=error[:_TOLD_CHARACTERS],
            traceback=traceback[-_TOLD_CHARACTERS:],
            rank=self._rank,
        )
        self._call(lambda: self._stub.Finish(request, timeout=_DEADLINE_S))
        self._channel.close()

    def tell_end(self, end: "ends.End") -> None:
        """Says how the rank ended that ended its gang: what the leader tells of it."""
        request = runtime_pb2.FinishRequest(
            lease_id=self._lease_id,
            error=str(end)[:_TOLD_CHARACTERS] if end.error else "",
            traceback=end.traceback,
            rank=end.rank,
            exit_code=0 if end.error else end.code or 0,
        )
        self._call(lambda: self._stub.Finish(request, timeout=_TELL_S))
        self._channel.close()

    def _call(self, call: Callable[[], _Answer]) -> _Answer:
        while True:
            retrying = tenacity.Retrying(
                retry=tenacity.retry_if_exception(lambda error: _code(error) is grpc.StatusCode.UNAVAILABLE),
                stop=tenacity.stop_after_delay(_UNREACHABLE_FOR_S),
                wait=tenacity.wait_random_exponential(multiplier=0.05, max=1.0),
                reraise=True,
            )
            try:
                return retrying(call)
            except grpc.RpcError as error:
                if _code(error) is grpc.StatusCode.DEADLINE_EXCEEDED:
                    continue  # the daemon is there, and still waiting for the decision
                raise self._refusal(error) from error

    def _refusal(self, error: grpc.RpcError) -> TrialRuntimeError | DaemonGone:
        details = error.details() if isinstance(error, grpc.Call) else str(error)
        if _code(error) is grpc.StatusCode.UNAVAILABLE:
            gone = DaemonGone(f"the worker at {self._address} does not answer any more ({details})")
            print(f"headrace: {gone}", file=sys.stderr)
            self._gone = True
            return gone
        refusal = TrialRuntimeError(f"the worker at {self._address} refuses the trial's call: {details}")
        ends.speak(error=f"TrialRuntimeError: {refusal}", traceback="")
        return refusal


def _patience_s(template: spec_pb2.TrialTemplate) -> float:
    """How long a rank of a gang may be late: as long as the study lets a trial be silent, else a minute."""
    if not template.HasField("report_timeout"):
        return DEFAULT_RANK_PATIENCE_S
    return template.report_timeout.ToTimedelta().total_seconds()


def _code(error: BaseException) -> grpc.StatusCode | None:
    return error.code() if isinstance(error, grpc.Call) else None


def _duration(seconds: float) -> Duration:
    return Duration(seconds=int(seconds), nanos=int((seconds % 1.0) * 1e9))
