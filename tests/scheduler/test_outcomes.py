"""How a study ends: with a usable result or without one, and which trials it shows as its best."""

import pytest
from msgspec.structs import replace
from sqlalchemy.ext.asyncio import AsyncEngine
from study_site import StudySite, gone, make_spec

from headrace.spec.surrogate import GATE
from headrace_services.scheduler.core.inputs import (
    PauseStudy,
    PauseTrial,
    ResumeStudy,
    RetryTrials,
    StopStudy,
    StopTrial,
)
from headrace_services.scheduler.core.lifecycle import Reason
from headrace_services.scheduler.core.records import Checkpoint, Lease
from headrace_services.scheduler.core.results import Result, Results
from headrace_services.scheduler.samplers.front import front
from headrace_services.scheduler.store import studies
from headrace_services.scheduler.store.database import transaction
from headrace_services.scheduler.store.studies import Figures

RUN_ALL = {"kind": "run_all"}
FIRST = {"metric": "loss", "goal": "minimize"}
SECOND = {"metric": "size", "goal": "minimize"}
NAN = float("nan")
NOTHING = (
    "reported nothing and exited with 0. Loop over t.steps(), and call t.report(...) in it: what a function returns "
    "does not count. A loop over its own range, resumed from a file, may have had no iterations"
)


async def study_of(engine: AsyncEngine, trials: int = 3, **changes: object) -> tuple[StudySite, list[Lease]]:
    """A study whose trials all run, up to step 2, without retries."""
    fields = {"policy": RUN_ALL, "max_trials": trials, "max_steps": 2, "max_retries": 0, **changes}
    site = await StudySite(engine, make_spec(**fields)).create()
    await site.connect(slots=trials)
    return site, await site.kick()


async def reports(site: StudySite, lease: Lease, step: int, **metrics: float) -> None:
    await site.step(replace(site.report(lease, step, None), metrics=metrics))


async def fails(site: StudySite, lease: Lease, error: str = "ValueError: boom") -> None:
    await site.step(gone(lease, "FAILED", error=error))


async def figures(site: StudySite) -> Figures:
    async with transaction(site.engine) as conn:
        study = await studies.get(conn, site.study_id)
        assert study is not None
        found = (await studies.figures(conn, [study], whole=True))[study.id]
        signs = [objective.sign for objective in study.spec.objectives]
        await studies.add_front(conn, study, found, front([vector for _, vector in found.measured], signs))
        return found


@pytest.mark.parametrize("goal", ["minimize", "maximize"])
async def test_the_best_trial_is_none_that_failed(engine: AsyncEngine, goal: str) -> None:
    site, leases = await study_of(engine, objective={"metric": "loss", "goal": goal})
    sign = 1 if goal == "minimize" else -1
    for lease, loss in zip(leases, (1.0, 2.0, 3.0), strict=True):
        await reports(site, lease, 1, loss=sign * loss)
    best = (await figures(site)).best
    assert best is not None
    assert best.trial.number == 0
    await fails(site, leases[0], "ValueError: no data")
    await fails(site, leases[1])
    found = await figures(site)
    assert found.best is not None
    assert found.best.trial.number == 2
    assert [(one.number, one.detail, one.worker) for one in found.failures] == [
        (0, "ValueError: no data", f"{site.name}-w"),
        (1, "ValueError: boom", f"{site.name}-w"),
    ]
    await reports(site, leases[2], 2, loss=sign * 4.0)
    study = await site.study()
    assert (study.state, study.detail) == ("COMPLETED", "all trials have finished")
    messages = [event.message for event in await site.log()]
    assert messages[-1] == "study completed: all trials have finished"
    assert f"trial 0 failed on {site.name}-w: ValueError: no data" in messages


async def test_a_trial_whose_last_value_is_not_finite_is_the_best_only_where_no_other_has_one(
    engine: AsyncEngine,
) -> None:
    # by the other scopes it no longer has a score
    by_best = {"metric": "loss", "goal": "minimize", "scope": "best"}
    site, leases = await study_of(engine, objective=by_best)
    await reports(site, leases[0], 1, loss=0.1)
    await reports(site, leases[1], 1, loss=0.5)
    best = (await figures(site)).best
    assert best is not None
    assert best.trial.number == 0
    await reports(site, leases[0], 2, loss=NAN)
    best = (await figures(site)).best
    assert best is not None
    assert best.trial.number == 1
    await fails(site, leases[1])
    best = (await figures(site)).best
    assert best is not None
    assert (best.trial.number, best.trial.best_value) == (0, 0.1), "none is sound"


async def test_where_all_with_a_value_failed_the_study_fails_and_shows_the_best_of_them(
    engine: AsyncEngine,
) -> None:
    site, leases = await study_of(engine)
    await reports(site, leases[0], 1, loss=2.0)
    await reports(site, leases[1], 1, loss=1.0)
    await reports(site, leases[2], 1, loss=NAN)
    for lease in leases:
        await fails(site, lease, "ValueError: boom\nmore of it")
    study = await site.study()
    assert study.state == "FAILED"
    assert study.detail == (
        "every trial that reported a result failed, trial 0 with: ValueError: boom; "
        "fix the trial's program, and `headrace retry` lets its trials continue"
    )
    best = (await figures(site)).best
    assert best is not None
    assert (best.trial.number, best.trial.reason) == (1, "FAILED")
    assert (await site.log())[-1].message.startswith(
        "study failed: every trial that reported a result failed"
    )


@pytest.mark.parametrize(
    ("errors", "why"),
    [
        (["TypeError: no"], "1 of 1 trial failed with: TypeError: no"),
        (["TypeError: no"] * 2, "2 of 2 trials failed, all with: TypeError: no"),
        (["TypeError: no (attempt 2 of 2)"] * 2, "2 of 2 trials failed, all with: TypeError: no"),
        (
            ["RuntimeError: Error(s) in A:\n\tsize mismatch\n\tmore"],
            "1 of 1 trial failed with: RuntimeError: Error(s) in A: size mismatch",
        ),
        (
            ["IndexError: 12 of 9", "KeyError: a", "IndexError: 7 of 9"],
            "3 of 3 trials failed, 2 of them with: IndexError: 12 of 9 (and the like)",
        ),
        (["KeyError: a", "TypeError: no", None], "2 of 3 trials failed, 1 of them with: KeyError: a"),
        (
            ["KeyError: a", "TypeError: no", "TypeError: no"],
            "3 of 3 trials failed, 2 of them with: TypeError: no",
        ),
    ],
)
async def test_the_common_error_is_the_reason_where_most_trials_failed(
    engine: AsyncEngine, errors: list[str | None], why: str
) -> None:
    site, leases = await study_of(engine, trials=len(errors))
    for lease in leases:  # a different metric, so that this is no early failure
        await reports(site, lease, 1, accuracy=0.5)
    for lease, error in zip(leases, errors, strict=True):
        if error is None:
            await reports(site, lease, 2, loss=NAN)
        else:
            await fails(site, lease, error)
    study = await site.study()
    assert study.state == "FAILED"
    assert study.detail == f"{why}; fix the trial's program, and `headrace retry` lets its trials continue"


async def test_a_trial_that_ends_before_its_full_budget_is_told_so(engine: AsyncEngine) -> None:
    site, (lease,) = await study_of(engine, trials=1)
    await reports(site, lease, 1, loss=1.0)
    await site.step(gone(lease, "FINISHED"))
    assert (await site.trial(0)).detail == "its program ended on its own at step 1 of 2"


async def test_a_resumed_program_that_reports_nothing_is_told_so(engine: AsyncEngine) -> None:
    """For example when its own range is empty after a restart. Its earlier result stands, so nobody would look
    further."""
    site, (lease,) = await study_of(engine, trials=1, max_steps=9)
    await reports(site, lease, 4, loss=1.0)
    await site.step(gone(lease, "LOST"))
    (lease,) = [one for one in site.leases.values() if one.attempt == 2]
    await site.step(gone(lease, "FINISHED"))
    trial = await site.trial(0)
    assert trial.reason == "COMPLETED"
    assert (
        trial.detail
        == f"its program ended on its own at step 4 of 9; this attempt began at step 4, {NOTHING}"
    )
    warned = [event.detail["warning"] for event in await site.events() if event.kind == "trial_warned"]
    assert warned == [trial.detail]


async def test_a_resumed_program_that_never_connected_has_not_completed(engine: AsyncEngine) -> None:
    """It was killed while it imported, and the shell that started it ended with 0."""
    site, (lease,) = await study_of(engine, trials=1, max_steps=9, max_retries=1)
    await reports(site, lease, 4, loss=1.0)
    await site.step(gone(lease, "LOST"))
    for attempt in (2, 3):
        (lease,) = [one for one in site.leases.values() if one.attempt == attempt]
        assert lease.begun == 4
        await site.step(gone(lease, "FINISHED", unconnected=True))
        assert (await site.trial(0)).failures == attempt - 1
    trial = await site.trial(0)
    assert (trial.reason, trial.checkpoint["step"]) == ("FAILED", 4)
    assert trial.detail == (
        "its program exited with 0 without connecting to its trial, which it did in an earlier attempt: it was "
        "probably killed, or its script skips the training. A script with `set -e`, or with `exec` before its "
        "training, passes on how that ended (attempt 2 of 2)"
    )
    await site.step(RetryTrials(numbers=None))
    (lease,) = [one for one in site.leases.values() if one.attempt == 4]
    assert lease.begun == 4


@pytest.mark.parametrize(("reported", "ends"), [(True, None), (False, "FAILED")])
async def test_a_first_attempt_that_never_connected_is_retried_if_the_program_has_reported_elsewhere(
    engine: AsyncEngine, reported: bool, ends: str | None
) -> None:
    """Until a trial has reported, the likely cause is a script that never calls trial.current()."""
    site, (lease, other) = await study_of(engine, trials=2, max_retries=1)
    if reported:
        await reports(site, other, 1, loss=1.0)
    await site.step(gone(lease, "FINISHED", unconnected=True))
    trial = await site.trial(0)
    assert (trial.reason, trial.attempt) == (ends, 2 if reported else 1)
    said = [event.message for event in await site.log()]
    assert any("which it did in other trials" in one for one in said) == reported
    assert any("never connected to its trial. Call trial.current()" in one for one in said) != reported


async def test_what_a_program_saved_at_its_own_end_is_its_checkpoint(engine: AsyncEngine) -> None:
    site, (lease,) = await study_of(engine, trials=1, max_steps=9)
    await reports(site, lease, 4, loss=1.0)
    saved = Checkpoint(uri="file:///s/4", step=4)
    for _ in range(2):  # the message arrives twice
        await site.step(gone(lease, "FINISHED", checkpoint=saved, by_itself=True))
    trial = await site.trial(0)
    assert (trial.reason, trial.checkpoint["uri"]) == ("COMPLETED", saved.uri)
    assert trial.detail == "its program ended on its own at step 4 of 9"


async def test_a_trial_that_ended_without_its_objective_is_tried_again_from_before_its_end(
    engine: AsyncEngine,
) -> None:
    """Early stopping and a misspelt metric: from the state at its end it would end at once, after every retry."""
    site, (lease,) = await study_of(engine, trials=1, max_steps=9)
    await reports(site, lease, 4, los=1.0)
    before = (await site.trial(0)).checkpoint
    await site.step(
        gone(lease, "FINISHED", checkpoint=Checkpoint(uri="file:///s/end", step=4), by_itself=True)
    )
    trial = await site.trial(0)
    assert (trial.reason, trial.checkpoint) == ("FAILED", before)


async def test_what_a_program_could_not_save_at_its_own_end_takes_nothing_from_its_result(
    engine: AsyncEngine,
) -> None:
    site, (lease,) = await study_of(engine, trials=1, max_steps=9)
    await reports(site, lease, 4, loss=1.0)
    await site.step(gone(lease, "FINISHED", unsaved="the state at its end is not saved: no room"))
    trial = await site.trial(0)
    assert (trial.reason, trial.checkpoint["uri"], trial.value) == ("COMPLETED", "file:///0/4", 1.0)
    assert trial.detail.endswith("; the state at its end is not saved: no room")
    warned = [event.detail["warning"] for event in await site.events() if event.kind == "trial_warned"]
    assert warned == ["the state at its end is not saved: no room"]


async def test_a_resumed_program_that_stops_early_at_once_is_no_cause_for_a_warning(
    engine: AsyncEngine,
) -> None:
    site, (lease,) = await study_of(engine, trials=1, max_steps=9)
    await reports(site, lease, 4, loss=1.0)
    await site.step(gone(lease, "LOST"))
    (lease,) = [one for one in site.leases.values() if one.attempt == 2]
    await site.step(gone(lease, "FINISHED", by_itself=True))
    assert (await site.trial(0)).detail == "its program ended on its own at step 4 of 9"
    assert [event for event in await site.events() if event.kind == "trial_warned"] == []


async def test_a_study_in_which_none_came_to_the_first_rung_asks_for_its_unit(engine: AsyncEngine) -> None:
    """Its rungs count optimizer steps, and its script counts epochs."""
    policy = {"kind": "asha", "rungs": [100, 300, 900]}
    site, leases = await study_of(engine, trials=2, policy=policy, max_steps=900)
    for lease in leases:
        await reports(site, lease, 9, loss=1.0)
        await site.step(gone(lease, "FINISHED"))
    study = await site.study()
    assert study.state == "COMPLETED"
    assert study.detail == (
        "all trials have finished, and none reached the first rung, at step 100: the furthest reached step 9. "
        "Unless the script stops early, does it count its steps as the study does, up to 900?"
    )


async def test_a_trial_that_reports_another_metric_is_told_which(engine: AsyncEngine) -> None:
    site, (lease,) = await study_of(engine, trials=1)
    await reports(site, lease, 1, accuracy=1.0)
    await site.step(gone(lease, "FINISHED"))
    why = "its program ended without reporting 'loss'; it reported accuracy"
    assert (await site.trial(0)).detail == why
    assert (await site.study()).detail.startswith(f"1 of 1 trial failed with: {why}")


async def test_the_front_has_no_failed_trial_where_others_have_values(engine: AsyncEngine) -> None:
    site, leases = await study_of(engine, objective=FIRST, further_objectives=[SECOND])
    for lease, loss in zip(leases, (1.0, 2.0, 3.0), strict=True):
        await reports(site, lease, 1, loss=loss, size=loss)
    assert [view.trial.number for view in (await figures(site)).front] == [0]
    await fails(site, leases[0])
    assert [view.trial.number for view in (await figures(site)).front] == [1]
    await fails(site, leases[1])
    await fails(site, leases[2])
    assert [view.trial.number for view in (await figures(site)).front] == [0]
    study = await site.study()
    assert (study.state, study.detail[:44]) == ("FAILED", "every trial that reported a result failed, t")


@pytest.mark.parametrize(
    ("number", "reason", "step", "passes"),
    [
        (0, Reason.COMPLETED, 2, True),
        (0, Reason.COMPLETED, 1, False),
        (0, Reason.CANCELLED, 1, False),
        (1, Reason.COMPLETED, 2, False),
    ],
)
def test_a_gate_has_passed_only_where_its_own_trial_came_to_its_end(
    number: int, reason: Reason, step: int, passes: bool
) -> None:
    spec = make_spec(template={"callable": GATE, "working_dir": "/"}, policy=RUN_ALL, max_steps=2)
    results = Results(spec)
    results.add(
        Result(
            number=number,
            baseline=False,
            step=step,
            score=0.1,
            metrics={"loss": 0.1},
            reason=reason,
            counts_as=reason,
            detail="",
        )
    )
    assert results.usable == passes
    assert passes or results.why_none().startswith("the check was ended before it was complete")


@pytest.mark.parametrize(
    ("changes", "metrics", "why"),
    [
        (
            {},
            {"loss": NAN},
            (
                "no trial ended with a finite 'loss' (trial 0 ended with NaN); training diverges or the metric is "
                "computed wrongly: try a configuration by hand, or narrow the space"
            ),
        ),
        (
            {"constraints": [{"metric": "size", "at_most": 3}]},
            {"loss": 1.0, "size": 4.0},
            "no trial met the constraints (size ≤ 3); loosen them, or widen the space",
        ),
        (
            {"constraints": [{"metric": "size", "at_most": 3}, {"metric": "mem", "at_most": 3}]},
            {"loss": 1.0, "size": 4.0},
            "no trial reported 'mem', which a constraint reads; report it, or correct the constraint",
        ),
        (
            {},
            {"accuracy": 1.0},
            (
                "the trials do not report the objective's metric 'loss' but accuracy; report it together with the "
                "others in one report(...), or correct objective.metric"
            ),
        ),
        (
            {"further_objectives": [SECOND]},
            {"loss": 1.0},
            (
                "the trials do not report the objective's metric 'size' but loss; report all objectives in one "
                "report(...), or correct their names in the study"
            ),
        ),
    ],
)
async def test_a_study_without_a_usable_result_fails_with_a_remedy(
    engine: AsyncEngine, changes: dict[str, object], metrics: dict[str, float], why: str
) -> None:
    site, leases = await study_of(engine, **changes)
    for lease in leases:
        await reports(site, lease, 2, **metrics)
    study = await site.study()
    assert (study.state, study.detail) == ("FAILED", why)


async def test_a_trial_that_was_never_promoted_says_so_and_why(engine: AsyncEngine) -> None:
    asha = {"kind": "asha", "min_steps": 1, "eta": 2}
    site, leases = await study_of(engine, trials=2, policy=asha)
    await reports(site, leases[0], 1, loss=NAN)
    await reports(site, leases[1], 1, loss=1.0)
    await site.kick()
    await reports(site, list(site.leases.values())[-1], 2, loss=1.0)
    assert (await site.study()).state == "COMPLETED"
    ended = await site.trial(0)
    assert (ended.reason, ended.detail) == (
        "STOPPED_EARLY",
        "never promoted: its value at step 1 was NaN, not a finite number",
    )


async def test_a_study_in_which_none_had_the_full_budget_says_so(engine: AsyncEngine) -> None:
    site, leases = await study_of(engine, policy={"kind": "asha", "min_steps": 1, "eta": 2})
    for lease, loss in zip(leases, (1.0, 2.0, 3.0), strict=True):
        await reports(site, lease, 1, loss=loss)
    await site.kick()
    for number in (0, 1):  # the best one continues, and when it has failed, the next one
        again = next(lease for lease in site.leases.values() if (lease.number, lease.attempt) == (number, 2))
        await fails(site, again, "RuntimeError: out of memory")
    assert (await site.study()).state == "ACTIVE"  # so does the last one
    await site.step(StopTrial(number=2, reason=""))
    study = await site.study()
    assert study.state == "COMPLETED"
    assert study.detail == (
        "all trials have finished, and none reached the full budget; "
        "2 of 3 trials failed, all with: RuntimeError: out of memory"
    )


async def test_the_next_best_continues_until_one_had_the_full_budget(engine: AsyncEngine) -> None:
    site, leases = await study_of(engine, policy={"kind": "asha", "min_steps": 1, "eta": 2})
    for lease, loss in zip(leases, (1.0, 2.0, 3.0), strict=True):
        await reports(site, lease, 1, loss=loss)
    await site.kick()

    def again(number: int) -> Lease:
        return next(one for one in site.leases.values() if (one.number, one.attempt) == (number, 2))

    await fails(site, again(0), "RuntimeError: out of memory")
    await site.step(gone(again(1), "INFEASIBLE", error="too large"))
    await reports(site, again(2), 2, loss=3.0)
    assert [(await site.trial(number)).reason for number in range(3)] == ["FAILED", "INFEASIBLE", "COMPLETED"]
    assert ((await site.study()).state, (await site.study()).detail) == (
        "COMPLETED",
        "all trials have finished",
    )


async def test_of_several_objectives_one_that_nobody_reports_ends_the_study_at_the_second_trials_rung(
    engine: AsyncEngine,
) -> None:
    site, leases = await study_of(engine, objective=FIRST, further_objectives=[SECOND])
    await reports(site, leases[0], 1, loss=1.0)
    assert (await site.study()).state == "ACTIVE"
    await reports(site, leases[0], 2, loss=1.0)
    assert (await site.study()).state == "ACTIVE"
    await reports(site, leases[1], 2, loss=1.0)
    study = await site.study()
    assert study.state == "FAILED"
    assert study.detail.startswith(
        "the trials do not report the objective's metric 'size' but loss; report all"
    )


async def test_the_baseline_alone_is_no_result(engine: AsyncEngine) -> None:
    site, leases = await study_of(engine, trials=2, baseline={"x": 0.5})
    await reports(site, leases[0], 2, loss=1.0)
    leases = list(site.leases.values())
    await reports(site, leases[1], 2, loss=NAN)
    await site.kick()
    await reports(site, list(site.leases.values())[2], 2, loss=NAN)
    study = await site.study()
    assert study.state == "FAILED"
    assert "no trial ended with a finite 'loss' (trial 1 ended with NaN)" in study.detail


async def test_a_study_that_a_user_stops_stays_stopped(engine: AsyncEngine) -> None:
    site, leases = await study_of(engine)
    await reports(site, leases[0], 1, loss=NAN)
    await site.step(StopStudy(reason=""))
    assert (await site.study()).state == "STOPPED"


async def test_decisions_and_moves_are_reported_plainly(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec()).create()
    await site.connect(slots=1)
    (lease,) = await site.kick()
    decision = await site.tell(lease, 1, 0.3195)
    why = "too few results at this rung to promote anyone yet; rank 1 of 1 at the rung at step 1"
    assert decision.reason == why
    await site.step(PauseStudy())
    await site.step(ResumeStudy())
    await site.step(StopStudy(reason=""))
    messages = [event.message for event in await site.log()]
    assert f"trial 0 paused: {why}; its slot goes to trial 1" in messages
    assert [message for message in messages if message.startswith("study ")] == [
        "study paused by a user",
        "study resumed by a user",
        "study stopped by a user",
    ]
    assert "trial 0 cancelled: stopped by a user" in messages


async def test_a_trial_that_a_user_pauses_is_told_so_and_what_it_would_have_done(engine: AsyncEngine) -> None:
    policy = {"kind": "asha", "eta": 3, "rungs": [1, 3, 9], "variant": "stopping"}
    site = await StudySite(engine, make_spec(policy=policy)).create()
    await site.connect(slots=1)
    (lease,) = await site.kick()
    await site.step(PauseStudy())
    assert (await site.tell(lease, 1, 0.5)).reason == (
        "paused by a user; otherwise it would continue: value 0.5 meets the cutoff; "
        "rank 1 of 1 at the rung at step 1, where the best one is promoted"
    )
    (made,) = await site.events("decision_made")
    assert made.message.startswith("trial 0 paused by a user; otherwise it would continue: value 0.5")


async def test_a_promotion_of_a_trial_that_a_user_paused_says_so_first(engine: AsyncEngine) -> None:
    policy = {"kind": "asha", "eta": 3, "rungs": [1, 3, 9]}
    site = await StudySite(engine, make_spec(policy=policy, max_trials=9)).create()
    await site.connect(slots=1)
    (lease,) = await site.kick()
    await site.tell(lease, 1, 0.1)
    await site.step(PauseTrial(number=0))
    for value in (0.2, 0.3):
        await site.tell(list(site.leases.values())[-1], 1, value)
    made = [event for event in await site.events("decision_made") if event.number == 0][-1]
    assert made.detail["action"] == "DECISION_ACTION_CONTINUE"
    assert made.message.startswith(
        "trial 0 paused by a user; otherwise it would continue: it is the best trial"
    )


async def test_trials_that_fail_first_count_as_failed_though_they_had_retries(engine: AsyncEngine) -> None:
    site, leases = await study_of(engine, trials=5, max_retries=2)
    for lease in leases[:3]:
        log = "Traceback (most recent call last):\n  x\nTypeError: no x\n"
        await site.step(gone(lease, "FAILED", error="TypeError: no x", log_tail=log))
    study = await site.study()
    assert study.state == "FAILED"
    assert study.detail.startswith("the first 3 trials failed before reporting anything ")
    found = await figures(site)
    assert found.reasons == {"FAILED": 3, "CANCELLED": 2}
    told = "TypeError: no x (attempt 1 of 3; not tried again, as the study failed)"
    # The first two run their second attempt while the study ends; the third one waits to do so.
    assert [(one.number, one.detail) for one in found.failures] == [(0, told), (1, told), (2, told)]


async def test_what_a_lost_attempt_printed_is_not_told_as_the_error_before(engine: AsyncEngine) -> None:
    site, leases = await study_of(engine, trials=3, max_retries=1)
    log = "hello\nTypeError: no x\n"
    for lease in leases[:2]:
        await site.step(gone(lease, "FAILED", error="TypeError: no x", log_tail=log))
    (again,) = [one for one in site.leases.values() if one.number == 0 and one.attempt == 2]
    await site.step(gone(again, "LOST", error="its worker was stopped", log_tail="hello\n"))
    await site.step(gone(leases[2], "FAILED", error="TypeError: no x", log_tail=log))
    assert (await site.study()).state == "FAILED"
    assert {one.detail for one in (await figures(site)).failures} == {
        "TypeError: no x (attempt 1 of 2; not tried again, as the study failed)"
    }


async def test_the_log_of_a_loss_that_ends_a_trial_is_kept_though_it_failed_before(
    engine: AsyncEngine,
) -> None:
    site, (lease,) = await study_of(engine, trials=1, max_retries=1)
    await reports(site, lease, 1, loss=1.0)
    await site.step(
        gone(lease, "FAILED", error="OSError: a flaky mount", log_tail="OSError: a flaky mount\n")
    )
    for attempt in range(2, 99):
        again = [one for one in site.leases.values() if one.attempt == attempt]
        if not again:
            break
        killed = gone(again[0], "LOST", error="killed by SIGKILL", log_tail=f"attempt {attempt}\n")
        await site.step(killed)
    (failure,) = (await figures(site)).failures
    assert "flaky" not in failure.detail
    (trial,) = [one for one in await site.trials() if one.number == 0]
    assert trial.log_tail == f"attempt {attempt - 1}\n"


@pytest.mark.parametrize("goal", ["minimize", "maximize"])
async def test_of_equals_the_one_that_completed_is_the_best_then_the_one_that_trained_further(
    engine: AsyncEngine, goal: str
) -> None:
    objective = {"metric": "loss", "goal": goal, "scope": "best"}
    site, leases = await study_of(engine, trials=4, max_steps=3, objective=objective)
    worse = 1.0 if goal == "minimize" else -1.0
    await reports(site, leases[0], 1, loss=0.5)
    await reports(site, leases[1], 1, loss=0.5)
    await reports(site, leases[1], 2, loss=0.5 + worse)
    found = await figures(site)
    assert found.best is not None
    assert found.best.trial.number == 1
    await reports(site, leases[0], 2, loss=0.5 + worse)
    await site.step(StopTrial(number=1, reason=""))
    await reports(site, leases[3], 1, loss=0.5)
    await site.step(gone(leases[3], "FINISHED"))
    found = await figures(site)
    assert found.best is not None
    assert (found.best.trial.number, found.best.trial.best_step) == (3, 1)


async def test_a_trial_whose_messages_are_never_taken_is_cancelled_and_not_failed(
    engine: AsyncEngine,
) -> None:
    site, (lease,) = await study_of(engine, trials=1)
    for number in range(10):
        assert (await site.trial(0)).failures == 0
        await site.step(gone(lease, "DEFECT", error="this is a defect of Headrace"))
        if number < 9:
            lease = site.leases[max(site.leases, key=lambda held: site.leases[held].attempt)]
    trial = await site.trial(0)
    assert (trial.state, trial.reason, trial.failures) == ("TERMINATED", "CANCELLED", 0)
    assert trial.detail.startswith("this is a defect of Headrace, 10 times in a row")


async def test_an_infeasible_trial_is_neither_a_failure_nor_a_result(engine: AsyncEngine) -> None:
    site, leases = await study_of(engine, trials=3, max_retries=3, max_early_failures=1)
    await site.step(gone(leases[1], "INFEASIBLE", error="8 heads, 100 features"))
    for lease, loss in zip(leases, (1.0, None, 3.0), strict=True):
        if loss is not None:
            await reports(site, lease, 1, loss=loss)
    await site.step(gone(leases[0], "INFEASIBLE", error="no data for it"))
    found = await figures(site)
    assert found.reasons == {Reason.INFEASIBLE: 2}
    assert found.best is not None
    assert found.best.trial.number == 2
    trial = await site.trial(1)
    assert (trial.reason, trial.detail, trial.failures) == ("INFEASIBLE", "8 heads, 100 features", 0)
    await reports(site, leases[2], 2, loss=4.0)
    assert (await site.study()).state == "COMPLETED"


async def test_what_an_infeasible_trial_reported_is_no_unmet_constraint(engine: AsyncEngine) -> None:
    site, leases = await study_of(engine, trials=2, max_retries=0)
    await reports(site, leases[0], 1, loss=0.5)
    await site.step(gone(leases[0], "INFEASIBLE", error="no data for it"))
    assert (await figures(site)).best is None
    await fails(site, leases[1], "ValueError: no such file")
    study = await site.study()
    assert study.state == "FAILED"
    assert "constraint" not in study.detail
