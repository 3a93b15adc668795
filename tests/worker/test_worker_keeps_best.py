"""The worker's store with `keep: best`: what a decision pins stays, also in the next attempt and in bundles."""

import json
from pathlib import Path
from urllib.parse import urlsplit

from bundle_site import BundleSite
from scripted_scheduler import ScriptedScheduler, until
from worker_site import Site

from headrace.checkpoints.manifest import MANIFEST
from headrace.v1 import event_pb2, spec_pb2, worker_pb2

CONTINUE = event_pb2.DECISION_ACTION_CONTINUE
PAUSE = event_pb2.DECISION_ACTION_PAUSE
STOP = event_pb2.DECISION_ACTION_STOP
SAVES = """
for step in range(me.assign.resume_step + 1, 28):
    leave_if_told(report(step, save=True))
"""
ENDS = """
assert me.assign.ends_study.value == 0.5
leave_if_told(report(1, loss=0.6))
leave_if_told(report(2, loss=0.4))  # it saves nothing, so nobody waits
leave_if_told(report(3, save=True, loss=0.4))
assert report(4, save=True, loss=0.5).action == STOP
mark("4", "left by itself")
"""


def steps(site: Site, number: int) -> list[int]:
    """The steps of a trial's complete checkpoints."""
    found = (site.root / "store/studies/s/trials" / str(number)).glob(f"*/{MANIFEST}")
    return sorted(int(path.parent.name.split("-step")[1].split("-")[0]) for path in found)


def state_of(report: worker_pb2.Report) -> dict[str, int]:
    """The content of a report's checkpoint."""
    found: dict[str, int] = json.loads(Path(urlsplit(report.checkpoint.uri).path, "state.json").read_text())
    return found


async def test_a_pinned_checkpoint_stays_through_a_pause_and_the_next_attempt(
    site: Site, scheduler: ScriptedScheduler
) -> None:
    site.start()
    stream = await scheduler.stream()
    command = site.program(SAVES)
    stream.send(assign=site.assign(command, milestone=1, checkpoints_shared=True))
    best = await stream.get("report", 1)
    stream.decide(best, CONTINUE, next_milestone=2, pinned=[best.checkpoint.uri])
    second = await stream.get("report", 2)
    stream.decide(second, CONTINUE, next_milestone=3, pinned=[best.checkpoint.uri])
    third = await stream.get("report", 3)
    stream.decide(third, PAUSE, pinned=[best.checkpoint.uri])
    await stream.get("exited")
    await until(lambda: steps(site, 0) == [1, 3], "the second one is deleted")
    stream.send(
        assign=site.assign(
            command,
            milestone=5,
            attempt=2,
            checkpoints_shared=True,
            checkpoint=third.checkpoint,
            resume_step=3,
        )
    )
    fifth = await stream.get("report", 5)
    assert fifth.step == 5
    stream.decide(fifth, STOP, pinned=[best.checkpoint.uri])
    await stream.get("exited", 2)
    await until(lambda: steps(site, 0) == [1, 5], "the best and the last one")
    assert state_of(best) == {"step": 1}


async def test_a_member_of_a_bundle_keeps_what_is_pinned(site: Site, scheduler: ScriptedScheduler) -> None:
    site.start()
    stream = await scheduler.stream()
    bundle = BundleSite(site, stream)
    one, other = (bundle.start(number, milestone=3, checkpoints_shared=True) for number in (1, 2))
    best = await bundle.report(one, 1)
    for assign in (one, other):
        pinned = [best.checkpoint.uri] if assign is one else []
        stream.decide(await bundle.report(assign, 1), CONTINUE, next_milestone=3, pinned=pinned)
        stream.decide(await bundle.report(assign, 3), PAUSE, pinned=pinned)
        await bundle.exited(assign)
    await until(lambda: (steps(site, 1), steps(site, 2)) == ([1, 3], [3]), "one has kept its best")


async def test_a_report_that_may_end_the_study_waits_for_its_answer(
    site: Site, scheduler: ScriptedScheduler
) -> None:
    site.start()
    stream = await scheduler.stream()
    ends = event_pb2.EndsStudy(goal=spec_pb2.GOAL_MINIMIZE, value=0.5)
    stream.send(assign=site.assign(site.program(ENDS), milestone=20, ends_study=ends))
    await stream.get("report", 3)
    assert not site.marks.joinpath("4").exists()
    third = stream.all("report")[2]
    assert (third.step, third.HasField("checkpoint")) == (3, True)
    stream.decide(third, CONTINUE, next_milestone=20)  # it violates a constraint
    fourth = await stream.get("report", 4)
    stream.decide(fourth, STOP)
    assert (await stream.get("exited")).outcome == worker_pb2.EXIT_OUTCOME_RELEASED
    assert site.marks.joinpath("4").read_text() == "left by itself"
