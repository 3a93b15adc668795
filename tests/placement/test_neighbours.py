"""A cycle reads only the first waiting studies: Postgres orders them as the core does, and no decision depends on
how many there are."""

import random
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
from many_studies import ManyStudies, gpus
from placement_site import spec
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncEngine

from headrace_services.scheduler.core import cluster_view, sharing
from headrace_services.scheduler.core.lifecycle import StudyState
from headrace_services.scheduler.core.needs import NextInLine, Surroundings
from headrace_services.scheduler.core.placement import Request
from headrace_services.scheduler.core.placement.shares import Share, Totals, in_order, least_s
from headrace_services.scheduler.core.records import Event
from headrace_services.scheduler.core.study_status import Reserved, Standing, Usage
from headrace_services.scheduler.store import neighbours, rows, studies, tables, workers
from headrace_services.scheduler.store.database import open_engine, transaction
from headrace_services.scheduler.store.load import load

NOW_S = 1_700_000_000.125


@pytest_asyncio.fixture
async def engine(database_url: str) -> AsyncIterator[AsyncEngine]:
    """An engine on a fresh database."""
    opened = open_engine(database_url)
    yield opened
    await opened.dispose()


async def _connect(conn: Any, name: str, kind: str, slots: int) -> None:
    devices = tuple(
        workers.Device(index=index, kind=kind, model="m", memory_bytes=1 << 34, uuid="")
        for index in range(slots)
    )
    stage = {"index": 10_000, "owner": "gpt", "stage": 0, "duty": 0.5}  # it counts for nobody
    devices += (workers.Device(**stage, kind=kind, model="m", memory_bytes=1 << 34, uuid=""),)
    greeting = workers.Greeting(
        name=name, incarnation=name, devices=devices, labels={}, version="", log_dir="/"
    )
    await workers.greet(conn, greeting, 3600.0)


async def _create(conn: Any, number: int, **changes: Any) -> int:
    made = spec("walk:train", **changes)
    event = Event(number=None, kind="note", message="created", detail={})
    study = await studies.create(conn, name=f"s{number}", uid=uuid4().hex, spec=made, planned=1, event=event)
    return study.id


def _drawn(chance: random.Random) -> Standing:
    """Few distinct values, so that claims tie."""
    usage = Usage(
        gpu_s=chance.choice([0.0, 0.1, 1e9 / 3]),
        cpu_s=chance.choice([0.0, 7.7]),
        gpu_milli=chance.choice([0, 250, 3000]),
        cpu_slots=chance.choice([0, 0, 5]),
        at_s=NOW_S + chance.choice([-100.7, -1e-3, 3.0]),
        credit_s=chance.choice([0.0, 0.3]),
    )
    kept = Reserved(number=1, worker_id=1, slots=(0,), since_s=1.0, ready_s=None)
    return Standing(
        usage=usage,
        reserved=kept if chance.random() < 0.1 else None,
        wants_slots=chance.choice([0, 1, 1, 2]),
        wants_milli=chance.choice([500, 1000]),
        wants_cores=chance.choice([0, 2]),
        wants_count=chance.choice([1, 4]),
        quantum_s=chance.choice([30.0, 1 / 3]),
    )


@pytest.mark.parametrize("seed", range(3))
async def test_postgres_orders_studies_as_the_core_does(engine: AsyncEngine, seed: int) -> None:
    chance = random.Random(seed)
    totals = Totals(gpu_milli=chance.choice([0, 3000]), cpu_slots=7)
    shares: dict[int, Share] = {}
    async with transaction(engine) as conn:
        await _connect(conn, "c", "CPU", 7)
        if totals.gpu_milli:
            await _connect(conn, "g", "GPU", 3)
        own = await _create(conn, 0)
        await _create(conn, 1, template=None)
        for number in range(2, 60):
            weight, priority = chance.choice([1.0, 1 / 3]), chance.choice([0, 0, 5])
            study_id = await _create(conn, number, weight=weight, priority=priority)
            standing, ended = _drawn(chance), chance.random() < 0.1
            values = {"standing": rows.standing_columns(standing)}
            values |= {"state": StudyState.PAUSED.value} if ended else {}
            await conn.execute(update(tables.study).where(tables.study.c.id == study_id).values(values))
            if not ended:
                study = await studies.get(conn, study_id)
                assert study is not None
                shares[study_id] = Share.of(study)
    ordered = in_order(shares.values(), totals, NOW_S)
    named = frozenset(chance.sample(sorted(shares), 3))
    question = Surroundings(
        request=Request(gpu=False), limit=1, now_s=NOW_S, waiting=5, named=named, joining=True
    )
    async with transaction(engine) as conn:
        found = await load(conn, own, question)
        assert found.crowded
        assert found.totals == totals
        assert found.least_s == least_s(shares.values(), totals, NOW_S)
        assert {share.study_id for share in found.further} == named | {
            study_id for study_id, share in shares.items() if share.reserved
        }
        line, pages = found.line, [found.line]
        while line.known_to is not None:
            line = await load(conn, own, NextInLine(after=line.known_to, now_s=NOW_S, waiting=7))
            pages.append(line)
        vain = ordered[0][1]
        unlike = NextInLine(
            after=ordered[0][0], now_s=NOW_S, waiting=99, unlike=frozenset({vain.study_id, -1})
        )
        others = (await load(conn, own, unlike)).shares
    assert list(others) == [
        share for _, share in ordered if (share.priority, share.wants) != (vain.priority, vain.wants)
    ]
    assert [share for page in pages for share in page.shares] == [share for _, share in ordered]
    assert [page.known_to for page in pages[:-1]] == [ordered[at][0] for at in range(4, len(ordered) - 1, 7)]


async def test_a_study_without_company_learns_of_nobody(engine: AsyncEngine) -> None:
    async with transaction(engine) as conn:
        own = await _create(conn, 0)
        question = Surroundings(request=Request(gpu=False), limit=1, now_s=NOW_S, waiting=5, joining=True)
        found = await load(conn, own, question)
        assert not found.crowded
        assert found.least_s is None
        assert found.line.shares == found.further == ()
        assert await neighbours.shares_of(conn, [own]) != ()


@pytest.mark.parametrize("seed", range(4))
def test_decisions_do_not_depend_on_how_many_are_learnt_of_at_first(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def events(first: int, further: int) -> list[list[Any]]:
        monkeypatch.setattr(cluster_view, "FIRST_IN_LINE", first)
        monkeypatch.setattr(sharing, "NEXT_IN_LINE", further)
        chance = random.Random(seed)
        many = ManyStudies(gpus(1, 4), gpus(2, 2), seed=seed)
        for _ in range(9):
            resources = chance.choice(
                [{"gpus": 1}, {"gpus": 1}, {"gpus": 2}, {"gpus": 4}, {"gpu_milli": 250}]
            )
            few = {"max_trials": 6, "max_steps": 3, "policy": {"kind": "asha", "eta": 2, "rungs": [1, 3]}}
            weight, priority = chance.choice([1, 3]), chance.choice([0, 0, 2])
            many.add(spec("walk:train", resources=resources, weight=weight, priority=priority, **few))
        many.run(60)
        return [[(event.kind, event.message) for event in one.events or ()] for one in many.studies.values()]

    assert events(1, 1) == events(1000, 1000)


def test_slots_that_the_first_in_line_cannot_use_go_to_one_behind_them() -> None:
    many = ManyStudies(gpus(1, 2), gpus(2, 1))
    for _ in range(cluster_view.FIRST_IN_LINE + 8):
        many.add(spec("walk:train", resources={"gpus": 2}, max_trials=50, max_steps=1))
    last = many.add(spec("walk:train", resources={"gpus": 1}, max_trials=50, max_steps=1, priority=-1))
    assert len(last.leases) == 1
