"""By `scope: best` a trial that continues keeps the model of its best value until it finds a better one."""

import pytest
from msgspec.structs import replace
from sqlalchemy.ext.asyncio import AsyncEngine
from study_site import StudySite, make_spec
from test_earlier_ends import RUN_ALL, by_steps, complete, fail, lease_of, scoped, shown


async def kept(site: StudySite) -> tuple[float | None, int | None, str]:
    """The result that counts for the best trial: its score, the score's step, and the checkpoint to load."""
    study, found = await shown(site)
    assert study.best is not None
    best = found[study.best.number]
    assert best.kept_checkpoint is not None
    return best.score, best.score_step, best.kept_checkpoint.uri


@pytest.mark.parametrize("keep", [{}, {"keep": "best"}])
async def test_a_best_value_keeps_the_checkpoint_that_it_had(
    engine: AsyncEngine, keep: dict[str, str]
) -> None:
    site = await complete(engine, 0.5, objective=scoped("best", **keep))
    had = await kept(site)
    assert had == (0.5, 9, "file:///0/9")
    for steps, value in ((18, 0.9), (27, 0.8)):
        await site.step(by_steps(steps))
        assert await kept(site) == had
        decision = await site.tell(await lease_of(site, 0), steps, value)
        assert "file:///0/9" in decision.pinned
        assert await kept(site) == had
    assert (await shown(site))[1][0].counts_as == "completed"
    await site.step(by_steps(36))
    await fail(site, 0)
    assert await kept(site) == had


async def test_a_better_value_has_the_checkpoint_of_its_own_end(engine: AsyncEngine) -> None:
    site = await complete(engine, 0.5, objective=scoped("best"))
    await site.step(by_steps(18))
    await site.tell(await lease_of(site, 0), 18, 0.4)
    assert await kept(site) == (0.4, 18, "file:///0/18")
    await site.step(by_steps(27))
    await site.tell(await lease_of(site, 0), 27, 0.45)
    assert await kept(site) == (0.4, 18, "file:///0/18")


async def test_a_checkpoint_that_misses_a_constraint_is_not_that_of_the_best(engine: AsyncEngine) -> None:
    objective, constraints = scoped("best"), [{"metric": "mem", "at_most": 1.0}]
    spec = make_spec(policy=RUN_ALL, max_trials=1, objective=objective, constraints=constraints)
    site = await StudySite(engine, spec).create()
    await site.connect(slots=1)
    await site.kick()
    for steps, value, mem in ((9, 0.5, 0.5), (18, 0.1, 3.0)):
        if steps > 9:
            await site.step(by_steps(steps))
        report = site.report(await lease_of(site, 0), steps, value)
        await site.step(replace(report, metrics={"loss": value, "mem": mem}))
    assert await kept(site) == (0.5, 9, "file:///0/9")
    assert (await shown(site))[1][0].feasible
