"""Which report of a trial counts, in the core and in the rows, before and after an extension."""

import pytest
from msgspec.structs import replace
from reopened_site import train
from sqlalchemy.ext.asyncio import AsyncEngine
from study_site import StudySite, make_spec
from test_earlier_ends import RUN_ALL, by_steps, complete, fail, lease_of, scoped, shown

from headrace_services.scheduler.core.records import Lease
from headrace_services.scheduler.store import load, proposals
from headrace_services.scheduler.store.database import transaction

SIZE = [{"metric": "size", "at_least": 0.3}]


async def tell(site: StudySite, lease: Lease, step: int, loss: float, size: float) -> None:
    metrics = {"loss": loss, "size": size, "other": step}
    await site.step(replace(site.report(lease, step, loss), metrics=metrics))


async def told(engine: AsyncEngine, *reports: tuple[int, float, float], scope: str = "best") -> StudySite:
    """A study of one trial with these reports (step, loss, size); it completes at step 9."""
    spec = make_spec(
        policy=RUN_ALL, max_trials=1, max_retries=0, objective=scoped(scope), constraints=SIZE, baseline=None
    )
    site = await StudySite(engine, spec).create()
    await site.connect(slots=1)
    (lease,) = await site.kick()
    for step, loss, size in reports:
        await tell(site, lease, step, loss, size)
    return site


async def test_an_earlier_end_has_the_metrics_of_the_report_that_counted(engine: AsyncEngine) -> None:
    site = await told(engine, (4, 0.5, 0.8), (9, 0.7, 0.1))
    await site.step(by_steps(18))
    await tell(site, await lease_of(site, 0), 12, 0.6, 0.2)
    await fail(site, 0)
    study, found = await shown(site)
    trial = found[0]
    assert trial.counted_end is not None
    assert trial.counted_end.metrics == {"loss": 0.5, "size": 0.8, "other": 4.0}
    assert (trial.score, trial.score_step, trial.feasible) == (0.5, 4, True)
    assert trial.counted_metrics == {"loss": 0.5, "size": 0.8, "other": 4.0}
    assert study.best is not None


async def test_models_learn_from_the_report_at_the_budget_whichever_counted(engine: AsyncEngine) -> None:
    """The baseline is recorded at no rung: its value at the earlier budget is that of its report there."""
    spec = make_spec(policy=RUN_ALL, max_trials=1, objective=scoped("best"), baseline={"x": 0.5})
    site = await StudySite(engine, spec).create()
    await site.connect(slots=2)
    for lease in await site.kick():
        await site.tell(lease, 4, 0.1)
        await site.tell(lease, 9, 0.4)
    await site.step(by_steps(18))
    await train(site)
    study = await site.study()
    async with transaction(engine) as conn:
        found = await proposals.results_since(conn, site.study_id, 9, 0, study.cursor, budgets=(9, 18))
    assert [one.metrics["loss"] for one in found] == [0.4, 0.4]


async def test_the_reason_of_an_ended_study_reads_the_report_that_counts(engine: AsyncEngine) -> None:
    site = await told(engine, (4, 0.5, 0.8), (9, 0.7, 0.1))
    assert (await site.study()).state == "COMPLETED"
    async with transaction(engine) as conn:
        (result,) = await load._results(conn, site.study_id, load.ResultsAfter(number=-1))
    assert result.metrics == {"loss": 0.5, "size": 0.8, "other": 4}


async def test_a_later_report_that_is_better_counts_as_a_whole(engine: AsyncEngine) -> None:
    site = await told(engine, (4, 0.5, 0.8), (6, 0.4, 0.1), (8, 0.3, 0.6), (9, 0.7, 0.9))
    trial = (await shown(site))[1][0]
    assert (trial.score, trial.score_step) == (0.3, 8)
    assert trial.counted_metrics == {"loss": 0.3, "size": 0.6, "other": 8}


async def test_a_mean_leaves_reports_out_that_miss_a_constraint(engine: AsyncEngine) -> None:
    site = await told(engine, (2, 0.6, 0.9), (4, 0.2, 0.1), scope="mean_last_k")
    assert (await shown(site))[1][0].score is None, "its last report does not count"
    await tell(site, await lease_of(site, 0), 6, 0.7, 0.8)
    trial = (await shown(site))[1][0]
    assert (trial.score, trial.score_step, trial.feasible) == (pytest.approx(0.65), 6, True)
    await tell(site, await lease_of(site, 0), 9, 0.9, 0.8)
    assert (await shown(site))[1][0].score == pytest.approx(0.8)


async def test_what_an_extension_brought_goes_with_a_failure(engine: AsyncEngine) -> None:
    """As in a study that was not extended: the reports of a trial that failed do not count."""
    site = await complete(engine, 0.5, objective=scoped("best", keep="best"))
    await site.step(by_steps(18))
    await site.tell(await lease_of(site, 0), 12, 0.1)
    better = (await shown(site))[1][0]
    assert (better.score, better.score_step, better.counted_end) == (0.1, 12, None)
    await fail(site, 0)
    trial = (await shown(site))[1][0]
    assert (trial.score, trial.score_step, trial.sound) == (0.5, 9, True)
    assert trial.counted_metrics == {"loss": 0.5}
    assert trial.kept_checkpoint is not None
    assert trial.kept_checkpoint.step == 9
    assert (trial.best_value, trial.best_step) == (0.1, 12)
