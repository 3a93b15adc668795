"""Faults of a GPU that trials share: nobody is charged, and who was there twice runs alone."""

from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from study_site import StudySite, gone, lock_study, make_spec

from headrace_services.scheduler.core import exits
from headrace_services.scheduler.core.placement import sizes_differ
from headrace_services.scheduler.core.records import Lease
from headrace_services.scheduler.core.study_status import Reserved
from headrace_services.scheduler.rpc.waiting import waits_for
from headrace_services.scheduler.store import quotas, rows
from headrace_services.scheduler.store.database import transaction

QUARTER = {"gpu_milli": 250}
WHY = "the MPS server of its GPU failed, and it is not known which of its clients caused that"


async def sharing(engine: AsyncEngine, *, gpus: int = 1, **changes: Any) -> tuple[StudySite, list[Lease]]:
    fields = {
        "policy": {"kind": "run_all"},
        "max_trials": 4,
        "resources": QUARTER,
        "max_retries": 0,
        **changes,
    }
    site = await StudySite(engine, make_spec(**fields)).create()
    await site.connect(slots=gpus, gpus=gpus, memory_bytes=80 << 30)
    return site, await site.kick()


async def fault(site: StudySite, *numbers: int) -> None:
    """The GPU of these trials fails."""
    held = [site.leases[(await site.trial(number)).lease_id or ""] for number in numbers]
    await site.step(*(gone(lease, "RELEASED", error=WHY, shared_fault=True) for lease in held))


async def test_a_fault_is_no_loss_and_everybody_continues(engine: AsyncEngine) -> None:
    site, leases = await sharing(engine)
    assert [lease.milli for lease in leases] == [250] * 4
    await fault(site, 0, 1, 2)
    for trial in (await site.trials())[:3]:
        assert (trial.state, trial.failures, trial.losses_in_row, trial.shared_faults) == ("RUNNING", 0, 0, 1)
    assert not await site.events("trial_warned")


async def test_who_was_there_twice_gets_a_gpu_of_its_own_and_the_others_go_on_sharing(
    engine: AsyncEngine,
) -> None:
    site, _ = await sharing(engine, gpus=2)
    await fault(site, 0, 1)
    await fault(site, 0, 2)
    faults = [trial.shared_faults for trial in await site.trials()]
    assert faults == [2, 1, 1, 0]
    (told,) = await site.events("trial_warned")
    assert "trial 0 warns: it shared a GPU twice when that failed" in told.message
    alone = site.leases[(await site.trial(0)).lease_id or ""]
    others = [site.leases[(await site.trial(number)).lease_id or ""] for number in (1, 2, 3)]
    assert alone.milli == 1000
    assert {lease.milli for lease in others} == {250}
    assert all(lease.slots != alone.slots for lease in others)


async def test_the_only_gpu_is_kept_for_a_suspect_once_the_trials_there_have_ended(
    engine: AsyncEngine,
) -> None:
    site, _ = await sharing(engine, max_trials=6)
    await fault(site, 0, 1)
    await fault(site, 0, 2)
    assert [trial.state for trial in await site.trials()][:4] == ["PENDING", "RUNNING", "PENDING", "RUNNING"]
    for number in (1, 3):
        lease = site.leases[(await site.trial(number)).lease_id or ""]
        await site.tell(lease, 9, 0.5)
    trial = await site.trial(0)
    assert trial.state == "RUNNING", "smaller trials do not keep it waiting for ever"
    assert site.leases[trial.lease_id or ""].milli == 1000
    await site.tell(site.leases[trial.lease_id or ""], 9, 0.5)
    assert [(await site.trial(number)).state for number in (2, 4, 5)] == ["RUNNING"] * 3


async def test_a_suspect_that_fails_alone_is_charged(engine: AsyncEngine) -> None:
    site, _ = await sharing(engine, gpus=2)
    await fault(site, 0, 1)
    await fault(site, 0, 2)
    lease = site.leases[(await site.trial(0)).lease_id or ""]
    await site.step(gone(lease, "FAILED", error="CUDA error: an illegal memory access"))
    trial = await site.trial(0)
    assert (trial.state, trial.reason) == ("TERMINATED", "FAILED")


async def test_faults_without_a_suspect_never_end_a_trial(engine: AsyncEngine) -> None:
    site, _ = await sharing(engine)
    for _ in range(2 * exits.MAX_LOSSES_IN_ROW):
        lease = site.leases[(await site.trial(0)).lease_id or ""]
        await site.step(gone(lease, "RELEASED", error="trial 1 ended the MPS server of its GPU"))
    trial = await site.trial(0)
    assert (trial.state, trial.failures, trial.losses_in_row, trial.shared_faults) == ("RUNNING", 0, 0, 0)


async def test_a_message_that_arrives_twice_counts_once(engine: AsyncEngine) -> None:
    site, leases = await sharing(engine)
    message = gone(leases[0], "RELEASED", error=WHY, shared_fault=True)
    await site.step(message, message)
    await site.step(message)
    assert (await site.trial(0)).shared_faults == 1


async def test_an_exclusive_trial_shares_its_gpu_with_nobody(engine: AsyncEngine) -> None:
    site, leases = await sharing(engine, gpus=2, resources={**QUARTER, "exclusive": True})
    assert [(lease.milli, lease.slots) for lease in leases] == [(1000, (0,)), (1000, (1,))]
    assert [trial.state for trial in await site.trials()].count("RUNNING") == 2


@pytest.mark.parametrize(("milli", "odd"), [(1000, True), (250, False), (None, False)])
def test_what_is_reserved_for_a_suspect_is_no_longer_needed_by_those_of_the_studys_own_size(
    milli: int | None, odd: bool
) -> None:
    """So it is given up when another trial is promoted in the suspect's place."""
    reserved = Reserved(number=0, worker_id=1, slots=(0,), since_s=0.0, ready_s=None, milli=milli, cores=0)
    assert sizes_differ(make_spec(resources=QUARTER), reserved) == odd


async def test_a_suspect_gets_its_turn_under_a_quota_that_others_of_its_study_use(
    engine: AsyncEngine,
) -> None:
    site, _ = await sharing(engine, gpus=2, max_trials=8)
    await fault(site, 0, 1)
    await fault(site, 0, 2)
    async with transaction(engine) as conn:
        await quotas.limit(conn, "default", slots=1, studies=None, code_mib=None)
    for _ in range(20):
        running = [trial for trial in await site.trials() if trial.state == "RUNNING"]
        if any(trial.number == 0 for trial in running):
            break
        lease = site.leases[running[0].lease_id or ""]
        await site.tell(lease, 9, 0.5)
    trial = await site.trial(0)
    assert trial.state == "RUNNING"
    assert site.leases[trial.lease_id or ""].milli == 1000


@pytest.mark.parametrize(
    ("resources", "placed"),
    [(QUARTER, [(250, (1,))] * 4), ({"gpus": 1}, [(1000, (0,)), (1000, (1,))])],
)
async def test_a_gpu_that_cannot_be_shared_gets_whole_trials_only(
    engine: AsyncEngine, resources: dict[str, int], placed: list[tuple[int, tuple[int, ...]]]
) -> None:
    spec = make_spec(policy={"kind": "run_all"}, max_trials=6, resources=resources)
    site = await StudySite(engine, spec).create()
    await site.connect(slots=2, gpus=2, memory_bytes=80 << 30, unshared=1)
    assert sorted((lease.milli, lease.slots) for lease in await site.kick()) == placed


async def test_a_trial_gets_one_instance_of_mig_at_most(engine: AsyncEngine) -> None:
    spec = make_spec(policy={"kind": "run_all"}, max_trials=1, resources={"gpus": 2})
    site = await StudySite(engine, spec).create()
    await site.connect(slots=2, gpus=2, model="NVIDIA H100 80GB HBM3 MIG 1g.10gb", unshared=2)
    assert await site.kick() == []
    (trial,) = await site.trials()
    assert trial.state == "PENDING"
    async with transaction(engine) as conn:
        study = await lock_study(conn, site.study_id)
        assert study is not None
        said = await waits_for(conn, study, [rows.trial(trial)])
    assert said[0] == (
        "a connected worker with 2 GPUs (instances of MIG do not count: a trial gets one at most)"
    )
    await site.connect("whole", slots=2, gpus=2, model="NVIDIA H100")
    assert [lease.slots for lease in await site.kick()] == [(0, 1)]
