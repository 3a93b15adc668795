"""What a worker says about a process that its study reuses."""

from sqlalchemy.ext.asyncio import AsyncEngine
from study_site import StudySite, gone, make_spec

SAID = {"left_behind": "it left the thread 'loader' running: join it", "advice": "83% was for imports"}


async def test_it_is_told_once_however_often_the_message_comes(engine: AsyncEngine) -> None:
    spec = make_spec(max_trials=1, policy={"kind": "run_all"})
    site = await StudySite(engine, spec).create()
    await site.connect(slots=1)
    (lease,) = await site.kick()
    await site.tell(lease, 1, 0.5)
    for _ in range(3):
        await site.step(gone(lease, "FINISHED", by_itself=True, **SAID))
    warned = [event.message for event in await site.events("trial_warned")]
    assert warned == [
        "trial 0 warns: its process ran no other trial: it left the thread 'loader' running: join it",
        "trial 0 warns: 83% was for imports",
    ]


async def test_it_is_told_too_if_a_decision_had_ended_the_lease(engine: AsyncEngine) -> None:
    spec = make_spec(max_trials=1, policy={"kind": "run_all"})
    site = await StudySite(engine, spec).create()
    await site.connect(slots=1)
    (lease,) = await site.kick()
    assert (await site.tell(lease, spec.max_steps, 0.5)).action == "STOP"
    await site.step(gone(lease, "RELEASED", **SAID))
    assert len(await site.events("trial_warned")) == 2
