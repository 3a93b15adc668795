"""`headrace workers` and `headrace cluster` in a pipe: slots, devices, bundles."""

import json
import re
from datetime import UTC, datetime

import pytest
from commands_run import Invoke
from fake_study_service import FakeStudyService

from headrace.bounds import numbers
from headrace.v1 import study_pb2


def test_workers(fake: FakeStudyService, invoke: Invoke) -> None:
    assert "headrace worker" in invoke("workers").err
    worker = study_pb2.WorkerStatus(name="workers/node-1", connected=True, labels={"zone": "a"})
    worker.slots.add(index=0, device="NVIDIA H200", memory_bytes=2**37, trial="studies/digits/trials/4")
    worker.slots[0].uuid = "GPU-1"
    fake.workers.append(worker)
    (found,) = json.loads(invoke("workers", "--json").out)
    assert found["slots"] == [
        {
            "index": 0,
            "device": "NVIDIA H200",
            "memory_bytes": 2**37,
            "trial": "digits/4",
            "elsewhere": 0.0,
            "defect": "",
            "uuid": "GPU-1",
            "loads": [],
        }
    ]
    assert "128.0 GiB" in invoke("workers").out


@pytest.mark.parametrize("command", ["workers", "cluster"])
def test_how_busy_devices_are(fake: FakeStudyService, invoke: Invoke, command: str) -> None:
    worker = study_pb2.WorkerStatus(name="workers/node-1", connected=True)
    slot = worker.slots.add(index=0, device="H200", memory_bytes=2**37)
    for minute, utilization in ((60, 0.2), (120, 0.9)):
        slot.loads.add(minute={"seconds": minute}, utilization=utilization, memory_used_bytes=3 * 2**30)
    fake.workers.append(worker)
    header, row = invoke(command).out.splitlines()[:2]
    at = header.index("LOAD")
    assert header[at:].split()[:3] == ["LOAD", "HOUR", "USED"]
    assert "90 %  55 %  3.0 GiB" in row
    shown = json.loads(invoke(command, "--json").out)
    (of_slot,) = (shown["workers"] if command == "cluster" else shown)[-1]["slots"]
    assert of_slot["loads"][1] == {
        "minute": "1970-01-01T00:02:00+00:00",
        "utilization": 0.9,
        "memory_used_bytes": 3 * 2**30,
    }
    assert fake.requests["ListWorkers"][-2 if command == "cluster" else -1].history
    worker.connected = False
    fake.workers[:] = [worker]
    if command == "workers":  # what an absent worker measured last is no longer current
        assert invoke(command).out.splitlines()[1].split().count("-") >= 2


def test_what_gets_no_trials_is_named(fake: FakeStudyService, invoke: Invoke) -> None:
    worker = study_pb2.WorkerStatus(name="workers/node-1", connected=True, avoided_by=["digits"])
    worker.slots.add(index=3, device="NVIDIA H200", defect="uncorrectable ECC error encountered")
    fake.workers.append(worker)
    told = invoke("workers")
    assert "failed" in told.out
    assert "node-1 gets no trials of digits: its first attempts failed there" in told.err
    assert "node-1 slot 3 gets no trials, its device failed: uncorrectable ECC error" in told.err
    assert "uncorrectable ECC error" in invoke("cluster").out
    assert "slot 3 (NVIDIA H200) gets no trials, its device failed" in invoke("doctor").out


def test_a_suspended_worker_says_why_and_until_when(fake: FakeStudyService, invoke: Invoke) -> None:
    why = "3 attempts in a row did not reach their programs, the last one: exit status 75"
    worker = study_pb2.WorkerStatus(name="workers/node-1", connected=True, suspended=why)
    worker.slots.add(index=0, device="cpu")
    worker.next_try_time.FromDatetime(datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC))
    fake.workers.append(worker)
    told = invoke("workers")
    assert "suspended" in told.out
    assert re.search(rf"node-1 is suspended until \d\d:04:05: {why}", told.err)
    shown = json.loads(invoke("workers", "--json").out)[-1]
    assert (shown["suspended"], shown["next_try"]) == (why, "2030-01-02T03:04:05+00:00")
    assert why in " ".join(invoke("doctor").out.split())
    fake.workers[-1].ClearField("next_try_time")
    told = invoke("workers")
    assert "suspended" not in told.out
    assert f"node-1 was suspended and is tried again: {why}" in told.err


def test_a_bundle_is_one_line_with_its_seats(fake: FakeStudyService, invoke: Invoke) -> None:
    worker = study_pb2.WorkerStatus(name="workers/node-1", connected=True)
    slot = worker.slots.add(index=3, device="NVIDIA H200")
    for number in (12, 3, 7):
        slot.holders.add(
            trial=f"studies/digits/trials/{number}", milli=1000, bundle="d1.3.1", bundle_seats=32
        )
    fake.workers.append(worker)
    (line,) = [line for line in invoke("cluster").out.splitlines() if "H200" in line]
    assert "digits/3 7 12 (3 of 32 seats)" in line
    shown = json.loads(invoke("cluster", "--json").out)["workers"][-1]["slots"][0]["holders"]
    assert [holder["bundle"] for holder in shown] == ["d1.3.1"] * 3
    assert "digits/3 7 12 (3 of 32 seats)" in invoke("workers").out
    for holder in fake.workers[-1].slots[0].holders:
        holder.bundle_seats = numbers.SEATS  # `fuse: auto`
    assert "digits/3 7 12 (3 trials)" in invoke("cluster").out


def test_what_other_projects_hold_is_shown_without_their_names(
    fake: FakeStudyService, invoke: Invoke
) -> None:
    worker = study_pb2.WorkerStatus(name="workers/node-1", connected=True)
    slot = worker.slots.add(index=0, device="NVIDIA H200")
    slot.holders.add(milli=1000)
    fake.workers.append(worker)
    assert "another project's" in invoke("workers").out
    assert "free" not in invoke("workers").out
    assert "another project's" in invoke("cluster").out
    (found,) = json.loads(invoke("cluster", "--json").out)["workers"]
    assert (found["slots"][0]["elsewhere"], found["slots"][0]["holders"]) == (1.0, [])
