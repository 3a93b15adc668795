"""One shape at each boundary: a key of a study file, a field of a trial and an RPC are written by hand in few
places.

Three existing ones represent all. The files that name one are listed here, and the next one of its kind must be
added to each of them. Generated files, tests, examples and prose do not count; of the documents only the reference
does.
"""

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WRITTEN = ("protos/headrace/", "clients/", "services/", "worker/", "docs/reference/")
GENERATED = (
    "clients/go/headrace/v1/",
    "clients/python/headrace/v1/",
    "clients/typescript/src/gen/",
)
GENERATED_PART = re.compile(r"<!-- generated: [a-z-]+ -->.*?<!-- end generated -->", re.DOTALL)
SCHEDULER = "services/headrace_services/scheduler"

KEY = {
    "protos/headrace/v1/spec.proto",
    "clients/python/headrace/spec/until.py",
    "docs/reference/study-file.md",
    f"{SCHEDULER}/core/until.py",  # acts on it
}
FIELD = {
    "protos/headrace/v1/trial.proto",
    f"{SCHEDULER}/core/records.py",
    f"{SCHEDULER}/store/tables/trials.py",
    "clients/python/headrace/client/model.py",
}
FIELD_ACTS = {f"{SCHEDULER}/core/scores.py", f"{SCHEDULER}/store/counting.py"}
RPC = {
    "protos/headrace/v1/study.proto",
    "services/headrace_services/identity/permissions.py",
    f"{SCHEDULER}/rpc/study_calls.py",
    "clients/python/headrace/client/study_flows.py",
    "clients/go/headrace/study.go",
    "clients/typescript/src/study.ts",
}
HANDLES = {"clients/python/headrace/client/sync.py", "clients/python/headrace/client/aio.py"}
"""A method of a handle is one line in each: type checkers read `importance = blocking(study_flows.importance)`."""


def written_by_hand() -> dict[str, str]:
    """The text of each file that counts, by its path, without generated parts."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", *WRITTEN], cwd=ROOT, capture_output=True, check=True
    ).stdout
    names = [
        name
        for name in listed.decode().split("\0")
        if name and not name.startswith(GENERATED) and not name.endswith("_test.go")
    ]
    texts = {name: (ROOT / name).read_text(errors="replace") for name in names if (ROOT / name).is_file()}
    return {name: GENERATED_PART.sub("", text) for name, text in texts.items()}


def places(word: str, texts: Mapping[str, str]) -> set[str]:
    """The files that name something, in any spelling: `best_metrics`, `bestMetrics`, `BestMetrics`."""
    spelled = re.compile(r"(?<![a-z])" + word.replace("_", "_?"), re.IGNORECASE)
    return {name for name, text in texts.items() if spelled.search(text)}


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return written_by_hand()


def test_a_key_of_a_study_file_is_written_in_four_places(texts: dict[str, str]) -> None:
    found = places("no_improvement", texts)
    assert found == KEY
    assert len(found) <= 4


def test_a_field_of_a_trial_is_written_in_four_places_and_a_migration(texts: dict[str, str]) -> None:
    found = places("best_metrics", texts)
    migrations = {name for name in found if "/store/migrations/" in name}
    assert found - migrations - FIELD_ACTS == FIELD
    assert len(FIELD) <= 4
    assert len(migrations) == 1


def test_an_rpc_is_written_in_six_places_and_a_line_in_each_handle(texts: dict[str, str]) -> None:
    found = places("measure_importance", texts)
    assert found == RPC
    assert len(found) <= 6
    assert {name for name, text in texts.items() if "(study_flows.importance)" in text} == HANDLES


def test_a_further_place_is_found() -> None:
    for word in ("no_improvement", "best_metrics", "measure_importance"):
        camel = word.title().replace("_", "")
        for text in (f'data["{word}"] = 1', f"request.{camel} = 1", f"{camel[0].lower()}{camel[1:]}: 1"):
            assert places(word, {"new.py": text, "other.py": "improvement, metrics, importance"}) == {
                "new.py"
            }
    drawn = "<!-- generated: limits -->\n| no_improvement |\n<!-- end generated -->"
    assert not places("no_improvement", {"page.md": GENERATED_PART.sub("", drawn)})
