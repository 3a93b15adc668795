"""The worker's half of a drain: what starts it, what its trials do, and when the daemon ends. Real trial processes."""

import asyncio
import os
import sys
from pathlib import Path

import pytest
from daemon_process import COMMAND, DaemonProcess
from scripted_scheduler import ScriptedScheduler, until
from worker_site import Site

from headrace.v1 import event_pb2, worker_pb2
from headrace_worker import leaving
from headrace_worker.environments import Environments
from headrace_worker.settings import WorkerSettings

PAUSE = event_pb2.DECISION_ACTION_PAUSE
RELEASED = worker_pb2.EXIT_OUTCOME_RELEASED
# Saves when it should: at a milestone.
TRAINS = """
milestone = me.assign.next_milestone
for step in range(1, 1000):
    time.sleep(0.05)
    decision = report(step, save=step >= milestone)
    leave_if_told(decision)
    milestone = decision.next_milestone
    mark("trains", step)
"""


async def ended(scheduler: ScriptedScheduler, count: int = 1) -> worker_pb2.Exited:
    """The count-th end of an attempt, in any session: a daemon that leaves opens a last one."""

    def told() -> list[worker_pb2.Exited]:
        found = {one.sequence: one for stream in scheduler.streams for one in stream.all("exited")}
        return [found[sequence] for sequence in sorted(found)]

    return (await until(lambda: len(told()) >= count and told(), "an end"))[count - 1]


async def test_sigterm_lets_a_trial_save_at_its_next_report_and_then_the_daemon_leaves(
    site: Site, scheduler: ScriptedScheduler, daemons: DaemonProcess
) -> None:
    daemon = await daemons.start()
    stream = await scheduler.stream()
    stream.send(assign=site.assign(site.program(TRAINS), milestone=1000))
    await until(lambda: (site.marks / "trains").exists())
    daemon.terminate()
    saved = await until(lambda: next((r for r in stream.all("report") if r.HasField("checkpoint")), None))
    assert next(beat.leaving for beat in stream.all("heartbeat") if beat.leaving) == "SIGTERM"
    stream.decide(saved, PAUSE)
    assert (await ended(scheduler)).outcome == RELEASED
    assert await asyncio.wait_for(daemon.wait(), 60) == 0
    for further in scheduler.streams[1:]:
        assert (list(further.hello.devices), further.hello.leaving) == ([], "SIGTERM")
    assert stream.all("report")[-1].step == saved.step, "it trained no further"


async def test_the_end_of_the_grace_gives_back_what_is_left_and_a_second_sigterm_does_so_sooner(
    site: Site, scheduler: ScriptedScheduler, daemons: DaemonProcess
) -> None:
    daemon = await daemons.start()
    stream = await scheduler.stream()
    body = "report(1); mark('up'); time.sleep(100)"
    stream.send(assign=site.assign(site.program(body)))
    await until(lambda: (site.marks / "up").exists())
    daemon.terminate()
    await until(lambda: any(beat.leaving for beat in stream.all("heartbeat")))
    daemon.terminate()
    exited = await ended(scheduler)
    assert (exited.outcome, exited.error) == (RELEASED, "worker 'w1' is draining: SIGTERM")
    assert await asyncio.wait_for(daemon.wait(), 60) == 0


async def test_an_attempt_that_has_not_begun_goes_back_at_once(
    site: Site, scheduler: ScriptedScheduler
) -> None:
    daemon = site.start()
    stream = await scheduler.stream()
    stream.send(assign=site.assign(site.program(TRAINS), milestone=1000))
    waiting = site.assign(site.program(TRAINS), number=1)
    stream.send(assign=waiting)  # on the same slot
    await until(lambda: (site.marks / "trains").exists())
    daemon._leaving.by_itself("SIGTERM")
    exited = await ended(scheduler)
    assert exited.lease == waiting.lease
    assert (exited.outcome, exited.error) == (RELEASED, "worker 'w1' is draining: SIGTERM")
    late = site.assign(site.program("mark('late')"), slots=(1,), number=2)
    for one in scheduler.streams:
        one.send(assign=late)  # it was already on its way
    assert (await ended(scheduler, 2)).lease == late.lease
    assert not (site.marks / "late").exists()


@pytest.mark.full
async def test_a_drain_ends_what_is_being_installed_for_a_trial(
    site: Site, scheduler: ScriptedScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = asyncio.Event()

    async def install(self: Environments, *_: object) -> None:
        begun.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(Environments, "_install", install)
    (site.root / "requirements.txt").write_text("one\n")
    daemon = site.start()
    stream = await scheduler.stream()
    assign = site.assign(site.program(TRAINS))
    assign.template.requirements = "requirements.txt"
    stream.send(assign=assign)
    await asyncio.wait_for(begun.wait(), 60)
    daemon._leaving.by_itself("SIGTERM")
    exited = await stream.get("exited")
    assert (exited.outcome, exited.error) == (RELEASED, "worker 'w1' is draining: SIGTERM")
    await asyncio.wait_for(asyncio.shield(site.daemons[0][1]), 60)
    site.daemons.clear()


@pytest.mark.full
async def test_a_user_s_drain_is_taken_back_and_one_from_before_the_start_lets_the_daemon_stay(
    site: Site, scheduler: ScriptedScheduler
) -> None:
    site.start()
    stream = await scheduler.stream()
    stream.send(withdraw=worker_pb2.Withdraw(reason="asked for before", leave=False))
    await stream.get("heartbeat", 3)
    assert not site.daemons[0][1].done()
    stream.close()
    again = await scheduler.stream(2)
    assert again.hello.withdrawn, "so that the next session takes it back where it is over"
    again.send(withdraw=worker_pb2.Withdraw())
    again.send(assign=site.assign(site.program(TRAINS), milestone=1000))
    await until(lambda: (site.marks / "trains").exists(), "it takes trials again")
    again.send(withdraw=worker_pb2.Withdraw(reason="now", leave=True))
    saved = await until(lambda: next((r for r in again.all("report") if r.HasField("checkpoint")), None))
    again.decide(saved, PAUSE)
    await asyncio.wait_for(site.daemons[0][1], 60)
    site.daemons.clear()


@pytest.mark.full
async def test_a_user_s_grace_ends_a_trial_that_saves_nothing(
    site: Site, scheduler: ScriptedScheduler
) -> None:
    site.start()
    stream = await scheduler.stream()
    body = "report(1); mark('up')\nwhile True:\n    time.sleep(0.05)"
    stream.send(assign=site.assign(site.program(body)))
    await until(lambda: (site.marks / "up").exists())
    withdraw = worker_pb2.Withdraw(reason="reboot", leave=True)
    withdraw.grace.FromMilliseconds(100)
    stream.send(withdraw=withdraw)
    exited = await ended(scheduler)
    assert (exited.outcome, exited.error) == (RELEASED, "worker 'w1' is draining: reboot")
    await asyncio.wait_for(site.daemons[0][1], 60)
    site.daemons.clear()


@pytest.mark.full
async def test_there_is_no_standby_process_while_the_worker_drains(
    site: Site, scheduler: ScriptedScheduler
) -> None:
    daemon = site.start()
    stream = await scheduler.stream()
    (site.root / "study_that_drains.py").write_text(
        "import os, pathlib, time\n"
        "pathlib.Path(os.environ['MARKS'], f'pid-{os.getpid()}').touch()\n"
        "def train(t):\n    for step in t.steps():\n        time.sleep(0.05)\n        t.report(loss=1.0)\n"
    )
    assign = site.assign(["unused"], milestone=27)
    assign.template.callable = "study_that_drains:train"
    stream.send(assign=assign)
    await until(lambda: len(list(site.marks.glob("pid-*"))) == 2, "both processes")
    daemon._leaving.by_itself("SIGTERM")
    await until(lambda: not daemon._standbys._ready and not daemon._standbys._starting)


async def test_the_appearance_of_the_file_drains_the_worker(
    site: Site, scheduler: ScriptedScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    notice = site.root / "notice"
    settings = site.settings
    monkeypatch.setattr(leaving, "LOOK_EVERY_S", 0.02)
    monkeypatch.setattr(Site, "settings", property(lambda _: _with(settings, notice)))
    site.start()
    stream = await scheduler.stream()
    stream.send(assign=site.assign(site.program(TRAINS), milestone=1000))
    await until(lambda: (site.marks / "trains").exists())
    notice.touch()
    saved = await until(lambda: next((r for r in stream.all("report") if r.HasField("checkpoint")), None))
    said = {beat.leaving for beat in stream.all("heartbeat")}
    assert said == {"", f"spot notice {notice}"}
    stream.decide(saved, PAUSE)
    await asyncio.wait_for(site.daemons[0][1], 60)
    site.daemons.clear()


def _with(settings: WorkerSettings, notice: Path) -> WorkerSettings:
    fields = {name: getattr(settings, name) for name in WorkerSettings.__slots__}
    return WorkerSettings(**{**fields, "spot_notice": notice})


@pytest.mark.full
async def test_a_file_that_is_there_already_is_refused(tmp_path: Path) -> None:
    notice = tmp_path / "notice"
    notice.touch()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", COMMAND, "--home", str(tmp_path / "home"), "--spot-notice-file", str(notice)),
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "COLUMNS": "200"},
    )
    _, said = await process.communicate()
    assert process.returncode == 2
    assert b"already exists" in said
