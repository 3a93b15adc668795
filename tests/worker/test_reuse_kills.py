"""A process or its daemon is killed between two trials, at any line of the hand-over: the trial before it has its end,
the one after it runs, and neither is charged."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
from callable_trials import PROGRAM, STOP, Trials
from daemon_process import DaemonProcess
from scripted_scheduler import ScriptedScheduler, Stream, until
from tiers import drawn
from worker_site import Site

from headrace.v1 import worker_pb2

HERE = Path(__file__).parent
DIED = "the worker daemon died"


@pytest.fixture
async def trials(site: Site, scheduler: ScriptedScheduler) -> Trials:
    scheduler.interval_s = 60.0
    site.start()
    return Trials(site, await scheduler.stream())


WATCHED = f"""
sys.path.append({str(HERE)!r})
import line_killer
line_killer.watch_a_trial()

def train"""
PROGRAM_THAT_COUNTS = PROGRAM.replace("\ndef train", WATCHED) + "    line_killer.begin()\n"


@pytest.mark.full
@pytest.mark.smoke
async def test_a_process_may_be_killed_at_any_line_between_two_trials(trials: Trials) -> None:
    trials.write(PROGRAM_THAT_COUNTS)
    marks = trials.site.marks
    (marks / "kill-at").write_text("0")
    await trials.begin(reuse=True)
    await trials.end()
    await trials.begin(reuse=True)  # the same process has gone through the hand-over once
    await trials.end()
    lines = int((marks / "lines").read_text())
    assert lines > 20
    places = set()
    step = 1 if drawn(first=0, full=1) else max(1, lines // 4)
    for kill_at in range(1, lines + 1, step):
        (marks / "killed").unlink(missing_ok=True)
        (marks / "kill-at").write_text(str(kill_at))
        trials.write(PROGRAM)
        await trials.begin()  # in a process of its own: the one that waits has no use, and ends
        await trials.end()
        trials.write(PROGRAM_THAT_COUNTS)
        await trials.begin(reuse=True)
        before = await trials.end()
        after = await trials.begin(reuse=True)
        assert (marks / "killed").exists(), kill_at
        places.add((marks / "killed").read_text())
        ended = await trials.end()
        for exited in (before, ended):
            assert exited.outcome == worker_pb2.EXIT_OUTCOME_RELEASED, (kill_at, exited.error)
        assert psutil.pid_exists(after["pid"])  # it waits for the next one
    assert len(places) >= (20 if step == 1 else 3)


WATCHES = f"import sys; sys.path.append({str(HERE)!r}); import line_killer; line_killer.watch_a_daemon(); "
STEP = int(os.environ.get("HEADRACE_KILL_STEP", "40"))
"""1 for every line, which takes half an hour."""


@pytest.mark.full
@pytest.mark.timeout(3600)
async def test_a_daemon_may_be_killed_at_any_line_between_two_trials(
    site: Site, scheduler: ScriptedScheduler, daemons: DaemonProcess
) -> None:
    places: list[str] = []
    stream = await _watched(daemons, scheduler, kill_at=1)
    while killed := await _killed_between(trials := Trials(site, stream), daemons.processes[-1]):
        places.append((site.marks / "killed").read_text())
        stream = await _watched(daemons, scheduler, kill_at=1 + len(places) * STEP)
        before, after = killed
        await _account(trials, stream, before["assign"].lease.lease_id, after)
        assert not _lives(before["pid"])
    assert len(places) * STEP > 100  # lines; then the second trial trained


async def _watched(daemons: DaemonProcess, scheduler: ScriptedScheduler, *, kill_at: int) -> Stream:
    """The first session of a new daemon, which is killed at a line of its first hand-over."""
    marks = daemons.site.marks
    (marks / "killed").unlink(missing_ok=True)
    (marks / "kill-at").write_text(str(kill_at))
    known = len(scheduler.streams)
    await daemons.start(first=WATCHES)
    return await scheduler.stream(known + 1)


async def _killed_between(
    trials: Trials, daemon: asyncio.subprocess.Process
) -> tuple[dict[str, Any], worker_pb2.Assign] | None:
    """What the first trial recorded, and the second trial's Assign; None if the daemon lives and the second trains."""
    before = await trials.begin(reuse=True)
    trials.stream.decide(trials.stream.all("report")[-1], STOP)
    await until(lambda: trials.stream.all("exited") or daemon.returncode is not None, "the first trial's end")
    after = trials.assign(reuse=True)
    trials.stream.send(assign=after)
    await until(lambda: len(trials.stream.all("report")) == 2 or daemon.returncode is not None, "an outcome")
    if daemon.returncode is None:
        return None
    assert daemon.returncode == -signal.SIGKILL
    return before, after


async def _account(trials: Trials, again: Stream, before: str, after: worker_pb2.Assign) -> None:
    """Each lease that the killed daemon knew has one end, which charges nobody."""
    held = {one.lease_id for one in again.hello.held}
    known = _ends(trials.stream, before)
    assert before in held or known, "its end is lost"
    await until(lambda: all(_ends(again, one) for one in held), "an end for each lease that the daemon held")
    ends = [*known, *_ends(again, before)]
    assert len({end.SerializeToString() for end in ends}) == 1, ends
    assert ends[0].outcome == worker_pb2.EXIT_OUTCOME_RELEASED or ends[0].error == DIED
    lease = after.lease.lease_id
    assert [end.error for end in _ends(again, lease)] == [DIED] * (lease in held)
    began = trials.site.marks / after.lease.trial.rpartition("/")[2]
    assert lease in held or not began.exists()


def _ends(stream: Stream, lease: str) -> list[worker_pb2.Exited]:
    return [exited for exited in stream.all("exited") if exited.lease.lease_id == lease]


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
