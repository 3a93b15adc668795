"""A trial that was lost repeats steps: until it gets as far as before, what it had reported counts."""

from typing import Any

import pytest
from msgspec.structs import replace
from reopened_site import spec_now
from sqlalchemy.ext.asyncio import AsyncEngine
from study_site import StudySite, gone, make_spec
from test_earlier_ends import SCOPES, complete, fail, lease_of, scoped, shown

from headrace_services.scheduler.core.inputs import ExtendStudy, RetryTrials, StopStudy
from headrace_services.scheduler.core.records import Lease
from headrace_services.scheduler.replay.replaying import replay


async def lost_at(engine: AsyncEngine, *values: float, saved: int = 0, **changes: Any) -> StudySite:
    """A study with one trial, which reported these values from step 1 on, saved one step, and was lost."""
    fields = {"policy": {"kind": "run_all"}, "max_trials": 1, "max_steps": 9, **changes}
    site = await StudySite(engine, make_spec(**fields)).create()
    await site.connect(slots=1)
    (lease,) = await site.kick()
    for step, value in enumerate(values, 1):
        await site.tell(lease, step, value, saved=step == saved)
    await site.step(gone(lease, "LOST", error="killed by SIGKILL"))
    return site


async def again(site: StudySite, **values: float) -> Lease:
    """The trial's next attempt reports these values, by `at3=0.5`."""
    lease = await lease_of(site, 0)
    for name, value in values.items():
        await site.tell(lease, int(name.removeprefix("at")), value, saved=False)
    return lease


@pytest.mark.parametrize("scope", SCOPES)
async def test_a_result_that_was_accepted_counts_when_the_study_ends_before_it_is_reached_again(
    engine: AsyncEngine, scope: str
) -> None:
    site = await lost_at(engine, 0.9, 0.8, 0.7, 0.6, 0.5, objective=scoped(scope))
    before = await site.trial(0)
    await again(site, at1=0.9, at2=0.8)
    now = await site.trial(0)
    assert (now.step, now.value, now.metrics, now.score) == (5, 0.5, {"loss": 0.5}, before.score)
    await site.step(StopStudy(reason="enough"))
    study, _ = await shown(site)
    assert study.best is not None
    assert (study.best.number, study.best.score, study.best.score_step) == (0, before.score, 5)


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("saved", [0, 3, 4])
async def test_a_trial_that_repeats_steps_ends_with_the_score_of_one_that_does_not(
    engine: AsyncEngine, scope: str, saved: int
) -> None:
    values = [0.9, 0.8, 0.7, 0.6, 0.5, 0.55, 0.65, 0.6, 0.7]
    site = await lost_at(engine, *values[:5], saved=saved, objective=scoped(scope))
    lease = await lease_of(site, 0)
    assert lease.step == saved
    for step in range(saved + 1, 10):
        await site.tell(lease, step, values[step - 1])
    undisturbed = await StudySite(
        engine, make_spec(policy={"kind": "run_all"}, max_trials=1, objective=scoped(scope))
    ).create()
    await undisturbed.connect(name="other", slots=1)
    (other,) = await undisturbed.kick()
    for step, value in enumerate(values, 1):
        await undisturbed.tell(other, step, value)
    names = ("step", "value", "metrics", "score", "best_value", "best_step", "reason")
    found, expected = await site.trial(0), await undisturbed.trial(0)
    assert {name: getattr(found, name) for name in names} == {name: getattr(expected, name) for name in names}


async def test_a_trial_that_gets_other_values_counts_by_them_once_it_is_as_far(engine: AsyncEngine) -> None:
    site = await lost_at(engine, 0.9, 0.5, objective=scoped("last"))
    await again(site, at1=0.8)
    assert (await site.trial(0)).score == 0.5
    await again(site, at2=0.7)
    assert (await site.trial(0)).score == 0.7


async def test_one_that_ends_by_itself_before_it_is_as_far_keeps_the_result_and_says_so(
    engine: AsyncEngine,
) -> None:
    site = await lost_at(engine, 0.9, 0.8, 0.7, 0.6, objective=scoped("last"))
    lease = await again(site, at1=0.9, at2=0.8)
    await site.step(gone(lease, "FINISHED", by_itself=True))
    trial = await site.trial(0)
    assert (trial.reason, trial.score, trial.step) == ("COMPLETED", 0.6, 4)
    assert trial.detail == (
        "its program ended on its own at step 2 of 9; its result is that of step 4, which an earlier attempt reported"
    )


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("end", ["stop", "exit", "fail"])
async def test_a_failed_trial_that_is_retried_keeps_its_result_until_it_is_as_far(
    engine: AsyncEngine, scope: str, end: str
) -> None:
    """As one that is retried automatically: `retry` makes no result worse."""
    site = await lost_at(
        engine, 9.0, 8.0, 7.0, 4.0, 3.0, 2.0, saved=4, objective=scoped(scope), max_retries=0
    )
    before = await site.trial(0)
    assert (before.step, before.value) == (6, 2.0)
    await fail(site, 0)
    await site.step(RetryTrials(numbers=frozenset({0})))
    retried = await site.trial(0)
    assert (retried.step, retried.value, retried.score) == (6, 2.0, before.score)
    lease = await again(site, at5=50.0)
    assert lease.step == 4
    now = await site.trial(0)
    assert (now.step, now.value, now.metrics, now.score) == (6, 2.0, {"loss": 2.0}, before.score)
    if end == "stop":
        await site.step(StopStudy(reason="enough"))
    elif end == "exit":
        await site.step(gone(lease, "FINISHED", by_itself=True))
    else:
        await fail(site, 0)
        await site.step(RetryTrials(numbers=frozenset({0})))
        await site.step(StopStudy(reason="enough"))
    study, found = await shown(site)
    trial = found[0]
    assert (trial.step, trial.score, trial.score_step) == (6, before.score, 6)
    assert study.best is not None
    assert (study.best.number, study.best.score, study.best.score_step) == (0, before.score, 6)
    assert replay(await spec_now(site), await site.log()).identical


@pytest.mark.parametrize("retried", [False, True])
async def test_a_value_that_diverged_holds_back_none_that_is_finite(
    engine: AsyncEngine, retried: bool
) -> None:
    values = (0.9, 0.8, 0.7, 0.6, float("nan"))
    site = await lost_at(engine, *values, saved=3, objective=scoped("last"), max_retries=0)
    assert (await site.trial(0)).score is None
    if retried:
        await fail(site, 0)
        await site.step(RetryTrials(numbers=frozenset({0})))
    await again(site, at4=0.65)
    trial = await site.trial(0)
    assert (trial.step, trial.value, trial.score) == (4, 0.65, 0.65)
    await site.step(StopStudy(reason="enough"))
    study, _ = await shown(site)
    assert study.best is not None
    assert (study.best.score, study.best.score_step) == (0.65, 4)


async def test_a_retried_trial_is_judged_by_what_it_reports_once_it_is_as_far(engine: AsyncEngine) -> None:
    site = await lost_at(engine, 0.9, 0.8, 0.7, objective=scoped("last"), max_retries=0)
    await again(site, at1=0.9, at2=float("nan"))
    await fail(site, 0)
    await site.step(RetryTrials(numbers=frozenset({0})))
    lease = await again(site, at1=0.95, at2=0.9)
    trial = await site.trial(0)
    assert (trial.step, trial.score) == (3, 0.7)
    await again(site, at3=0.85)
    trial = await site.trial(0)
    assert (trial.step, trial.score) == (3, 0.85)
    await site.step(gone(lease, "FINISHED", by_itself=True))
    assert (await site.trial(0)).detail == "its program ended on its own at step 3 of 9"


async def test_a_result_that_had_diverged_does_not_count_because_the_trial_failed_later(
    engine: AsyncEngine,
) -> None:
    """It got better, then its values were no numbers any more: the earlier completion counts, and still does when
    the next extension fails."""
    site = await complete(engine, 1.2, 1.1, objective=scoped("best"))
    await site.step(ExtendStudy(trials=0, steps=14))
    lease = await lease_of(site, 0)
    await site.tell(lease, 11, 0.8)
    await site.tell(lease, 14, float("nan"))
    await site.tell(await lease_of(site, 1), 14, 3.0)

    async def counts() -> tuple[int, float | None, str]:
        study, found = await shown(site)
        assert study.best is not None
        kept = found[0].kept_checkpoint
        return study.best.number, found[0].score, "" if kept is None else kept.uri

    before = await counts()
    assert before == (1, 1.2, "file:///0/9")
    await site.step(ExtendStudy(trials=0, steps=20))
    for number in (0, 1):
        await fail(site, number)
    assert await counts() == before
    assert replay(await spec_now(site), await site.log()).identical


MEANS = [
    ([1000.0, 2000.0, 3000.0], {1: 10.0, 2: 20.0, 3: 30.0, 4: 40.0}, 0, 3, 30.0),
    ([1000.0, 2000.0], {1: 10.0, 2: 20.0, 3: 30.0}, 0, 3, 20.0),
    ([float("nan"), 20.0], {1: 10.0, 2: 20.0, 3: 30.0}, 0, 3, 20.0),
    ([10.0, 20.0, float("nan")], {3: 30.0, 4: 40.0}, 2, 2, 35.0),
    ([10.0, 20.0, 30.0, 99.0], {4: 40.0}, 3, 2, 35.0),
    ([10.0, 20.0, 30.0, 40.0], {2: 20.0, 3: 33.0}, 1, 2, 35.0),  # not as far yet
]
"""What was reported, what the next attempt reports from the saved step on, k, and the mean that counts."""


@pytest.mark.parametrize(("first", "second", "saved", "k", "mean"), MEANS)
async def test_a_mean_is_of_the_last_attempts_values_once_it_is_as_far(
    engine: AsyncEngine, first: list[float], second: dict[int, float], saved: int, k: int, mean: float
) -> None:
    site = await lost_at(
        engine, *first, saved=saved, objective=scoped("last") | {"scope": "mean_last_k", "k": k}
    )
    lease = await lease_of(site, 0)
    assert lease.step == saved
    for step, value in second.items():
        await site.tell(lease, step, value, saved=False)
    assert (await site.trial(0)).score == mean


async def test_a_mean_leaves_out_an_infeasible_report_before_a_loss(engine: AsyncEngine) -> None:
    objective = scoped("last") | {"scope": "mean_last_k", "k": 2}
    limits = [{"metric": "size", "at_most": 1.0}]
    site = await lost_at(engine, objective=objective, constraints=limits)

    async def reports(lease: Lease, **told: tuple[float, float]) -> None:
        for name, (loss, size) in told.items():
            step = int(name.removeprefix("at"))
            message = site.report(lease, step, loss)
            await site.step(replace(message, metrics={"loss": loss, "size": size}))

    await reports(await lease_of(site, 0), at1=(10.0, 0.5), at2=(20.0, 0.5), at3=(30.0, 0.5), at4=(99.0, 2.0))
    assert (await site.trial(0)).score is None
    await site.step(gone(await lease_of(site, 0), "LOST"))
    lease = await lease_of(site, 0)
    assert lease.step == 4
    await reports(lease, at5=(40.0, 0.5))
    assert (await site.trial(0)).score == 35.0


async def test_a_study_without_a_mean_that_counts_says_so(engine: AsyncEngine) -> None:
    objective = scoped("last") | {"scope": "mean_last_k", "k": 3}
    spec = make_spec(policy={"kind": "run_all"}, max_trials=1, objective=objective)
    site = await StudySite(engine, spec).create()
    await site.connect(slots=1)
    (lease,) = await site.kick()
    for step, value in ((7, float("nan")), (8, 1.0), (9, 1.0)):
        await site.tell(lease, step, value)
    study = await site.study()
    assert study.state == "FAILED"
    assert "one of the last 3 values of 'loss' was not finite in each trial" in study.detail
