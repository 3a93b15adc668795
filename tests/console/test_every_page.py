"""Every page is in the lists of the tests that visit all pages."""

import re
from collections.abc import Sequence

import pytest
import test_accessibility
import test_hostile_pages
import test_in_chromium

from headrace_services.console import app


@pytest.mark.parametrize(
    "visited",
    [test_accessibility.PAGES, test_hostile_pages.PAGES, test_in_chromium.PAGES],
    ids=["accessibility", "hostile", "chromium"],
)
def test_no_page_is_forgotten(visited: Sequence[str]) -> None:
    paths = [path.partition("?")[0] for path in visited]
    missing = [page for page in app.PAGES if not any(map(_address(page).fullmatch, paths))]
    assert missing == [], "add them to PAGES of that test"


def _address(page: str) -> "re.Pattern[str]":
    """What an address of a page looks like."""
    return re.compile(re.sub(r"\\\{\w+:int\\\}", r"\\d+", re.escape(page)).replace(r"\{study\}", "[^/]+"))
