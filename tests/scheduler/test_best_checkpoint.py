"""`keep: best` in a cycle: which checkpoint is the best one, and that it is never deleted."""

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from study_site import StudySite, gone, make_spec
from test_pbt_step import send

from headrace.client.convert import trial as client_trial
from headrace.errors import InvalidFieldError
from headrace.spec import StudySpec, from_proto, parse_spec, to_proto
from headrace.v1 import worker_pb2
from headrace_services.scheduler.core.inputs import Accepted, ReportArrived
from headrace_services.scheduler.core.records import Checkpoint, Lease
from headrace_services.scheduler.rpc import convert as rpc_convert
from headrace_services.scheduler.session import messages
from headrace_services.scheduler.store import trials
from headrace_services.scheduler.store.database import transaction
from headrace_services.scheduler.store.workers import StudyInfo


def keeping(**changes: object) -> StudySpec:
    return make_spec(
        objective={"metric": "loss", "goal": "minimize", "keep": "best"},
        policy={"kind": "run_all"},
        max_trials=1,
        **changes,
    )


def uri(lease: Lease, step: int) -> str:
    return f"file:///s/{lease.number}/{lease.attempt}-{step}/"


async def started(engine: AsyncEngine, spec: StudySpec) -> tuple[StudySite, Lease]:
    site = await StudySite(engine, spec).create()
    await site.connect(slots=1)
    (lease,) = await site.kick()
    return site, lease


async def test_the_best_one_is_pinned_until_a_better_one_is_saved(engine: AsyncEngine) -> None:
    site, lease = await started(engine, keeping())
    assert (await send(site, lease, 1, 0.5)).pinned == (uri(lease, 1),)
    assert (await send(site, lease, 2, 0.7)).pinned == (uri(lease, 1),)
    assert (await send(site, lease, 3, 0.5)).pinned == (uri(lease, 1),), "an equal value is no better one"
    site.fold = None  # another replica
    assert (await send(site, lease, 4, 0.4)).pinned == (uri(lease, 4),)
    assert (await send(site, lease, 5, float("nan"))).pinned == (uri(lease, 4),)
    again = await send(site, lease, 4, 0.4, sequence=4)
    assert again.pinned == (uri(lease, 4),), "a report that comes again is answered alike"
    last = await send(site, lease, 9, 0.6)
    assert (last.action, last.pinned) == ("STOP", (uri(lease, 4),))
    async with transaction(engine) as conn:
        view = await trials.one(conn, site.study_id, 0)
    assert view is not None
    shown = client_trial(rpc_convert.trial(site.name, view, site.spec))
    assert shown.best_checkpoint is not None
    assert (shown.best_checkpoint.uri, shown.best_step) == (uri(lease, 4), 4)
    assert shown.checkpoint is not None
    assert shown.checkpoint.step == 9
    assert shown.kept_checkpoint == shown.best_checkpoint


async def test_it_stays_when_the_process_and_the_worker_are_lost(engine: AsyncEngine) -> None:
    site, lease = await started(engine, keeping())
    await send(site, lease, 2, 0.1)
    await send(site, lease, 3, 0.9)
    await site.step(gone(lease, "LOST"))
    (second,) = [one for one in site.leases.values() if one.attempt == 2]
    assert (await send(site, second, 4, 0.8)).pinned == (uri(lease, 2),)
    assert (await send(site, second, 5, 0.05)).pinned == (uri(second, 5),)


async def test_a_best_report_without_a_checkpoint_leaves_the_one_before(engine: AsyncEngine) -> None:
    site, lease = await started(engine, keeping())
    await send(site, lease, 1, 0.5)
    assert (await send(site, lease, 2, 0.1, saves=False)).pinned == (uri(lease, 1),)
    assert (await send(site, lease, 3, 0.3)).pinned == (uri(lease, 1),)
    row = (await site.trials())[0]
    assert (row.best_step, row.best_checkpoint["step"]) == (2, 1)


async def test_a_report_that_misses_a_constraint_is_not_it(engine: AsyncEngine) -> None:
    spec = keeping(constraints=[{"metric": "size", "at_most": 1.0}])
    site, lease = await started(engine, spec)
    for step, (loss, size) in enumerate([(0.5, 1.0), (0.1, 2.0)], start=1):
        report = ReportArrived(
            lease_id=lease.id,
            number=0,
            attempt=1,
            sequence=step,
            step=step,
            metrics={"loss": loss, "size": size},
            checkpoint=Checkpoint(uri=uri(lease, step), step=step),
        )
        (outcome,) = await site.step(report)
        assert isinstance(outcome, Accepted)
        assert outcome.decision is not None
        assert outcome.decision.pinned == (uri(lease, 1),)


async def test_without_it_nothing_is_pinned(engine: AsyncEngine) -> None:
    site, lease = await started(engine, make_spec(policy={"kind": "run_all"}, max_trials=1))
    assert (await send(site, lease, 1, 0.5)).pinned == ()
    assert (await site.trials())[0].best_checkpoint is None


async def test_a_worker_is_told_what_makes_a_report_the_best(engine: AsyncEngine) -> None:
    spec = keeping(constraints=[{"metric": "size", "at_most": 1.0}])
    site, lease = await started(engine, spec)
    study = StudyInfo(site.study_id, "u", site.name, spec.model_dump(mode="json"), project="p")

    async def assigned() -> worker_pb2.Assign:
        async with transaction(engine) as conn:
            view = await trials.one(conn, site.study_id, 0)
        assert view is not None
        return messages.assign(study, view.trial, lease)

    first = await assigned()
    assert first.checkpoints_shared
    assert not first.keep_best.HasField("best_value")
    assert [one.metric for one in first.keep_best.constraints] == ["size"]
    await send(site, lease, 1, 0.5)  # without `size` it does not meet the constraint
    assert not (await assigned()).keep_best.HasField("best_value")
    report = ReportArrived(
        lease_id=lease.id,
        number=0,
        attempt=1,
        sequence=2,
        step=2,
        metrics={"loss": 0.7, "size": 0.0},
        checkpoint=None,
    )
    await site.step(report)
    assert (await assigned()).keep_best.best_value == 0.7


def test_the_spec_comes_back_from_its_message_and_refuses_what_it_cannot_mean() -> None:
    spec = keeping()
    assert from_proto(to_proto(spec)) == spec
    assert StudySpec.stored(spec.model_dump(mode="json")) == spec
    old = to_proto(make_spec())
    old.objective.keep = 0
    assert not from_proto(old).keeps_best
    data = make_spec(policy={"kind": "run_all"}).model_dump()
    with pytest.raises(InvalidFieldError, match=r"further_objectives\[0\]\.keep"):
        parse_spec({**data, "further_objectives": [{"metric": "a", "goal": "minimize", "keep": "best"}]})
    with pytest.raises(InvalidFieldError, match=r"objective\.keep"):
        parse_spec({**data, "objective": {"metric": "a", "goal": "minimize", "keep": "all"}})
