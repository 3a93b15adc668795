"""A worker cannot prepare a study's program: others are tried, nobody is charged, and the study fails after the
last."""

from sqlalchemy.ext.asyncio import AsyncEngine
from study_site import StudySite, gone, make_spec

from headrace.v1 import event_pb2, worker_pb2
from headrace_services.scheduler.core.inputs import ExitedArrived
from headrace_services.scheduler.session.messages import checked_input

WHY = "requirements.txt cannot be installed for /usr/bin/python3: `pip install …` ended with status 1\nno such package"


async def test_where_no_worker_is_left_the_study_fails_and_nobody_is_charged(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec(max_trials=4)).create()
    await site.connect(slots=2)
    first, second = await site.kick()
    await site.step(gone(first, "UNPREPARED", error=WHY))
    await site.step(gone(second, "UNPREPARED", error=WHY))
    study = await site.study()
    assert study.state == "FAILED"
    assert study.detail.startswith("no worker could prepare the program")
    assert "no such package" in study.detail
    for number in (0, 1):
        assert (await site.trial(number)).failures == 0


async def test_it_is_tried_on_another_worker_also_behind_reports(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec(max_trials=1, policy={"kind": "run_all"})).create()
    await site.connect(slots=1)
    (lease,) = await site.kick()
    await site.tell(lease, 1, 0.5)
    await site.connect("other", slots=1, incarnation="2")
    await site.step(gone(lease, "UNPREPARED", error=WHY))
    trial = await site.trial(0)
    assert (trial.state, trial.failures) == ("RESUMED", 0)
    assert (await site.study()).state == "ACTIVE"
    moved = site.leases[trial.lease_id]
    assert moved.id != lease.id
    told = [event.message for event in await site.log()]
    assert any("gets no more trials of this study: it could not prepare the program" in line for line in told)
    await site.step(gone(moved, "UNPREPARED", error=WHY))
    assert (await site.study()).state == "FAILED"


def test_a_worker_says_so_with_a_number_of_its_own() -> None:
    lease = event_pb2.LeaseRef(lease_id="l", trial="studies/s/trials/1", attempt=1)
    message = worker_pb2.Exited(
        sequence=1, lease=lease, outcome=worker_pb2.EXIT_OUTCOME_UNPREPARED, error=WHY
    )
    found = checked_input(message, 0, 1)
    assert isinstance(found, ExitedArrived)
    assert found.outcome == "UNPREPARED"
