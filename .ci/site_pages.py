"""The documentation as a site: its navigation, and how its pages differ from the files in docs/.

The repository shows each file in docs/ unchanged. The site has additional tables (`generated.SITE_ONLY`). From
outside docs/, it contains only README, CONTRIBUTING and the pictures that pages show. This module does not need
mkdocs.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from generated import rewritten

ROOT: Final = Path(__file__).resolve().parent.parent
DOCS: Final = ROOT / "docs"
DECISIONS: Final = DOCS / "decisions/README.md"
PROJECT: Final = {
    ROOT / "README.md": "project/readme.md",
    ROOT / "CONTRIBUTING.md": "project/contributing.md",
}
"""Files outside docs/ that are pages of the site, with their path there."""
PICTURES: Final = {".png", ".svg"}
LINK: Final = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")
FENCES: Final = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
NUMBERED: Final = re.compile(r"\d+\. ")
ENTRY: Final = re.compile(r"^- \[(?P<title>[^\]]+)\]\((?P<target>[^)#\s]+)\)")


@dataclass(frozen=True, slots=True)
class Entry:
    """A line in an index: a page with its title."""

    title: str
    source: Path


def sections(index: Path, mark: str) -> dict[str, list[Entry]]:
    """The list items of an index that start with a link, by the heading above them."""
    found: dict[str, list[Entry]] = {}
    heading = ""
    for line in index.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            heading = line.removeprefix(mark) if line.startswith(mark) else ""
        elif heading and (entry := ENTRY.match(line)):
            source = (index.parent / entry["target"]).resolve()
            found.setdefault(heading, []).append(Entry(entry["title"], source))
    return found


def contents() -> dict[str, list[Entry]]:
    """All pages except the first one and the decisions: "All pages" in docs/README.md."""
    return sections(DOCS / "README.md", "### ")


def decisions() -> dict[str, list[Entry]]:
    """The decisions by subject."""
    return sections(DECISIONS, "## ")


def navigation() -> list[dict[str, Any]]:
    """The navigation in mkdocs's format."""
    nav: list[dict[str, Any]] = [{"Where to start": "README.md"}]
    for heading, entries in contents().items():
        pages: list[Any] = _pages(entries)
        if any(entry.source == DECISIONS for entry in entries):
            pages += [{subject: _pages(below)} for subject, below in decisions().items()]
        nav.append({heading: pages})
    return nav


def place(source: Path) -> str | None:
    """The path in the site of a file in the repository, if it is there."""
    if source in PROJECT:
        return PROJECT[source]
    if source.is_relative_to(DOCS):
        return source.relative_to(DOCS).as_posix() if source.is_file() else None
    return f"pictures/{source.relative_to(ROOT).as_posix()}" if source.suffix in PICTURES else None


def sources() -> list[Path]:
    """The files that are pages of the site."""
    return [*PROJECT, *sorted(DOCS.rglob("*.md"))]


def pictures() -> set[Path]:
    """The pictures outside docs/ that pages show."""
    shown = set()
    for source in sources():
        for link in LINK.finditer(source.read_text(encoding="utf-8")):
            there = (source.parent / link["target"]).resolve()
            if link["image"] and not there.is_relative_to(DOCS):
                shown.add(there)
    return shown


def page(source: Path) -> str:
    """The text of a page in the site, with the site's tables, and with links to pages of the site."""
    here = place(source)
    assert here is not None

    def moved(link: re.Match[str]) -> str:
        target, hash_sign, anchor = link["target"].partition("#")
        if not target or re.match(r"[a-z]+:", target):
            return link[0]
        there = (source.parent / target).resolve()
        found = place(there)
        if found is None:  # a file that is only in the repository
            name = there.relative_to(ROOT).as_posix()
            return link["text"] if name in link["text"] else f"{link['text']} (`{name}`)"
        relative = os.path.relpath(found, Path(here).parent)
        return f"{link['image']}[{link['text']}]({relative}{hash_sign}{anchor})"

    parts = FENCES.split(rewritten(source.read_text(encoding="utf-8"), site=True))
    return "".join(part if part.startswith("```") else LINK.sub(moved, _indented(part)) for part in parts)


def _indented(text: str) -> str:
    """The text with the contents of numbered list items indented by four columns, which Python-Markdown requires
    and GitHub does not.
    """
    lines, inside = [], False
    for line in text.splitlines(keepends=True):
        if line.strip() and not line.startswith(" "):
            inside = bool(NUMBERED.match(line))
        lines.append(f" {line}" if inside and line.startswith("   ") else line)
    return "".join(lines)


def _pages(entries: list[Entry]) -> list[dict[str, str]]:
    return [{entry.title: place(entry.source) or entry.source.name} for entry in entries]
