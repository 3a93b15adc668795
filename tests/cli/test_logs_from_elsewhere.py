"""`headrace logs` of a trial whose worker is on another machine: the scheduler reads it."""

import json
from typing import Any

import grpc
import pytest
from commands_run import Invoke
from fake_study_service import FakeStudyService

from headrace.cli import logs
from headrace.errors import LogGoneError, StoreAwayError, WorkerAwayError
from headrace.v1 import study_pb2 as pb

AWAY = WorkerAwayError("worker 'gpu-7', which runs the trial, is not connected now")


class Reading(FakeStudyService):
    """A service with a log, in parts."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = [b"epoch 1\n", b"epoch 2\n", b""]
        self.asked: list[str] = []
        self.within: list[Any] = []
        self.info = pb.GetServerInfoResponse(
            version="0.1.0", database_schema="0040", program_schema="0039", metrics="10.0.0.5:9440"
        )

    def ReadLog(self, request: Any, context: grpc.ServicerContext) -> Any:
        trap = self._begin("ReadLog", request, context)
        self.asked.append(request.cursor)
        self.within.append(request.within if request.HasField("within") else None)
        place = int(request.cursor or 0)
        data = self.parts[min(place, len(self.parts) - 1)]
        complete = place >= len(self.parts) - 1
        notes = ["attempt 1: its log is gone"] if not place else []
        self._finish(trap, context)
        return pb.ReadLogResponse(data=data, next_cursor=str(place + 1), complete=complete, notes=notes)

    def GetServerInfo(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._begin("GetServerInfo", request, context)
        return self.info


@pytest.fixture
def reading(fake: FakeStudyService, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A service that replaces the fixture's, with the same study."""
    service = Reading()
    service.answers, service.batch = fake.answers, fake.batch
    for script in fake.scripts.values():
        service.add(script)
    monkeypatch.setenv("HEADRACE_ADDRESS", service.address)
    monkeypatch.setattr(logs, "POLL_S", 0.01)
    yield service
    service.stop()


@pytest.mark.parametrize("options", [(), ("-f",)])
def test_it_is_printed_part_by_part(reading: Reading, invoke: Invoke, options: tuple[str, ...]) -> None:
    result = invoke("logs", "digits", "5", *options)
    assert (result.code, result.out) == (0, "epoch 1\nepoch 2\n")
    assert reading.asked == ["", "1", "2"]
    assert "attempt 1: its log is gone" in result.err


@pytest.mark.parametrize("options", [(), ("-f",)])
@pytest.mark.parametrize(
    ("lines", "out"), [(0, ""), (1, "epoch 2\n"), (2, "epoch 1\nepoch 2\n"), (9, "epoch 1\nepoch 2\n")]
)
def test_the_last_lines_of_it(
    reading: Reading, invoke: Invoke, options: tuple[str, ...], lines: int, out: str
) -> None:
    reading.parts = [b"epoch 1\nepo", b"ch 2\n", b""]
    assert invoke("logs", "digits", "5", "--tail", str(lines), *options).out == out


def test_a_worker_that_is_away_is_told_and_waited_for(reading: Reading, invoke: Invoke) -> None:
    reading.fail_next("ReadLog", AWAY)
    result = invoke("logs", "digits", "5")
    assert result.code == 1
    assert "worker 'gpu-7', which runs the trial, is not connected now" in result.err
    assert "headrace workers" in result.err
    assert not result.out


@pytest.mark.parametrize(
    "error", [AWAY, LogGoneError("its log is gone"), StoreAwayError("the store is away")]
)
def test_of_a_failed_trial_the_kept_end_is_printed(reading: Reading, invoke: Invoke, error: Any) -> None:
    reading.fail_next("ReadLog", error)
    result = invoke("logs", "digits", "13")
    assert result.code == 0
    assert result.out.startswith("Traceback (most recent call last)")
    assert error.message in result.err


def test_the_doctor_says_which_schema_is_there_and_where_metrics_are(
    reading: Reading, invoke: Invoke
) -> None:
    findings = {one["what"]: one for one in json.loads(invoke("doctor", "--json").out)}
    assert findings["schema"]["level"] == "warn"
    assert "the database has 0040, and the scheduler expects 0039" in findings["schema"]["text"]
    assert "http://10.0.0.5:9440/metrics" in findings["metrics"]["text"]
    reading.info.database_schema, reading.info.metrics = "0039", ""
    findings = {one["what"]: one for one in json.loads(invoke("doctor", "--json").out)}
    assert findings["schema"]["level"] == "ok"
    assert "--metrics-listen" in findings["metrics"]["text"]
