"""Homes and socket folders that were copied, moved or deleted while their daemon runs."""

import asyncio
import json
import os
import shutil
import signal
from pathlib import Path

import psutil
import pytest
from daemon_process import DaemonProcess
from scripted_scheduler import ScriptedScheduler, Stream, until
from worker_site import Site, lease_id

from headrace.v1 import worker_pb2
from headrace_worker import socket_folder
from headrace_worker.home import AlreadyRunningError, Home
from headrace_worker.outbox import Outbox
from headrace_worker.socket_folder import Owner, SocketFolder, delete_left

RUNS = "mark('runtime', os.environ['HEADRACE_RUNTIME']); mark('up', os.getpid()); time.sleep(100)"


async def _running(site: Site, daemons: DaemonProcess) -> tuple[Stream, psutil.Process, Path]:
    """A daemon with a trial; returns its session, the trial, and its socket."""
    await daemons.start()
    stream = await site.scheduler.stream()
    stream.send(assign=site.assign(site.program(RUNS)))
    await until((site.marks / "up").exists)
    trial = psutil.Process(int((site.marks / "up").read_text()))
    return stream, trial, _socket(site, "runtime")


def _socket(site: Site, mark: str) -> Path:
    return Path((site.marks / mark).read_text().removeprefix("unix:"))


def _copy(site: Site) -> Path:
    copy = site.root / "copy"
    shutil.copytree(site.settings.home, copy)
    return copy


async def test_a_daemon_on_a_copied_home_touches_nothing_before_it_is_taken(
    site: Site, scheduler: ScriptedScheduler, daemons: DaemonProcess
) -> None:
    first, trial, socket = await _running(site, daemons)
    scheduler.welcomes = False
    await daemons.start(home=_copy(site))
    second = await scheduler.stream(2)
    assert second.hello.home == first.hello.home
    assert second.hello.home_lock != first.hello.home_lock, "the scheduler can tell it from a restart"
    assert [ref.lease_id for ref in second.hello.held] == [lease_id(1)]
    assert trial.is_running()
    assert socket.exists()
    assert not second.received


@pytest.mark.full
async def test_a_copied_home_that_is_taken_ends_no_process_and_deletes_nothing_of_the_first(
    site: Site, scheduler: ScriptedScheduler, daemons: DaemonProcess
) -> None:
    """For example after a whole cluster was copied, whose scheduler knows nothing of the first one."""
    _, trial, socket = await _running(site, daemons)
    copy = _copy(site)
    saved = site.root / "store/studies/s/trials/0/000001-000001-step3-abc"
    saved.mkdir(parents=True)
    outbox = Outbox(copy / "outbox.sqlite")
    outbox.begin_upload(f"{saved.as_uri()}/", lease_id(1))
    outbox.close()
    second = await daemons.start(home=copy)
    stream = await scheduler.stream(2)
    assert (await stream.get("exited")).lease.lease_id == lease_id(1), "its trial goes on from its checkpoint"
    await stream.get("heartbeat", 3)
    assert trial.is_running()
    assert socket.exists()
    assert saved.exists()
    second.kill()
    await second.wait()
    await daemons.start(home=copy)
    again = await scheduler.stream(3)
    assert again.hello.home_lock == stream.hello.home_lock, "from now on it is its own"
    assert not again.hello.held


@pytest.mark.full
async def test_a_restart_shows_the_same_lock_and_deletes_the_socket_of_before(
    site: Site, scheduler: ScriptedScheduler, daemons: DaemonProcess
) -> None:
    first, trial, socket = await _running(site, daemons)
    os.kill(daemons.processes[0].pid, signal.SIGKILL)
    await daemons.processes[0].wait()
    await daemons.start()
    second = await scheduler.stream(2)
    assert second.hello.home_lock == first.hello.home_lock
    await second.get("exited")
    await until(lambda: not socket.parent.exists(), "the old folder is gone")
    await until(lambda: not trial.is_running() or trial.status() == psutil.STATUS_ZOMBIE)


async def test_a_socket_that_was_deleted_is_made_again_and_trials_that_run_notice_nothing(
    site: Site, scheduler: ScriptedScheduler
) -> None:
    daemon = site.start()
    stream = await scheduler.stream()
    begun = site.program(
        """
        mark("runtime", os.environ["HEADRACE_RUNTIME"])
        report(1)
        while not Path(os.environ["MARKS"], "deleted").exists():
            time.sleep(0.01)
        report(2)
        """
    )
    stream.send(assign=site.assign(begun))
    await stream.get("report")
    socket = _socket(site, "runtime")
    shutil.rmtree(socket.parent)
    stream.send(
        assign=site.assign(
            site.program("mark('after', os.environ['HEADRACE_RUNTIME']); report(1)"), slots=(1,), number=1
        )
    )
    assert (await stream.get("report", 2)).lease.lease_id == lease_id(2)
    assert _socket(site, "after") == socket, "processes that were started before find it too"
    (site.marks / "deleted").touch()
    assert (await stream.get("report", 3)).step == 2
    await stream.get("exited", 2)
    assert {one.outcome for one in stream.all("exited")} == {worker_pb2.EXIT_OUTCOME_FINISHED}
    assert daemon.trouble() == ""


async def test_something_else_at_the_path_of_the_socket_is_left_alone(
    site: Site, scheduler: ScriptedScheduler
) -> None:
    site.start()
    stream = await scheduler.stream()
    program = site.program("mark(lease, os.environ['HEADRACE_RUNTIME']); report(1)")
    stream.send(assign=site.assign(program))
    await stream.get("exited")
    socket = _socket(site, lease_id(1))
    shutil.rmtree(socket.parent)
    socket.parent.mkdir()
    (socket.parent / "somebody's").touch()
    try:
        stream.send(assign=site.assign(program, number=1))
        assert (await stream.get("exited", 2)).outcome == worker_pb2.EXIT_OUTCOME_FINISHED
        assert _socket(site, lease_id(2)).parent != socket.parent
        await site.stop()
        assert (socket.parent / "somebody's").exists()
    finally:
        shutil.rmtree(socket.parent)


@pytest.mark.full
async def test_a_socket_that_cannot_be_made_charges_nobody_and_is_told_of(
    site: Site, scheduler: ScriptedScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.start()
    stream = await scheduler.stream()
    await stream.get("heartbeat")
    folder = Path(json.loads((site.settings.home / "runtime").read_text())["folder"])

    def refuse(self: SocketFolder) -> None:
        raise PermissionError(13, "Permission denied", str(self.path))

    monkeypatch.setattr(SocketFolder, "make", refuse)
    shutil.rmtree(folder)
    stream.send(assign=site.assign(site.program("report(1)")))
    exited = await stream.get("exited")
    assert exited.outcome == worker_pb2.EXIT_OUTCOME_UNREACHED
    assert str(folder) in exited.error
    await until(lambda: any(str(folder) in beat.trouble for beat in stream.all("heartbeat")), "it says so")
    monkeypatch.undo()
    stream.send(assign=site.assign(site.program("report(1)"), number=1))
    assert (await stream.get("exited", 2)).outcome == worker_pb2.EXIT_OUTCOME_FINISHED


async def test_a_home_that_was_deleted_is_made_again_and_loses_no_message(
    site: Site, scheduler: ScriptedScheduler
) -> None:
    scheduler.acks = False
    site.start()
    stream = await scheduler.stream()
    stream.send(assign=site.assign(site.program("report(1)")))
    await stream.get("exited")
    shutil.rmtree(site.settings.home)
    again = await scheduler.stream(2)
    assert again.hello.home == stream.hello.home
    assert again.hello.home_lock != stream.hello.home_lock
    again.send(assign=site.assign(site.program("report(2)"), number=1))
    assert (await again.get("exited", 2)).outcome == worker_pb2.EXIT_OUTCOME_FINISHED
    assert [message.sequence for message in again.durable()] == [1, 2, 3, 4]
    with pytest.raises(AlreadyRunningError), Home(site.settings.home):
        pass
    kept = Outbox(site.settings.outbox_path)
    assert kept.append("l", worker_pb2.SessionRequest(report=worker_pb2.Report())) == 5
    kept.close()


@pytest.mark.full
@pytest.mark.parametrize("name", ["id", "taken-with"])
async def test_a_home_of_which_a_file_was_deleted_is_completed(
    name: str, site: Site, scheduler: ScriptedScheduler
) -> None:
    site.start()
    stream = await scheduler.stream()
    path = site.settings.home / name
    held = await until(lambda: path.exists() and path.read_text())
    path.unlink()
    await until(path.exists, f"{name} again")
    assert path.read_text() == held
    again = await scheduler.stream(2)
    assert (again.hello.home, again.hello.home_lock) == (stream.hello.home, stream.hello.home_lock)


@pytest.mark.full
async def test_a_daemon_whose_home_another_one_has_taken_leaves(
    site: Site, scheduler: ScriptedScheduler
) -> None:
    site.start()
    stream = await scheduler.stream()
    shutil.rmtree(site.settings.home)
    site.settings.home.mkdir()
    with Home(site.settings.home):
        await until(lambda: any("home" in beat.leaving for beat in stream.all("heartbeat")), "it leaves")
        (_, ended), *_ = site.daemons
        await asyncio.wait_for(ended, 60)


@pytest.mark.full
async def test_a_trial_whose_folder_was_deleted_is_not_charged(
    site: Site, scheduler: ScriptedScheduler
) -> None:
    site.start()
    stream = await scheduler.stream()
    program = site.program(
        """
        report(1)
        while not Path(os.environ["MARKS"], "deleted").exists():
            time.sleep(0.01)
        Path(me.checkpoint_dir, "x").write_text("x")
        """
    )
    stream.send(assign=site.assign(program))
    await stream.get("report")
    shutil.rmtree(site.settings.home)
    (site.marks / "deleted").touch()
    exited = await until(lambda: next((one for s in scheduler.streams for one in s.all("exited")), None))
    assert exited.outcome == worker_pb2.EXIT_OUTCOME_LOST
    assert "its folder on the worker was deleted" in exited.error


OWNER = Owner(home="h", instance="i", machine=socket_folder.machine())


@pytest.mark.parametrize("whose", ["its own, dead", "its own, alive", "another start's", "unmarked", "any"])
def test_a_folder_goes_only_where_it_is_the_workers_own_and_nobody_uses_it(
    whose: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = SocketFolder(OWNER)
    folder.make()
    note = folder.said()
    if whose == "its own, dead":
        assert folder._lock is not None
        folder._lock.close()
    elif whose == "another start's":
        assert folder._lock is not None
        folder._lock.close()
        note = note.replace('"i"', '"j"')
    elif whose == "unmarked":
        (folder.path / "owner").unlink()
    elif whose == "any":
        other = tmp_path / "photos"
        folder.path.rename(other)
        note = json.dumps({**json.loads(note), "folder": str(other)})
    before = set(tmp_path.iterdir())
    delete_left(note, "h")
    assert (set(tmp_path.iterdir()) == before) == (whose != "its own, dead")
    folder.delete()


@pytest.mark.parametrize("note", ["/tmp/headrace-worker-x", "", "[]", "{}", '{"folder": 1}', "\x00"])
def test_damaged_notes_delete_nothing(note: str) -> None:
    delete_left(note, "h")


def test_a_home_is_a_copy_until_its_daemon_was_taken(tmp_path: Path) -> None:
    first, copy = tmp_path / "first", tmp_path / "copy"
    with Home(first) as home:
        assert not home.copied, "a new one is its own"
        home.settle()
    shutil.copytree(first, copy)
    with Home(copy) as home:
        assert home.copied
    with Home(copy) as home:
        assert home.copied, "it was refused meanwhile"
        home.settle()
        assert not home.copied
    with Home(first) as home:
        assert not home.copied
