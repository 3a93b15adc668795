"""The events of a study: newest first, page by page, complete, and live."""

import asyncio
import re

import pytest
from browsers import Tab, chromium, needs_chromium
from console_site import Console, make_study
from sqlalchemy import delete

from headrace.client.events import Event
from headrace_services.console.pages import events as page
from headrace_services.scheduler.store import tables
from headrace_services.scheduler.store.database import transaction

PATH = "/studies/s/events"


async def a_study(console: Console, reports: int = 6) -> list[Event]:
    """A study that was stopped, with its events, oldest first."""
    await make_study(console.scheduler, policy={"kind": "run_all"}, max_trials=4, max_steps=200)
    async with console.scheduler.sdk() as client:
        study = client.study("s")
        trial = await study.ask()
        assert trial is not None
        for step in range(1, reports + 1):
            await trial.report(step, {"loss": 1 / step})
        await study.stop()
        await study.wait()
        return [event async for update in study.watch() for event in update.events]


async def pages(console: Console) -> list[list[int]]:
    """The cursors of each page, as the links lead from one to the next."""
    found, token = [], ""
    while token or not found:
        twin = await console.http.get(f"{PATH}.json", params={"page": token} if token else {})
        assert twin.status_code == 200
        found.append([one["cursor"] for one in twin.json()["events"]])
        html = await console.http.get(PATH, params={"page": token} if token else {})
        assert html.text.count("<li>") == len(found[-1])
        token = twin.json()["next_page"]
        assert re.findall(r'href="\?page=(\d+)">Earlier events', html.text) == [token] * bool(token)
    return found


async def test_every_event_once_and_the_newest_first(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = [event.cursor for event in await a_study(console)][::-1]
    for size in (1, 4, len(whole) - 1, len(whole), len(whole) + 1):
        monkeypatch.setattr(page, "PAGE_SIZE", size)
        found = await pages(console)
        assert [cursor for one in found for cursor in one] == whole
        assert {len(one) for one in found[:-1]} <= {size}
        assert found[-1]


async def test_more_events_than_a_message_holds(console: Console) -> None:
    whole = [event.cursor for event in await a_study(console, reports=200)][::-1]
    assert len(whole) > 200
    async with console.scheduler.sdk() as client:
        study = client.study("s")
        for most in (1, 201, len(whole) + 5):
            assert [one.cursor for one in await page.before(study, whole[0] + 1, most)] == whole[:most]
        middle = [one.cursor for one in await page.before(study, whole[20], 30)]
    assert middle == whole[21:51]


@pytest.mark.parametrize("last", [True, False])
async def test_events_that_were_deleted_by_age(console: Console, last: bool) -> None:
    """As the scheduler deletes them, and if the newest one is among them."""
    whole = await a_study(console)
    e = tables.event
    gone = e.c.number.is_not(None) if not last else e.c.cursor > whole[3].cursor
    async with transaction(console.scheduler.engine) as conn:
        left = (await conn.execute(delete(e).where(gone).returning(e.c.cursor))).scalars().all()
    async with asyncio.timeout(20):
        found = await pages(console)
    assert found == [[one.cursor for one in whole if one.cursor not in left][::-1]]
    assert found[0]


async def test_a_line_has_the_words_of_the_command_line_and_a_link(console: Console) -> None:
    whole = await a_study(console)
    html = (await console.http.get(PATH)).text
    lines = re.findall(r"<li>.*?<span>(.*?)</span></li>", html)
    assert len(lines) == len(whole)
    assert [re.sub("<.*?>", "", one) for one in lines] == [
        page.event_text(one).replace("'", "&#39;").replace(">", "&gt;") for one in reversed(whole)
    ]
    for shown, event in zip(lines, reversed(whole), strict=True):
        link = f'<a href="/studies/s/trials/{event.trial}">trial {event.trial}</a>'
        assert shown.lower().startswith(link) is (event.trial is not None)
    assert 'href="/studies/s/events"' in (await console.http.get("/studies/s")).text


def test_another_trials_number_is_not_this_ones() -> None:
    event = Event(cursor=1, time=None, trial=1, message="trial 12 lent its state", detail=None)
    assert page.line(event) == ("trial 1", ": trial 12 lent its state")


async def test_pages_that_there_are_not(console: Console) -> None:
    whole = await a_study(console)
    for wrong in ("x", "-1", "1.5", "٣", "9" * 400, "<b>", "\u0000"):
        twin = await console.http.get(f"{PATH}.json", params={"page": wrong})
        assert (twin.status_code, twin.json()["events"]) == (400, []), wrong[:9]
        assert twin.json()["error"]
        html = await console.http.get(PATH, params={"page": wrong})
        assert html.status_code == 400
        assert 'class="wrong"' in html.text
        assert 'href="?">Newest events' in html.text
    for end, count in (("0", 0), ("1", 0), ("2", 1), ("9" * 19, len(whole))):
        twin = await console.http.get(f"{PATH}.json", params={"page": end})
        assert (twin.status_code, len(twin.json()["events"])) == (200, count), end
    for twin_of in ("", ".json"):
        answer = await console.http.get(f"/studies/none/events{twin_of}")
        assert answer.status_code == 404
        assert "none" in answer.text


async def test_a_scheduler_that_goes_away_meanwhile(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    await a_study(console)
    whole = page.before

    async def late(*args: object) -> list[Event]:
        await console.scheduler.stop()
        return await whole(*args)  # type: ignore[arg-type]  # whatever the page passes

    monkeypatch.setattr(page, "before", late)
    async with asyncio.timeout(60):
        assert (await console.http.get(PATH)).status_code == 503


@pytest.mark.full
@pytest.mark.browser
@needs_chromium
async def test_a_new_event_appears(console: Console) -> None:
    await make_study(console.scheduler)
    async with chromium() as browser, console.scheduler.sdk() as client:
        tab = Tab(await browser.new_page(viewport={"width": 400, "height": 900}))
        await tab.page.goto(console.url + PATH)
        before = await tab.page.locator("#events li").count()
        assert before > 0
        await tab.page.evaluate("window.stays = true")
        trial = await client.study("s").ask()
        assert trial is not None
        await trial.report(1, {"loss": 0.125})
        await tab.page.wait_for_selector("#events li:has-text('0.125')", timeout=60_000)
        assert await tab.page.locator("#events li").count() > before
        assert await tab.page.evaluate("window.stays"), "without a reload"
        assert await tab.overflow() <= 0
        await tab.page.click(f"#events a[href$='/trials/{trial.number}'] >> nth=0")
        await tab.page.wait_for_selector(f"h1:has-text('Trial {trial.number}')")
        assert tab.faults == []
