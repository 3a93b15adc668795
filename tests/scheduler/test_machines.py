"""What keeps trials off workers and devices, on a real database: drains, cordons, quarantine, and how they end."""

from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine
from study_site import StudySite, gone, make_spec

from headrace_services.scheduler.core.inputs import Accepted
from headrace_services.scheduler.core.records import Lease
from headrace_services.scheduler.store import cluster, heartbeats, machines, tables, workers
from headrace_services.scheduler.store.database import transaction
from headrace_services.scheduler.store.heartbeats import Beat, Noted

RUN_ALL = {"kind": "run_all"}
ECC = "uncorrectable ECC error encountered"
ILLEGAL = "CUDA error: an illegal memory access was encountered"


class Machine:
    """A worker with GPUs, driven by hand."""

    def __init__(self, site: StudySite, name: str, gpus: int = 1, *, uuids: bool = True) -> None:
        self.site, self.name, self.gpus, self.uuids = site, f"{site.name}-{name}", gpus, uuids
        self.incarnation = self.id = self.session = 0

    async def start(self, **defects: str) -> "Machine":
        self.incarnation += 1
        return await self.connect(**defects)

    async def connect(self, leaving: str = "", **defects: str) -> "Machine":
        devices = tuple(
            workers.Device(
                index=index,
                kind="GPU",
                model="H200",
                memory_bytes=8,
                uuid=f"GPU-{self.name}-{index}" if self.uuids else "",
                defect=defects.get(f"slot{index}", ""),
            )
            for index in range(self.gpus)
        )
        greeting = workers.Greeting(
            name=self.name,
            incarnation=str(self.incarnation),
            devices=devices,
            labels={},
            version="",
            log_dir="/l",
            leaving=leaving,
        )
        async with transaction(self.site.engine) as conn:
            self.id, self.session = await workers.greet(conn, greeting, 3600)
        return self

    async def do(self, change: Any, *arguments: Any, **named: Any) -> Any:
        async with transaction(self.site.engine) as conn:
            return await change(conn, self.id, *arguments, **named)

    async def beat(self, *named: Lease) -> Noted:
        beat = Beat(worker_id=self.id, session=self.session, named=frozenset(lease.id for lease in named))
        async with transaction(self.site.engine) as conn:
            return (await heartbeats.note(conn, [beat], 3600))[beat]

    async def slots(self) -> list[bool]:
        s = tables.slot
        query = select(s.c.present).where(s.c.worker_id == self.id).order_by(s.c.index)
        return [row.present for row in await self.site.rows(query)]

    async def shown(self) -> cluster.WorkerView:
        async with self.site.engine.connect() as conn:
            [view] = await cluster.workers(conn, [cluster.Key(name=self.name, slots=1)])
        return view


async def on_gpus(engine: AsyncEngine, **changes: Any) -> StudySite:
    fields = {"policy": RUN_ALL, "max_trials": 2, "resources": {"gpus": 1}, **changes}
    return await StudySite(engine, make_spec(**fields)).create()


async def test_a_drained_worker_s_trials_save_at_their_next_report_and_continue_elsewhere(
    engine: AsyncEngine,
) -> None:
    site = await on_gpus(engine)
    going = await Machine(site, "going", 2).start()
    first, second = await site.kick()
    staying = await Machine(site, "staying", 1).start()
    await going.do(machines.hold, machines.DRAIN, reason="new driver")
    noted = await going.beat(first, second)
    assert noted.wish == machines.Wish(reason="new driver", grace_s=None, leave=True)
    why = f"worker '{going.name}' is draining: new driver"
    assert {(lease.id, said) for lease, said in noted.leaving} == {(first.id, why), (second.id, why)}
    assert await going.slots() == [False, False]
    assert (await site.tell(first, 3, 0.5, saved=False)).action == "CONTINUE", "it saved nothing"
    decision = await site.tell(first, 4, 0.5)
    assert (decision.action, decision.reason) == ("PAUSE", why)
    moved = site.leases[f"{(await site.study()).uid}.0.2"]
    assert (moved.worker_id, moved.step) == (staying.id, 4), "in the same cycle"
    assert (await site.tell(second, 2, 0.5)).action == "PAUSE"
    for trial in await site.trials():
        assert (trial.failures, trial.interruptions, trial.losses_in_row) == (0, 0, 0)
    assert (await site.trial(1)).state == "PAUSED", "there is no slot for it: its own is closed"
    told = await site.events("trial_preempted")
    assert told[0].message == f"trial 0 is preempted: {why}"


async def test_a_drain_outlives_reconnects_and_restarts_until_it_is_taken_back(engine: AsyncEngine) -> None:
    site = await on_gpus(engine)
    going = await Machine(site, "going").start()
    [lease] = await site.kick()
    await going.do(machines.hold, machines.DRAIN, grace_s=5.0)
    await going.connect()
    noted = await going.beat(lease)
    assert noted.wish == machines.Wish(reason="a user drained it", grace_s=5.0, leave=True)
    assert len(noted.leaving) == 1
    await going.start()
    noted = await going.beat()
    assert noted.wish is not None
    assert not noted.wish.leave, "a daemon that was started since stays: else it would be started for ever"
    assert await going.slots() == [False]
    assert (await going.shown()).draining == "a user drained it"
    await going.do(machines.release)
    noted = await going.beat(lease)
    assert (noted.wish, noted.leaving) == (None, ())
    assert await going.slots() == [True]
    assert (await site.tell(lease, 3, 0.5)).action == "CONTINUE"
    assert (await going.shown()).draining == ""


async def test_a_daemon_that_leaves_by_itself_is_drained_until_the_next_one_comes(
    engine: AsyncEngine,
) -> None:
    site = await on_gpus(engine)
    going = await Machine(site, "going").start()
    [lease] = await site.kick()
    await going.do(machines.leaves, going.session, "SIGTERM")
    assert [why for _, why in (await going.beat(lease)).leaving] == [
        f"worker '{going.name}' is draining: SIGTERM"
    ]
    await going.connect(leaving="SIGTERM")
    assert await going.slots() == [False], "a scheduler that knows nothing of it hears it at once"
    assert (await going.shown()).draining == "SIGTERM"
    await going.do(machines.leaves, going.session - 1, "")
    assert await going.slots() == [False], "an older session changes nothing"
    await going.start()
    assert await going.slots() == [True]


async def test_a_trial_that_was_placed_at_the_very_moment_is_asked_with_the_next_heartbeat(
    engine: AsyncEngine,
) -> None:
    site = await on_gpus(engine)
    going = await Machine(site, "going").start()
    [lease] = await site.kick()
    await going.do(machines.hold, machines.DRAIN)
    async with transaction(engine) as conn:
        await conn.execute(tables.leave.delete())
    noted = await going.beat(lease)
    assert noted.unasked
    await going.do(machines.restate)
    assert not (await going.beat(lease)).unasked


async def test_a_bundle_takes_nobody_in_and_all_its_members_leave(engine: AsyncEngine) -> None:
    site = await on_gpus(engine, fuse={"most": 4}, max_trials=6)
    going = await Machine(site, "going").start()
    members = await site.kick()
    assert len(members) == 4
    await going.do(machines.hold, machines.DRAIN)
    assert len((await going.beat(*members)).leaving) == 4
    assert (await site.tell(members[0], 2, 0.5)).action == "PAUSE"
    assert await site.kick() == [], "neither its seat nor another one"
    staying = await Machine(site, "staying").start()
    assert {lease.worker_id for lease in await site.kick()} == {staying.id}
    assert [(await site.tell(member, 2, 0.5)).action for member in members[1:]] == ["PAUSE"] * 3


async def test_a_paused_study_s_trial_leaves_and_waits_for_its_user(engine: AsyncEngine) -> None:
    from headrace_services.scheduler.core.inputs import PauseStudy, ResumeStudy

    site = await on_gpus(engine, max_trials=1)
    going = await Machine(site, "going").start()
    [lease] = await site.kick()
    await site.step(PauseStudy())
    await going.do(machines.hold, machines.DRAIN)
    assert (await site.tell(lease, 2, 0.5)).action == "PAUSE"
    await Machine(site, "staying").start()
    assert await site.kick() == []
    await site.step(ResumeStudy())
    assert site.leases[f"{(await site.study()).uid}.0.2"].step == 2


async def test_a_gang_leaves_as_one(engine: AsyncEngine) -> None:
    site = await on_gpus(engine, resources={"gpus": 2}, max_trials=1)
    going = await Machine(site, "going", 2).start()
    [gang] = await site.kick()
    await going.do(machines.hold, machines.DRAIN)
    assert len((await going.beat(gang)).leaving) == 1
    staying = await Machine(site, "staying", 2).start()
    assert (await site.tell(gang, 2, 0.5)).action == "PAUSE"
    assert site.leases[f"{(await site.study()).uid}.0.2"].worker_id == staying.id


async def test_the_end_of_the_grace_charges_nobody_however_often_it_comes(engine: AsyncEngine) -> None:
    site = await on_gpus(engine, max_trials=1, max_retries=0)
    await Machine(site, "going").start()
    await site.kick()
    for attempt in range(1, 13):
        lease = site.leases[f"{(await site.study()).uid}.0.{attempt}"]
        await site.step(gone(lease, "RELEASED", error="worker 'w' is draining: SIGTERM"))
    trial = await site.trial(0)
    assert (trial.failures, trial.losses_in_row, trial.attempt) == (0, 0, 13)


async def test_a_device_that_failed_is_remembered_by_its_uuid_until_a_user_takes_it_back(
    engine: AsyncEngine,
) -> None:
    site = await on_gpus(engine)
    worker = await Machine(site, "w", 2).start()
    first, second = await site.kick()
    failed = first.slots[0]
    await worker.do(workers.note_defects, worker.session, {failed: ECC})
    assert [(lease.id, why) for lease, why in (await worker.beat(first, second)).leaving] == [
        (first.id, f"its device failed: {ECC}")
    ], "the trial on the other one stays"
    (outcome,) = await site.step(gone(first, "LOST", error=f"its device failed: {ECC}"))
    assert isinstance(outcome, Accepted)
    assert (await site.trial(0)).failures == 0
    await worker.start()
    assert await worker.slots() == [index != failed for index in range(2)], "a restart does not bring it back"
    shown = await worker.shown()
    assert shown.slots[failed].defect == ECC
    [cordon] = shown.cordons
    assert (cordon.index, cordon.reason, cordon.quarantined) == (failed, ECC, True)
    assert cordon.uuid == f"GPU-{worker.name}-{failed}"
    await worker.do(machines.uncordon, [failed])
    assert await worker.slots() == [True, True]
    assert (await worker.shown()).cordons == []


async def test_a_device_that_is_moved_takes_its_quarantine_along(engine: AsyncEngine) -> None:
    site = await on_gpus(engine)
    here = await Machine(site, "here").start(slot0=ECC)
    there = Machine(site, "there")
    there.name = here.name  # its uuid is derived from it
    greeting = workers.Greeting(
        name=f"{site.name}-there",
        incarnation="1",
        devices=(workers.Device(index=0, kind="GPU", model="", memory_bytes=8, uuid=f"GPU-{here.name}-0"),),
        labels={},
        version="",
        log_dir="/l",
    )
    async with transaction(engine) as conn:
        there.id, there.session = await workers.greet(conn, greeting, 3600)
    assert await there.slots() == [False]


async def test_a_device_without_a_uuid_comes_back_with_its_daemon(engine: AsyncEngine) -> None:
    site = await on_gpus(engine)
    worker = await Machine(site, "w", uuids=False).start(slot0=ECC)
    assert await worker.slots() == [False]
    assert (await worker.shown()).cordons == []
    await worker.start()
    assert await worker.slots() == [True]


async def test_what_is_cordoned_gets_nothing_new_and_what_runs_stays(engine: AsyncEngine) -> None:
    site = await on_gpus(engine, max_trials=3)
    worker = await Machine(site, "w", 2).start()
    first, second = await site.kick()
    await worker.do(machines.cordon, list(first.slots), "fan is loud")
    assert (await worker.beat(first, second)).leaving == ()
    assert (await site.tell(first, 9, 0.5)).action == "STOP"
    assert await site.kick() == []
    [cordon] = (await worker.shown()).cordons
    assert (cordon.reason, cordon.quarantined) == ("fan is loud", False)
    await worker.do(machines.hold, machines.CORDON)
    assert await worker.slots() == [False, False]
    noted = await worker.beat(second)
    assert (noted.wish, noted.leaving) == (None, ())
    await worker.do(machines.release)
    await worker.do(machines.uncordon, [])
    assert len(await site.kick()) == 1


async def test_a_hand_s_cordon_makes_no_quarantine_milder(engine: AsyncEngine) -> None:
    site = await on_gpus(engine)
    worker = await Machine(site, "w").start(slot0=ECC)
    await worker.do(machines.cordon, [0], "look at it")
    [cordon] = (await worker.shown()).cordons
    assert (cordon.reason, cordon.quarantined) == (ECC, True)


@pytest.mark.parametrize("gets_on", [True, False])
async def test_failures_in_a_row_quarantine_a_device_only_where_the_study_gets_on_elsewhere(
    engine: AsyncEngine, gets_on: bool
) -> None:
    site = await on_gpus(engine)
    bad = await Machine(site, "bad").start()
    [there] = await site.kick()
    await Machine(site, "good").start()
    [elsewhere] = await site.kick()
    if gets_on:
        await site.tell(elsewhere, 2, 0.5)
    found = await bad.do(machines.quarantine, there.id, f"3 trials in a row failed there: {ILLEGAL}")
    assert found == ((0,) if gets_on else ())
    assert await bad.slots() == [not gets_on]


async def test_a_suspected_failure_is_charged_after_the_third_in_a_row(engine: AsyncEngine) -> None:
    site = await on_gpus(engine, max_trials=1, max_retries=1)
    await Machine(site, "w").start()
    await site.kick()
    uid = (await site.study()).uid
    seen = []
    for attempt in range(1, 6):
        error = f"exit status 1: {ILLEGAL}"
        await site.step(gone(site.leases[f"{uid}.0.{attempt}"], "FAILED", error=error, device_words=ILLEGAL))
        seen.append((await site.trial(0)).failures)
    assert seen == [0, 0, 0, 1, 2]
    assert (await site.trial(0)).reason == "FAILED"
