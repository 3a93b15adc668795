"""The runtime of a trial under a worker daemon, when the daemon is slow, strict or gone."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from scripted_daemon import LEASE, Daemon

from headrace.trial import TrialRuntimeError, cluster, line
from headrace.trial.runtime import Action, DaemonGone, Report
from headrace.v1 import runtime_pb2

REPORT = Report(
    sequence=4, step=3, metrics={"loss": 0.5}, checkpoint_dir=None, train_time_s=61.25, save_time_s=0.5
)


def test_a_report_that_waits_past_its_deadline_is_repeated(
    daemon: Callable[..., Daemon], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = daemon("", rungs=(3,))
    calls: list[int] = []
    answer = place.hook

    def slow_at_first(
        request: runtime_pb2.ReportRequest, context: grpc.ServicerContext
    ) -> runtime_pb2.ReportResponse:
        calls.append(request.sequence)
        if len(calls) == 1:
            place.slow.wait(10)  # until the client has given up on this call
        return answer(request, context)

    monkeypatch.setattr(place, "hook", slow_at_first)
    monkeypatch.setattr(line, "DEADLINE_S", 0.2)
    runtime = cluster.ClusterRuntime(place.address, LEASE)
    decision = runtime.report(REPORT)
    place.slow.set()
    assert (decision.action, decision.reason) == (Action.STOP, "as scripted")
    assert calls == [4, 4], "a repeat has the same sequence"
    assert place.reports[0].train_time.ToTimedelta().total_seconds() == 61.25
    runtime.finish(error="", traceback="")


def test_a_daemon_that_is_gone_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line, "_UNREACHABLE_FOR_S", 0.2)
    runtime = cluster.ClusterRuntime(f"unix:{tmp_path}/gone", LEASE)
    with pytest.raises(DaemonGone, match=r"the worker at unix:.*gone no longer answers") as gone:
        runtime.report(REPORT)
    assert gone.value.code == DaemonGone.STATUS
    runtime.finish(error="", traceback="")  # at the interpreter's exit: reports nothing, and waits for nobody


def test_a_lease_that_is_not_the_daemons_is_refused(daemon: Callable[..., Daemon]) -> None:
    runtime = cluster.ClusterRuntime(daemon("").address, "another")
    with pytest.raises(TrialRuntimeError, match="refuses the trial's call: no lease 'another'"):
        runtime.attach()


def test_a_process_without_its_daemon_ends_with_a_status_of_its_own(tmp_path: Path) -> None:
    environment = {**os.environ, "HEADRACE_RUNTIME": f"unix:{tmp_path}/gone", "HEADRACE_LEASE_ID": "l"}
    start = (
        "import sys; from headrace.trial import line, process; "
        "line._UNREACHABLE_FOR_S = 0.2; sys.exit(process.main())"
    )
    ended = subprocess.run(
        [sys.executable, "-c", start],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == DaemonGone.STATUS
    assert "no longer answers" in ended.stderr
    assert "Traceback" not in ended.stderr
