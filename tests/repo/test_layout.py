"""The top level holds exactly what the architecture names."""

import subprocess
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

TOP_LEVEL = {
    ".ci",
    ".dockerignore",
    ".gitattributes",
    ".gitignore",
    "CONTRIBUTING.md",
    "LICENSE",
    "Makefile",
    "README.md",
    "benchmarks",
    "clients",
    "deploy",
    "docker-compose.yml",
    "docs",
    "examples",
    "protos",
    "pyproject.toml",
    "services",
    "tests",
    "worker",
}


def tracked() -> list[str]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    return [name for name in listed.decode().split("\0") if name]


def test_the_top_level_is_the_one_of_the_architecture() -> None:
    assert {name.partition("/")[0] for name in tracked()} == TOP_LEVEL


def test_no_file_is_tracked_that_is_ignored() -> None:
    command = ["git", "ls-files", "--cached", "--ignored", "--exclude-standard"]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout == b""


def test_modules_are_not_named_for_nothing() -> None:
    vague = {"utils", "util", "helpers", "helper", "common", "misc", "manager"}
    assert [name for name in tracked() if name.endswith(".py") and Path(name).stem in vague] == []


def test_each_test_file_has_a_name_of_its_own() -> None:
    """pytest takes two files of one name for one module and refuses the second, though each folder passes alone."""
    names = Counter(Path(name).name for name in tracked() if name.startswith("tests/") and "/test_" in name)
    assert {name for name, times in names.items() if times > 1 and name.endswith(".py")} == set()
