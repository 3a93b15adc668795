"""The tier of each test file, read from its marks: `tests/tiers.py` says what they mean."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

from tables import table

TESTS: Final = Path(__file__).resolve().parent.parent / "tests"
Tier = Literal["first", "some", "smoke", "full"]
FULL_FILE: Final = re.compile(r"^pytestmark = (?:\[\s*)?pytest\.mark\.full\b", re.MULTILINE)
FULL_TEST: Final = re.compile(r"\bmark\.(?:full|cases|gpu)\b")
SMOKE: Final = re.compile(r"\bmark\.smoke\b")


def tier(path: Path) -> Tier:
    """Which part of a file runs in the first tier: all, some, smoke tests, or nothing."""
    text = path.read_text(encoding="utf-8")
    if FULL_FILE.search(text):
        return "smoke" if SMOKE.search(text) else "full"
    return "some" if FULL_TEST.search(text) else "first"


def by_folder() -> dict[str, dict[Tier, list[str]]]:
    """The test files of each folder below tests/, by tier."""
    found: dict[str, dict[Tier, list[str]]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        folder = found.setdefault(path.parent.relative_to(TESTS).as_posix(), {})
        folder.setdefault(tier(path), []).append(path.stem.removeprefix("test_"))
    return found


def tiers_table() -> str:
    """Each folder, with the part of it that runs on every change."""
    return table(("`tests/…`", "`make test` runs", "only `make test-all` runs"), _rows())


def _rows() -> Iterator[tuple[str, str, str]]:
    folders = by_folder()
    whole = [name for name, files in folders.items() if files.keys() == {"first"}]
    marked = [
        name for name, files in folders.items() if name not in whole and files.keys() <= {"first", "some"}
    ]
    yield _named(whole), "everything", ""
    yield _named(marked), "all but marked tests", "the marked tests"
    for name, files in folders.items():
        if name not in (*whole, *marked):
            runs = ["all but marked tests"] if "some" in files else ["the others"] if "first" in files else []
            runs += [f"smoke tests in {_named(files['smoke'])}"] if "smoke" in files else []
            yield (
                _named([name]),
                "; ".join(runs),
                _named(sorted([*files.get("smoke", []), *files.get("full", [])])),
            )


def _named(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
