"""A worker daemon as a trial sees it: the TrialRuntime service on a Unix socket, with scripted decisions."""

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import grpc

from headrace.trial.runtime import Value
from headrace.v1 import event_pb2, runtime_pb2, runtime_pb2_grpc, spec_pb2, worker_pb2

LEASE = f"lease-1-{os.getpid()}"
"""A lease id of its own: a worker's test on this machine ends every process that has one of its leases."""


@dataclass(kw_only=True)
class Daemon(runtime_pb2_grpc.TrialRuntimeServiceServicer):
    """Runs one trial over `rungs`; pauses it at each of `pauses`, and stops it at `max_steps`."""

    folder: Path
    target: str
    params: dict[str, Value] = field(default_factory=dict)
    rungs: Sequence[int] = (3,)
    pauses: Sequence[int] = ()
    metric: str = "loss"
    seed: int = 11
    # Calls to answer with UNAVAILABLE before the first that is accepted.
    unavailable: int = 0
    working_dir: str = ""
    python_path: str = ""
    # What was received.
    reports: list[runtime_pb2.ReportRequest] = field(default_factory=list)
    restored: list[float] = field(default_factory=list)
    finished: list[runtime_pb2.FinishRequest] = field(default_factory=list)
    checkpoint: Path | None = None
    checkpoint_step: int = 0

    def __enter__(self) -> "Daemon":
        self.lock = threading.Lock()
        self.slow = threading.Event()
        # A test may replace the answer to a report.
        self.hook = self._decide
        self.folder.mkdir(parents=True, exist_ok=True)
        self.server = grpc.server(ThreadPoolExecutor(4))
        runtime_pb2_grpc.add_TrialRuntimeServiceServicer_to_server(self, self.server)
        self.address = f"unix:{self.folder}/rt"
        self.server.add_insecure_port(self.address)
        self.server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.server.stop(grace=None).wait()

    def start(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Runs one process of the trial to its end, as a daemon would start it."""
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment |= {
            "HEADRACE_RUNTIME": self.address,
            "HEADRACE_LEASE_ID": LEASE,
            "PYTHONPATH": self.python_path,
        }
        return subprocess.run(
            [sys.executable, *(command or ("-m", "headrace.trial.process"))],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    def metrics(self, name: str) -> list[tuple[int, str]]:
        """The curve, as text that is equal exactly if the bits are."""
        return [(report.step, report.metrics[name].hex()) for report in self.reports]

    def Attach(
        self, request: runtime_pb2.AttachRequest, context: grpc.ServicerContext
    ) -> runtime_pb2.AttachResponse:
        self._refuse_at_first(context)
        if request.lease_id != LEASE:
            context.abort(grpc.StatusCode.NOT_FOUND, f"no lease {request.lease_id!r}")
        values = {name: _value(value) for name, value in self.params.items()}
        assign = worker_pb2.Assign(
            lease=event_pb2.LeaseRef(lease_id=LEASE, trial="studies/moons/trials/7"),
            parameters=spec_pb2.ParameterAssignment(values=values),
            resume_step=self.checkpoint_step,
            next_milestone=self._milestone_after(self.checkpoint_step),
            max_steps=self.rungs[-1],
            rungs=self.rungs,
            seed=self.seed,
            metric=self.metric,
            grant=worker_pb2.Grant(slots=[0, 1], milli=250, memory_bytes=2**34),
            template=spec_pb2.TrialTemplate(
                callable=self.target, working_dir=self.working_dir or str(self.folder)
            ),
        )
        return runtime_pb2.AttachResponse(
            assign=assign,
            restore_dir=str(self.checkpoint or ""),
            checkpoint_dir=str(self.folder / "checkpoints"),
        )

    def Restored(
        self,
        request: runtime_pb2.RestoredRequest,
        context: grpc.ServicerContext,  # noqa: ARG002 - generated
    ) -> runtime_pb2.RestoredResponse:
        self.restored.append(request.read_time.ToTimedelta().total_seconds())
        return runtime_pb2.RestoredResponse()

    def Report(
        self, request: runtime_pb2.ReportRequest, context: grpc.ServicerContext
    ) -> runtime_pb2.ReportResponse:
        return self.hook(request, context)

    def _decide(
        self, request: runtime_pb2.ReportRequest, context: grpc.ServicerContext
    ) -> runtime_pb2.ReportResponse:
        self._refuse_at_first(context)
        self.reports.append(request)
        milestone = self._milestone_after(self.checkpoint_step)
        if request.checkpoint_dir:
            self.checkpoint, self.checkpoint_step = Path(request.checkpoint_dir), request.step
        action = event_pb2.DECISION_ACTION_CONTINUE
        if request.step >= self.rungs[-1]:
            action = event_pb2.DECISION_ACTION_STOP
        elif request.step >= milestone and milestone in self.pauses:
            action = event_pb2.DECISION_ACTION_PAUSE
        decision = event_pb2.Decision(
            action=action, next_milestone=self._milestone_after(request.step), reason="as scripted"
        )
        return runtime_pb2.ReportResponse(decision=decision)

    def Finish(
        self,
        request: runtime_pb2.FinishRequest,
        context: grpc.ServicerContext,  # noqa: ARG002 - generated
    ) -> runtime_pb2.FinishResponse:
        self.finished.append(request)
        return runtime_pb2.FinishResponse()

    def _milestone_after(self, step: int) -> int:
        return next((rung for rung in self.rungs if rung > step), self.rungs[-1])

    def _refuse_at_first(self, context: grpc.ServicerContext) -> None:
        with self.lock:
            refuse = self.unavailable > 0
            self.unavailable -= refuse
        if refuse:
            context.abort(grpc.StatusCode.UNAVAILABLE, "not yet")


def _value(value: Value) -> spec_pb2.ParameterValue:
    match value:
        case bool():
            return spec_pb2.ParameterValue(bool_value=value)
        case int():
            return spec_pb2.ParameterValue(int_value=value)
        case float():
            return spec_pb2.ParameterValue(float_value=value)
        case str():
            return spec_pb2.ParameterValue(string_value=value)
