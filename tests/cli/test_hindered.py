"""The views of a study and of a trial show what its worker says: a full disk, a program being prepared."""

import threading

import pytest
from commands_run import Invoke
from fake_study_service import FakeStudyService
from scripted_study import race

from headrace.cli import hindered
from headrace.client import Client
from headrace.v1 import study_pb2, trial_pb2

FULL = "checkpoints cannot be stored in file:///data: No space left on device"
PREPARES = "studies/digits/trials/4: installs requirements.txt"


@pytest.fixture
def worker(fake: FakeStudyService) -> study_pb2.WorkerStatus:
    """A worker that runs trials 4 and 5 of a study, and has a full disk."""
    script = race("digits")
    script.final.study.state = study_pb2.STUDY_STATE_ACTIVE
    for number in (4, 5):
        script.final.trials[number].state = trial_pb2.TRIAL_STATE_RUNNING
        script.final.trials[number].worker = "workers/node-1"
    fake.add(script)
    worker = study_pb2.WorkerStatus(name="workers/node-1", connected=True, trouble=f"{FULL}; {PREPARES}")
    slot = worker.slots.add(index=0, device="CPU", trial="studies/digits/trials/4")
    for number in (4, 5):
        slot.holders.add(trial=f"studies/digits/trials/{number}", milli=500)
    fake.workers.append(worker)
    return worker


@pytest.mark.parametrize("command", [["why", "digits", "4"], ["show", "digits", "4"]])
def test_a_trial_is_shown_with_what_its_worker_says(
    worker: study_pb2.WorkerStatus, invoke: Invoke, command: list[str]
) -> None:
    done = invoke(*command)
    assert f"worker node-1: {FULL}; installs requirements.txt" in done.out + done.err
    worker.trouble = ""
    done = invoke(*command)
    assert "worker node-1:" not in done.out + done.err


def test_what_it_says_of_another_trial_is_left_out(
    worker: study_pb2.WorkerStatus, fake: FakeStudyService, invoke: Invoke
) -> None:
    done = invoke("show", "digits", "5")
    assert f"worker node-1: {FULL}\n" in done.out + done.err
    fake.add(race("another"))
    for command in (["show", "digits"], ["trials", "digits"]):
        done = invoke(*command)
        assert f"worker node-1: {FULL}; {PREPARES}" in done.out + done.err
    assert "node-1" not in invoke("trials", "another").err, "it runs none of these"
    worker.connected = False
    assert FULL not in invoke("show", "digits", "5").err


def test_a_view_that_is_open_is_told_when_it_changes(
    worker: study_pb2.WorkerStatus, fake: FakeStudyService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hindered, "POLL_S", 0.01)
    told: list[list[str]] = []
    heard = threading.Semaphore(0)

    def tell(said: list[str]) -> None:
        told.append(said)
        heard.release()

    with Client(fake.address) as client, hindered.watched(client, "digits", tell):
        assert heard.acquire(timeout=10)
        worker.trouble = ""
        assert heard.acquire(timeout=10)
    assert told == [[f"worker node-1: {FULL}; {PREPARES}"], []]
