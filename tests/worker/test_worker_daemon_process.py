"""The daemon as a process of its own: killed, restarted, stopped, started twice."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from daemon_process import COMMAND, DaemonProcess
from scripted_scheduler import ScriptedScheduler, until
from worker_site import Site, lease_id

from headrace.v1 import event_pb2, worker_pb2
from headrace_worker.outbox import Outbox, RecordedLease
from headrace_worker.process import bury


async def test_kill_9_of_the_daemon_loses_no_report_and_requeues_its_trials(
    site: Site, scheduler: ScriptedScheduler, daemons: DaemonProcess
) -> None:
    scheduler.acks = False
    daemon = await daemons.start()
    stream = await scheduler.stream()
    command = site.program(
        """
        child = os.fork()
        if child == 0:
            time.sleep(100)
        report(1, save=True); report(2)
        mark("child", child)
        mark("up", os.getpid())
        time.sleep(100)
        """
    )
    stream.send(assign=site.assign(command))
    await until(lambda: (site.marks / "up").exists())
    trial = psutil.Process(int((site.marks / "up").read_text()))
    child = psutil.Process(int((site.marks / "child").read_text()))
    await stream.get("report", 2)
    daemon.kill()
    await daemon.wait()
    await until(
        lambda: not trial.is_running() or trial.status() == psutil.STATUS_ZOMBIE, "dies with its daemon"
    )
    await daemons.start()
    again = await scheduler.stream(2)
    exited = await again.get("exited")
    assert [m.step for m in again.all("report")] == [1, 2]
    assert again.durable()[:2] == stream.durable()[:2]
    assert (exited.outcome, exited.error) == (worker_pb2.EXIT_OUTCOME_LOST, "the worker daemon died")
    assert exited.sequence > again.durable()[1].sequence
    assert again.hello.incarnation != stream.hello.incarnation
    assert [ref.lease_id for ref in again.hello.held] == [lease_id(1)], "until the scheduler has read its end"
    await until(
        lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, "the child is buried"
    )


async def test_sigterm_ends_the_daemon_and_its_trials(
    site: Site, scheduler: ScriptedScheduler, daemons: DaemonProcess
) -> None:
    daemon = await daemons.start()
    stream = await scheduler.stream()
    stream.send(assign=site.assign(site.program("mark('up', os.getpid()); time.sleep(100)")))
    await until(lambda: (site.marks / "up").exists())
    daemon.terminate()
    last = await scheduler.stream(2)
    assert (await last.get("exited")).error == "worker 'w1' is draining: SIGTERM"
    assert await asyncio.wait_for(daemon.wait(), 60) == 0
    assert not psutil.pid_exists(int((site.marks / "up").read_text()))
    assert "Traceback" not in (site.root / "daemon.log").read_text()
    assert not (site.root / "home/runtime").exists()


@pytest.mark.full
async def test_signals_of_a_batch_system_neither_end_the_daemon_nor_are_kept_from_trials(
    site: Site, scheduler: ScriptedScheduler, daemons: DaemonProcess
) -> None:
    daemon = await daemons.start()
    stream = await scheduler.stream()
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        daemon.send_signal(number)
    stream.send(assign=site.assign(site.program("os.kill(os.getpid(), signal.SIGUSR1)")))
    exited = await stream.get("exited")
    assert exited.error == "killed by SIGUSR1"
    assert daemon.returncode is None
    assert (site.root / "daemon.log").read_text().count(" is ignored") == 2


async def test_a_second_daemon_on_the_same_home_is_refused(
    site: Site, scheduler: ScriptedScheduler, daemons: DaemonProcess
) -> None:
    await daemons.start()
    await scheduler.stream()
    second = await daemons.start()
    assert await asyncio.wait_for(second.wait(), 60) == 1
    assert "another worker already runs with --home" in (site.root / "daemon.log").read_text()


async def test_leftover_uploads_are_swept(
    site: Site, scheduler: ScriptedScheduler, daemons: DaemonProcess
) -> None:
    half = site.root / "store/studies/s/trials/0/.partial-000001-000001-step3-abc"
    half.mkdir(parents=True)
    (half / "state.json").write_text("{")
    outbox = Outbox(site.settings.outbox_path)
    uri = f"{(site.root / 'store').as_uri()}/studies/s/trials/0/000001-000001-step3-abc/"
    outbox.begin_upload(uri, "lease-9")
    outbox.close()
    await daemons.start()
    await scheduler.stream()
    await until(lambda: not half.exists())


@pytest.mark.full
async def test_a_leftover_upload_of_another_store_does_not_keep_the_daemon_from_starting(
    site: Site, scheduler: ScriptedScheduler, daemons: DaemonProcess
) -> None:
    outbox = Outbox(site.settings.outbox_path)
    outbox.begin_upload("s3://bucket/studies/s/trials/0/000001-000001-step3-abc/", "lease-9")
    outbox.close()
    await daemons.start()
    stream = await scheduler.stream()
    await stream.get("heartbeat", 3)
    assert "s3://bucket/studies/s/trials/0" in (site.root / "daemon.log").read_text()


@pytest.mark.full
async def test_what_left_the_process_group_is_buried_too(
    site: Site, scheduler: ScriptedScheduler, daemons: DaemonProcess
) -> None:
    daemon = await daemons.start()
    stream = await scheduler.stream()
    command = site.program(
        """
        import subprocess
        mark("up", subprocess.Popen(["sleep", "100"], start_new_session=True).pid)
        time.sleep(100)
        """
    )
    stream.send(assign=site.assign(command))
    await until(lambda: (site.marks / "up").exists())
    stray = psutil.Process(int((site.marks / "up").read_text()))
    daemon.kill()
    await daemon.wait()
    await daemons.start()
    await (await scheduler.stream(2)).get("exited")
    assert not stray.is_running() or stray.status() == psutil.STATUS_ZOMBIE


@pytest.fixture
def sleeper() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(["sleep", "100"], start_new_session=True) as process:
        yield process
        process.kill()


def _recorded(pid: int, started: float) -> RecordedLease:
    return RecordedLease(lease=event_pb2.LeaseRef(lease_id=lease_id(1)), pid=pid, started=started)


def test_a_recycled_pid_is_never_killed(sleeper: "subprocess.Popen[bytes]") -> None:
    assert bury(_recorded(sleeper.pid, psutil.Process(sleeper.pid).create_time() - 3600)) == []
    assert sleeper.poll() is None


def test_a_leftover_process_is_recognised_by_its_start(sleeper: "subprocess.Popen[bytes]") -> None:
    assert bury(_recorded(sleeper.pid, psutil.Process(sleeper.pid).create_time())) == [sleeper.pid]
    assert sleeper.wait(10) == -signal.SIGKILL


@pytest.mark.full
def test_importing_the_worker_leaves_torch_and_numpy_out() -> None:
    code = (
        "import sys; import headrace_worker.command, headrace_worker.daemon, headrace.checkpoints.s3;"
        "print(sorted(m for m in sys.modules if m.split('.')[0] in ('torch', 'numpy') or m == 'headrace.trial'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--scheduler", "nowhere"], "is not an address"),
        (["--label", "zone"], "is not KEY=VALUE"),
        (["--store", "ftp://x"], "is not a checkpoint store"),
        (["--cpu-slots", "0"], "give at least 1"),
    ],
)
def test_bad_arguments_are_named(arguments: list[str], error: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", COMMAND, "--home", str(tmp_path / "home"), *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "COLUMNS": "200"}, timeout=60
    )
    assert done.returncode in {1, 2}
    assert error in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.full
async def test_standby_processes_die_with_the_daemon(
    site: Site, scheduler: ScriptedScheduler, daemons: DaemonProcess
) -> None:
    daemon = await daemons.start()
    stream = await scheduler.stream()
    (site.root / "study_that_waits.py").write_text(
        "import os, pathlib\n"
        "pathlib.Path(os.environ['MARKS'], f'pid-{os.getpid()}').touch()\n"
        "def train(t):\n    for step in t.steps():\n        t.report(loss=1.0)\n"
    )
    assign = site.assign(["unused"], milestone=1)
    assign.template.callable = "study_that_waits:train"
    stream.send(assign=assign)
    pids = await until(lambda: len(found := list(site.marks.glob("pid-*"))) == 2 and found, "both processes")
    daemon.kill()
    await daemon.wait()
    for path in pids:
        pid = int(path.name.removeprefix("pid-"))
        await until(lambda pid=pid: not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie")
