"""What one trial, one driver or one ended lease may not do to the rest: hold a slot, stop the heartbeat, or cost a
checkpoint."""

import threading
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest
from scripted_scheduler import ScriptedScheduler, until
from worker_site import Site

from headrace.v1 import worker_pb2
from headrace_worker.devices import CpuSlots


async def test_what_left_the_process_group_ends_with_its_trial(
    site: Site, scheduler: ScriptedScheduler
) -> None:
    site.start()
    stream = await scheduler.stream()
    command = site.program(
        """
        import subprocess
        mark("up", subprocess.Popen(["sleep", "100"], start_new_session=True).pid)
        """
    )
    stream.send(assign=site.assign(command))
    exited = await stream.get("exited")
    stray = int((site.marks / "up").read_text())
    assert exited.outcome == worker_pb2.EXIT_OUTCOME_FINISHED
    assert not psutil.pid_exists(stray) or psutil.Process(stray).status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("named_by", ["the study", "the trial's last save"])
async def test_a_link_that_leads_to_itself_costs_the_worker_nothing(
    site: Site, scheduler: ScriptedScheduler, named_by: str
) -> None:
    site.start()
    stream = await scheduler.stream()
    (site.root / "loop.py").symlink_to("loop.py")
    python, program = site.program(
        """
        report(1)
        folder = Path(me.checkpoint_dir, "last")
        folder.symlink_to("last")
        saved = str(folder) if "saves" in sys.argv else ""
        stub.Finish(runtime_pb2.FinishRequest(lease_id=lease, checkpoint_dir=saved, step=1), timeout=60)
        """
    )
    command = [python, "-X", "loop.py", program] if named_by == "the study" else [python, program, "saves"]
    assign = site.assign(command)
    stream.send(assign=assign)
    exited = await stream.get("exited")
    assert exited.outcome == worker_pb2.EXIT_OUTCOME_FINISHED, exited
    if named_by == "the trial's last save":
        assert "is not a folder below" in exited.unsaved
    stream.send(assign=site.assign(site.program("report(1)"), number=1))
    assert (await stream.get("exited", 2)).outcome == worker_pb2.EXIT_OUTCOME_FINISHED


async def test_a_driver_that_hangs_does_not_stop_the_heartbeat(
    site: Site, scheduler: ScriptedScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()

    def hang(_: CpuSlots) -> Sequence[worker_pb2.DeviceTelemetry]:
        released.wait(60)
        return ()

    monkeypatch.setattr(CpuSlots, "telemetry", hang)
    try:
        site.start()
        stream = await scheduler.stream()
        assert not (await stream.get("heartbeat", 4)).telemetry
        await site.stop()
    finally:
        released.set()


async def test_a_fenced_lease_costs_no_checkpoint(site: Site, scheduler: ScriptedScheduler) -> None:
    site.start()
    stream = await scheduler.stream()
    command = site.program(
        """
        signal.signal(signal.SIGTERM, lambda *_: mark("term"))
        report(1, save=True)
        mark("up", os.getpid())
        while not Path(os.environ["MARKS"], "term").exists():
            time.sleep(0.01)
        report(2, save=True)
        time.sleep(100)
        """
    )
    stream.send(assign=site.assign(command, milestone=9, grace_s=3.0))
    first = await stream.get("report")
    await until((site.marks / "up").exists, "the trial is up")
    scheduler.welcomes = False
    stream.close()
    again = await scheduler.stream(2)
    again.welcome(held=[])  # the scheduler continues from the first checkpoint, elsewhere
    await again.get("report")
    await again.get("exited")
    await again.get("heartbeat", len(again.all("heartbeat")) + 2)
    kept = Path(first.checkpoint.uri.removeprefix("file://"))
    assert (kept / "manifest.json").exists()


@pytest.mark.parametrize("told_by", ["welcome", "cancel"])
async def test_a_lease_that_is_fenced_while_its_trial_ends_costs_no_checkpoint(
    site: Site, scheduler: ScriptedScheduler, told_by: str
) -> None:
    """The trial was told to end before it was known that its lease is over: at SIGTERM, at the end of an outage."""
    daemon = site.start()
    stream = await scheduler.stream()
    command = site.program(
        """
        signal.signal(signal.SIGTERM, lambda *_: mark("term"))
        report(1, save=True)
        mark("up", os.getpid())
        while not Path(os.environ["MARKS"], "go on").exists():
            time.sleep(0.01)
        report(2, save=True)
        mark("saved")
        time.sleep(100)
        """
    )
    stream.send(assign=site.assign(command, milestone=9, grace_s=3.0))
    first = await stream.get("report")
    await until((site.marks / "up").exists, "the trial is up")
    scheduler.welcomes = told_by == "cancel"
    daemon.stop()
    await until((site.marks / "term").exists, "the trial is told to end")
    again = await scheduler.stream(2)
    if told_by == "welcome":
        again.welcome(held=[])  # the scheduler continues from the first checkpoint, elsewhere
    else:
        again.send(cancel=worker_pb2.Cancel(lease=first.lease, reason="the lease is over"))
    await again.get("heartbeat", 1)
    (site.marks / "go on").touch()
    await until((site.marks / "saved").exists, "the second checkpoint is saved")
    await again.get("heartbeat", len(again.all("heartbeat")) + 4)
    assert not again.all("exited"), "it kept the grace that it had been given"
    kept = Path(first.checkpoint.uri.removeprefix("file://"))
    assert (kept / "manifest.json").exists()


async def test_a_traceback_stands_in_the_log_tail_once(site: Site, scheduler: ScriptedScheduler) -> None:
    site.start()
    stream = await scheduler.stream()
    script = site.root / "fails.py"
    script.write_text("def train(t):\n    raise ValueError('no such layer')\n")
    assign = site.assign([])
    assign.template.callable = "fails:train"
    stream.send(assign=assign)
    exited = await stream.get("exited")
    assert exited.error == "ValueError: no such layer"
    assert exited.log_tail.count("Traceback (most recent call last)") == 1
    assert exited.log_tail.count("ValueError: no such layer") == 1
