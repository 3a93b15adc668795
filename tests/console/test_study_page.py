"""A study's page: the columns that are chosen, and, in Chromium, how filter, order and columns go together."""

import asyncio
import re
from html import unescape
from typing import Any
from urllib.parse import quote

import pytest
from browsers import Tab, chromium, needs_chromium
from console_site import Console, make_study
from sqlalchemy import func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace_services.scheduler.store import tables
from headrace_services.scheduler.store.database import transaction

SPACE = {
    **{f"p{n}": {"type": "float", "low": 0.0, "high": 1.0} for n in range(9)},
    "opt": {"type": "categorical", "values": ["adam", "sgd"]},
}
USUAL = ["Trial", "State", "Step", "loss", *(f"p{n}" for n in range(8)), "Time", "Others", "Why"]


async def a_study(console: Console) -> None:
    """Six trials; five of them reported two metrics."""
    await make_study(console.scheduler, space=SPACE, policy={"kind": "run_all"}, max_trials=6, max_steps=9)
    async with console.scheduler.sdk() as client:
        for number in range(5):
            trial = None
            while trial is None:  # the next one may not be proposed yet
                trial = await client.study("s").ask()
            await trial.report(1, {"loss": 1.0 - number / 10, "acc": number / 10})


async def becomes(page: Any, expression: str) -> None:
    """Polls, as the pages allow no `eval`, which playwright's own wait needs."""
    async with asyncio.timeout(30):
        while not await page.evaluate(expression):
            await asyncio.sleep(0.05)


def headings(page: str) -> list[str]:
    (head,) = re.findall(r'id="trials".*?<thead>(.*?)</thead>', page, re.DOTALL)
    return [re.sub("<.*?>", "", one).strip() for one in re.findall(r"<th.*?>(.*?)</th>", head, re.DOTALL)]


async def test_columns_are_chosen_in_the_address(console: Console) -> None:
    await a_study(console)
    page = (await console.http.get("/studies/s")).text
    assert headings(page) == USUAL
    chosen = (
        "/studies/s?q=metric.acc>0.1&sort=-metric.acc&col=metric.acc&col=param.opt&col=none&col=metric.acc"
    )
    page = (await console.http.get(chosen)).text
    assert headings(page) == ["Trial", "State", "acc (metric)", "opt", "Why"]
    rows = re.findall(r'<td class="n">([\d.]+)</td>', page.partition('id="trials"')[2])
    assert rows == ["0.4", "0.3", "0.2"]
    assert 'aria-sort="descending"' in page
    (link,) = [one for one in re.findall(r'href="(\?[^"]*)" data-go', page) if "sort=number" in one]
    cols = "&amp;".join(f"col={key}" for key in ("metric.acc", "param.opt", "none", "metric.acc"))
    assert link == f"?q=metric.acc%3E0.1&amp;{cols}&amp;sort=number"
    assert page.count('name="col" value="metric.acc" id="col-metric.acc" checked') == 1


async def test_every_offered_column_sorts_or_is_no_link(console: Console) -> None:
    await a_study(console)
    page = (await console.http.get("/studies/s")).text
    keys = re.findall(r'name="col" value="([^"]+)" id=', page)
    assert {"step", "score", "param.p8", "param.opt", "metric.acc", "seconds", "note"} <= set(keys)
    unsorted = set()
    for key in keys:
        answer = await console.http.get("/studies/s", params={"col": key})
        assert len(headings(answer.text)) == 4
        table = answer.text.partition('id="trials"')[2]
        if (sort := re.search(rf'href="(\?[^"]*sort=-?{re.escape(quote(key))})" data-go', table)) is None:
            unsorted.add(key)
            continue
        assert (await console.http.get("/studies/s" + unescape(sort[1]))).status_code == 200, key
    assert unsorted == {"worker"}


async def test_the_worker_of_a_trial(console: Console) -> None:
    """The one that ran it last; none in a caller's own loop."""
    await a_study(console)
    async with transaction(console.scheduler.engine) as conn:
        await _was_on(conn, number=5, worker="node-7")
    assert "Worker" not in headings((await console.http.get("/studies/s")).text)
    page = (await console.http.get("/studies/s?col=worker&sort=number")).text
    assert headings(page) == ["Trial", "State", "Worker", "Why"]
    cells = re.findall(r"</span></td>\s*<td>(.*?)</td>", page.partition('id="trials"')[2])
    assert cells == ["", "", "", "", "", "node-7"]


async def _was_on(conn: AsyncConnection, number: int, worker: str) -> None:
    """Writes that a worker has run a trial, which waits now."""
    trial, ended = tables.trial, {"live": False, "end_time": func.now()}
    study_id = (await conn.execute(select(tables.study.c.id))).scalar_one()
    node = insert(tables.worker).values(name=worker, incarnation="i").returning(tables.worker.c.id)
    worker_id = (await conn.execute(node)).scalar_one()
    await conn.execute(insert(tables.slot_grant).values(id="g", study_id=study_id, slot_count=1, **ended))
    part = {"grant_id": "g", "worker_id": worker_id, "incarnation": "i"}
    await conn.execute(insert(tables.grant_part).values(**part, slots=[0]))
    await conn.execute(update(trial).where(trial.c.number == number).values(attempt=1))
    lease = {"id": "l", "study_id": study_id, "number": number, "attempt": 1, **ended}
    await conn.execute(insert(tables.lease).values(**part, **lease))


@pytest.mark.full
@pytest.mark.browser
@needs_chromium
async def test_filter_order_and_columns_keep_each_other(console: Console) -> None:
    await a_study(console)
    async with chromium() as browser:
        tab = Tab(await browser.new_page())
        page = tab.page
        await page.goto(console.url + "/studies/s")
        await page.click("#trials th a:text-is('p3')")
        await becomes(page, "location.search === '?sort=param.p3'")
        await page.fill("#q", "metric.acc>0.1")
        await page.press("#q", "Enter")
        await becomes(page, "document.querySelectorAll('#trials tbody tr').length === 3")
        assert await page.evaluate("location.search") == "?sort=param.p3&q=metric.acc%3E0.1"
        await page.click("#choose summary")
        for key in ["step", "score", *(f"param.p{n}" for n in range(8)), "seconds"]:
            await page.uncheck(f"[id='col-{key}']")
        await page.check("[id='col-metric.acc']")
        await page.click("#choose button")
        await becomes(page, "document.querySelectorAll('#trials thead th').length === 4")
        assert await page.evaluate("document.querySelector('#choose').open")
        for order in ("ascending", "descending"):
            await page.click("#trials th a:text-is('acc (metric)')")
            await page.wait_for_selector(f"#trials th[aria-sort={order}]")
        assert (await page.text_content("#trials tbody th")).strip() == "4"
        search = await page.evaluate("decodeURIComponent(location.search)")
        assert search == "?q=metric.acc>0.1&col=metric.acc&sort=-metric.acc"
        await page.go_back()
        await page.wait_for_selector("#trials th[aria-sort=ascending]")
        await page.click("#choose a")
        await becomes(page, "document.querySelectorAll('#trials thead th').length > 4")
        assert tab.faults == []


@pytest.mark.full
@pytest.mark.browser
@needs_chromium
async def test_another_filter_reads_no_curves_again(console: Console) -> None:
    await a_study(console)
    async with chromium() as browser:
        tab = Tab(await browser.new_page())
        await tab.page.goto(console.url + "/studies/s?q=metric.acc>0.1")
        await becomes(tab.page, "document.querySelectorAll('#curves option').length > 5")

        async def read(text: str) -> list[str]:
            tab.urls.clear()
            await tab.page.fill("#q", text)
            async with tab.page.expect_response(lambda one: "/numbers.json" in one.url):
                await tab.page.press("#q", "Enter")
            await tab.page.wait_for_timeout(1500)
            data = [url for url in tab.urls if "/studies/s/" in url and "live" not in url]
            return sorted(url.partition("?")[0].rpartition("/")[2] for url in data)

        assert await read("") == ["curves.bin", "numbers.json"], "some were never read"
        assert await read("metric.acc<0.2") == ["numbers.json"]
        assert await tab.page.evaluate("document.querySelectorAll('#trials tbody tr').length") == 2
        assert await read("") == ["numbers.json"]
        assert tab.faults == []


async def test_without_scripts_each_picture_says_so(console: Console) -> None:
    second = {"metric": "acc", "goal": "maximize"}
    await make_study(console.scheduler, space=SPACE, further_objectives=[second], policy={"kind": "run_all"})
    page = (await console.http.get("/studies/s")).text
    charts = re.findall(r'<div class="chart" id="(\w+)"[^>]*>(.*?)</div>', page, re.DOTALL)
    assert [name for name, _ in charts] == ["curves", "parallel", "front", "slices", "pair"]
    for name, inside in charts:
        assert re.fullmatch(r"<noscript>.+ needs? JavaScript; .+\.</noscript>", inside), name
