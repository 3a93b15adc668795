"""A study that a user deletes is gone at once. Its rows go a few at a time, whatever stops the janitor."""

import asyncio

import pytest
from past_studies import count, past_study
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine
from study_site import StudySite, make_spec

from headrace_services.scheduler.core.inputs import PlaceNow
from headrace_services.scheduler.engine import janitor
from headrace_services.scheduler.engine.janitor import JANITOR_LOCK, Janitor
from headrace_services.scheduler.store import quarantine, removal, studies, workers
from headrace_services.scheduler.store.database import transaction

TABLES = ("event", "report", "rung_result", "lease", "slot_grant", "trial", "study")
SPEC = make_spec()


async def left(engine: AsyncEngine, study: int) -> dict[str, int]:
    async with engine.connect() as conn:
        return {table: await count(conn, table, study) for table in TABLES}


async def deleted(engine: AsyncEngine, name: str = "old", trials: int = 40) -> int:
    async with transaction(engine) as conn:
        study = await past_study(conn, name, SPEC, ago_s=10, trials=trials)
        await removal.mark_deleted(conn, study)
    return study


async def test_nobody_finds_a_deleted_study_and_its_name_is_free(engine: AsyncEngine) -> None:
    study = await deleted(engine)
    async with transaction(engine) as conn:
        assert await studies.find(conn, "default", "old") is None
        assert await studies.get(conn, study) is None
        assert await studies.head(conn, study) is None
        assert await quarantine.brief(conn, study_id=study) is None
        assert await workers.study_by_id(conn, study) is None
        assert await studies.newest(conn, "default", before_id=None, limit=10) == []
        again = await past_study(conn, "old", SPEC, ago_s=1)
        assert (await studies.find(conn, "default", "old")).id == again  # type: ignore[union-attr]  # it is there
    site = StudySite(engine, SPEC)
    site.study_id = study
    (outcome,) = await site.step(PlaceNow())
    assert "deleted" in str(outcome)


async def test_the_rows_go_in_small_transactions(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(janitor, "MOST", 50)
    study = await deleted(engine)
    other = await deleted(engine, "kept")
    async with transaction(engine) as conn:
        await conn.execute(text("UPDATE study SET delete_time = NULL WHERE id = :id"), {"id": other})
    before = await left(engine, other)
    done = await Janitor(engine, rest=0).clean()
    assert done is not None
    assert await left(engine, study) == dict.fromkeys(TABLES, 0)
    assert await left(engine, other) == before
    assert done.rows["events"] == 401
    assert done.transactions > 401 // 50 + 200 // 50


async def test_a_janitor_that_is_killed_leaves_the_rest_to_the_next(engine: AsyncEngine) -> None:
    study = await deleted(engine)
    cleaning = Janitor(engine, rest=0, batch_s=0)

    async def killed(*_: object, **__: object) -> None:
        async with engine.begin() as conn:
            found = await conn.execute(
                text(
                    "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'"
                    " AND ((classid::bigint << 32) | objid::bigint) = :key"
                ),
                {"key": JANITOR_LOCK},
            )
            assert found.scalar_one()

    real = asyncio.sleep
    calls = 0

    async def sleep(seconds: float) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            await killed()
        await real(seconds)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(janitor.asyncio, "sleep", sleep)
        patch.setattr(janitor, "MOST", 50)
        cleaning._size = 50
        await cleaning.clean()
    assert 0 < (await left(engine, study))["event"] < 401
    await Janitor(engine, rest=0).clean()
    assert await left(engine, study) == dict.fromkeys(TABLES, 0)


async def test_one_janitor_at_a_time(engine: AsyncEngine) -> None:
    study = await deleted(engine)
    async with Janitor(engine)._turn() as mine:
        assert mine is not None
        assert await Janitor(engine).clean() is None
        assert (await left(engine, study))["trial"] == 40
    assert await Janitor(engine, rest=0).clean() is not None
    assert (await left(engine, study))["trial"] == 0


async def test_a_cancelled_round_gives_the_lock_back(engine: AsyncEngine) -> None:
    study = await deleted(engine)
    cleaning = asyncio.create_task(Janitor(engine, rest=1000).clean())
    async with asyncio.timeout(60):
        while (await left(engine, study))["event"] == 401:
            await asyncio.sleep(0.01)
    cleaning.cancel()
    await asyncio.gather(cleaning, return_exceptions=True)
    assert await Janitor(engine, rest=0).clean() is not None
    assert (await left(engine, study))["study"] == 0
