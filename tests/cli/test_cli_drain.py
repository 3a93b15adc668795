"""`headrace drain`, `undrain`, `cordon` and `uncordon` in a pipe, and what the lists and the doctor show of them."""

import json
from typing import Any

import pytest
from commands_run import Invoke
from fake_study_service import FakeStudyService
from scripted_study import Script

from headrace.cli import drain
from headrace.errors import WorkerNotFoundError
from headrace.v1 import study_pb2


@pytest.fixture
def node(fake: FakeStudyService) -> study_pb2.WorkerStatus:
    """A worker with two trials."""
    worker = study_pb2.WorkerStatus(name="workers/node-1", connected=True)
    for index in range(2):
        slot = worker.slots.add(index=index, device="NVIDIA H200", uuid=f"GPU-{index}")
        slot.holders.add(trial=f"studies/digits/trials/{index + 1}", milli=1000)
        slot.trial = slot.holders[0].trial
    fake.workers.append(worker)
    return worker


def test_a_drain_waits_and_says_where_each_trial_is(
    fake: FakeStudyService, node: study_pb2.WorkerStatus, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[float] = []

    def leaves(_: float) -> None:
        looks.append(0)
        node.slots[len(looks) - 1].ClearField("holders")

    monkeypatch.setattr(drain.time, "sleep", leaves)
    done = invoke("drain", "node-1", "--reason", "reboot", "--grace", "60")
    assert done.code == 0, done.err
    [request] = fake.requests["DrainWorker"]
    assert (request.worker, request.reason, request.grace.seconds) == ("workers/node-1", "reboot", 60)
    assert len(looks) == 2
    first, header, *rows = done.out.splitlines()
    assert first == "node-1 gets no trials. 2 trials leave it, each at its next report."
    assert header.split() == ["TRIAL", "STATE", "STEP", "NOW", "ON"]
    assert [row.split()[0] for row in rows] == ["digits/1", "digits/2"]
    assert "digits/1 has left" in done.err


def test_a_drain_that_is_not_waited_for(
    fake: FakeStudyService, node: study_pb2.WorkerStatus, invoke: Invoke
) -> None:
    done = invoke("drain", "node-1", "--no-wait")
    assert "2 trials leave it" in done.out
    assert "headrace undrain node-1" in done.err
    assert not fake.requests["GetTrial"]
    told = json.loads(invoke("drain", "node-1", "--no-wait", "--json").out)
    assert told["worker"]["draining"] == "a user drained it"
    assert [one["trial"] for one in told["trials"]] == ["digits/1", "digits/2"]


def test_a_drain_that_somebody_takes_back_ends_the_wait(
    fake: FakeStudyService, node: study_pb2.WorkerStatus, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain.time, "sleep", lambda _: node.ClearField("draining"))
    done = invoke("drain", "node-1")
    assert done.code == 1
    assert "The drain of node-1 was cancelled" in done.err


def test_a_worker_that_is_away_or_unknown(
    fake: FakeStudyService, node: study_pb2.WorkerStatus, invoke: Invoke
) -> None:
    node.connected = False
    assert "The drain is recorded: it gets no trials when it reconnects." in invoke("drain", "node-1").out
    fake.fail_next("DrainWorker", WorkerNotFoundError("there is no worker 'nobody'"))
    done = invoke("drain", "nobody")
    assert done.code == 1
    assert "there is no worker 'nobody'" in done.err
    assert "headrace workers" in done.err


@pytest.mark.parametrize("words", [("drain", "node-1", "--undo"), ("undrain", "node-1")])
def test_a_drain_is_taken_back(
    fake: FakeStudyService, node: study_pb2.WorkerStatus, invoke: Invoke, words: tuple[str, ...]
) -> None:
    assert invoke(*words).out == "node-1 gets trials again.\n"
    assert fake.requests["UndrainWorker"][0].worker == "workers/node-1"


def test_devices_are_cordoned_and_uncordoned(
    fake: FakeStudyService, node: study_pb2.WorkerStatus, invoke: Invoke
) -> None:
    done = invoke("cordon", "node-1", "--device", "0", "--device", "1", "--reason", "fan")
    assert done.out == "Nothing new starts on slots 0, 1 of node-1.\n"
    [request] = fake.requests["CordonDevices"]
    assert (list(request.devices), request.reason) == ([0, 1], "fan")
    assert invoke("uncordon", "node-1").out == "Trials may start on node-1 again.\n"
    node.cordoned = "loud"
    assert "but the worker is cordoned: loud" in invoke("uncordon", "node-1", "--device", "0").out


def test_the_lists_and_the_doctor_say_what_gets_no_trials(
    node: study_pb2.WorkerStatus, invoke: Invoke
) -> None:
    node.draining = "reboot"
    node.cordoned = "loud"
    node.cordons.add(device=1, uuid="GPU-1", reason="fan")
    node.slots[1].ClearField("holders")
    node.slots[1].trial = ""
    listed = invoke("workers")
    assert listed.out.splitlines()[1].split()[:2] == ["node-1", "draining"]
    assert "cordoned" in listed.out.splitlines()[2]
    assert "node-1 is draining and gets no trials: reboot; 1 trial to leave" in listed.err
    assert "node-1 slot 1 gets no trials, it is cordoned: fan" in listed.err
    (found,) = json.loads(invoke("workers", "--json").out)
    assert (found["draining"], found["cordoned"]) == ("reboot", "loud")
    assert found["cordons"][0]["device"] == 1
    said: list[dict[str, Any]] = json.loads(invoke("doctor", "--json").out)
    remedies = [one["remedy"] for one in said if one["what"] == "worker node-1"]
    assert remedies == [
        "headrace undrain node-1",
        "headrace uncordon node-1",
        "headrace uncordon node-1 --device 1",
    ]


def test_the_sdk_takes_what_it_prints(
    node: study_pb2.WorkerStatus, fake: FakeStudyService, script: Script
) -> None:
    from headrace import Client

    with Client(fake.address) as client:
        assert [str(trial) for trial in client.drain("workers/node-1").trials] == ["digits/1", "digits/2"]
        assert client.undrain("node-1").draining == ""
    assert script.name == "studies/digits"
