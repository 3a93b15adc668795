"""`headrace check` on scripts that keep files in their folder: in copies of shipped code, and in the folder itself."""

import subprocess
import sys
from pathlib import Path

import pytest
from command_line import headrace_command
from forked import launch_segment

from headrace.check import CheckError, CheckReport, Kind, render, run_check, runner
from headrace.check.report import Verdict

BEST = """
import json, math
def train(t):
    t.state.setdefault("w", 1.0); t.state.setdefault("best", math.inf)
    for step in t.steps():
        t.state["w"] *= 0.9 if step <= 2 else 1.1
        if t.state["w"] < t.state["best"]:
            t.state["best"] = t.state["w"]; json.dump(t.state["w"], open("best.json", "w"))
        t.report(loss=t.state["w"], test=json.load(open("best.json")) if step == t.max_steps else math.nan)
"""
HISTORY = """
import json, os
def train(t):
    t.state.setdefault("v", 1.0)
    for step in t.steps():
        history = json.load(open("hist.json")) if os.path.exists("hist.json") else []
        t.state["v"] *= 1 - 0.1 / (1 + len(history))
        history.append(t.state["v"])
        with open("hist.json", "w") as file:
            json.dump(history, file)
        t.report(loss=t.state["v"])
"""
FRESH = (
    "    for step",
    "    if t.step == 0 and os.path.exists('hist.json'): os.remove('hist.json')\n    for step",
)
ROWS = """
import os
def train(t):
    t.state.setdefault("v", 1.0)
    os.makedirs("out", exist_ok=True)
    if t.step == 0:
        open("out/rows.csv", "w").close()
    for step in t.steps():
        t.state["v"] *= 0.9
        with open("out/rows.csv", "a") as file:
            file.write(f"{step}\\n")
        t.report(loss=t.state["v"], rows=len(open("out/rows.csv").readlines()))
"""
SCRATCH = """
import json, os
def train(t):
    t.state["folder"] = os.getcwd()
    t.state.setdefault("v", 1.0)
    json.dump([1.0], open("cache.json", "w"))
    for step in t.steps():
        t.state["v"] *= 0.9
        json.dump(t.state["v"], open("now.json", "w"))
        loss = json.load(open("now.json")) * json.load(open("cache.json"))[0]
        print(step, file=open("log.txt", "a"))
        t.report(loss=loss)
"""
STUDY = """
name: files
objective: {metric: loss, goal: minimize}
trial: {callable: script:train, CODE}
space: {lr: {type: float, low: 0.01, high: 0.1}}
policy: {kind: asha, eta: 2, rungs: [2, 4]}
trials: 3
"""
LOST = (
    "{}, which the script writes into its folder, is lost in a pause: a resumed process gets a fresh copy of the "
    "shipped code"
)


def checked(tmp_path: Path, source: str, **options: object) -> CheckReport:
    script = tmp_path / "project" / "script.py"
    script.parent.mkdir()
    script.write_text(source)
    options = {"steps": 3, "folder": script.parent, **options}
    return run_check(script, launch=launch_segment, **options)  # type: ignore[arg-type]  # passed on


def told(report: CheckReport) -> list[tuple[Kind, str]]:
    return [(missing.kind, missing.finding) for missing in report.missing]


def test_a_file_of_shipped_code_that_a_resumed_process_misses_is_named(tmp_path: Path) -> None:
    report = checked(tmp_path, BEST, ships=True)
    assert told(report) == [(Kind.FILE, LOST.format("best.json"))]
    assert "FileNotFoundError" in report.missing[0].evidence[0]
    assert "remedy: keep what it holds in t.state, or track an object" in render(report)


@pytest.mark.parametrize(
    ("source", "code", "options"),
    [(BEST, "code: ship", ()), (HISTORY, "env: {A: b}", ("--address", "scheduler.example:7440"))],
    ids=["best, as the study says", "history, for a scheduler elsewhere"],
)
def test_a_study_with_shipped_code_is_checked_as_workers_run_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, code: str, options: tuple[str, ...]
) -> None:
    """The first failed only in studies. The second was called not deterministic, because of a file that a run left."""
    monkeypatch.setattr(runner, "_launch", launch_segment)
    (tmp_path / "script.py").write_text(source)
    (tmp_path / "study.yaml").write_text(STUDY.replace("CODE", code))
    done = headrace_command(*options, "check", "study.yaml", "--steps", "4", folder=tmp_path)
    assert done.returncode == 1
    assert "FAILED  script.py: a pause loses one piece of state" in done.stdout
    assert "which the script writes into its folder, is lost in a pause" in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["script.py", "study.yaml"]


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("source", "name"),
    [(HISTORY, "hist.json"), (HISTORY.replace(*FRESH), "hist.json"), (ROWS, "out/rows.csv")],
    ids=["history", "history that a fresh start removes", "rows that are appended"],
)
def test_a_file_of_shipped_code_that_changes_what_a_resumed_process_computes_is_named(
    tmp_path: Path, source: str, name: str
) -> None:
    report = checked(tmp_path, source, ships=True)
    assert report.nondeterminism is None
    assert (Kind.FILE, LOST.format(name)) in told(report), render(report)
    assert not report.left_files
    assert [path.name for path in (tmp_path / "project").iterdir()] == ["script.py"]


@pytest.mark.full
def test_a_file_is_written_where_the_study_does_not_pause_and_a_restore_goes_there(tmp_path: Path) -> None:
    """It exists for three of forty steps: a sample of ten would miss it."""
    source = """
import os
def train(t):
    t.state.setdefault("v", 1.0)
    for step in t.steps():
        if step == 23:
            open("range.txt", "w").write("0.5")
        factor = float(open("range.txt").read()) if step == 25 else 0.9
        t.state["v"] *= factor
        if step == 25:
            os.remove("range.txt")
        t.report(loss=t.state["v"])
"""
    report = checked(tmp_path, source, ships=True, steps=None, limit_s=6000.0, max_steps=40)
    assert told(report) == [(Kind.FILE, LOST.format("range.txt"))], render(report)


def test_what_a_process_writes_for_itself_is_no_loss(tmp_path: Path) -> None:
    """A cache that each process creates, a file for one step, a log, and a path that differs in each copy."""
    report = checked(tmp_path, SCRATCH, ships=True)
    assert report.verdict is Verdict.PASSED, render(report)
    assert not report.warnings


@pytest.mark.full
def test_a_file_on_which_nothing_depends_is_a_warning(tmp_path: Path) -> None:
    source = ROWS.replace(
        "t.report(loss=t.state", "print(open('out/rows.csv').read()); t.report(loss=t.state"
    ).replace(', rows=len(open("out/rows.csv").readlines())', "")
    report = checked(tmp_path, source, ships=True)
    assert report.verdict is Verdict.PASSED
    assert [warning.finding for warning in report.warnings] == [LOST.format("out/rows.csv")]
    assert "No metric and no end depends on it" in render(report)


@pytest.mark.cases(1)
@pytest.mark.parametrize(("source", "name"), [(HISTORY.replace(*FRESH), "hist.json"), (ROWS, "out/rows.csv")])
def test_a_file_that_survives_a_pause_is_not_covered_against_a_kill(
    tmp_path: Path, source: str, name: str
) -> None:
    report = checked(tmp_path, source)
    assert report.verdict is Verdict.PASSED, render(report)
    assert report.kept_files == (name,)
    said = render(report)
    assert said.count("NOT COVERED: a kill") == 1
    assert f"The script reads {name} after a pause as the last process left it" in said


def test_files_that_no_later_process_reads_are_not_said_to_be_left_out(tmp_path: Path) -> None:
    report = checked(tmp_path, SCRATCH)
    assert report.verdict is Verdict.PASSED
    assert (report.kept_files, report.left_files) == ((), ("cache.json", "log.txt", "now.json"))
    assert not report.emptied_files, "each step writes all of now.json, and each process all of cache.json"


CURVE = """
def train(t):
    t.state.setdefault("v", 1.0)
    with open("curve.csv", MODE) as file:
        for step in t.steps():
            t.state["v"] *= 0.9
            print(step, t.state["v"], file=file, flush=True)
            t.report(loss=t.state["v"])
"""


@pytest.mark.parametrize(
    ("mode", "emptied"), [('"w"', ("curve.csv",)), ('"a" if t.step else "w"', ())], ids=["w", "the remedy"]
)
def test_a_log_that_a_resumed_process_empties_is_a_warning(
    tmp_path: Path, mode: str, emptied: tuple[str, ...]
) -> None:
    report = checked(tmp_path, CURVE.replace("MODE", mode))
    assert report.verdict is Verdict.PASSED, render(report)
    assert report.emptied_files == emptied
    said = render(report)
    assert said.count("warning: curve.csv: a resumed process empties it") == len(emptied)
    assert said.count('open it with mode "a" if t.step else "w"') == len(emptied)


def test_a_script_that_is_not_shipped_cannot_be_checked(tmp_path: Path) -> None:
    for name, text in {"script.py": HISTORY, "data.txt": "", ".headraceignore": "script.py\n"}.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(CheckError, match=r"script.py is ignored, so it is not shipped") as raised:
        run_check(tmp_path / "script.py", folder=tmp_path, ships=True)
    assert ".headraceignore" in raised.value.remedy


OWN = [
    ('f"hist-{t.id}.json"', "hist.json"),
    ('f"out-{t.id}/hist.json"', "out"),
    ('f"logs/hist-{t.id}.json"', "logs"),
]
"""Names of a trial's own file, and what must be created for it."""


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("name", "made"), OWN, ids=["a file", "in a folder of its own", "in a folder of the project"]
)
def test_a_file_with_the_trials_id_in_its_name_is_no_earlier_runs(
    tmp_path: Path, name: str, made: str
) -> None:
    """The second of two straight runs continued from the first one's file, and that was called not deterministic."""
    source = HISTORY.replace('"hist.json"', name)
    if "/" in name:
        source = source.replace(
            "    for step", f"    os.makedirs(os.path.dirname({name}), exist_ok=True)\n    for step"
        )
    report = checked(tmp_path, source)
    assert report.nondeterminism is None, render(report)
    assert report.verdict is Verdict.PASSED
    assert "NOT COVERED: a kill" in render(report)
    left = {path.name for path in (tmp_path / "project").iterdir()} - {"__pycache__"}
    assert left == ({"script.py", "logs"} if made == "logs" else {"script.py"})
    assert not list((tmp_path / "project").glob("*/*.json"))


def test_a_file_that_an_earlier_run_left_is_named_where_two_runs_differ(tmp_path: Path) -> None:
    report = checked(tmp_path, HISTORY)
    told = render(report)
    assert report.nondeterminism is not None
    assert (
        "the runs wrote hist.json into the working folder: the second one read it as an earlier one had left it"
        in told
    )
    assert "remedy: keep what it holds in t.state, or track" in told
    assert "checkpoint, or put t.id into its name; delete it before the next run" in told
    assert (tmp_path / "project" / "hist.json").exists(), "it may be the user's"


@pytest.mark.full
def test_the_file_that_the_check_prints_into_is_not_the_scripts(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "from headrace import trial\n"
        "def train(t):\n"
        "    t.state['kept'] = 1\n"
        "    for step in t.steps():\n"
        "        open('other.txt', 'w').write('x')\n"
        "        t.report(loss=1 / step)\n"
        "trial.main(train, steps=3)\n"
    )
    with (tmp_path / "check.log").open("w") as log:
        command = [sys.executable, "-m", "headrace.cli", "check", "train.py"]
        subprocess.run(command, cwd=tmp_path, stdout=log, stderr=log, check=True)
    told = (tmp_path / "check.log").read_text()
    assert "other.txt changed in the folder" in told
    assert "check.log" not in told
