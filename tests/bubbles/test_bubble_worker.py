"""The agent beside a worker's daemon, and the gate of the worker's trials."""

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from headrace.v1 import event_pb2, spec_pb2, worker_pb2
from headrace_torch.bubble_shm import started_ticks
from headrace_worker.daemon import Daemon
from headrace_worker.launch import launch_of
from headrace_worker.settings import WorkerSettings


async def lock_of(folder: Path, *, other_than: int = 0) -> int:
    """Waits for an agent; returns its process."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if (folder / "agent.lock").exists() and (folder / "agent.sock").exists():
            told = (folder / "agent.lock").read_text().strip()
            if told and int(told) != other_than:
                return int(told)
        await asyncio.sleep(0.02)
    raise AssertionError("no agent came")


async def test_a_daemon_keeps_an_agent_and_takes_it_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "b"
    monkeypatch.setenv("HEADRACE_BUBBLES", str(folder))
    monkeypatch.setattr("headrace_worker.backoff.Backoff.next_s", lambda _: 0.01)
    settings = WorkerSettings(
        name="w",
        home=tmp_path / "home",
        schedulers=("127.0.0.1:1",),
        store_url=(tmp_path / "store").as_uri(),
        cpu_slots=1,
        stop_grace_s=0.1,
        bubbles=True,
    )
    daemon = Daemon(settings)
    running = asyncio.create_task(daemon.run())
    first = await lock_of(folder)
    os.kill(first, signal.SIGKILL)
    second = await lock_of(folder, other_than=first)
    daemon.stop()
    daemon.stop()
    await running
    assert started_ticks(second) is None


@pytest.mark.full
async def test_an_agent_ends_with_a_daemon_that_is_killed(tmp_path: Path) -> None:
    program = (
        "import asyncio; from headrace_worker.bubble_agent import keep_bubble_agent as k; asyncio.run(k())"
    )
    env = {**os.environ, "HEADRACE_BUBBLES": str(tmp_path / "b")}
    daemon = await asyncio.create_subprocess_exec(sys.executable, "-c", program, env=env)
    agent = await lock_of(tmp_path / "b")
    daemon.kill()
    await daemon.wait()
    end = time.monotonic() + 30
    while started_ticks(agent) is not None and time.monotonic() < end:
        await asyncio.sleep(0.02)
    assert started_ticks(agent) is None


@pytest.mark.full
def test_trials_of_a_worker_with_a_gate_get_it_and_no_others_do() -> None:
    assign = worker_pb2.Assign(
        lease=event_pb2.LeaseRef(lease_id="l", trial="studies/s/trials/0", attempt=1),
        template=spec_pb2.TrialTemplate(command=spec_pb2.CommandLine(args=["true"])),
    )
    environ = {"HEADRACE_BUBBLE_GATE": "/dev/shm/b/gpt.0.1.bubble", "HEADRACE_OTHER": "x"}
    launch = launch_of(assign, devices=[], runtime="unix:r", log_dir=Path("logs"), environ=environ)
    assert launch.env["HEADRACE_BUBBLE_GATE"] == "/dev/shm/b/gpt.0.1.bubble"
    assert "HEADRACE_OTHER" not in launch.env
    bare = launch_of(assign, devices=[], runtime="unix:r", log_dir=Path("logs"), environ={})
    assert "HEADRACE_BUBBLE_GATE" not in bare.env
