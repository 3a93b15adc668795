"""Slots over time if the newest events were deleted by age, if the scheduler goes away, and if the browser has left."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from console_site import Console, make_study
from sqlalchemy import delete

from headrace.client.aio import AsyncStudy
from headrace.client.model import StudyInfo
from headrace_services.scheduler.store import aging, tables
from headrace_services.scheduler.store.database import transaction

PATH = "/studies/s/gantt"


async def stopped(console: Console) -> None:
    """A study that was stopped."""
    await make_study(console.scheduler, policy={"kind": "run_all"}, max_trials=4)
    async with console.scheduler.sdk() as client:
        await client.study("s").stop()
        await client.study("s").wait()


@pytest.mark.timeout(120)
async def test_slots_over_time_of_a_study_whose_events_are_gone(console: Console) -> None:
    await stopped(console)
    async with transaction(console.scheduler.engine) as conn:
        await conn.execute(delete(tables.event).where(*aging.OF_ROWS["events"][1]))
    async with asyncio.timeout(20):
        twin = await console.http.get(f"{PATH}.json")
        page = await console.http.get(PATH)
    assert (twin.status_code, twin.json()) == (200, {"stays": []})
    assert page.status_code == 200
    assert "No trial" in page.text


@pytest.mark.timeout(120)
async def test_a_scheduler_that_goes_away_while_the_events_are_read(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stopped(console)
    status = AsyncStudy.status

    async def last_answer(study: AsyncStudy) -> StudyInfo:
        found = await status(study)
        await console.scheduler.stop()
        return found

    monkeypatch.setattr(AsyncStudy, "status", last_answer)
    async with asyncio.timeout(50):
        assert (await console.http.get(PATH)).status_code == 503


@pytest.mark.parametrize("path", [PATH, f"{PATH}.json", "/studies/s/events"])
async def test_a_browser_that_has_left_is_not_read_for(
    console: Console, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    await stopped(console)
    began, ended = asyncio.Event(), asyncio.Event()

    async def endless(*_: Any, **__: Any) -> AsyncIterator[None]:
        began.set()
        try:
            await asyncio.Event().wait()
            yield
        finally:
            ended.set()

    with monkeypatch.context() as patch:
        patch.setattr(AsyncStudy, "events", endless, raising=False)
        asking = asyncio.create_task(console.http.get(path))
        async with asyncio.timeout(20):
            await began.wait()
            asking.cancel()
            await ended.wait()
    assert (await console.http.get(path)).status_code == 200
