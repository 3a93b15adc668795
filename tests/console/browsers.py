"""Chromium, which Debian packages, driven by Python's playwright; tests are skipped where one of them is missing."""

import importlib.util
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

CHROMIUM = Path("/usr/bin/chromium")
WHY = (
    "needs /usr/bin/chromium (apt-get install chromium)"
    if not CHROMIUM.exists()
    else ""
    if importlib.util.find_spec("playwright")
    else "needs playwright (pip install playwright)"
)
needs_chromium = pytest.mark.skipif(bool(WHY), reason=WHY or "has both")


class Tab:
    """A page, with everything in it that should not have happened."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.faults: list[str] = []
        page.on("dialog", self._dialog)
        page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        page.on("console", lambda said: self.faults.append(said.text) if said.type == "error" else None)
        page.on("request", lambda asked: self._asked(asked.url))
        self.urls: list[str] = []

    async def _dialog(self, dialog: Any) -> None:
        self.faults.append(f"dialog: {dialog.message}")
        await dialog.dismiss()

    def _asked(self, url: str) -> None:
        self.urls.append(url)

    async def overflow(self) -> int:
        """By how many pixels the page is wider than the window."""
        return int(await self.page.evaluate("document.documentElement.scrollWidth - innerWidth"))

    async def widest(self) -> list[str]:
        """The elements that reach beyond the window, for the message of a test."""
        found: list[str] = await self.page.evaluate(
            "[...document.querySelectorAll('body *')].filter(e => !e.closest('.wide *')"
            " && e.getBoundingClientRect().right > innerWidth + 1)"
            ".map(e => e.tagName + '#' + e.id + '.' + e.className + ' ' + e.textContent.slice(0, 40)).slice(0, 12)"
        )
        return found


@asynccontextmanager
async def chromium() -> AsyncIterator[Any]:
    """A browser."""
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-gpu"]
        )
        yield browser
        await browser.close()


@contextmanager
def asleep() -> Iterator[None]:
    """Every process of the browser is stopped meanwhile."""
    stopped = []
    try:
        for one in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # it has ended by itself
                if "chrom" in one.name():
                    one.suspend()
                    stopped.append(one)
        assert stopped
        yield
    finally:
        for one in stopped:
            with suppress(psutil.NoSuchProcess):
                one.resume()
