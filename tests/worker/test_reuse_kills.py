"""A process that is killed between two trials, at any line of the hand-over: the trial before it has its end, the one
after it runs, and neither is charged."""

from pathlib import Path

import psutil
import pytest
from callable_trials import PROGRAM, Trials
from scripted_scheduler import ScriptedScheduler
from tiers import drawn
from worker_site import Site

from headrace.v1 import worker_pb2

HERE = Path(__file__).parent


@pytest.fixture
async def trials(site: Site, scheduler: ScriptedScheduler) -> Trials:
    scheduler.interval_s = 60.0
    site.start()
    return Trials(site, await scheduler.stream())


PROGRAM_THAT_COUNTS = (
    PROGRAM.replace("\ndef train", f"\nsys.path.append({str(HERE)!r})\nimport line_killer\n\ndef train")
    + "    line_killer.begin()\n"
)


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
