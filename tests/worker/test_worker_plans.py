"""A trial finds the files of its plan in a folder, at every attempt."""

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


async def test_every_attempt_has_the_plan_that_came_with_it(site: Site, scheduler: ScriptedScheduler) -> None:
    site.start()
    stream = await scheduler.stream()
    for attempt, (text, outcome) in enumerate(
        [
            ("first", worker_pb2.EXIT_OUTCOME_LOST),
            ("second é", worker_pb2.EXIT_OUTCOME_FINISHED),
            (None, worker_pb2.EXIT_OUTCOME_FINISHED),
        ],
        start=1,
    ):
        stream.send(assign=planned(site, text, attempt=attempt))
        exited = await stream.get("exited", attempt)
        assert exited.outcome == outcome
        assert (site.marks / f"plan-{attempt}").read_text() == (text or "none")
    assert not list((site.root / "home").rglob("plan.json")), "nothing of a plan stays behind"


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
