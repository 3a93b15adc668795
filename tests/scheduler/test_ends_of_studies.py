"""`until`: a study ends by its target value, or for want of improvement; the reason is told everywhere. Time is in
`test_hours.py`."""

from typing import Any

import pytest
from msgspec.structs import replace
from reopened_site import spec_now, train
from sqlalchemy.ext.asyncio import AsyncEngine
from study_site import StudySite, gone, make_spec

from headrace.errors import InvalidFieldError
from headrace_services.scheduler.core.inputs import Cancellation, ExtendStudy, RetryTrials
from headrace_services.scheduler.replay.replaying import replay

RUN_ALL = {"kind": "run_all"}


async def begun(engine: AsyncEngine, until: dict[str, Any], *, slots: int = 2, **changes: Any) -> StudySite:
    site = await StudySite(engine, make_spec(until=until, **changes)).create()
    await site.connect(slots=slots)
    await site.kick()
    return site


async def replayed(site: StudySite) -> None:
    found = replay(await spec_now(site), await site.log())
    assert found.identical, found.differences


async def test_a_target_ends_the_study_and_stops_what_runs(engine: AsyncEngine) -> None:
    site = await begun(engine, {"value": 0.1}, policy=RUN_ALL)
    first, second = site.leases.values()
    assert (await site.tell(first, 1, 0.11)).action == "CONTINUE"
    site.orders.clear()
    decision = await site.tell(second, 2, 0.1)
    reason = "trial 1 has loss 0.1 (until: loss ≤ 0.1)"
    assert (decision.action, decision.reason) == ("STOP", reason)
    study = await site.study()
    assert (study.state, study.detail) == ("COMPLETED", reason)
    rows = await site.trials()
    assert [(row.reason, row.detail) for row in rows[:2]] == [("STOPPED_EARLY", reason)] * 2
    assert {row.reason for row in rows[2:]} <= {"CANCELLED"}  # those that never ran
    assert {order.lease.number for order in site.orders if isinstance(order, Cancellation)} == {0, 1}
    for lease in (first, second):
        await site.step(replace(gone(lease, "RELEASED"), exit_code=-15))
    assert [event for event in await site.events() if event.kind == "trial_warned"] == []
    await replayed(site)


@pytest.mark.parametrize(
    ("goal", "values", "ends"),
    [
        ("minimize", (0.2, 0.1), True),
        ("maximize", (0.05, 0.2), True),
        ("minimize", (0.3, float("nan")), False),
    ],
)
async def test_a_target_is_met_in_the_direction_of_the_goal(
    engine: AsyncEngine, goal: str, values: tuple[float, float], ends: bool
) -> None:
    objective = {"metric": "loss", "goal": goal}
    site = await begun(engine, {"value": 0.1}, policy=RUN_ALL, objective=objective, slots=1)
    (lease,) = site.leases.values()
    for step, value in enumerate(values, 1):
        await site.tell(lease, step, value)
    assert ((await site.study()).state == "COMPLETED") is ends


async def test_an_infeasible_value_and_the_baseline_s_meet_no_target(engine: AsyncEngine) -> None:
    unmet = [{"metric": "loss", "at_least": 0.09}]
    site = await begun(engine, {"value": 0.1}, policy=RUN_ALL, constraints=unmet, baseline={"x": 0.5})
    baseline, other = site.leases.values()
    await site.tell(baseline, 1, 0.095)
    await site.tell(other, 1, 0.05)
    assert (await site.study()).state == "ACTIVE"
    await site.tell(other, 2, 0.095)
    assert (await site.study()).state == "COMPLETED"


async def test_trials_without_improvement_end_the_study(engine: AsyncEngine) -> None:
    site = await begun(engine, {"no_improvement": 3}, policy=RUN_ALL, max_trials=9, slots=1)
    await train(site, lambda number, _: 1.0 if number else 0.5)
    study = await site.study()
    assert study.state == "COMPLETED"
    assert "3 trials in a row did not improve on loss 0.5" in study.detail
    assert "of trial 0" in study.detail
    assert len([row for row in await site.trials() if row.rungs]) == 4
    await replayed(site)


async def test_an_improvement_begins_the_count_anew(engine: AsyncEngine) -> None:
    site = await begun(engine, {"no_improvement": 3}, policy=RUN_ALL, max_trials=9, slots=1)
    values = [0.5, 0.6, 0.6, 0.4, 0.6, 0.6, 0.3, 0.6, 0.6]
    await train(site, lambda number, _: values[number])
    study = await site.study()
    assert (study.state, study.detail) == ("COMPLETED", "all trials have finished")


async def test_a_study_that_has_its_target_does_not_go_on(engine: AsyncEngine) -> None:
    site = await begun(engine, {"value": 0.1}, policy=RUN_ALL, max_retries=0)
    first, second = site.leases.values()
    await site.tell(first, 1, 0.05)
    before = (await site.study()).cursor
    for command in (ExtendStudy(trials=3, steps=None), RetryTrials(numbers=None)):
        (refused,) = await site.step(command)
        assert isinstance(refused, InvalidFieldError)
        assert "has reached its target 0.1 with 0.05" in str(refused)
        assert "warm_start" in str(refused)
    assert (await site.study()).cursor == before
    assert second.live


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"until": {}}, "ends nothing"),
        ({"until": {"hours": 0}}, "must be above 0"),
        ({"until": {"no_improvement": 0}}, "at least 1"),
        ({"until": {"value": float("nan")}}, "finite"),
        (
            {
                "until": {"value": 1},
                "policy": RUN_ALL,
                "further_objectives": [{"metric": "cost", "goal": "minimize"}],
            },
            "needs one objective",
        ),
        (
            {"until": {"no_improvement": 5}, "policy": {"kind": "pbt", "interval": 3}},
            "a population tries no further ones",
        ),
    ],
)
def test_what_is_wrong_with_until_is_said_at_once(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make_spec(**changes)
