"""A study whose trial function returns its result has no trial that a larger full budget could continue."""

import pytest
from msgspec.structs import replace
from sqlalchemy.ext.asyncio import AsyncEngine
from study_site import StudySite, make_spec

from headrace.errors import InvalidFieldError
from headrace_services.scheduler.core.inputs import ExtendStudy


async def told(engine: AsyncEngine, policy: str, *returned: bool) -> StudySite:
    """A study of one step whose trials completed with returned or reported results."""
    spec = make_spec(policy={"kind": policy}, max_trials=len(returned), max_steps=1)
    site = await StudySite(engine, spec).create()
    await site.connect(slots=len(returned))
    for lease in await site.kick():
        await site.step(replace(site.report(lease, 1, 0.5), returned=returned[lease.number]))
    return site


@pytest.mark.parametrize("policy", ["run_all", "auto"])
async def test_a_larger_budget_is_refused_before_anything_is_spent(engine: AsyncEngine, policy: str) -> None:
    site = await told(engine, policy, True, True, True)
    before = await site.study()
    assert before.state == "COMPLETED"
    (refused,) = await site.step(ExtendStudy(trials=0, steps=4))
    assert isinstance(refused, InvalidFieldError)
    assert "their function returns its result" in str(refused)
    assert f"headrace extend {site.name} --trials N" in str(refused)
    assert f"warm_start: {{study: {site.name}}}" in str(refused)
    assert await site.study() == before
    await site.step(ExtendStudy(trials=1, steps=0))
    (lease,) = [lease for lease in site.leases.values() if lease.number == 3]
    assert (await site.tell(lease, 1, 0.4)).action == "STOP"
    assert [row.reason for row in await site.trials()] == ["COMPLETED"] * 4


@pytest.mark.parametrize("returned", [(True, False), (False, True), (False, False)])
async def test_a_study_in_which_some_trial_reports_is_extended(
    engine: AsyncEngine, returned: tuple[bool, bool]
) -> None:
    site = await told(engine, "run_all", *returned)
    await site.step(ExtendStudy(trials=0, steps=4))
    assert (await site.study()).state == "ACTIVE"
