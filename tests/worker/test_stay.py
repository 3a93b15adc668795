"""Workers that leave by themselves: when they are idle, and before their lifetime ends."""

import asyncio
import os
import signal
from contextlib import suppress

import pytest
from daemon_process import DaemonProcess
from scripted_scheduler import ScriptedScheduler, until
from worker_site import Site

from headrace import worker_labels
from headrace.errors import HeadraceError, InvalidFieldError
from headrace.v1 import event_pb2, worker_pb2
from headrace_worker.daemon import Daemon
from headrace_worker.stay import Stay, StayLimits

PAUSE = event_pb2.DECISION_ACTION_PAUSE


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_idle_time_counts_from_the_start_and_from_the_last_trial() -> None:
    clock = Clock()
    stay = Stay(StayLimits(idle_s=600), clock)
    clock.now_s += 599
    assert stay.look(busy=False) == ""
    assert stay.look(busy=True) == ""
    clock.now_s += 599
    assert stay.look(busy=False) == ""
    clock.now_s += 1
    assert stay.look(busy=False) == "idle for 10m"
    assert stay.look(busy=True) == "", "a trial came just in time"


def test_a_lifetime_ends_early_enough_to_leave_in_busy_or_not() -> None:
    clock = Clock()
    limits = StayLimits.of(idle_s=None, lifetime_s=4 * 3600, drain_grace_s=100, stop_grace_s=10)
    stay = Stay(limits, clock)
    clock.now_s += 4 * 3600 - 121
    assert stay.look(busy=True) == ""
    clock.now_s += 1
    assert stay.look(busy=True) == stay.look(busy=False) == "its lifetime of 4h ends"


def test_without_limits_it_stays() -> None:
    clock = Clock()
    stay = Stay(StayLimits(), clock)
    clock.now_s += 1e9
    assert stay.look(busy=False) == ""


def test_a_lifetime_that_is_too_short_to_leave_in_is_refused_with_the_time_that_leaving_takes() -> None:
    with pytest.raises(InvalidFieldError, match=r"--lifetime: is too short: leaving takes up to 50 s .*30 s"):
        StayLimits.of(idle_s=None, lifetime_s=30, drain_grace_s=30, stop_grace_s=10)


async def test_a_stay_that_is_over_ends_joining_and_says_so() -> None:
    stay = Stay(StayLimits(idle_s=0.0), Clock())
    joins = asyncio.create_task(asyncio.Event().wait())
    with pytest.raises(HeadraceError, match=r"before a scheduler let it join: idle for 0s"):
        await stay.within(joins)
    with suppress(asyncio.CancelledError):
        await joins
    assert joins.cancelled()


async def test_an_idle_worker_exits_with_0_and_an_ephemeral_one_says_that_it_is(
    scheduler: ScriptedScheduler, daemons: DaemonProcess
) -> None:
    daemon = await daemons.start("--idle-exit", "1s", "--ephemeral", "--label", "zone=eu")
    stream = await scheduler.stream()
    assert dict(stream.hello.labels) == {"zone": "eu", worker_labels.EPHEMERAL: worker_labels.YES}
    assert await asyncio.wait_for(daemon.wait(), 60) == 0
    last = scheduler.streams[-1].hello
    assert (list(last.devices), last.leaving) == ([], "idle for 1s"), "so that its row is removed at once"


async def test_a_trial_at_the_end_of_the_lifetime_saves_and_goes_elsewhere(
    site: Site, scheduler: ScriptedScheduler
) -> None:
    body = """
    milestone = me.assign.next_milestone
    for step in range(1, 1000):
        time.sleep(0.05)
        decision = report(step, save=step >= milestone)
        leave_if_told(decision)
        milestone = decision.next_milestone
    """
    daemon, clock = Daemon(site.settings), Clock()
    limits = StayLimits.of(idle_s=600, lifetime_s=3600, drain_grace_s=30, stop_grace_s=3)
    daemon._stay = Stay(limits, clock)
    running = asyncio.create_task(daemon.run())
    stream = await scheduler.stream()
    stream.send(assign=site.assign(site.program(body), milestone=1000))
    await until(lambda: stream.all("report"))
    clock.now_s += 3600 - 43
    saved = await until(lambda: next((r for r in stream.all("report") if r.HasField("checkpoint")), None))
    stream.decide(saved, PAUSE)
    await asyncio.wait_for(running, 60)
    ends = [one for each in scheduler.streams for one in each.all("exited")]
    assert ends[-1].outcome == worker_pb2.EXIT_OUTCOME_RELEASED
    said = {beat.leaving for each in scheduler.streams for beat in each.all("heartbeat") if beat.leaving}
    assert said == {"its lifetime of 1h ends"}, "it was never idle"


FAILS = """
signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # as a library may
report(1)
mark("pid", os.getpid())
time.sleep(600)
"""


@pytest.mark.parametrize("in_job", [True, False])
async def test_a_trial_that_fails_as_its_worker_s_batch_job_ends_is_not_charged(
    site: Site, scheduler: ScriptedScheduler, monkeypatch: pytest.MonkeyPatch, in_job: bool
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    if in_job:
        monkeypatch.setenv("SLURM_JOB_ID", "7")
    daemon = site.start()
    stream = await scheduler.stream()
    stream.send(assign=site.assign(site.program(FAILS)))
    await until(lambda: (site.marks / "pid").exists())
    daemon._leaving.terminate()
    os.kill(int((site.marks / "pid").read_text()), signal.SIGTERM)  # as Slurm does
    exited = await until(lambda: [one for each in scheduler.streams for one in each.all("exited")])
    if in_job:
        assert exited[0].outcome == worker_pb2.EXIT_OUTCOME_LOST
        assert exited[0].error.startswith(
            "the worker's job was sent SIGTERM; the program said: exit status 1"
        )
    else:
        assert exited[0].outcome == worker_pb2.EXIT_OUTCOME_FAILED
