"""`until`: a study ends at its target value, or without improvement, and the reason is shown everywhere.
`test_hours.py` covers time."""

from typing import Any

import pytest
from msgspec.structs import replace
from reopened_site import spec_now, train
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine
from study_site import StudySite, gone, make_spec

from headrace.errors import InvalidFieldError
from headrace_services.scheduler.core import closing
from headrace_services.scheduler.core.inputs import (
    Accepted,
    Assignment,
    Cancellation,
    ExtendStudy,
    LeaseExpired,
    PlaceNow,
    Preemption,
    RetryTrials,
    Stale,
    StopStudy,
    StopTrial,
    Suggest,
    Suggested,
)
from headrace_services.scheduler.core.records import Lease
from headrace_services.scheduler.replay.replaying import replay
from headrace_services.scheduler.store import studies
from headrace_services.scheduler.store.database import transaction

RUN_ALL = {"kind": "run_all"}
REACHED = "trial 1 has loss 0.1 (until: loss ≤ 0.1)"


async def begun(engine: AsyncEngine, until: dict[str, Any], *, slots: int = 2, **changes: Any) -> StudySite:
    site = await StudySite(engine, make_spec(until=until, **changes)).create()
    await site.connect(slots=slots)
    await site.kick()
    return site


async def pass_time(site: StudySite, seconds: float) -> None:
    """Let that many seconds pass since the study started to close."""
    async with site.engine.begin() as conn:
        for name in ("since_s", "by_s"):
            shift = (
                "UPDATE study SET standing = jsonb_set(standing, ARRAY['closing', :name],"
                " to_jsonb((standing #>> ARRAY['closing', :name])::double precision - :seconds)) WHERE id = :id"
            )
            await conn.execute(text(shift), {"id": site.study_id, "name": name, "seconds": seconds})


async def found(site: StudySite) -> bool:
    """Whether a replica that checks runs a cycle of the study."""
    async with transaction(site.engine) as conn:
        return site.study_id in await studies.to_count(conn)


async def replayed(site: StudySite) -> None:
    found = replay(await spec_now(site), await site.log())
    assert found.identical, found.differences


async def test_a_target_ends_the_study_and_stops_what_runs(engine: AsyncEngine) -> None:
    site = await begun(engine, {"value": 0.1}, policy=RUN_ALL)
    first, second = site.leases.values()
    assert (await site.tell(first, 1, 0.11)).action == "CONTINUE"
    site.orders.clear()
    decision = await site.tell(second, 2, 0.1)
    assert (decision.action, decision.reason) == ("STOP", REACHED)
    assert (await site.study()).state == "ACTIVE"
    assert [type(order) for order in site.orders] == [Preemption], "nothing is cancelled, and nothing starts"
    assert [order.lease.number for order in site.orders] == [0], "who has heard STOP is told nothing else"
    assert (await site.events())[-1].message == (
        "study ends: trial 1 has loss 0.1; the trial that runs saves its state and stops, within 30 s"
    )
    assert (await site.tell(first, 2, 0.12)).action == "STOP"
    study = await site.study()
    assert (study.state, study.detail) == ("COMPLETED", REACHED)
    rows = await site.trials()
    assert [(row.reason, row.detail, row.checkpoint["step"]) for row in rows[:2]] == [
        ("STOPPED_EARLY", REACHED, 2)
    ] * 2
    assert {row.reason for row in rows[2:]} <= {"CANCELLED"}  # those that never ran
    assert not any(isinstance(order, Cancellation) for order in site.orders)
    for lease in (first, second):
        await site.step(gone(lease, "RELEASED"))
    assert [event for event in await site.events() if event.kind == "trial_warned"] == []
    await replayed(site)


async def test_a_trial_that_leaves_anyway_is_not_asked_again_at_each_cycle(engine: AsyncEngine) -> None:
    site = await begun(engine, {"value": 0.1}, policy=RUN_ALL)
    first, second = site.leases.values()
    assert first.grant is not None
    async with site.engine.begin() as conn:
        leave = "INSERT INTO leave (grant_id, study_id, at_report, why) VALUES (:grant, :study, true, 'no bubbles')"
        await conn.execute(text(leave), {"grant": first.grant.id, "study": site.study_id})
    site.orders.clear()
    await site.tell(second, 2, 0.1)
    for _ in range(3):
        await site.step(PlaceNow())
    assert not any(isinstance(order, Preemption) for order in site.orders)
    assert not [event for event in await site.events() if event.message.startswith("study ends")]
    assert (await site.tell(first, 1, 0.5)).action == "STOP"
    assert (await site.study()).state == "COMPLETED"
    await replayed(site)


async def test_a_report_that_was_not_saved_is_followed_by_one_that_is(engine: AsyncEngine) -> None:
    site = await begun(engine, {"value": 0.1}, policy=RUN_ALL)
    first, second = site.leases.values()
    decision = await site.tell(second, 2, 0.1, saved=False)
    assert (decision.action, decision.next_milestone) == ("CONTINUE", 3)
    assert {order.lease.number for order in site.orders if isinstance(order, Preemption)} == {0, 1}
    again = await site.step(site.report(second, 2, 0.1, saved=False, sequence=1))  # the message arrives twice
    assert again == [Accepted(decision=decision)]
    assert (await site.tell(first, 1, 0.5, saved=False)).action == "CONTINUE"  # it was already on its way
    assert (await site.tell(first, 2, 0.5)).action == "STOP"
    assert (await site.study()).state == "ACTIVE"
    assert (await site.tell(second, 3, 0.11)).action == "STOP"
    assert (await site.study()).state == "COMPLETED"
    assert [row.checkpoint["step"] for row in (await site.trials())[:2]] == [2, 3]
    await replayed(site)


async def test_programs_that_save_nothing_are_told_to_stop_when_they_have_heard(engine: AsyncEngine) -> None:
    site = await begun(engine, {"value": 0.1}, policy=RUN_ALL)
    first, second = site.leases.values()
    await site.tell(second, 2, 0.1, saved=False)
    await pass_time(site, closing.HEARD_S)
    for lease in (first, second):
        assert (await site.tell(lease, 3, 0.2, saved=False)).action == "STOP"
    assert (await site.study()).state == "COMPLETED"


async def test_what_runs_after_the_grace_is_cancelled(engine: AsyncEngine) -> None:
    site = await begun(engine, {"value": 0.1}, policy=RUN_ALL)
    first, second = site.leases.values()
    await site.tell(second, 2, 0.1)
    assert not await found(site), "nothing is due yet"
    await pass_time(site, 30)
    assert await found(site), "any replica ends it"
    site.fold = None  # the replica that closed it was killed
    await site.step(PlaceNow())
    assert (await site.study()).state == "COMPLETED"
    assert [order.lease for order in site.orders if isinstance(order, Cancellation)] == [first]
    assert (await site.trial(0)).detail == REACHED
    await site.step(replace(gone(first, "RELEASED"), exit_code=-15))
    assert [event for event in await site.events() if event.kind == "trial_warned"] == []
    assert not await found(site)
    await replayed(site)


async def test_without_a_grace_nobody_is_waited_for(engine: AsyncEngine) -> None:
    template = {"callable": "train:train", "working_dir": "/tmp", "grace": 0}
    site = await begun(engine, {"value": 0.1}, policy=RUN_ALL, template=template)
    first, second = site.leases.values()
    assert (await site.tell(second, 2, 0.1)).action == "STOP"
    assert (await site.study()).state == "COMPLETED"
    assert [order.lease for order in site.orders if isinstance(order, Cancellation)] == [first]


async def test_a_worker_that_is_lost_while_its_study_closes_holds_nobody_up(engine: AsyncEngine) -> None:
    site = await begun(engine, {"value": 0.1}, policy=RUN_ALL)
    first, second = site.leases.values()
    await site.tell(first, 1, 0.5)
    await site.tell(second, 2, 0.1)
    await site.step(gone(first, "LOST"))
    assert (await site.study()).state == "COMPLETED"
    assert (await site.trial(0)).checkpoint["step"] == 1
    assert not any(isinstance(order, Cancellation) for order in site.orders)


async def test_a_trial_at_its_rung_is_recorded_while_its_study_closes(engine: AsyncEngine) -> None:
    site = await begun(engine, {"value": 0.1}, max_trials=3, slots=3)
    first, second, third = site.leases.values()
    for lease, value in ((first, 0.1), (second, 0.2), (third, 0.05)):
        assert (await site.tell(lease, 1, value)).action == "PAUSE"
    study = await site.study()
    assert (study.state, study.detail) == ("COMPLETED", "trial 0 has loss 0.1 (until: loss ≤ 0.1)")
    assert [(row.rungs, row.reason) for row in await site.trials()] == [(1, "STOPPED_EARLY")] * 3
    await replayed(site)


async def test_a_study_that_closes_continues_when_it_is_extended(engine: AsyncEngine) -> None:
    site = await begun(engine, {"no_improvement": 1}, policy=RUN_ALL, max_trials=3, max_steps=9)
    first, second = site.leases.values()
    await site.tell(first, 9, 0.1)
    await site.tell(second, 9, 0.2)
    (third,) = [lease for lease in site.leases.values() if lease.number == 2]
    assert (await site.study()).state == "ACTIVE"
    site.orders.clear()
    await site.step(ExtendStudy(trials=1, steps=None))
    assert {order.lease.number for order in site.orders if isinstance(order, Assignment)} == {3}
    assert (await site.tell(third, 1, 0.3)).action == "CONTINUE", "it has saved as it was asked to"
    assert not await found(site)
    assert [row.state for row in await site.trials()][2:] == ["RUNNING", "RUNNING"]


@pytest.mark.parametrize("how", ["retry", "retry by number", "extend by trials", "extend by steps"])
async def test_trials_that_left_while_their_study_closed_continue_with_it(
    engine: AsyncEngine, how: str
) -> None:
    site = await begun(engine, {"no_improvement": 1}, policy=RUN_ALL, max_trials=4, max_steps=9)
    first, second = site.leases.values()
    await site.tell(first, 9, 0.1)
    (third,) = [lease for lease in site.leases.values() if lease.number == 2]
    await site.tell(third, 1, 0.9)
    await site.tell(second, 9, 0.2)
    assert (await site.tell(third, 2, 0.3)).action == "STOP"
    assert (await site.study()).state == "COMPLETED"
    ended = [row.reason for row in await site.trials()]
    assert ended == ["COMPLETED", "COMPLETED", "STOPPED_EARLY", "CANCELLED"], "the last one had not started"
    site.orders.clear()
    command = {
        "retry": RetryTrials(numbers=None),
        "retry by number": RetryTrials(numbers=frozenset({2})),
        "extend by trials": ExtendStudy(trials=1, steps=None),
        "extend by steps": ExtendStudy(trials=0, steps=18),
    }[how]
    (outcome,) = await site.step(command)
    assert not isinstance(outcome, Exception), outcome
    again = {order.lease.number: order.lease for order in site.orders if isinstance(order, Assignment)}
    left = await site.trial(2)
    if how != "extend by steps":  # with it, the two that completed go first
        assert again.keys() == {2, 3}
        assert again[2].resume is not None
        assert again[2].resume.step == 2
    assert left.state in ("RUNNING", "RESUMED", "PAUSED")


async def test_a_trial_that_a_user_stopped_stays_so_when_its_stopped_study_continues(
    engine: AsyncEngine,
) -> None:
    site = await begun(engine, {"value": 0.1}, policy=RUN_ALL)
    await site.step(StopTrial(number=0, reason=""))
    await site.step(StopStudy(reason=""))
    assert (await site.trial(0)).detail == (await site.study()).detail == "stopped by a user"
    await site.step(RetryTrials(numbers=None))
    trials = await site.trials()
    assert trials[0].reason == "CANCELLED"
    assert {row.state for row in trials[1:]} <= {"RUNNING", "PENDING"}


async def test_a_user_s_stop_does_not_wait(engine: AsyncEngine) -> None:
    site = await begun(engine, {"value": 0.1}, policy=RUN_ALL)
    first, second = site.leases.values()
    await site.tell(second, 2, 0.1)
    await site.step(StopStudy(reason=""))
    study = await site.study()
    assert (study.state, study.detail) == ("STOPPED", "stopped by a user")
    assert [order.lease for order in site.orders if isinstance(order, Cancellation)] == [first]


async def asked_of(engine: AsyncEngine) -> tuple[StudySite, Lease, Lease]:
    """An ask/tell study with two clients, each with a trial, the second of which has just reached the target."""
    site = await StudySite(engine, make_spec(until={"value": 0.1}, policy=RUN_ALL, template=None)).create()
    asked = [await site.step(Suggest(client_id=client, ttl_s=60)) for client in "ab"]
    first, second = [one.lease for (one,) in asked if isinstance(one, Suggested) and one.lease]
    (outcome,) = await site.step(replace(site.report(second, 1, 0.1, saved=False), sequence=None))
    assert isinstance(outcome, Accepted)
    assert outcome.decision is not None
    assert outcome.decision.action == "STOP"
    assert (await site.study()).state == "ACTIVE"
    assert await site.step(Suggest(client_id="b", ttl_s=60)) == [Suggested(trial=None, lease=None, done=True)]
    return site, first, second


async def test_what_a_client_evaluates_when_its_study_ends_still_counts(engine: AsyncEngine) -> None:
    site, first, second = await asked_of(engine)
    (outcome,) = await site.step(replace(site.report(first, 1, 0.05, saved=False), sequence=None))
    assert isinstance(outcome, Accepted)
    assert outcome.decision is not None
    assert outcome.decision.action == "STOP"
    study = await site.study()
    assert (study.state, study.standing["progress"]["best_value"]) == ("COMPLETED", 0.05)
    told = [(trial.state, trial.reason) for trial in await site.trials()][:2]
    assert told == [("TERMINATED", "STOPPED_EARLY")] * 2
    (late,) = await site.step(replace(site.report(second, 2, 0.2, saved=False), sequence=None))
    assert isinstance(late, Stale)


@pytest.mark.parametrize(
    "how", ["completes", "fails", "gives it back", "is not heard of", "renews without end"]
)
async def test_a_study_ends_when_no_client_holds_a_trial(how: str, engine: AsyncEngine) -> None:
    site, first, _ = await asked_of(engine)
    match how:
        case "completes":
            await site.step(replace(gone(first, "FINISHED"), sequence=None))
        case "fails":
            await site.step(replace(gone(first, "FAILED", error="x"), sequence=None))
        case "gives it back":
            await site.step(replace(gone(first, "RELEASED"), sequence=None))
        case "is not heard of":
            async with site.engine.begin() as conn:
                await conn.execute(text("UPDATE lease SET expires_at = now() - interval '1 s'"))
            expired = LeaseExpired(lease_id=first.id, number=0, attempt=1, sequence=None, why="silence")
            await site.step(expired)
        case _:
            await pass_time(site, closing.CLIENTS_S)
            assert await found(site), "any replica ends it"
            await site.kick()
    assert (await site.study()).state == "COMPLETED"


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
    assert (await site.tell(baseline, 1, 0.095)).action == "CONTINUE"
    assert (await site.tell(other, 1, 0.05)).action == "CONTINUE"
    assert (await site.tell(other, 2, 0.095)).action == "STOP"
    assert (await site.tell(baseline, 2, 0.095)).action == "STOP"
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


async def test_an_improvement_restarts_the_count(engine: AsyncEngine) -> None:
    site = await begun(engine, {"no_improvement": 3}, policy=RUN_ALL, max_trials=9, slots=1)
    values = [0.5, 0.6, 0.6, 0.4, 0.6, 0.6, 0.3, 0.6, 0.6]
    await train(site, lambda number, _: values[number])
    study = await site.study()
    assert (study.state, study.detail) == ("COMPLETED", "all trials have finished")


async def test_a_study_that_has_its_target_does_not_continue(engine: AsyncEngine) -> None:
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
def test_what_is_wrong_with_until_is_reported_at_once(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make_spec(**changes)
