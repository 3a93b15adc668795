"""Shares of a slot, gangs of one process per slot, and trials that are told to leave: the worker's part."""

import asyncio
import json
import os
import subprocess
import sys
import textwrap
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from headrace.grants import WORLD_SIZE
from headrace.v1 import event_pb2, runtime_pb2, spec_pb2, worker_pb2
from headrace_worker.devices import discover
from headrace_worker.effects import Leave
from headrace_worker.gangs import Gang, PartMissingError, RankMissing
from headrace_worker.launch import launch_of
from headrace_worker.reports import Reports
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
        lease=event_pb2.LeaseRef(lease_id="l", trial="studies/s/trials/1", attempt=1),
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


@pytest.mark.parametrize(
    ("grant", "cores"),
    [
        ({"slots": [1], "milli": 250}, "2"),
        ({"slots": [1]}, "8"),
        ({"slots": [0, 1]}, "16"),
        ({"slots": [0], "milli": 10}, "1"),
    ],
)
def test_cores_grow_with_the_grant(grant: dict[str, object], cores: str) -> None:
    devices = discover(worker="w", fake_gpus=2).devices
    launch = launch_of(
        _assign(**grant), devices=devices, runtime="", log_dir=Path("/l"), environ={}, cores=16
    )
    assert launch.env["HEADRACE_CPUS"] == cores


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


def _never(missing: RankMissing) -> None:
    raise AssertionError(missing)


async def test_rank_0_waits_for_the_parts_of_the_others(tmp_path: Path) -> None:
    gang, answers = Gang(2, _never), {}
    gathering = asyncio.create_task(gang.gather(1, tmp_path))
    for rank in (0, 1):
        (tmp_path / f"rank-{rank}.json").write_text("{}")
    request = runtime_pb2.ReportRequest(sequence=1, rank=1)
    told = asyncio.create_task(gang.report(request, answers, tmp_path, over=lambda: False))
    await gathering
    answers[1] = asyncio.create_task(asyncio.sleep(0, event_pb2.Decision(reason="the same")))
    await gang.arrived()
    answer = await told
    assert answer is not None
    assert (await answer).reason == "the same"


async def test_a_checkpoint_that_lacks_a_part_does_not_count(tmp_path: Path) -> None:
    gang = Gang(3, _never)
    for rank in (0, 1):
        (tmp_path / f"rank-{rank}.pt").write_text("")
    for rank in (1, 2):
        request = runtime_pb2.ReportRequest(sequence=1, rank=rank)
        told = asyncio.create_task(gang.report(request, {}, tmp_path, over=lambda: True))
        assert await told is None
    with pytest.raises(PartMissingError, match="the part of rank 2 is missing"):
        await gang.gather(1, tmp_path)


async def test_a_part_that_a_killed_rank_has_not_handed_in_is_not_waited_for(tmp_path: Path) -> None:
    gang = Gang(2, _never)
    (tmp_path / "rank-0.pt").write_text("")
    gathering = asyncio.create_task(gang.gather(1, tmp_path))
    await asyncio.sleep(0)
    await gang.gone()
    with pytest.raises(PartMissingError, match="the part of rank 1 is missing"):
        await asyncio.wait_for(gathering, 60)


async def test_a_rank_that_does_not_come_is_named_within_a_bounded_time(tmp_path: Path) -> None:
    found: list[RankMissing] = []
    gang = Gang(3, found.append, patience_s=0.05, writes_s=0.05)
    late = asyncio.create_task(gang.gather(3, tmp_path))
    request = runtime_pb2.ReportRequest(sequence=2, step=7, rank=1)
    alone = asyncio.create_task(gang.report(request, {}, None, over=lambda: len(found) == 2))
    while len(found) < 2:
        await asyncio.sleep(0.01)
    await gang.arrived()
    assert await alone is None
    late.cancel()
    by_disk, by_rank_0 = sorted(found, key=lambda one: not one.writes)
    assert "rank 1, 2 has not written its part" in by_disk.text
    assert "rank 0 has not reached the report of step 7" in by_rank_0.text
    assert not by_rank_0.writes


class Outbox:
    """What reports need of a courier, with room for all of them."""

    def __init__(self) -> None:
        self.posted = count(1)

    async def room_for(self, *_: object) -> None: ...

    async def post(self, *_: object, **__: object) -> int:
        return next(self.posted)


async def test_a_rank_that_is_far_behind_is_answered_what_rank_0_was(tmp_path: Path) -> None:
    assign = worker_pb2.Assign(next_milestone=99, max_steps=99)
    assign.grant.CopyFrom(worker_pb2.Grant(slots=[0, 1], processes=spec_pb2.PROCESSES_PER_SLOT))
    assign.template.report_timeout.FromMilliseconds(10)
    never: Any = None
    courier: Any = Outbox()
    reports = Reports(
        assign,
        checkpoint_dir=tmp_path,
        store=never,
        courier=courier,
        saved=never,
        abandoned=never,
        missing=_never,
    )
    for rank in (0, 1):
        for step in range(1, 31):
            request = runtime_pb2.ReportRequest(sequence=step, step=step, rank=rank)
            decision = await reports.report(request)
            assert decision.action == event_pb2.DECISION_ACTION_CONTINUE
            assert decision.next_milestone == 99


async def test_what_is_known_of_the_ranks_does_not_grow_with_their_reports() -> None:
    gang = Gang(2, _never)

    async def kept_after(reports: range) -> int:
        for sequence in reports:
            answers = {sequence: asyncio.create_task(asyncio.sleep(0, event_pb2.Decision()))}
            request = runtime_pb2.ReportRequest(sequence=sequence, rank=1)
            await gang.report(request, answers, None, over=lambda: False)
        return sum(len(one) for one in vars(gang).values() if isinstance(one, dict))

    assert await kept_after(range(1, 50)) == await kept_after(range(50, 100))


async def test_a_rank_that_has_written_waits_for_rank_0_as_long_as_a_write_may_take(tmp_path: Path) -> None:
    found: list[RankMissing] = []
    gang = Gang(2, found.append, patience_s=0.0, writes_s=0.05)
    request = runtime_pb2.ReportRequest(sequence=1, step=7, rank=1)
    assert await gang.report(request, {}, tmp_path, over=lambda: bool(found)) is None
    (missing,) = found
    assert missing.writes, "the disk may be full, which is not the program's fault"
    assert "rank 0 has not written its part of" in missing.text


def test_a_trial_is_asked_to_leave_once_it_is_held_and_not_after() -> None:
    devices = tuple(discover(worker="w", fake_gpus=1).devices)
    core = SessionCore(
        Identity(worker="w", incarnation="i", devices=devices, labels={}, version="", log_dir="/l")
    )
    core.connect()
    core.receive(worker_pb2.SessionResponse(welcome=worker_pb2.Welcome(protocol=1)))
    vacate = worker_pb2.SessionResponse(vacate=worker_pb2.Vacate(lease=_assign().lease, reason="others"))
    assert core.receive(vacate) == []
    core.receive(worker_pb2.SessionResponse(assign=_assign(slots=[0])))
    assert core.receive(vacate) == [Leave(lease_id="l", reason="others")]
    core.releasing("l")
    assert core.receive(vacate) == []
