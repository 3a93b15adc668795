"""Answers stay below a gRPC client's size limit, whatever the rows hold: pages end earlier, and omissions are
named."""

from typing import Any

import pytest
from rpc_site import RpcSite
from sqlalchemy import text

from headrace.v1 import study_pb2 as pb
from headrace_services.scheduler.store.database import transaction

FOUR_MIB = 4 * 1024 * 1024
MANY_METRICS = (
    "(SELECT jsonb_object_agg('metric-of-an-old-row-with-a-name-of-many-characters-' || n, n)"
    " FROM generate_series(1, 60000) AS n)"
    " || jsonb_build_object('loss', 0.25)"
)


async def plant_metrics(site: RpcSite, trials: int) -> None:
    """Give the first trials, and so the study's best one, 60,000 metrics each, and two reports each."""
    async with transaction(site.engine) as conn:
        await conn.execute(
            text(
                f"UPDATE trial SET metrics = {MANY_METRICS}, step = 1, value = 0.25, best_value = 0.25, score = 0.25"
                " WHERE number < :trials"
            ),
            {"trials": trials},
        )
        await conn.execute(
            text(
                "INSERT INTO report (study_id, number, attempt, sequence, step, metrics, action, next_milestone)"
                f" SELECT study_id, number, 1, s, s, {MANY_METRICS}, 'CONTINUE', 3"
                " FROM trial, generate_series(1, 2) AS s WHERE number < :trials"
            ),
            {"trials": trials},
        )


async def paged(site: RpcSite, method: str, items: str, **fields: Any) -> tuple[list[Any], list[Any]]:
    """All items of a list, and all that it could not show. Each page is within a client's size limit."""
    found, unshown, token = [], [], ""
    while True:
        request = getattr(pb, f"{method}Request")(page_size=1000, page_token=token, **fields)
        page = await site.call(method, request)
        assert page.ByteSize() < FOUR_MIB
        found += getattr(page, items)
        unshown += page.unshown
        token = page.next_page_token
        if not token:
            return found, unshown


@pytest.mark.full
async def test_pages_of_large_elements_end_earlier(site: RpcSite) -> None:
    for name in ("s", "t", "u"):
        await site.create(name, baseline={"x": 0.5})
    await plant_metrics(site, 4)
    studies, unshown = await paged(site, "ListStudies", "studies")
    assert {study.name for study in studies} | {item.name for item in unshown} == {
        "studies/s",
        "studies/t",
        "studies/u",
    }
    assert not unshown
    assert all(study.status.best.number == 1 for study in studies)
    trials, _ = await paged(site, "ListTrials", "trials", study="studies/s")
    assert [trial.number for trial in trials] == list(range(len(trials)))
    assert len(trials) >= 4
    assert all(len(trial.metrics) == 60_001 or trial.unshown for trial in trials[:4])
    reports, unshown = await paged(site, "ListReports", "reports", parent="studies/s")
    assert len(reports) + len(unshown) == 8


@pytest.mark.full
async def test_a_study_with_large_trials_is_read_and_watched(site: RpcSite) -> None:
    cost = {"metric": "cost", "goal": "minimize"}
    await site.create("s", policy={"kind": "run_all"}, further_objectives=[cost])
    await plant_metrics(site, 4)
    async with transaction(site.engine) as conn:
        await conn.execute(
            text(
                "UPDATE trial SET metrics = metrics || jsonb_build_object('cost', -number, 'loss', 0.25 + number)"
            ),
        )
        await conn.execute(
            text(
                "INSERT INTO event (study_id, cursor, number, kind, message, detail)"
                " SELECT id, cursor + n, 0, 'report_recorded', 'reported',"
                f" jsonb_build_object('metrics', {MANY_METRICS})"
                " FROM study, generate_series(1, 20) AS n"
            )
        )
        await conn.execute(text("UPDATE study SET cursor = cursor + 20"))
    study = await site.study("s")
    assert study.ByteSize() < FOUR_MIB
    assert study.status.best.number == 0
    assert len(study.status.front) == 4
    cursor = 0
    async for update in site.replicas[0].watch(pb.WatchStudyRequest(name="studies/s")):
        assert update.ByteSize() < FOUR_MIB
        assert [event.cursor for event in update.events] == list(
            range(cursor + 1, cursor + 1 + len(update.events))
        )
        cursor += len(update.events)
        if cursor == study.status.cursor:
            break
    story = await site.call("ExplainTrial", pb.ExplainTrialRequest(name="studies/s/trials/0"))
    assert story.ByteSize() < FOUR_MIB
    trial = await site.call("GetTrial", pb.GetTrialRequest(name="studies/s/trials/0"))
    assert trial.ByteSize() < FOUR_MIB


@pytest.mark.full
async def test_a_page_is_bounded_by_what_it_holds_and_not_by_what_compresses_well(site: RpcSite) -> None:
    """Specs of 900 KB with repetitive content: compressed, twelve of them would take less than a page's bound."""
    value = "a long text " * 40
    space = {"x": {"type": "categorical", "values": [value, "b"]}}
    for number in range(12):
        await site.create(f"s{number}", space=space, enqueued=({"x": value},) * 1_800, max_trials=1_800)
    async with transaction(site.engine) as conn:
        sizes = text("SELECT sum(pg_column_size(spec)), sum(length(spec::text)) FROM study")
        stored, real = (await conn.execute(sizes)).one()
    assert stored > 0.9 * real > 0
    page = await site.call("ListStudies", pb.ListStudiesRequest(page_size=1000))
    assert 0 < len(page.studies) < 12
    assert page.next_page_token


@pytest.mark.full
async def test_workers_of_many_slots_are_listed_in_more_pages(site: RpcSite) -> None:
    async with transaction(site.engine) as conn:
        await conn.execute(
            text(
                "INSERT INTO worker (name, incarnation, connected, expires_at, log_dir, last_seen)"
                " SELECT 'w' || n, '1', true, now() + interval '1 hour', '/', now() FROM generate_series(1, 30) AS n"
            )
        )
        await conn.execute(
            text(
                'INSERT INTO slot (worker_id, "index", kind, model, memory_bytes, uuid, present) '
                "SELECT id, n, 'CPU', 'cpu', 0, '', true FROM worker, generate_series(0, 999) AS n"
            )
        )
    page = await site.call("ListWorkers", pb.ListWorkersRequest(page_size=1000))
    assert len(page.workers) == 10
    found, unshown = await paged(site, "ListWorkers", "workers")
    assert (len({worker.name for worker in found}), unshown) == (30, [])
