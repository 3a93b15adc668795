"""A trial finds the files of its plan in a folder, in every attempt."""

from pathlib import Path

from scripted_scheduler import ScriptedScheduler
from worker_site import Site

from headrace.v1 import spec_pb2, worker_pb2

PROGRAM = """
found = Path(me.plan_dir, "plan.json").read_text() if me.plan_dir else "none"
mark(f"plan-{os.environ['HEADRACE_LEASE_ID'].split('-')[1]}", found)
if found == "first":
    os.kill(os.getpid(), signal.SIGKILL)
"""


def planned(site: Site, text: str | None, *, name: str = "plan.json", attempt: int = 1) -> worker_pb2.Assign:
    assign = site.assign(site.program(PROGRAM), attempt=attempt)
    if text is not None:
        assign.template.plan.CopyFrom(spec_pb2.TrialPlan(files={name: text}))
    return assign


def kept(folder: Path) -> list[Path]:
    return list(folder.rglob("plan.json"))


async def test_every_attempt_has_the_plan_that_came_with_it(
    site: Site, scheduler: ScriptedScheduler, tmp_path: Path
) -> None:
    """Also after a kill, and on another worker."""
    other = Site(tmp_path / "other", scheduler)
    other.root.mkdir()
    site.start()
    one = await scheduler.stream(1)
    other.start()
    another = await scheduler.stream(2)
    attempts = [
        (one, "first", worker_pb2.EXIT_OUTCOME_LOST),
        (one, "second é", worker_pb2.EXIT_OUTCOME_FINISHED),
        (another, "second é", worker_pb2.EXIT_OUTCOME_FINISHED),
        (another, None, worker_pb2.EXIT_OUTCOME_FINISHED),
    ]
    for attempt, (stream, text, outcome) in enumerate(attempts, start=1):
        stream.send(assign=planned(site, text, attempt=attempt))
        exited = await stream.get("exited", 1 + (attempt - 1) % 2)
        assert exited.outcome == outcome
        assert (site.marks / f"plan-{attempt}").read_text() == (text or "none")
    await other.stop()
    assert kept(tmp_path) == [], "nothing of a plan stays behind"


async def test_a_file_that_leads_out_of_the_folder_is_not_written(
    site: Site, scheduler: ScriptedScheduler
) -> None:
    site.start()
    stream = await scheduler.stream()
    stream.send(assign=planned(site, "x", name="../../escaped"))
    exited = await stream.get("exited")
    assert exited.outcome == worker_pb2.EXIT_OUTCOME_LOST
    assert "'../../escaped' has a name that no file of a plan has" in exited.error
    assert not list(site.root.rglob("escaped"))
