"""A script that is edited while its study runs, for real: marked with one warning, or kept out by a pause."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from test_outcomes_end_to_end import KEEPS_FUSED, Service, service

__all__ = ["service"]
pytestmark = pytest.mark.timeout(240)

STUDY = """
objective: {metric: loss, goal: minimize}
trial: {callable: PROGRAM:train}
space: {x: {type: categorical, values: [0, 1, 2, 3]}}
sampler: {kind: grid}
policy: {kind: run_all}
trials: 4
steps: 2
"""
# Trial 1 is the user, who edits the script while it runs.
EDITS_ITSELF = """
from pathlib import Path

BASE = 5.0

def train(t):
    t.state["begun"] = True
    for step in t.steps():
        if t.number == 1 and step == 1 and BASE == 5.0:
            script = Path(__file__)
            script.write_text(script.read_text().replace("BASE = " + "5.0", "BASE = " + "0.25"))
        t.report(loss=BASE + t.params["x"], save=True)
"""
COMMAND = """
import os, sys
from pathlib import Path

import grpc
from headrace.v1 import runtime_pb2, runtime_pb2_grpc

BASE = 5.0
stub = runtime_pb2_grpc.TrialRuntimeServiceStub(grpc.insecure_channel(os.environ["HEADRACE_RUNTIME"]))
lease = os.environ["HEADRACE_LEASE_ID"]
stub.Attach(runtime_pb2.AttachRequest(lease_id=lease), timeout=60)
if sys.argv[1] == "1":
    script = Path(__file__)
    script.write_text(script.read_text().replace("BASE = " + "5.0", "BASE = " + "0.25"))
for step in (1, 2):
    stub.Report(runtime_pb2.ReportRequest(
        lease_id=lease, sequence=step, step=step, metrics={"loss": BASE + float(sys.argv[2])}), timeout=60)
"""


def until(holds: Callable[[], object], what: str, deadline_s: float = 120) -> None:
    deadline = time.monotonic() + deadline_s
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


def state(service: Service, name: str) -> str:
    found: str = service.json("show", name)["state"]
    return found


def by_number(service: Service, name: str) -> list[dict[str, object]]:
    return sorted(service.json("trials", name), key=lambda trial: trial["trial"])


@pytest.fixture
def run(service: Service) -> Callable[..., str]:
    """Starts a study without waiting for it; returns its script's file name."""

    def start(name: str, on_code_change: str) -> str:
        study = f"{STUDY}on_code_change: {on_code_change}\n"
        done = service.run(name, EDITS_ITSELF, study, "--detach")
        assert done.code == 0, done
        return f"program_{name}.py"

    return start


def test_an_edit_is_marked_everywhere_and_warned_of_once(service: Service) -> None:
    done = service.run("edited", EDITS_ITSELF, STUDY)
    assert done.code == 0, done
    assert done.out.count("runs other code than the study started with: program_edited.py") == 1, done.out
    assert "Warning: trial 2 runs other code" in done.out
    assert "program_edited.py changed since the study began: the best trial, 2, ran other code" in done.out
    marks = [trial["code_changed"] for trial in by_number(service, "edited")]
    assert marks == [[], [], ["program_edited.py"], ["program_edited.py"]]
    digests = [trial["code"] for trial in by_number(service, "edited")]
    assert len(set(digests)) == 2
    assert digests[0] == digests[1] != digests[2] == digests[3]
    said = "ran other code than the study started with: program_edited.py"
    for shown in (("trials", "edited"), ("show", "edited", "2"), ("why", "edited", "2")):
        assert said in " ".join(service.cli(*shown).out.split()), shown
    assert said not in service.cli("why", "edited", "1").out
    best = service.cli("best", "edited")
    assert said in best.err
    head, *rows = service.cli("export", "edited").out.splitlines()
    place = head.split(",").index("code_changed")
    assert [row.split(",")[place] for row in sorted(rows)] == [
        "",
        "",
        "program_edited.py",
        "program_edited.py",
    ]
    assert "program_edited.py" in service.cli("show", "edited").out
    page = service.folder / "edited.html"
    assert service.cli("report", "edited", "-o", str(page)).code == 0
    assert said in page.read_text()


@pytest.mark.full
def test_pause_stops_before_the_edit_counts_and_resume_accepts_it(
    service: Service, run: Callable[..., str]
) -> None:
    script = run("pausing", "pause")
    until(lambda: state(service, "pausing") == "paused", "the study pauses")
    shown = service.json("show", "pausing")
    assert f"{script} has changed since the study began" in shown["detail"]
    assert "`headrace resume pausing`" in shown["detail"]
    trials = by_number(service, "pausing")
    assert [(trial["state"], trial["value"]) for trial in trials[1:3]] == [
        ("terminated", 6.0),
        ("pending", None),
    ]
    assert trials[2]["failures"] == 0
    assert service.cli("resume", "pausing").code == 0
    until(lambda: state(service, "pausing") == "completed", "the study completes")
    assert [trial["code_changed"] for trial in by_number(service, "pausing")] == [[], [], [script], [script]]


def test_refuse_lets_nothing_of_the_edit_in_and_continues_when_it_is_put_back(
    service: Service, run: Callable[..., str]
) -> None:
    script = run("refusing", "refuse")
    until(lambda: state(service, "refusing") == "paused", "the study pauses")
    assert service.cli("resume", "refusing").code == 0
    until(
        lambda: (
            sum(event["kind"] == "code_changed" for event in service.json("why", "refusing", "2")["events"])
            > 1
        ),
        "it is refused again",
    )
    until(lambda: state(service, "refusing") == "paused", "the study pauses again")
    (service.folder / script).write_text(EDITS_ITSELF)
    assert service.cli("resume", "refusing").code == 0
    until(lambda: state(service, "refusing") == "completed", "the study completes")
    trials = by_number(service, "refusing")
    assert [(trial["value"], trial["code_changed"]) for trial in trials] == [
        (5.0 + number, []) for number in range(4)
    ]
    assert {trial["failures"] for trial in trials} == {0}


LOADS_A_FILE = """
import runpy
from pathlib import Path

SETTINGS = Path(__file__).parent / "settings_of_loaded.py"
BASE = runpy.run_path(str(SETTINGS))["BASE"]

def train(t):
    t.state["begun"] = True
    for step in t.steps():
        if t.number == 1 and step == 1:
            SETTINGS.write_text("BASE = 0.25")
        t.report(loss=BASE + t.params["x"], save=True)
"""


@pytest.mark.full
def test_refuse_sees_a_file_that_is_executed_and_not_imported(service: Service) -> None:
    (service.folder / "settings_of_loaded.py").write_text("BASE = 5.0")
    study = f"{STUDY}on_code_change: refuse\n"
    assert service.run("loaded", LOADS_A_FILE, study, "--detach").code == 0
    until(lambda: state(service, "loaded") != "active", "the study pauses")
    assert state(service, "loaded") == "paused"
    assert "settings_of_loaded.py has changed since the study began" in " ".join(
        service.cli("trials", "loaded").out.split()
    )
    (service.folder / "settings_of_loaded.py").write_text("BASE = 5.0")
    assert service.cli("resume", "loaded").code == 0
    until(lambda: state(service, "loaded") == "completed", "the study completes")
    assert [trial["value"] for trial in by_number(service, "loaded")] == [5.0, 6.0, 7.0, 8.0]


# The first process is the user, who edits a file that it has loaded, while it is still starting.
EDITS_EARLY = """
import os
from pathlib import Path

import {helper}

seen = Path(__file__).parent / "{helper}.seen"
if not seen.exists():
    seen.touch()
    ({helper_file}).write_text("BASE = 0.25")

from headrace import trial

t = trial.current(steps=2)
for step in t.steps():
    t.report(loss={helper}.BASE + t.params["x"])
"""


@pytest.mark.full
@pytest.mark.parametrize("policy", ["refuse", "warn"])
def test_a_file_that_is_edited_while_the_program_starts_is_not_known(service: Service, policy: str) -> None:
    name = f"early{policy}"
    helper = f"helper_of_{name}"
    (service.folder / f"{helper}.py").write_text("BASE = 5.0")
    program = EDITS_EARLY.format(helper=helper, helper_file=f"Path({helper}.__file__)")
    (service.folder / f"{name}.py").write_text(program)
    command = f'{{command: [python3, {name}.py, --x, "{{x}}"]}}'
    study = STUDY.replace("{callable: PROGRAM:train}", command)
    file = service.folder / f"{name}.yaml"
    file.write_text(f"name: {name}\n{study}parallel: 1\non_code_change: {policy}\n")
    done = service.cli("run", str(file), *(["--detach"] if policy == "refuse" else []))
    assert done.code == 0, done
    until(lambda: state(service, name) != "active", "the study ends or pauses")
    if policy == "refuse":
        assert state(service, name) == "paused"
        assert (
            f"{helper}.py was changed while the program was starting" in service.json("show", name)["detail"]
        )
        assert service.cli("resume", name).code == 0
        until(lambda: state(service, name) == "completed", "the study completes")
        trials = by_number(service, name)
        assert [(trial["value"], trial["code_changed"]) for trial in trials] == [
            (0.25 + number, []) for number in range(4)
        ]
        assert ({trial["failures"] for trial in trials}, len({trial["code"] for trial in trials})) == ({0}, 1)
    else:
        assert state(service, name) == "completed"
        assert done.out.count("Warning: trial 0 may run other code than the study started with: ") == 1, (
            done.out
        )
        trials = by_number(service, name)
        assert [trial["value"] for trial in trials] == [5.0, 1.25, 2.25, 3.25]
        assert [trial["code_changed"] for trial in trials] == [[f"{helper}.py?"], [], [], []]
        assert "may have run other code than the study started with" in " ".join(
            service.cli("trials", name).out.split()
        )


@pytest.mark.full
def test_a_program_without_the_sdk_is_marked_too(service: Service) -> None:
    (service.folder / "plain.py").write_text(COMMAND)
    study = STUDY.replace("{callable: PROGRAM:train}", '{command: [python3, plain.py, "{trial}", "{x}"]}')
    file = service.folder / "plain.yaml"
    file.write_text(f"name: plain\n{study}")
    done = service.cli("run", str(file))
    assert done.code == 0, done
    assert done.out.count("runs other code than the study started with: plain.py") == 1, done.out
    assert [trial["code_changed"] for trial in by_number(service, "plain")] == [
        [],
        [],
        ["plain.py"],
        ["plain.py"],
    ]


@pytest.mark.full
def test_a_script_that_asks_and_tells_is_compared_too(service: Service) -> None:
    script: Path = service.folder / "asks.py"
    program = """
from headrace import Client
SPEC = {
    "objective": {"metric": "loss", "goal": "minimize"},
    "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
    "policy": {"kind": "run_all"}, "trials": 2, "steps": 1,
}
with Client() as client:
    study = client.study("asked") if RESUMES else client.create_study("asked", SPEC)
    asked = study.ask()
    asked.report(1, loss=1.0)
"""
    for text in ("RESUMES = False\n", "RESUMES = bool(1)\n"):
        script.write_text(text + program)
        done = subprocess.run(
            [sys.executable, str(script)], env=service.env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    assert [trial["code_changed"] for trial in by_number(service, "asked")] == [[], ["asks.py"]]


@pytest.mark.full
def test_members_of_a_bundle_run_one_code(service: Service) -> None:
    study = STUDY.replace("policy", "fuse: {most: 2}\npolicy")
    assert service.run("fusedcode", KEEPS_FUSED.replace("step == 5", "step == 99"), study).code == 0
    (digest,) = {trial["code"] for trial in by_number(service, "fusedcode")}
    assert digest
