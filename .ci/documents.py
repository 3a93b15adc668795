"""Keeps the documents consistent with the code: `--check` fails on differences, `--write` writes the generated
parts.

`--print NAME` prints one of them, including those that only the site has (`make docs`): `commands`, `limits`.

It checks the generated parts, every link inside the repository with its anchor, and that no tracked file names a
folder of somebody's machine or the host of a package registry.
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from generated import GENERATORS, rewritten

ROOT: Final = Path(__file__).resolve().parent.parent
LINK: Final = re.compile(r"!?\[[^\]]*\]\((?P<target>[^)\s]+)\)")
HEADING: Final = re.compile(r"^#{1,6} +(?P<text>.+?) *$", re.MULTILINE)
FENCE: Final = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
# Home folders and similar ones at the start of a path; and the hosts that packages come from.
MACHINE_PATH: Final = re.compile(rb"(?<![\w.~>})-])/(?:home|Users|root|opt|work|farm)/[\w.]")
REGISTRY_HOST: Final = re.compile(rb"\b(?:pypi[.]org|pythonhosted[.]org|registry[.]npmjs[.]org)\b")


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument(
        "--check", action="store_true", help="say what does not agree, and fail if anything does not"
    )
    action.add_argument("--write", action="store_true", help="write the generated parts")
    action.add_argument("--print", choices=GENERATORS, help="print a generated part")
    options = parser.parse_args()
    if options.print:
        print(GENERATORS[options.print]())
        return 0
    if options.write:
        for path in documents():
            path.write_text(rewritten(path.read_text(encoding="utf-8")), encoding="utf-8")
        return 0
    problems = [*stale_parts(), *broken_links(), *machine_names()]
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


def documents() -> list[Path]:
    """The Markdown files at the top level, and everything below docs/."""
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def stale_parts() -> Iterator[str]:
    """Documents whose generated parts are out of date."""
    for path in documents():
        text = path.read_text(encoding="utf-8")
        if rewritten(text) != text:
            yield f"{_name(path)}: a generated part is out of date: run 'make diagram' and commit the result"


def broken_links() -> Iterator[str]:
    """Links to files or headings that do not exist."""
    for path in documents():
        text = FENCE.sub("", path.read_text(encoding="utf-8"))
        for link in LINK.finditer(text):
            target, _, anchor = link["target"].partition("#")
            if re.match(r"[a-z]+:", target):
                continue
            there = (path.parent / target).resolve() if target else path
            if not there.exists():
                yield f"{_name(path)}: {link['target']} leads nowhere"
            elif (
                anchor and there.suffix == ".md" and anchor not in anchors(there.read_text(encoding="utf-8"))
            ):
                yield f"{_name(path)}: {link['target']}: no such heading"


def anchors(text: str) -> set[str]:
    """The anchors of a document's headings, as GitHub forms them."""
    slugs: dict[str, int] = {}
    found = set()
    for heading in HEADING.finditer(FENCE.sub("", text)):
        anchor = slug(heading["text"])
        found.add(f"{anchor}-{slugs[anchor]}" if anchor in slugs else anchor)
        slugs[anchor] = slugs.get(anchor, 0) + 1
    return found


def slug(heading: str) -> str:
    """A heading's anchor, without the number of a repeated one."""
    return re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()).replace(" ", "-")


def machine_names() -> Iterator[str]:
    """Tracked files that name a folder of one machine, this checkout, or a registry's host."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    here = f"{ROOT}/".encode()
    for name in filter(None, listed.decode().split("\0")):
        path = ROOT / name
        if not path.is_file():
            continue
        for number, line in enumerate(path.read_bytes().splitlines(), start=1):
            if MACHINE_PATH.search(line) or REGISTRY_HOST.search(line) or here in line:
                yield f"{name}:{number}: names a folder or a registry of one machine"


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


if __name__ == "__main__":
    sys.exit(main())
