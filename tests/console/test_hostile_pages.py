"""Hostile texts in the HTML and JSON of every page, without a browser."""

import json
from html.parser import HTMLParser
from urllib.parse import quote

from console_site import Console
from hostile import ALL, LONG, MARKUP
from hostile_study import fill

PAGES = (
    "/",
    "/studies/s",
    "/studies/s/trials/0",
    "/studies/s/trials/1",
    "/studies/s/trials/0/log",
    "/studies/s/importance",
    "/studies/s/events",
    "/studies/s/events?page=" + quote(MARKUP),
    "/studies/s/gantt",
    "/studies/s/lineage",
    "/studies/s/plan",
    "/compare?study=s",
    "/cluster",
    "/bubbles",
    "/about",
    "/login?next=" + quote(MARKUP),
    "/studies?q=" + quote(MARKUP),
    "/studies/s?q=" + quote(MARKUP) + "&sort=" + quote(MARKUP) + "&page=" + quote(MARKUP),
    "/studies/" + quote(MARKUP, safe=""),
)
ELEMENTS_OF_OURS = {"page.js", "study.js", "trial.js", "log.js", "compare.js"}


class Checked(HTMLParser):
    """Refuses what a page of ours never has."""

    def __init__(self, host: str) -> None:
        super().__init__()
        self.host, self.scripts = host, 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        assert tag not in {"img", "iframe", "object", "embed", "base", "style"}, tag
        if tag == "script":
            assert (found.get("src") or "").rpartition("/")[2] in ELEMENTS_OF_OURS
            self.scripts += 1
        for name, value in found.items():
            assert not name.startswith("on"), name
            assert name != "style", value
            if name in {"href", "src", "action", "data-src", "data-live", "data-load", "data-trial"}:
                assert value
                assert value.startswith(("/", "?", "#main", "log.txt")), value
                assert not value.startswith("//"), value

    def handle_data(self, data: str) -> None:
        assert "49" not in data.split(), "a template in a name was evaluated"


async def test_texts_stay_texts(console: Console) -> None:
    await fill(console)
    for path in PAGES:
        answer = await console.http.get(path)
        assert answer.status_code < 500, path
        checked = Checked(console.url)
        checked.feed(answer.text)
        assert checked.scripts >= 1
        bare, _, query = path.partition("?")
        if bare in {"/", "/login", "/studies/s/trials/0/log"}:
            continue
        twin = await console.http.get(f"{bare}.json?{query}")
        assert twin.status_code == answer.status_code, path
        assert twin.headers["content-type"] == "application/json"
        json.loads(twin.text, parse_constant=lambda name: f"not JSON: {name}" and 1 / 0)
    page = await console.http.get("/studies/s")
    assert len(page.content) < 1_000_000
    whole = (await console.http.get("/studies/s/trials/0.json")).json()
    assert LONG in whole["trial"]["detail"]
    assert whole["trial"]["note"] == ALL
