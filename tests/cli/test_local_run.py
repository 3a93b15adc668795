"""`run --local` for real: a database, a scheduler, a worker and trials from one command, and no leftovers."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

STUDY = """
name: tiny
objective: {metric: loss, goal: minimize}
trial: {callable: tiny:train}
space: {x: {type: float, low: 0.0, high: 1.0}}
policy: {kind: asha, eta: 2, rungs: [1, 2, 4]}
trials: 4
seed: 3
baseline: {x: 0.5}
transfer: {callable: tiny:target, top: 2, steps: 3}
"""
PLAN = "plan: {model: gpt3-125m, cluster: a100-2, batch: 4, target: deepspeed}"
PROGRAM = """
import json, os, signal
from headrace import trial

def train(t: trial.Trial) -> None:
    for step in t.steps():
        t.report(loss=(t.params["x"] - 0.3) ** 2 + 1 / step)

def target(t: trial.Trial) -> None:
    if t.plan is None:
        for step in t.steps():
            t.report(loss=10 + t.params["x"])
        return
    planned = json.loads((t.plan / "plan.json").read_text())["degrees"]
    devices = planned["d"] * planned["m"] * planned["s"]
    t.state["begun"] = True
    for step in t.steps():
        files = len(list(t.plan.iterdir()))
        t.report(loss=10 + t.params["x"], devices=devices, files=files, resumed=int(t.resumed), save=True)
        if t.number == 0 and not t.resumed:
            os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path: Unix sockets are created in it."""
    made = Path(tempfile.mkdtemp(prefix="hr-"))
    (made / "study.yaml").write_text(STUDY)
    (made / "tiny.py").write_text(PROGRAM)
    yield made
    shutil.rmtree(made, ignore_errors=True)


def start(folder: Path) -> "subprocess.Popen[str]":
    home = str(folder / "home")
    command = ["run", str(folder / "study.yaml"), "--local", "--slots", "2", "--home", home, "--json"]
    return subprocess.Popen(
        [sys.executable, "-m", "headrace.cli", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={key: os.environ[key] for key in os.environ.keys() - {"HEADRACE_ADDRESS", "HEADRACE_PLANNER"}},
    )


def processes_of(folder: Path) -> list[psutil.Process]:
    """The processes whose command line names the folder."""
    found = psutil.process_iter(["cmdline"])
    return [process for process in found if str(folder) in " ".join(process.info["cmdline"] or ())]


@pytest.mark.full
def test_a_study_from_one_command(folder: Path) -> None:
    """Its target's trials follow a plan. One is killed, and finds the plan again where it resumes."""
    (folder / "study.yaml").write_text(STUDY.replace("steps: 3}", f"steps: 3, {PLAN}}}"))
    run = start(folder)
    out, err = run.communicate(timeout=120)
    assert run.returncode == 0, err
    lines = [json.loads(line) for line in out.splitlines()]
    end = next(place for place, line in enumerate(lines) if line["type"] == "summary")
    events, summary = lines[:end], lines[end]
    assert [event["cursor"] for event in events] == list(range(1, len(events) + 1))
    assert summary["state"] == "completed"
    assert summary["trials"] == 5
    assert summary["failed"] == 0
    assert summary["baseline_value"] == pytest.approx(0.04 + 1 / 4)
    assert summary["best"]["score"] < 1.5
    report, report_of_target = sorted(
        (folder / "home" / "reports").iterdir(), key=lambda path: len(path.name)
    )
    assert report.name.startswith("tiny-")  # and the study's uid
    assert report_of_target.stem == f"{report.stem}-target"
    target = lines[-1]
    assert (target["study"], target["state"], target["trials"]) == ("tiny-target", "completed", 2)
    taken = target["transferred"]
    assert taken["study"] == "tiny"
    assert taken["trials"][0]["source"] == summary["best"]["trial"]
    assert target["best"]["score"] == pytest.approx(10 + target["best"]["params"]["x"])
    assert "Plan of the target: data " in err
    reported = [line["report_recorded"]["metrics"] for line in lines[end:] if "report_recorded" in line]
    assert {(one["devices"], one["files"]) for one in reported} == {(2, 4)}
    assert {one["resumed"] for one in reported} == {0, 1}
    values = [one["score"] for one in taken["trials"]]
    assert taken["regret"] == pytest.approx(values[0] - min(values))
    assert taken["regrets"] == [taken["regret"], 0.0]
    assert Path(summary["report"]) == report
    assert Path(summary["report"]).stat().st_size > 1_000_000
    assert f"headrace up --home {folder / 'home'}" in err
    assert processes_of(folder) == []


@pytest.mark.full
def test_a_killed_command_leaves_nothing_running(folder: Path) -> None:
    run = start(folder)
    assert run.stdout is not None
    assert run.stderr is not None
    with run.stdout, run.stderr:
        assert json.loads(run.stdout.readline())["type"] == "event"
        assert processes_of(folder)
        run.send_signal(signal.SIGKILL)
        run.wait()
        _, alive = psutil.wait_procs(processes_of(folder), timeout=60)
        assert alive == []
    assert not (folder / "home" / "address").exists()
    again = start(folder)
    _, err = again.communicate(timeout=120)
    assert again.returncode == 2
    assert f"`headrace up --home {folder / 'home'}` continues it if it has not ended" in " ".join(err.split())


@pytest.mark.full
def test_a_service_that_cannot_start_is_one_clear_error(folder: Path) -> None:
    (folder / "home").mkdir()
    (folder / "home" / "postgres").write_text("not a folder")
    run = start(folder)
    out, err = run.communicate(timeout=120)
    assert run.returncode == 1
    assert out == ""
    assert "error: The service did not start" in err
    assert "up.log" in err
    assert "Traceback" not in err
    assert processes_of(folder) == []
