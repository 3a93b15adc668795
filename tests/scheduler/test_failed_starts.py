"""Attempts that did not reach their programs: charged to nobody, tried elsewhere, and their worker is paused."""

from sqlalchemy.ext.asyncio import AsyncEngine
from study_site import StudySite, gone, make_spec

from headrace.v1 import event_pb2, worker_pb2
from headrace_services.scheduler.core import exits
from headrace_services.scheduler.core.inputs import ExitedArrived
from headrace_services.scheduler.core.records import Lease
from headrace_services.scheduler.rpc.waiting import waits_for
from headrace_services.scheduler.session.messages import checked_input
from headrace_services.scheduler.store import rows, studies
from headrace_services.scheduler.store.database import transaction

WHY = "it could not reach its worker (exit status 75)"
ONE = {"max_trials": 1, "policy": {"kind": "run_all"}, "max_retries": 0}


async def misses(site: StudySite, lease: Lease) -> Lease | None:
    """End the attempt before it reaches its program; returns the trial's next one."""
    await site.step(gone(lease, "UNREACHED", error=WHY))
    trial = await site.trial(lease.number)
    return site.leases[trial.lease_id] if trial.attempt > lease.attempt else None


async def test_nothing_is_charged_however_often(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec(**ONE)).create()
    await site.connect(slots=1)
    (first,) = await site.kick()
    lease: Lease | None = first
    for _ in range(2 * exits.MAX_LOSSES_IN_ROW):
        assert lease is not None, "with this worker alone it is tried there again"
        lease = await misses(site, lease)
    trial = await site.trial(0)
    assert (trial.state, trial.failures, trial.losses_in_row) == ("RUNNING", 0, 0)
    assert (await site.study()).state == "ACTIVE"
    assert lease is not None
    assert (await site.tell(lease, 9, 0.5)).action == "STOP"


async def test_after_the_second_time_in_a_row_it_goes_elsewhere(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec(**ONE)).create()
    bad = await site.connect("bad", slots=1)
    (first,) = await site.kick()
    good = await site.connect("good", slots=1, incarnation="2")
    second = await misses(site, first)
    assert second is not None
    assert second.worker_id == bad
    third = await misses(site, second)
    assert third is not None
    assert third.worker_id == good
    told = [event.message for event in await site.log()]
    assert (
        f"trial 0 moves to another worker: 2 times in a row worker {site.name}-bad did not reach its program"
        in " ".join(told)
    )
    study = await site.study()
    assert list(study.standing["unreached"]) == ["0"]
    await site.tell(third, 3, 0.5)
    assert (await site.study()).standing["unreached"] == {}


async def test_while_it_waits_for_another_worker_others_are_placed_and_it_says_so(
    engine: AsyncEngine,
) -> None:
    site = await StudySite(engine, make_spec(**{**ONE, "max_trials": 3})).create()
    bad = await site.connect("bad", slots=1)
    (first,) = await site.kick()
    await site.connect("good", slots=1, incarnation="2")
    (other,) = await site.kick()
    second = await misses(site, first)
    assert second is not None
    assert await misses(site, second) is None, "the other worker is busy"
    (_, placed) = sorted(
        (lease for lease in site.leases.values() if lease.number != 0), key=lambda lease: lease.number
    )
    assert (placed.number, placed.worker_id) == (2, bad)
    async with transaction(engine) as conn:
        study = await studies.get(conn, site.study_id)
        assert study is not None
        told = await waits_for(conn, study, [rows.trial(await site.trial(0))])
    assert "not on " in told[0]
    assert "did not reach its program 2 times in a row" in told[0]
    await site.tell(other, 9, 0.5)
    assert site.leases[(await site.trial(0)).lease_id].worker_id == other.worker_id


def test_a_worker_says_so_with_a_number_of_its_own() -> None:
    lease = event_pb2.LeaseRef(lease_id="l", trial="studies/s/trials/1", attempt=1)
    message = worker_pb2.Exited(sequence=1, lease=lease, outcome=worker_pb2.EXIT_OUTCOME_UNREACHED, error=WHY)
    found = checked_input(message, 0, 1)
    assert isinstance(found, ExitedArrived)
    assert found.outcome == "UNREACHED"
