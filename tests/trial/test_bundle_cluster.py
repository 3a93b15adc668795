"""The runtime of a bundle over the daemon: what is repeated, and what is converted."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from headrace.trial import convert
from headrace.trial.bundle_cluster import ClusterBundle
from headrace.trial.bundle_runtime import Finish, Refused, Said
from headrace.trial.runtime import Action, Decision, Report
from headrace.v1 import event_pb2, runtime_pb2, runtime_pb2_grpc, worker_pb2


def attached(lease: str, trial: str) -> runtime_pb2.AttachResponse:
    return runtime_pb2.AttachResponse(
        assign=worker_pb2.Assign(lease=event_pb2.LeaseRef(lease_id=lease, trial=trial))
    )


class Daemon(runtime_pb2_grpc.TrialRuntimeServiceServicer):
    """Loses the first answer to each call."""

    def __init__(self) -> None:
        self.turns: list[runtime_pb2.TurnRequest] = []

    def Turn(
        self, request: runtime_pb2.TurnRequest, context: grpc.ServicerContext
    ) -> runtime_pb2.TurnResponse:
        self.turns.append(request)
        if len(self.turns) % 2:
            context.abort(grpc.StatusCode.UNAVAILABLE, "lost")
        continues = event_pb2.Decision(action=event_pb2.DECISION_ACTION_CONTINUE, next_milestone=9)
        return runtime_pb2.TurnResponse(
            decisions=[
                runtime_pb2.MemberDecision(lease_id="a", decision=continues),
                runtime_pb2.MemberDecision(lease_id="b", refused="no"),
            ],
            joined=[attached("c", "studies/s/trials/3")],
            gone=["d"],
        )


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[tuple[Daemon, str]]:
    server = grpc.server(ThreadPoolExecutor(1))
    servicer = Daemon()
    runtime_pb2_grpc.add_TrialRuntimeServiceServicer_to_server(servicer, server)  # type: ignore[arg-type]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield servicer, f"127.0.0.1:{port}"
    server.stop(grace=None).wait()


def test_a_turn_that_is_lost_is_repeated_with_its_sequence(daemon: tuple[Daemon, str]) -> None:
    servicer, address = daemon
    runtime = ClusterBundle(address, "grant-1")
    report = Report(
        sequence=4, step=3, metrics={"loss": 0.5}, checkpoint_dir=None, train_time_s=1.5, save_time_s=0
    )
    said = Said(reports=(("a", report),), finished=(Finish(lease="e", error="bad", traceback="t"),))
    answer = runtime.turn(said)
    assert answer.decisions == (
        ("a", Decision(action=Action.CONTINUE, next_milestone=9)),
        ("b", Refused(reason="no")),
    )
    assert [seat.lease for seat in answer.joined] == ["c"]
    assert answer.gone == ("d",)
    assert servicer.turns[0] == servicer.turns[1]
    runtime.turn(Said(waits=True))
    assert [turn.sequence for turn in servicer.turns] == [1, 1, 2, 2]
    assert servicer.turns[0].reports[0].metrics["loss"] == 0.5
    assert servicer.turns[0].finished[0].error == "bad"


def test_a_trials_id_is_that_of_its_lease_without_the_attempt() -> None:
    assert convert.assignment(attached("9cf138c63bd0.7.2", "studies/a/trials/7")).id == "9cf138c63bd0-7"
