"""Each test file has a tier, each kind of test is in the first one, and nothing there depends on real time."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest
from tiers import spread

TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS.parent / ".ci"))

from tier_table import by_folder, tier  # noqa: E402

CLOCKS = {"monotonic", "perf_counter", "process_time", "thread_time", "timeit", "repeat"}


STAND_INS = {
    "chaos": "chaos/test_faults.py::test_a_study_survives_the_kill_of",
    "fuzz": "fuzz/test_fuzz.py::test_whatever_is_sent_nobody_else_is_hurt",
    "conformance": "conformance/test_conformance.py::test_the_scenarios",
    "frameworks": "frameworks/test_framework_callbacks.py::test_a_script_with_accelerate_resumes_exactly",
    "the whole service": "up/test_outcomes_end_to_end.py::test_a_failed_trial_is_not_the_best_of_a_study",
    "attacks by trials": "worker/test_trial_attacks.py::test_garbage_on_the_socket",
    "documents": "repo/test_document_programs.py::test_a_script_that_is_no_function_runs",
    "random modules": "hydro/test_fuse_random_modules.py::test_a_random_module_equals_torch_optim_or_is_refused",
    "random histories of policies": "policies/test_policy_contract.py::test_histories_equal_the_oracle",
    "random histories of cycles": "scheduler/test_step_machine.py::test_the_step_keeps_its_promises",
    "four ranks": "hdet/test_hdet_exact.py::test_resume_is_bitwise",
    "gangs": "gang/test_gang_ends.py::test_the_first_failure_is_reported_and_all_are_ended",
    "bubbles": "bubbles/test_bubble_worker.py::test_a_daemon_keeps_an_agent_and_takes_it_along",
    "installations": "worker/test_environment_separation.py::test_what_no_index_has_is_told_in_the_trials_log",
    "launches": "launch/test_loop.py::test_a_request_whose_answer_is_lost_is_not_repeated",
    "launches in Kubernetes": "launch/test_kubernetes_engine.py::test_two_loops_at_once_fill_each_seat_once",
    "joining": "joining/test_join_tokens.py::test_a_token_for_a_worker_lets_no_second_machine_in",
}
"""The tests in the first tier that represent each kind of long test."""


@pytest.mark.parametrize("kind", STAND_INS)
def test_each_kind_of_long_test_is_in_the_first_tier(kind: str) -> None:
    file, _, name = STAND_INS[kind].partition("::")
    text = (TESTS / file).read_text()
    (test,) = (
        node
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name
    )
    marks = "".join(map(ast.unparse, test.decorator_list))
    assert "mark.smoke" in marks or (tier(TESTS / file) in ("first", "some") and "mark.full" not in marks)


def test_no_folder_is_left_out_of_the_first_tier() -> None:
    assert [folder for folder, files in by_folder().items() if files.keys() == {"full"}] == []


def asserts_on_a_clock(source: str) -> Iterator[str]:
    """The tests of the first tier that assert how long something took."""
    for node in ast.parse(source).body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or not node.name.startswith("test_"):
            continue
        if any("mark.full" in ast.unparse(decorator) for decorator in node.decorator_list):
            continue
        asserts = (inner for inner in ast.walk(node) if isinstance(inner, ast.Assert))
        calls = (call for one in asserts for call in ast.walk(one) if isinstance(call, ast.Call))
        if any(ast.unparse(call.func).rpartition(".")[2] in CLOCKS for call in calls):
            yield node.name


def test_nothing_in_the_first_tier_asserts_how_long_something_took() -> None:
    files = [path for path in TESTS.rglob("test_*.py") if tier(path) in ("first", "some")]
    found = {path.name: names for path in files if (names := list(asserts_on_a_clock(path.read_text())))}
    assert found == {}, "give it a clock, mark it pytest.mark.full, or make it a benchmark"


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("began = time.monotonic()\n    assert time.monotonic() - began < 5", ["test_it"]),
        ("assert min(timeit.repeat(work)) < 1", ["test_it"]),
        ("assert work() < 5", []),
    ],
)
def test_an_assertion_on_a_clock_is_found(body: str, found: list[str]) -> None:
    assert list(asserts_on_a_clock(f"def test_it():\n    {body}\n")) == found
    assert not list(asserts_on_a_clock(f"@pytest.mark.full\ndef test_it():\n    {body}\n"))


MARKED = """
import pytest

def test_first(): pass

@pytest.mark.full
def test_full(): pass

@pytest.mark.cases(2)
@pytest.mark.parametrize("n", range(5))
def test_cases(n): pass
"""
FULL_FILE = """
    import pytest

    pytestmark = pytest.mark.full

    def test_full(): pass

    @pytest.mark.smoke
    def test_smoke(): pass

    @pytest.mark.parametrize("n", [1, pytest.param(2, marks=pytest.mark.smoke)])
    def test_param(n): pass
"""  # indented, otherwise this file would count as a full one


def test_what_a_tier_runs(tmp_path: Path) -> None:
    (tmp_path / "test_marked.py").write_text(MARKED)
    (tmp_path / "test_full_file.py").write_text(dedent(FULL_FILE))
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    options = ["-rp", "-p", "no:cacheprovider", "-p", "tiers", "--tier", "first"]
    command, env = [sys.executable, "-m", "pytest", *options], {"PYTHONPATH": str(TESTS)}
    ran = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    passed = re.findall(r"PASSED \S+::(\S+)", ran.stdout)
    assert sorted(passed) == ["test_cases[0]", "test_cases[4]", "test_first", "test_param[2]", "test_smoke"]
    assert "5 passed, 6 deselected" in ran.stdout


@pytest.mark.parametrize(
    ("of", "count", "chosen"), [(5, 1, [0]), (5, 2, [0, 4]), (12, 4, [0, 4, 7, 11]), (2, 9, [0, 1])]
)
def test_cases_are_spread(of: int, count: int, chosen: list[int]) -> None:
    assert spread(list(range(of)), count) == chosen  # type: ignore[arg-type]  # any list will do
