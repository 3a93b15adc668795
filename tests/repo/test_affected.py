"""What a change affects, by import (`make test ARGS=--changed`)."""

import pytest
from affected import ROOT, Tree, imported

TESTS = ROOT / "tests"


@pytest.fixture(scope="module")
def tree() -> Tree:
    return Tree()


@pytest.mark.parametrize(
    ("changed", "touched", "untouched"),
    [
        (
            "services/headrace_services/scheduler/core/decide.py",
            "scheduler/test_step.py",
            "bounds/test_bounds_table.py",
        ),
        (
            "services/headrace_services/planner/fronts.py",
            "planner/test_planner_assignment.py",
            "policies/test_asha.py",
        ),
        (
            "worker/headrace_worker/shim.py",
            "worker/test_run_as.py",
            "scheduler/test_step.py",
        ),  # started with -m
        (
            "services/headrace_services/scheduler/session/servicer.py",
            "chaos/test_faults.py",
            "hydro/test_fuse_rules.py",
        ),
        (
            "clients/python/headrace/cli/why.py",
            "cli/test_cli_control.py",
            "scheduler/test_step.py",
        ),  # loaded by name
        ("tests/scheduler/study_site.py", "scheduler/session/test_sessions.py", "worker/test_run_as.py"),
        ("tests/chaos/programs/chain.py", "chaos/test_faults.py", "scheduler/test_step.py"),
        ("tests/hdet/conftest.py", "hdet/test_hdet_exact.py", "hydro/test_fuse_rules.py"),
        ("docs/how-to/write-a-trial.md", "repo/test_document_programs.py", "repo/test_tiers.py"),
        ("protos/headrace/v1/planner.proto", "planner/test_planner_service.py", "hydro/test_fuse_rules.py"),
        ("tests/conformance/scenarios/plan.yaml", "conformance/test_conformance.py", "repo/test_tiers.py"),
        ("tests/planner/configurations.json", "planner/test_planner_configurations.py", "repo/test_tiers.py"),
        ("benchmarks/placement/virtual_cluster.py", "placement/test_packing.py", "repo/test_tiers.py"),
        (".ci/pytest.sh", "repo/test_second_run.py", "repo/test_first_steps.py"),
    ],
)
def test_a_change_touches_what_imports_it(tree: Tree, changed: str, touched: str, untouched: str) -> None:
    assert (ROOT / changed).exists()
    found = tree.touched_by([changed])
    assert TESTS / touched in found
    assert (TESTS / untouched).exists()
    assert TESTS / untouched not in found


def test_a_migration_touches_the_tests_of_the_store(tree: Tree) -> None:
    folder = "services/headrace_services/scheduler/store/migrations/versions"
    (first, *_) = sorted(path.name for path in (ROOT / folder).iterdir() if path.suffix == ".py")
    assert TESTS / "scheduler/test_schema.py" in tree.touched_by([f"{folder}/{first}"])


def test_what_every_test_needs_touches_all(tree: Tree) -> None:
    assert set(tree.touched_by(["pyproject.toml"])) == set(TESTS.rglob("test_*.py"))


def test_a_test_touches_itself_and_is_nearest(tree: Tree) -> None:
    path = TESTS / "scheduler/test_step.py"
    found = tree.touched_by(["tests/scheduler/test_step.py"])
    assert found == {path: 0}
    assert tree.touched_by(["tests/scheduler/study_site.py"])[path] == 1


def test_imports_are_found_wherever_they_stand() -> None:
    text = "import a.b\nfrom c import (\n    d,\n    e,\n)\ndef f():\n    from g import h\n"
    assert list(imported(text, everywhere=True)) == ["a.b", "c", "c.d", "c.e", "g", "g.h"]
    assert list(imported(text, everywhere=False)) == ["a.b", "c", "c.d", "c.e"]
