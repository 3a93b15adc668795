"""The measured figures that pages claim, each a row of figures.csv.

    python benchmarks/figures.py            (print the rows that the pages claim and figures.csv lacks)
    python benchmarks/figures.py --reword   (rows whose words alone changed on the page get the new claim)

A table, paragraph or list with measured figures follows a line that names what measured them:

    <!-- measured: benchmarks/scheduler/bench_load.py -->
    <!-- measured: benchmarks/hdet/drop_in.py labels=3 -->    (a table whose first three columns are labels)
    <!-- measured: by hand -->

In a table every cell outside the labels is a figure, in prose every number with a unit, a decimal or an interval.
A claim is the cell's labels, or the start of the sentence. tests/repo/test_figures.py compares pages and rows.
"""

import csv
import platform
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from textwrap import shorten
from typing import Final, NamedTuple

import psutil

ROOT: Final = Path(__file__).resolve().parents[1]
TABLE: Final = ROOT / "benchmarks" / "figures.csv"
MARK: Final = re.compile(
    r"^<!-- measured: (?P<script>.+?)(?: labels=(?P<labels>\d))? -->\n\n(?P<block>(?:.+\n)+)", re.MULTILINE
)
NUMBER: Final = r"[−+-]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:e-?\d+)?"
UNIT: Final = r"(?: ?[%×]| ?(?:ms|µs|s|kB|MB|GB|MiB|GiB|times|nats|a second)\b)"
RANGE: Final = rf"{NUMBER}{UNIT}?(?: to |–){NUMBER}{UNIT}?"
INTERVAL: Final = rf"(?: \((?P<range>{RANGE})\)| (?P<error>± {NUMBER}{UNIT}?)| \[(?P<ends>[^\]]+)\])"
IN_PROSE: Final = re.compile(rf"(?<![\w.⁻-])(?P<value>{NUMBER}{UNIT}?){INTERVAL}?(?![\w-])")
IN_CELL: Final = re.compile(rf"(?P<value>[^()\[\]±]*\d[^()\[\]±]*?){INTERVAL}(?P<rest>.*)")


class Figure(NamedTuple):
    """What a page claims, in the order of the first columns of figures.csv."""

    page: str
    claim: str
    value: str
    interval: str
    script: str


class Row(NamedTuple):
    """A row of figures.csv: a figure, and where and by what version it was measured."""

    page: str
    claim: str
    value: str
    interval: str
    script: str
    commit: str
    machine: str

    @property
    def figure(self) -> Figure:
        """The part that is compared with the page."""
        return Figure(*self[:5])


def rows() -> list[Row]:
    """The rows of figures.csv."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        header, *lines = csv.reader(file)
    if tuple(header) != Row._fields:
        raise ValueError(f"{TABLE.name}: the columns are {header}, and should be {list(Row._fields)}")
    return [Row(*line) for line in lines]


def pages() -> list[Path]:
    """The pages whose figures are compared. Decisions and the changelog state those of their own time."""
    docs = sorted((ROOT / "docs").rglob("*.md"))
    return [
        ROOT / "README.md",
        *(page for page in docs if page.parent.name != "decisions" and page.stem != "changelog"),
    ]


def claimed(page: Path) -> Iterator[Figure]:
    """The figures of a page, in order."""
    name = str(page.relative_to(ROOT))
    for mark in MARK.finditer(page.read_text(encoding="utf-8")):
        lines = mark["block"].splitlines()
        told = _of_table(lines, int(mark["labels"] or 1)) if lines[0].startswith("|") else _of_prose(lines)
        for claim, value, interval in told:
            yield Figure(name, claim, value, interval, mark["script"])


def _of_table(lines: list[str], labels: int) -> Iterator[tuple[str, str, str]]:
    """An empty label repeats the one above it."""
    header, _, *body = ([cell.strip().replace("**", "") for cell in line.split("|")[1:-1]] for line in lines)
    above = [""] * labels
    for cells in body:
        above = [cell or last for cell, last in zip(cells, above, strict=False)]
        for column, cell in zip(header[labels:], cells[labels:], strict=False):
            if re.search(r"\w", cell):
                claim = "; ".join(filter(None, [*above, column]))
                alone = IN_CELL.fullmatch(cell)
                if alone and not re.search(r"\d", alone["rest"]):
                    yield claim, alone["value"] + alone["rest"], _interval(alone)
                else:
                    yield claim, cell, ""


def _of_prose(lines: list[str]) -> Iterator[tuple[str, str, str]]:
    text = " ".join(re.sub(r"^ *- ", "", line).strip() for line in lines).replace("**", "")
    for sentence in re.split(r"(?<=[.:?)]) +(?=[A-Z`*])", text):
        bare = re.sub(r"`[^`]*`|\[[^\]]*\]\([^)]*\)", lambda skipped: " " * len(skipped[0]), sentence)
        for found in IN_PROSE.finditer(bare):
            interval = _interval(found)
            if interval or re.search(rf"\.\d|{UNIT}$", found["value"]):
                yield shorten(sentence, 100, placeholder=" …"), found["value"], interval


def _interval(found: re.Match[str]) -> str:
    return found["range"] or found["error"] or found["ends"] or ""


def reworded() -> list[Row]:
    """The rows; if a row's page has the same value in other words, the row gets the new claim."""
    known = rows()
    on_pages = Counter(figure for page in pages() for figure in claimed(page))
    missing = list((on_pages - Counter(row.figure for row in known)).elements())
    kept = []
    for row in known:
        on_pages[row.figure] -= 1
        if on_pages[row.figure] < 0:
            same = (one for one in missing if one._replace(claim=row.claim) == row.figure)
            if (found := next(same, None)) is not None:
                missing.remove(found)
                row = row._replace(claim=found.claim)
        kept.append(row)
    return kept


def main() -> None:
    """Prints the missing rows, with this machine and commit; or rewrites claims."""
    if sys.argv[1:] == ["--reword"]:
        lines = reworded()
        with TABLE.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([Row._fields, *lines])
        return
    known = Counter(row.figure for row in rows())
    command = ["git", "rev-parse", "--short=8", "HEAD"]
    commit = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout.strip()
    machine = f"{platform.machine()}, {psutil.cpu_count()} cores, Python {platform.python_version()}"
    out = csv.writer(sys.stdout, lineterminator="\n")
    for page in pages():
        for figure in (Counter(claimed(page)) - known).elements():
            out.writerow(Row(*figure, commit, machine))


if __name__ == "__main__":
    main()
