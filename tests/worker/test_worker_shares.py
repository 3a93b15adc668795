"""Shares of a slot, gangs of one process a slot, and trials that are asked to leave: the worker's part."""

import asyncio
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from headrace.grants import WORLD_SIZE
from headrace.v1 import event_pb2, runtime_pb2, spec_pb2, worker_pb2
from headrace_worker.devices import discover
from headrace_worker.effects import Leave
from headrace_worker.gangs import Gang
from headrace_worker.launch import launch_of
from headrace_worker.session_core import Identity, SessionCore
from headrace_worker.slots import Slots


def test_leases_that_share_a_slot_run_together_up_to_the_whole() -> None:
    slots = Slots(2)
    half, quarter, three_quarters = slots.join([0], 500), slots.join([0], 250), slots.join([0], 750)
    whole = slots.join([0, 1])
    assert [turn.called.is_set() for turn in (half, quarter, three_quarters, whole)] == [
        True,
        True,
        False,
        False,
    ]
    half.leave()
    assert three_quarters.called.is_set()
    quarter.leave()
    assert not whole.called.is_set()
    three_quarters.leave()
    assert whole.called.is_set()


def _assign(**grant: object) -> worker_pb2.Assign:
    return worker_pb2.Assign(
        lease=event_pb2.LeaseRef(lease_id="l", trial="studies/s/trials/1", epoch=1),
        template=spec_pb2.TrialTemplate(callable="m:f"),
        grant=worker_pb2.Grant(**grant),  # type: ignore[arg-type]  # of the fields' own types
    )


def _launch(assign: worker_pb2.Assign):
    devices = discover(worker="w", fake_gpus=2).devices
    return launch_of(assign, devices=devices, runtime="unix:/s", log_dir=Path("/l"), environ={})


def test_a_share_and_its_budget_are_told_in_the_environment() -> None:
    launch = _launch(_assign(slots=[1], milli=250, memory_bytes=1 << 30))
    assert launch.env["CUDA_VISIBLE_DEVICES"] == "GPU-fake-w-1"
    assert launch.env["HEADRACE_GPU_SHARE"] == "0.25"
    assert launch.env["HEADRACE_GPU_MEMORY_BYTES"] == str(1 << 30)


def test_a_gang_is_started_by_its_leader_and_sees_all_devices() -> None:
    launch = _launch(_assign(slots=[0, 1], processes=spec_pb2.PROCESSES_PER_SLOT))
    assert launch.args[1:4] == ("-m", "headrace.trial.gang", sys.executable)
    assert launch.env["HEADRACE_WORLD_SIZE"] == "2"
    assert launch.env["CUDA_VISIBLE_DEVICES"] == "GPU-fake-w-0,GPU-fake-w-1"


def _gang(tmp_path: Path, body: str, world: int = 2) -> "subprocess.CompletedProcess[str]":
    program = tmp_path / "rank.py"
    program.write_text("import json, os, signal, sys, time\n" + textwrap.dedent(body))
    return subprocess.run(
        [sys.executable, "-m", "headrace.trial.gang", sys.executable, str(program)],
        env={**os.environ, WORLD_SIZE: str(world), "OUT": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_ranks_get_what_torchrun_would_tell_them(tmp_path: Path) -> None:
    body = """
    names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"]
    with open(os.path.join(os.environ["OUT"], os.environ["RANK"] + ".json"), "w") as file:
        json.dump({name: os.environ[name] for name in names}, file)
    """
    assert _gang(tmp_path, body).returncode == 0
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    assert (first["RANK"], second["RANK"], first["WORLD_SIZE"]) == ("0", "1", "2")
    assert first["MASTER_PORT"] == second["MASTER_PORT"]


@pytest.mark.parametrize(
    ("end", "status"), [("sys.exit(3)", 3), ("os.kill(os.getpid(), signal.SIGKILL)", -9)]
)
def test_when_one_rank_dies_the_gang_dies_as_it_did(tmp_path: Path, end: str, status: int) -> None:
    body = f"""
    if os.environ["RANK"] == "1":
        {end}
    signal.pause()
    """
    assert _gang(tmp_path, body).returncode == status


async def test_rank_0_waits_for_the_parts_of_the_others(tmp_path: Path) -> None:
    gang, answers = Gang("studies/s/trials/1", 2), {}
    part, folder = tmp_path / "part", tmp_path / "whole"
    for place in (part, folder):
        place.mkdir()
    (part / "state.json").write_text("{}")
    gathering = asyncio.create_task(gang.gather(1, folder))
    request = runtime_pb2.ReportRequest(sequence=1, rank=1)
    told = asyncio.create_task(gang.report(request, answers, part, over=lambda: False))
    await gathering
    assert (folder / "rank-1.json").exists()
    answers[1] = asyncio.create_task(asyncio.sleep(0, event_pb2.Decision(reason="the same")))
    await gang.arrived()
    answer = await told
    assert answer is not None
    assert (await answer).reason == "the same"


async def test_a_script_that_reports_on_rank_0_alone_is_not_held_up_for_ever(tmp_path: Path) -> None:
    gang = Gang("studies/s/trials/1", 2, patience_s=0.01)
    await gang.gather(1, tmp_path)
    await asyncio.wait_for(gang.gather(2, tmp_path), 5)


def test_a_trial_is_asked_to_leave_once_it_is_held_and_not_after() -> None:
    devices = tuple(discover(worker="w", fake_gpus=1).devices)
    core = SessionCore(
        Identity(worker="w", incarnation="i", devices=devices, labels={}, version="", log_dir="/l")
    )
    core.connect()
    core.receive(worker_pb2.SessionResponse(welcome=worker_pb2.Welcome()))
    vacate = worker_pb2.SessionResponse(vacate=worker_pb2.Vacate(lease=_assign().lease, reason="others"))
    assert core.receive(vacate) == []
    core.receive(worker_pb2.SessionResponse(assign=_assign(slots=[0])))
    assert core.receive(vacate) == [Leave(lease_id="l", reason="others")]
    core.releasing("l")
    assert core.receive(vacate) == []
