"""The site of `make docs`, without mkdocs: its navigation has every page once, and every link leads to one of them."""

import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import typer

from headrace.bounds.table import LIMITS
from headrace.cli.app import build

ROOT = Path(__file__).resolve().parents[2]
DECISIONS = ROOT / "docs/decisions"


@pytest.fixture(scope="module", autouse=True)
def ci() -> Iterator[None]:
    """Make the modules of .ci importable."""
    sys.path.insert(0, str(ROOT / ".ci"))
    yield
    sys.path.remove(str(ROOT / ".ci"))


@pytest.fixture(scope="module")
def site(ci: None) -> ModuleType:
    import site_pages

    return site_pages


@pytest.fixture(scope="module")
def texts(site: ModuleType) -> dict[str, str]:
    """The site's pages by path; the page on commands without its tables, which import every command."""
    import generated

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(generated.GENERATORS, "commands", lambda: "### headrace")
        return {site.place(source): site.page(source) for source in site.sources()}


def titled(nav: list[dict[str, object]]) -> Iterator[str]:
    """The pages of a navigation, in order."""
    for item in nav:
        for below in item.values():
            if isinstance(below, str):
                yield below
            else:
                assert isinstance(below, list)
                yield from titled(below)


def test_the_navigation_has_every_page_once(site: ModuleType, texts: dict[str, str]) -> None:
    assert Counter(titled(site.navigation())) == Counter(texts.keys())


def test_the_navigation_begins_with_what_a_reader_has(site: ModuleType) -> None:
    headings = [heading for section in site.navigation() for heading in section]
    assert headings[:2] == ["Where to start", "Start"]
    assert headings[-3:] == ["Explanation", "Reference", "Decisions"]


def test_every_link_of_the_site_leads_to_a_page_or_a_picture(site: ModuleType, texts: dict[str, str]) -> None:
    import documents

    pictures = {site.place(picture) for picture in site.pictures()}
    lost = []
    for here, text in texts.items():
        for link in site.LINK.finditer(site.FENCES.sub("", text)):
            target, _, anchor = link["target"].partition("#")
            if re.match(r"[a-z]+:", target):
                continue
            there = os.path.normpath(Path(here).parent / target) if target else here
            if there in texts:
                found = not anchor or anchor in documents.anchors(texts[there])
            else:
                found = there in pictures or (ROOT / "docs" / there).is_file()
            if not found:
                lost.append(f"{here}: {link['target']}")
    assert lost == []


def test_a_link_out_of_the_documentation_names_the_file(site: ModuleType) -> None:
    text = site.page(ROOT / "docs/how-to/own-policy.md")
    assert "../../examples" not in text
    assert "`examples/own_policy`" in text


def test_what_is_below_a_numbered_item_stays_there(texts: dict[str, str]) -> None:
    assert "\n    ```sh\n    createdb headrace\n" in texts["how-to/back-up-and-restore.md"]
    assert "\n    - Every call is O(log n)." in texts["how-to/add-a-policy.md"]


def test_the_glossary_is_short_and_in_order() -> None:
    text = (ROOT / "docs/reference/glossary.md").read_text(encoding="utf-8")
    terms = re.findall(r"^## (\w+)\n\n(.+?)\n(?=\n## |\Z)", text, re.MULTILINE | re.DOTALL)
    names = [name for name, _ in terms]
    assert len(names) > 30
    assert names == sorted(names) == re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert [name for name, meaning in terms if len(re.findall(r"\.(?=\s|$)", meaning)) > 2] == []


def test_an_index_of_decisions_has_the_titles_of_the_pages(site: ModuleType) -> None:
    listed = [entry for entries in site.decisions().values() for entry in entries]
    assert sorted(entry.source for entry in listed) == sorted(DECISIONS.glob("[0-9]*.md"))
    for entry in listed:
        assert entry.source.read_text(encoding="utf-8").startswith(f"# {entry.title}\n")
        assert entry.title.startswith(f"{entry.source.name[:4]}: ")


@pytest.mark.parametrize("name", ["commands", "limits"])
def test_a_long_table_is_in_the_site_alone(texts: dict[str, str], name: str) -> None:
    here = f"reference/{name}.md"
    tracked = (ROOT / "docs" / here).read_text(encoding="utf-8")
    assert tracked.count("\n") < 30
    assert "make docs" in tracked
    assert "make docs" not in texts[here]


@pytest.mark.full
def test_the_page_on_commands_has_every_command_and_its_options(site: ModuleType) -> None:
    text = site.page(ROOT / "docs/reference/commands.md")
    for name in getattr(typer.main.get_command(build()), "commands"):  # noqa: B009 - private to typer
        assert f"\n### headrace {name}\n" in text
    for option in ("--local", "--drain-grace", "--report FILE.html"):
        assert option in text


def test_the_page_on_limits_has_every_message_with_its_bounds(texts: dict[str, str]) -> None:
    text = texts["reference/limits.md"]
    for title, bounds in LIMITS.items():
        assert f"\n## {title}\n" in text
        for message, fields in bounds.items():
            table = text.partition(f"\n### {message}\n")[2].partition("\n#")[0]
            for field, bound in fields.items():
                assert f"| `{field}` | {str(bound).replace('|', chr(92) + '|')} |" in table
