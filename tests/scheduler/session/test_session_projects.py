"""A worker that runs trials of two projects whose studies have the same name."""

from session_site import Replica, study, worker
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine
from study_site import StudySite


async def twin(engine: AsyncEngine, project: str) -> StudySite:
    """The study `twin` of a project, with one trial."""
    site = await study(engine)
    async with engine.begin() as conn:
        await conn.execute(
            text("INSERT INTO project (name) VALUES (:p) ON CONFLICT DO NOTHING"), {"p": project}
        )
        values = {"p": project, "i": site.study_id}
        await conn.execute(text("UPDATE study SET project = :p, name = 'twin' WHERE id = :i"), values)
    site.name = "twin"
    return site


async def test_each_report_is_its_own_studys_and_an_end_ends_no_other_trial(
    engine: AsyncEngine, replica: Replica
) -> None:
    sites = [await twin(engine, project) for project in ("vision", "speech")]
    async with worker(replica) as w:
        await w.hello(slots=2)
        leases, projects = [], []
        for site in sites:
            replica.hub.kick(site.study_id)
            async with engine.connect() as conn:
                found = await conn.execute(text("SELECT uid FROM study WHERE id = :i"), {"i": site.study_id})
                own = f"{found.scalar_one()}.0.1"
            assign = await w.hears("assign", lambda said, own=own: said.lease.lease_id == own)
            leases.append(assign.lease)
            projects.append(assign.project)
        assert projects == ["vision", "speech"], "so that what is installed for one is not the other's"
        assert {lease.trial for lease in leases} == {"studies/twin/trials/0"}
        for sequence, (lease, loss) in enumerate(zip(leases, (0.25, 0.75), strict=True), start=1):
            await w.report(lease, sequence, 1, loss)
            await w.hears("ack", lambda ack, sequence=sequence: sequence in ack.sequences)
        assert [(await site.trial(0)).value for site in sites] == [0.25, 0.75]
        await w.report(leases[0], 3, 9, 0.25)
        await w.hears("decision", lambda said: said.report_sequence == 3)
        async with engine.begin() as conn:
            await conn.execute(text("DELETE FROM study WHERE id = :i"), {"i": sites[0].study_id})
        await w.report(leases[0], 4, 9, 0.1)
        await w.hears("cancel", lambda said: said.lease.lease_id == leases[0].lease_id)
        await w.report(leases[1], 5, 2, 0.5)
        await w.hears("ack", lambda ack: 5 in ack.sequences)
        assert (await sites[1].trial(0)).value == 0.5
