"""The pages in a real browser: hostile texts run nothing and break no layout; pages recover."""

from typing import Any

import pytest
from browsers import Tab, asleep, chromium, needs_chromium
from console_site import Console, make_study, until
from hostile_study import fill

pytestmark = [pytest.mark.full, pytest.mark.browser, needs_chromium]

PAGES = (
    "/",
    "/studies",
    "/studies/s",
    "/studies/s?q=%3Cscript%3Ealert(7)%3C/script%3E",
    "/studies/s/trials/0",
    "/studies/s/trials/1",
    "/studies/s/trials/0/log",
    "/studies/s/importance",
    "/studies/s/events",
    "/studies/s/gantt",
    "/studies/s/lineage",
    "/studies/s/plan",
    "/compare?study=s&study=s",
    "/cluster",
    "/bubbles",
    "/about",
    "/login?next=%22%3E%3Cscript%3Ealert(8)%3C/script%3E",
    "/studies/none",
)


async def test_hostile_texts_do_nothing(console: Console) -> None:
    await fill(console)
    async with chromium() as browser:
        for width in (400, 1400):
            context = await browser.new_context(viewport={"width": width, "height": 900})
            tab = Tab(await context.new_page())
            for path in PAGES:
                await tab.page.goto(console.url + path)
                await tab.page.wait_for_timeout(500)
                await tab.page.mouse.move(width / 2, 450)
                assert await tab.overflow() <= 0, (path, width, await tab.widest())
                assert (
                    await tab.page.evaluate(
                        "document.querySelectorAll('main script, main img, main svg[onload]').length"
                    )
                    == 0
                )
            loads = (
                "Failed to load resource",
            )  # the pages that are refused on purpose, and the log of no worker
            assert [fault for fault in tab.faults if not fault.startswith(loads)] == []
            assert {url.split("/")[2] for url in tab.urls if url.startswith("http")} == {
                console.url.split("/")[2]
            }
            await context.close()


async def test_a_page_recovers_when_the_scheduler_comes_back(console: Console) -> None:
    await make_study(console.scheduler)
    await console.scheduler.stop()
    async with chromium() as browser:
        tab = Tab(await browser.new_page())
        await tab.page.goto(console.url + "/studies/s")
        await tab.page.wait_for_selector("#error")
        await console.scheduler.start()
        await tab.page.wait_for_selector("h1:has-text('s') #state", timeout=60_000)


async def test_a_deleted_study_is_told(console: Console) -> None:
    await make_study(console.scheduler)
    async with chromium() as browser, console.scheduler.sdk() as client:
        tab = Tab(await browser.new_page())
        await tab.page.goto(console.url + "/studies/s")
        await tab.page.wait_for_selector("#trials td")
        await client.study("s").stop()
        await client.study("s").delete()
        await tab.page.wait_for_selector("#link:not(:empty)", timeout=60_000)


async def test_an_extended_study_is_followed_again(console: Console) -> None:
    await make_study(console.scheduler, policy={"kind": "run_all"}, max_trials=1, max_steps=1)
    async with chromium() as browser, console.scheduler.sdk() as client:
        trial = await client.study("s").ask()
        assert trial is not None
        await trial.report(1, {"loss": 0.5})
        tab = Tab(await browser.new_page())
        await tab.page.goto(console.url + "/studies/s")
        await tab.page.wait_for_selector("#state .completed")
        await tab.page.wait_for_timeout(3000)
        tab.urls.clear()
        await client.study("s").extend(trials=2)
        await tab.page.wait_for_selector("#state .active", timeout=60_000)
        pages = [url for url in tab.urls if url.endswith("/studies/s")]
        assert len(pages) <= 3, "it reads the page when something changed, and not otherwise"
        assert any("/curves.bin" in url for url in tab.urls), "and what its pictures show"
        assert tab.faults == []


async def test_a_laptop_that_slept_shows_what_happened_meanwhile(console: Console) -> None:
    """Its browser stops, not only its page; the scheduler is replaced, and streams are cut."""
    await make_study(console.scheduler, policy={"kind": "run_all"}, max_trials=1, max_steps=2)
    async with chromium() as browser, console.scheduler.sdk() as client:
        trial = await client.study("s").ask()
        assert trial is not None
        tab = Tab(await browser.new_page())
        await tab.page.goto(console.url + "/studies/s")
        await tab.page.wait_for_selector("#state .active")
        tab.urls.clear()
        with asleep():
            await trial.report(1, {"loss": 0.5})
            await console.scheduler.stop()
            console.cut()
            await console.scheduler.start()
            await trial.report(2, {"loss": 0.25})
            await until(lambda: not console.state.watches._pages, "the console noticed that nobody listens")
        await tab.page.wait_for_selector("#state .completed", timeout=60_000)
        await tab.page.wait_for_selector("#trials td:has-text('0.25')", timeout=60_000)
        await tab.page.wait_for_selector("#link:empty", state="attached", timeout=60_000)
        assert any("/curves.bin" in url for url in tab.urls)


PAINTS = """
window.painted = new Set();
const clear = CanvasRenderingContext2D.prototype.clearRect;
CanvasRenderingContext2D.prototype.clearRect = function (...box) {
  window.painted.add(this.canvas.closest('.chart').id);
  return clear.apply(this, box);
};
"""
"""Notes which charts are drawn: they clear their canvas first."""


async def test_pictures_are_drawn_when_they_come_into_sight_or_are_printed(console: Console) -> None:
    await make_study(console.scheduler, max_trials=3)
    async with chromium() as browser, console.scheduler.sdk() as client:
        trial = await client.study("s").ask()
        assert trial is not None
        await trial.report(1, {"loss": 0.5})
        page = await browser.new_page(viewport={"width": 1400, "height": 400})
        await page.add_init_script(PAINTS)
        await page.goto(console.url + "/studies/s")

        async def painted() -> set[str]:
            return set(await page.evaluate("[...window.painted]"))

        await page.evaluate("document.getElementById('curves').scrollIntoView()")
        await page.wait_for_timeout(1500)
        assert "curves" in await painted()
        assert "slices" not in await painted()
        heights = "[...document.querySelectorAll('#slices canvas')].map((one) => one.clientHeight)"
        before = await page.evaluate(heights)
        await page.evaluate("document.getElementById('slices').scrollIntoView()")
        await page.wait_for_timeout(1000)
        assert "slices" in await painted()
        assert await page.evaluate(heights) == before, "nothing moves when it is drawn"
        await page.reload()
        await page.wait_for_timeout(1000)
        await page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
        assert {"curves", "parallel", "slices"} <= await painted()


async def test_the_focus_stays_with_its_element(console: Console) -> None:
    """A link keeps it when others appear before it. If it is gone, the element at its place gets it."""
    fresh = [""]

    async def answer(route: Any) -> None:
        page = f"<main><div id='part' data-part>{fresh[0]}</div></main>"
        await route.fulfill(body=page, content_type="text/html")

    links = (
        "<a href='/a'>1</a><a href='/b'>2</a><a href='/b'>3</a><a id='i' href='/i'>4</a><button>5</button>"
    )
    async with chromium() as browser:
        page = await browser.new_page()
        await page.goto(console.url + "/about")
        await page.route("**/fresh", answer)
        for focused, then, fresh[0] in (
            ("2", "y", "<a href='/new'>x</a><a href='/a'>w</a><a href='/b'>y</a>"),
            ("3", "y", "<a href='/b'>w</a><a href='/a'>x</a><a href='/b'>y</a><a id='i'>z</a>"),
            ("2", "y", "<a href='/new'>x</a><a href='/other'>y</a>"),
            (
                "4",
                "z",
                "<a href='/w'>w</a><a href='/i'>x</a><a href='/y'>y</a><b></b><a id='i' href='/z'>z</a>",
            ),
            ("5", "y", "<a>u</a><a>v</a><a>w</a><a>x</a><button>y</button>"),
        ):
            await page.evaluate(
                "(links) => document.querySelector('main').innerHTML = `<div id='part' data-part>${links}</div>`",
                links,
            )
            await page.focus(f"#part :text-is('{focused}')")
            await page.evaluate("import('/static/page.js').then((page) => page.load('/fresh'))")
            assert await page.evaluate("document.activeElement.textContent") == then, fresh
