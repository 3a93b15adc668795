"""What goes wrong: lost and doubled messages, signals from outside, full disks, schedulers that come and go."""

import errno
import os
import signal
import sqlite3
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
from scripted_scheduler import ScriptedScheduler, until
from worker_site import Site

from headrace.checkpoints.directory import DirectoryStore
from headrace.v1 import event_pb2, worker_pb2
from headrace_worker import attempt
from headrace_worker.daemon import Daemon
from headrace_worker.outbox import Outbox

CONTINUE = event_pb2.DECISION_ACTION_CONTINUE
PAUSE = event_pb2.DECISION_ACTION_PAUSE
STOP = event_pb2.DECISION_ACTION_STOP
LOST = worker_pb2.EXIT_OUTCOME_LOST
RELEASED = worker_pb2.EXIT_OUTCOME_RELEASED
FAILED = worker_pb2.EXIT_OUTCOME_FAILED

STUBBORN = """
signal.signal(signal.SIGTERM, lambda *_: mark("term"))
mark("up", os.getpid())
while True:
    time.sleep(0.05)
"""


async def _up(site: Site) -> int:
    await until(lambda: (site.marks / "up").exists(), "the trial is up")
    return int((site.marks / "up").read_text())


async def test_a_cancelled_trial_is_terminated_and_then_killed(
    site: Site, scheduler: ScriptedScheduler
) -> None:
    site.start()
    stream = await scheduler.stream()
    assign = site.assign(site.program(STUBBORN), grace_s=0.5)
    stream.send(assign=assign)
    await _up(site)
    for _ in range(2):
        stream.send(cancel=worker_pb2.Cancel(lease=assign.lease, reason="a user stopped it"))
    exited = await stream.get("exited")
    assert (exited.outcome, exited.exit_code) == (RELEASED, -signal.SIGKILL)
    assert (site.marks / "term").exists(), "SIGTERM came first"


@pytest.mark.full
async def test_a_stopped_process_can_be_cancelled(site: Site, scheduler: ScriptedScheduler) -> None:
    site.start()
    stream = await scheduler.stream()
    assign = site.assign(site.program("mark('up', os.getpid()); time.sleep(100)"))
    stream.send(assign=assign)
    os.kill(await _up(site), signal.SIGSTOP)
    stream.send(cancel=worker_pb2.Cancel(lease=assign.lease))
    exited = await stream.get("exited")
    assert (exited.outcome, exited.exit_code) == (RELEASED, -signal.SIGTERM)


DEEP = """
os.chdir(me.checkpoint_dir)
for _ in range(1500):
    os.mkdir("d")
    os.chdir("d")
"""


@pytest.mark.full
async def test_a_trial_that_nests_its_folders_very_deep_ends_no_daemon(
    site: Site, scheduler: ScriptedScheduler
) -> None:
    site.start()
    stream = await scheduler.stream()
    stream.send(assign=site.assign(site.program(DEEP)))
    await stream.get("exited")
    await until(lambda: not list(site.settings.scratch_dir.iterdir()), "its folder is removed")
    stream.send(assign=site.assign(site.program("report(1)"), number=1))
    await stream.get("exited", count=2)
    assert not site.daemons[0][1].done()


@pytest.mark.full
async def test_devices_that_cannot_be_measured_end_neither_session_nor_daemon(
    site: Site, scheduler: ScriptedScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []

    async def failing(_: Daemon) -> None:
        looks.append(1)
        raise FileNotFoundError("a folder vanished")

    monkeypatch.setattr(Daemon, "telemetry", failing)
    site.start()
    stream = await scheduler.stream()
    await until(lambda: len(looks) >= 2, "it looks again")
    await stream.get("heartbeat", count=3)
    assert len(scheduler.streams) == 1


async def test_a_process_killed_from_outside_is_the_machines_loss(
    site: Site, scheduler: ScriptedScheduler
) -> None:
    site.start()
    stream = await scheduler.stream()
    stream.send(assign=site.assign(site.program("mark('up', os.getpid()); time.sleep(100)")))
    os.kill(await _up(site), signal.SIGKILL)
    exited = await stream.get("exited")
    assert (exited.outcome, exited.error) == (LOST, "killed by SIGKILL")


async def test_silence_is_a_failure_of_the_program(site: Site, scheduler: ScriptedScheduler) -> None:
    site.start()
    stream = await scheduler.stream()
    command = site.program("report(1); mark('up', os.getpid()); time.sleep(100)")
    stream.send(assign=site.assign(command, report_timeout_s=2.5))
    exited = await stream.get("exited")
    assert len(stream.all("report")) == 1
    assert (exited.outcome, exited.error) == (FAILED, "reported nothing for 2.5 s")


@pytest.mark.full
async def test_silence_since_the_start_says_that_imports_count(
    site: Site, scheduler: ScriptedScheduler
) -> None:
    site.start()
    stream = await scheduler.stream()
    stream.send(assign=site.assign(site.program("time.sleep(100)"), report_timeout_s=2.5))
    exited = await stream.get("exited")
    assert exited.outcome == FAILED
    assert exited.error.startswith(
        "reported nothing for 2.5 s since its start: it hangs, or report_timeout_s is"
    )


@pytest.mark.full
async def test_waiting_for_a_decision_is_no_silence(site: Site, scheduler: ScriptedScheduler) -> None:
    scheduler.acks = False
    site.start()
    stream = await scheduler.stream()
    stream.send(assign=site.assign(site.program("report(1)"), milestone=1, report_timeout_s=2.5))
    report = await stream.get("report")
    await stream.get("heartbeat", len(stream.all("heartbeat")) + 15)  # 3 s
    stream.decide(report, CONTINUE, next_milestone=9)
    exited = await stream.get("exited")
    assert exited.outcome == worker_pb2.EXIT_OUTCOME_FINISHED


async def test_a_paused_trial_that_stays_is_ended_after_its_grace(
    site: Site, scheduler: ScriptedScheduler
) -> None:
    site.start()
    stream = await scheduler.stream()
    command = site.program("mark('up', os.getpid()); report(1); mark('answered'); time.sleep(100)")
    stream.send(assign=site.assign(command, milestone=1, grace_s=0.3))
    stream.decide(await stream.get("report"), PAUSE)
    exited = await stream.get("exited")
    assert (exited.outcome, exited.exit_code) == (RELEASED, -signal.SIGTERM)
    assert (site.marks / "answered").exists()


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The store's disk and the outbox's are full for the first calls."""
    failures: list[int] = []
    put, append = DirectoryStore.put, Outbox.append

    def failing_put(self: DirectoryStore, *args: Any) -> Any:
        if len(failures) < 2:
            failures.append(1)
            raise OSError(errno.ENOSPC, "No space left on device")
        return put(self, *args)

    def failing_append(self: Outbox, *args: Any, **kwargs: Any) -> Any:
        if len(failures) < 4:
            failures.append(2)
            raise sqlite3.OperationalError("database or disk is full")
        return append(self, *args, **kwargs)

    monkeypatch.setattr(DirectoryStore, "put", failing_put)
    monkeypatch.setattr(Outbox, "append", failing_append)
    return failures


async def test_on_a_full_disk_the_trial_waits_and_nothing_is_lost(
    site: Site, scheduler: ScriptedScheduler, full_disk: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    site.start()
    stream = await scheduler.stream()
    stream.send(assign=site.assign(site.program("report(1, save=True); report(2, save=True)")))
    exited = await stream.get("exited")
    assert full_disk == [1, 1, 2, 2]
    assert exited.outcome == worker_pb2.EXIT_OUTCOME_FINISHED
    assert [(r.step, bool(r.checkpoint.uri)) for r in stream.all("report")] == [(1, True), (2, True)]
    assert "No space left on device" in caplog.text
    assert "disk is full" in caplog.text


LAST = """
report(3)
folder = os.path.join(me.checkpoint_dir, "last")
os.makedirs(folder)
Path(folder, "state.json").write_text("3")
stub.Finish(runtime_pb2.FinishRequest(lease_id=lease, checkpoint_dir=folder, step=STEP, by_itself=True), timeout=60)
"""


async def test_what_a_program_saves_at_its_own_end_is_stored_before_its_end_is_reported(
    site: Site, scheduler: ScriptedScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    full, put = [1, 1], DirectoryStore.put

    def with_room(self: DirectoryStore, *args: Any) -> Any:
        if full:
            raise OSError(errno.ENOSPC, f"No space left on device ({full.pop()})")
        return put(self, *args)

    monkeypatch.setattr(DirectoryStore, "put", with_room)
    site.start()
    stream = await scheduler.stream()
    stream.send(assign=site.assign(site.program(LAST.replace("STEP", "3"))))
    exited = await stream.get("exited")
    assert (exited.outcome, exited.by_itself, exited.unsaved) == (
        worker_pb2.EXIT_OUTCOME_FINISHED,
        True,
        "",
    )
    assert exited.checkpoint.step == 3
    assert (Path(urlsplit(exited.checkpoint.uri).path) / "state.json").read_text() == "3"
    assert not full, "it waits for room"


@pytest.mark.full
@pytest.mark.parametrize(
    ("step", "why"),
    [("4", "step 4 was not reported: the last one was 3"), ("3", "No space left on device")],
)
async def test_what_cannot_be_stored_at_its_own_end_takes_nothing_from_the_result(
    site: Site, scheduler: ScriptedScheduler, monkeypatch: pytest.MonkeyPatch, step: str, why: str
) -> None:
    def full(*_: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(DirectoryStore, "put", full)
    monkeypatch.setattr(attempt, "LAST_SAVE_S", 0.2)
    site.start()
    stream = await scheduler.stream()
    stream.send(assign=site.assign(site.program(LAST.replace("STEP", step))))
    exited = await stream.get("exited")
    assert exited.outcome == worker_pb2.EXIT_OUTCOME_FINISHED
    assert not exited.HasField("checkpoint")
    assert why in exited.unsaved


@pytest.mark.full
@pytest.mark.parametrize(
    ("steps", "says"),
    [
        ([28], "step 28 is past the full budget of 27 steps"),
        ([4, 6], "step 6 jumps over the rung at 5"),
        ([-1], "step: is less than 0"),
    ],
)
async def test_a_program_without_the_library_is_refused_a_wrong_step_too(
    site: Site, scheduler: ScriptedScheduler, steps: list[int], says: str
) -> None:
    """Nothing of it goes to the scheduler, which could no longer refuse it."""
    site.start()
    stream = await scheduler.stream()
    command = site.program(
        f"""
        for sequence, step in enumerate({steps}, start=1):
            request = runtime_pb2.ReportRequest(lease_id=lease, sequence=sequence, step=step)
            for _ in range(2):
                try:
                    stub.Report(request, timeout=60)
                except grpc.RpcError as error:
                    print(error.code().name, error.details())
        """
    )
    stream.send(assign=site.assign(command, rungs=[3, 5, 27][steps[0] > 3 :]))
    exited = await stream.get("exited")
    assert exited.log_tail.count(f"INVALID_ARGUMENT {says}") == 2
    assert [report.step for report in stream.all("report")] == steps[:-1]


@pytest.mark.parametrize("where", ["/etc", "..", ""])
async def test_a_checkpoint_outside_its_folder_is_refused(
    site: Site, scheduler: ScriptedScheduler, where: str
) -> None:
    site.start()
    stream = await scheduler.stream()
    command = site.program(
        f"""
        where = {where!r}
        request = runtime_pb2.ReportRequest(lease_id=lease, sequence=1, step=1,
            checkpoint_dir=where if where.startswith("/") else os.path.join(me.checkpoint_dir, where or "."))
        try:
            stub.Report(request, timeout=60)
        except grpc.RpcError as error:
            print(error.code().name)
        try:
            stub.Attach(runtime_pb2.AttachRequest(lease_id="another"), timeout=60)
        except grpc.RpcError as error:
            print(error.code().name)
        """
    )
    stream.send(assign=site.assign(command))
    exited = await stream.get("exited")
    assert exited.log_tail == "INVALID_ARGUMENT\nNOT_FOUND\n"


async def test_a_slot_that_does_not_exist(site: Site, scheduler: ScriptedScheduler) -> None:
    site.start()
    stream = await scheduler.stream()
    stream.send(assign=site.assign(["true"], slots=(7,)))
    exited = await stream.get("exited")
    assert exited.outcome == worker_pb2.EXIT_OUTCOME_UNREACHED
    assert exited.error == "slot 7 does not exist: this worker has 2"


@pytest.mark.full
async def test_old_checkpoints_go_only_when_a_newer_one_is_decided(
    site: Site, scheduler: ScriptedScheduler
) -> None:
    scheduler.acks = False
    site.start()
    stream = await scheduler.stream()
    store = site.root / "store"

    def stored() -> list[Path]:
        # Not rglob, which fails if it enters a folder that is just being deleted.
        return sorted(p.parent for p in store.glob("studies/*/trials/*/*/manifest.json"))

    command = site.program("[leave_if_told(report(n, save=True)) for n in range(1, 6)]")
    stream.send(assign=site.assign(command, milestone=5, checkpoints_kept=2))
    fifth = await stream.get("report", 5)
    await stream.get("heartbeat", len(stream.all("heartbeat")) + 2)
    assert len(stored()) == 5
    stream.decide(fifth, PAUSE)
    await until(lambda: len(stored()) == 2)
    assert stored()[-1].as_uri() + "/" == fifth.checkpoint.uri


@pytest.mark.full
async def test_a_trial_dies_with_its_children_when_it_crashes(
    site: Site, scheduler: ScriptedScheduler
) -> None:
    site.start()
    stream = await scheduler.stream()
    command = site.program(
        """
        child = os.fork()
        if child == 0:
            time.sleep(100)
        mark("up", child)
        os.abort()
        """
    )
    stream.send(assign=site.assign(command))
    child = await _up(site)
    exited = await stream.get("exited")
    assert exited.error == "killed by SIGABRT"
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE


@pytest.mark.full
async def test_a_program_says_that_its_configuration_makes_no_sense(
    site: Site, scheduler: ScriptedScheduler
) -> None:
    site.start()
    stream = await scheduler.stream()
    program = (
        "from headrace import trial\nt = trial.current()\nraise trial.Infeasible('8 heads, 100 features')\n"
    )
    stream.send(assign=site.assign(site.program(program, prelude=False)))
    exited = await stream.get("exited")
    assert exited.outcome == worker_pb2.EXIT_OUTCOME_INFEASIBLE
    assert exited.error == "8 heads, 100 features"


def _timed(site: Site, body: str, *, grace_s: float, left_s: float = 1.5) -> worker_pb2.Assign:
    assign = site.assign(site.program(body), grace_s=grace_s)
    assign.template.timeout.FromSeconds(60)
    assign.time_left.FromMilliseconds(int(1000 * left_s))
    return assign


async def test_a_trial_whose_time_is_over_is_asked_to_leave(site: Site, scheduler: ScriptedScheduler) -> None:
    site.start()
    stream = await scheduler.stream()
    body = """
    while not os.path.exists(me.leave_file):
        time.sleep(0.05)
    mark("asked")
    """
    stream.send(assign=_timed(site, body, grace_s=30, left_s=1.0))
    exited = await stream.get("exited")
    assert (site.marks / "asked").exists()
    assert exited.outcome == worker_pb2.EXIT_OUTCOME_FINISHED


@pytest.mark.full
async def test_a_trial_that_does_not_leave_is_ended_after_its_grace(
    site: Site, scheduler: ScriptedScheduler
) -> None:
    site.start()
    stream = await scheduler.stream()
    stream.send(assign=_timed(site, "report(1); mark('up', os.getpid()); time.sleep(100)", grace_s=0.5))
    exited = await stream.get("exited")
    assert exited.outcome == worker_pb2.EXIT_OUTCOME_TIMED_OUT
    assert exited.error == "ran for 60 s, the study's trial_timeout_s"


def _opening(site: Site, body: str) -> list[str]:
    """A script that opens its trial like users' scripts."""
    opened = "import ctypes, time\nfrom headrace import trial\n\n\ndef in_a_collective():\n"
    end = "\n\nt = trial.current()\nin_a_collective()\n"
    return site.program(f"{opened}    {body}{end}", prelude=False)


async def test_a_program_that_hangs_shows_where(site: Site, scheduler: ScriptedScheduler) -> None:
    site.start()
    stream = await scheduler.stream()
    stream.send(assign=site.assign(_opening(site, "time.sleep(100)"), report_timeout_s=2.5))
    exited = await stream.get("exited")
    assert exited.outcome == FAILED
    assert exited.error.startswith("reported nothing for 2.5 s")
    assert "in in_a_collective" in exited.log_tail
    assert "most recent call first" in exited.log_tail


@pytest.mark.full
async def test_a_program_that_runs_out_of_time_shows_where(site: Site, scheduler: ScriptedScheduler) -> None:
    site.start()
    stream = await scheduler.stream()
    assign = site.assign(_opening(site, "time.sleep(100)"), grace_s=1)
    assign.template.timeout.FromSeconds(60)
    assign.time_left.FromSeconds(2)
    stream.send(assign=assign)
    exited = await stream.get("exited")
    assert exited.outcome == worker_pb2.EXIT_OUTCOME_TIMED_OUT
    assert "in in_a_collective" in exited.log_tail


@pytest.mark.full
async def test_a_program_that_crashes_shows_where(site: Site, scheduler: ScriptedScheduler) -> None:
    site.start()
    stream = await scheduler.stream()
    stream.send(assign=site.assign(_opening(site, "ctypes.string_at(0)")))
    exited = await stream.get("exited")
    assert (exited.outcome, exited.error) == (FAILED, "killed by SIGSEGV")
    assert "in in_a_collective" in exited.log_tail


@pytest.mark.full
async def test_a_program_that_did_not_say_so_gets_no_such_signal(
    site: Site, scheduler: ScriptedScheduler
) -> None:
    site.start()
    stream = await scheduler.stream()
    body = """
    signal.signal(signal.SIGTERM, lambda *_: (mark("term"), os._exit(0)))
    mark("up")
    while True:
        time.sleep(0.05)
    """
    stream.send(assign=site.assign(site.program(body), report_timeout_s=2.5))
    assert (await stream.get("exited")).outcome == FAILED
    assert (site.marks / "term").exists()
