"""Trials that fail on one machine, on several, or on the only one: what is avoided, and what is reported."""

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncEngine
from study_site import StudySite, gone, make_spec
from test_outcomes import NOTHING, fails, study_of

from headrace_services.scheduler.core.records import Lease
from headrace_services.scheduler.rpc.waiting import waits_for
from headrace_services.scheduler.store import cluster, rows, studies, tables
from headrace_services.scheduler.store.database import transaction


async def _running(site: StudySite) -> list[Lease]:
    """The leases that trials hold now."""
    held = {trial.lease_id for trial in await site.trials()}
    return [lease for lease in site.leases.values() if lease.id in held]


async def test_one_bad_machine_gets_no_more_trials_and_the_study_continues_elsewhere(
    engine: AsyncEngine,
) -> None:
    site = await StudySite(engine, make_spec(max_trials=9, max_retries=0)).create()
    bad = await site.connect("bad", 3, incarnation="bad-1")
    await site.kick()
    good = await site.connect("good", 4)
    attempts = 0
    while failing := [lease for lease in await _running(site) if lease.worker_id == bad]:
        await site.step(gone(failing[0], "FAILED", error="ValueError: no GPU here"))
        attempts += 1
    assert attempts <= 5, "three, and those that ran there already"
    assert (await site.study()).state == "ACTIVE"
    assert {trial.failures for trial in await site.trials()} == {0}, "charged to the worker"
    said = [event.message for event in await site.events("note")]
    told = (
        f"worker {site.name}-bad gets no more trials of this study: 3 attempts failed there before any trial had "
        "reported anything, and other workers can run them; the last one: ValueError: no GPU here"
    )
    assert said == [told]
    await site.kick()
    assert [lease.worker_id for lease in await _running(site)] == [good] * 4
    async with engine.connect() as conn:
        keys = [cluster.Key(name=f"{site.name}-{name}", slots=0) for name in ("bad", "good")]
        shown = {view.name: view.avoided_by for view in await cluster.workers(conn, keys)}
    assert shown == {f"{site.name}-bad": [site.name], f"{site.name}-good": []}
    again = await site.connect("bad", 3, incarnation="bad-2")
    assert {lease.worker_id for lease in await site.kick()} == {again}, "a restart brings it back"


async def test_where_only_the_avoided_machine_is_left_the_trials_say_so(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec(max_trials=2, max_early_failures=1)).create()
    await site.connect("bad", 1, incarnation="bad-1")
    (lease,) = await site.kick()
    await site.connect("good", 1)
    await site.step(gone(lease, "FAILED", error="ValueError: boom"))
    async with transaction(engine) as conn:
        gone_now = update(tables.worker).where(tables.worker.c.name == f"{site.name}-good")
        await conn.execute(gone_now.values(connected=False))
        study = await studies.get(conn, site.study_id)
        assert study is not None
        t = tables.trial
        found = await conn.execute(select(t).where(t.c.study_id == site.study_id, t.c.state == "PENDING"))
        told = await waits_for(conn, study, [rows.trial(row) for row in found])
    assert f", other than {site.name}-bad, where its first attempts failed" in next(iter(told.values()))


async def test_trials_that_fail_first_on_several_machines_end_the_study(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec(max_trials=9, max_retries=0)).create()
    await site.connect("a", 2)
    await site.connect("b", 1)
    await site.kick()
    ended: set[str] = set()
    while (await site.study()).state == "ACTIVE":
        live = [lease for key, lease in site.leases.items() if key not in ended]
        assert live
        ended |= {lease.id for lease in live}
        await site.step(*(gone(lease, "FINISHED") for lease in live))
    assert (await site.study()).detail == (
        f"the first 3 trials failed before reporting anything (on the workers {site.name}-a, {site.name}-b); "
        "the last one: its program ended without reporting 'loss'; this attempt began at step 0, "
        f"{NOTHING}"
    )
    assert len(ended) <= 6, "at most two attempts were charged to the first worker"


async def test_the_only_machine_is_not_blamed(engine: AsyncEngine) -> None:
    async with transaction(engine) as conn:  # the workers of other tests' studies
        await conn.execute(update(tables.worker).values(connected=False))
    site, leases = await study_of(engine)
    for lease in leases:
        await fails(site, lease)
    assert f"(all on worker '{site.name}-w'); the last one" in (await site.study()).detail
