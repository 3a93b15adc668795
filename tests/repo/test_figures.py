"""Every measured figure on a page is a row of benchmarks/figures.csv, and vice versa."""

import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from figures import MARK, Figure, Row, claimed, pages, reworded, rows

ROOT = Path(__file__).resolve().parents[2]

# A number with its interval, which only a measurement has.
MEASURED = re.compile(r"\d (?:\([−+-]?[\d.,]+(?: to |–)[−+-]?[\d.,]+\)|± ?[\d.])")


def test_pages_and_rows_claim_the_same_figures() -> None:
    """`python benchmarks/figures.py` prints the rows that are missing."""
    on_pages = Counter(figure for page in pages() for figure in claimed(page))
    in_rows = Counter(row.figure for row in rows())
    assert list((on_pages - in_rows).elements()) == [], "on a page, and no row"
    assert list((in_rows - on_pages).elements()) == [], "a row, and on no page"


def test_every_row_says_what_measured_it_where_and_at_which_commit() -> None:
    for row in rows():
        assert row.machine, row
        assert re.fullmatch("[0-9a-f]{8}", row.commit), row
        for script in row.script.split(", "):
            assert script == "by hand" or (ROOT / script).is_file(), row


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_marks_its_measured_figures(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    unmarked = re.sub(r"^```.*?^```$", "", MARK.sub("", text), flags=re.MULTILINE | re.DOTALL)
    assert text.count("<!-- measured:") == len(MARK.findall(text))
    assert [line for line in unmarked.splitlines() if MEASURED.search(line)] == []
    scripts = {script for figure in claimed(page) for script in figure.script.split(", ")}
    named = set(re.findall(r"benchmarks/\w+/\w+\.py", unmarked))
    assert not named or scripts, f"{sorted(named)} measured what?"


def test_a_changed_figure_an_interval_and_a_label_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("figures.ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- measured: by hand labels=2 -->\n\n"
        "| model | N | speed | loss |\n| --- | --- | --- | --- |\n"
        "| MLP | 2 | 1.64 (separate) | **2.4** (2.1 to 2.8) |\n| | 4 | 2.22 | – |\n\n"
        "<!-- measured: by hand -->\n\n"
        "Of 12 runs the slowest took 1.5 s\n(`-k 3.5`), and was 2 times (1.5 to 2.5) as slow. It cost 3 %.\n"
    )
    slow = "Of 12 runs the slowest took 1.5 s (`-k 3.5`), and was 2 times (1.5 to 2.5) as slow."
    assert list(claimed(page)) == [
        Figure("page.md", *told, "by hand")
        for told in (
            ("MLP; 2; speed", "1.64 (separate)", ""),
            ("MLP; 2; loss", "2.4", "2.1 to 2.8"),
            ("MLP; 4; speed", "2.22", ""),
            (slow, "1.5 s", ""),
            (slow, "2 times", "1.5 to 2.5"),
            ("It cost 3 %.", "3 %", ""),
        )
    ]


def test_a_row_keeps_its_commit_when_the_words_of_its_page_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "README.md").write_text("<!-- measured: by hand -->\n\nA step now takes 1.5 s, not 2 s.\n")
    monkeypatch.setattr("figures.ROOT", tmp_path)
    old = [
        Row("README.md", "A step takes 1.5 s.", value, "", "by hand", "01234567", "one H100")
        for value in ("1.5 s", "3 s")
    ]
    monkeypatch.setattr("figures.rows", lambda: old)
    assert reworded() == [old[0]._replace(claim="A step now takes 1.5 s, not 2 s."), old[1]]


def test_no_record_and_no_picture_is_tracked_beside_the_scripts() -> None:
    command = ["git", "ls-files", "benchmarks"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout.split()
    assert [name for name in listed if name.endswith((".json", ".jsonl", ".svg", ".png"))] == []


def test_every_picture_is_shown_by_a_page() -> None:
    command = ["git", "grep", "-hoE", r"docs/images/[^)]+|\.\./images/[^)]+", "--", "*.md"]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout.split()
    shown = [name.rpartition("/")[2] for name in shown]
    pictures = [path.name for path in (ROOT / "docs/images").iterdir()]
    assert [name for name in pictures if name not in shown] == []


def test_rows_are_in_the_order_of_the_columns() -> None:
    assert Row._fields == ("page", "claim", "value", "interval", "script", "commit", "machine")
