"""axe-core on every page, light and dark, wide and narrow; and everything that one can click, by keyboard."""

import importlib.util
from typing import Any

import pytest
from browsers import chromium, needs_chromium
from console_site import Console
from hostile_study import fill

pytestmark = [
    pytest.mark.full,
    pytest.mark.browser,
    needs_chromium,
    pytest.mark.skipif(
        importlib.util.find_spec("axe_playwright_python") is None,
        reason="needs axe-playwright-python (pip install axe-playwright-python)",
    ),
]

PAGES = (
    "/",
    "/studies",
    "/studies/s",
    "/studies/s?q=wrong%3E%3E",
    "/studies/s/trials/0",
    "/studies/s/trials/1",
    "/studies/s/trials/0/log",
    "/studies/s/importance",
    "/studies/s/events",
    "/studies/s/gantt",
    "/studies/s/lineage",
    "/studies/s/plan",
    "/compare?study=s",
    "/cluster",
    "/bubbles",
    "/about",
    "/login",
    "/studies/none",
)


def serious(found: dict[str, Any]) -> list[str]:
    """The violations that are serious or critical, each with the elements."""
    return [
        f"{one['id']}: {node['html'][:120]} {node['failureSummary'][:200]}"
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"][:4]
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_axe_core_finds_nothing_serious(console: Console, scheme: str) -> None:
    from axe_playwright_python.async_playwright import Axe

    await fill(console)
    wrong: dict[str, list[str]] = {}
    checked = 0
    async with chromium() as browser:
        for width in (400, 1400):
            context = await browser.new_context(
                viewport={"width": width, "height": 900}, color_scheme=scheme, bypass_csp=True
            )
            page = await context.new_page()
            for path in PAGES:
                await page.goto(console.url + path)
                await page.wait_for_timeout(300)
                found = (await Axe().run(page)).response
                checked += len(found["passes"])
                if faults := serious(found):
                    wrong[f"{path} {width}"] = faults
            await context.close()
    assert checked > 10 * len(PAGES)
    assert wrong == {}, "\n".join(f"{path}: {one}" for path, faults in wrong.items() for one in faults)


CONTROLS = (
    "[...document.querySelectorAll('a[href], button, input, select, summary')]"
    ".filter((one) => one.type !== 'hidden' && one.checkVisibility()).length"
)


async def _tabbed(page: Any, times: int) -> set[int]:
    """The places of the controls that get the focus; -1 stands for everything else."""
    reached = set()
    for _ in range(times):
        await page.keyboard.press("Tab")
        reached.add(
            await page.evaluate(
                "((one) => one.matches('a, button, input, select, summary')"
                " ? [...document.querySelectorAll('*')].indexOf(one) : -1)(document.activeElement)"
            )
        )
    return reached


async def test_every_control_is_reached_by_tab(console: Console) -> None:
    await fill(console)
    async with chromium() as browser:
        page = await browser.new_page()
        for path in ("/", "/studies/s", "/studies/s/trials/1", "/login"):
            await page.goto(console.url + path)
            controls, last = 0, -1
            while controls != last:  # parts are loaded when they come into sight
                await page.wait_for_timeout(1000)
                last, controls = controls, await page.evaluate(CONTROLS)
                reached = await _tabbed(page, 2 * controls + 40)
            assert len(reached - {-1}) == controls, path
