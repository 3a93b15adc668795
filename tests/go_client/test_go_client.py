"""The Go client and its trials against a real scheduler: examples, kills of the scheduler, kills of the worker."""

import json
import os
import random
import re
import signal
import subprocess
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from cluster_site import Cluster, connect, until

from headrace import Client
from headrace.client import Study
from headrace.client.model import StudyState
from headrace.errors import StudyNotFoundError
from headrace.spec import StudySpec

SOURCES = Path(__file__).parents[2] / "clients/go"
PAGE = SOURCES.parents[1] / "docs/how-to/go.md"
BLOCK = re.compile(r"^```go\n(.*?)^```$", re.MULTILINE | re.DOTALL)
KILLS = int(os.environ.get("HEADRACE_CLIENT_KILLS", "2"))
"""Kills of the scheduler; 20 in the long form."""
WORKER_KILLS = min(KILLS, 4)
PATIENCE_S = 200 + 20 * KILLS


def go(programs: Path, name: str, *arguments: str) -> str:
    """The output of a program."""
    done = subprocess.run(
        [str(programs / name), *arguments], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_examples_run(programs: Path, site: Cluster) -> None:
    said = go(
        programs, "asktell", "-address", site.address, "-study", "branin", "-loops", "2", "-trials", "9"
    )
    assert said.splitlines()[-1].startswith("best: trial ")
    shown = go(programs, "table", "-address", site.address, "-plain", "branin")
    assert "branin  completed" in shown
    assert "; best " in shown


def test_an_example_of_a_trial_runs_by_hand(programs: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    done = subprocess.run(
        [str(programs / "train")], env=environment, capture_output=True, text=True, check=True
    )
    assert [line.partition(":")[0] for line in done.stdout.splitlines()] == [
        f"step {step}" for step in range(1, 10)
    ]


def test_the_programs_of_the_page_run(programs: Path, site: Cluster, tmp_path: Path) -> None:
    lists, asks, trains = (
        block for block in BLOCK.findall(PAGE.read_text(encoding="utf-8")) if block.startswith("package main")
    )
    said = {}
    for name, program in {"asks": asks, "lists": lists, "trains": trains}.items():
        file = tmp_path / f"{name}.go"
        file.write_text(program)
        environment = os.environ | {"HEADRACE_ADDRESS": site.address}
        done = subprocess.run(
            ["go", "run", str(file)],
            cwd=SOURCES,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        said[name] = done.stdout
    assert "best: trial " in said["asks"]
    assert "studies/parabola-go STUDY_STATE_COMPLETED" in said["lists"]
    assert said["trains"].count("loss=") == 9


@pytest.mark.timeout(100 + PATIENCE_S)
def test_loops_and_a_watch_survive_kills_of_the_scheduler(programs: Path, site: Cluster) -> None:
    rng = random.Random(4)  # for the moments of the kills
    trials = 30 * KILLS
    command = ["-address", site.address, "-study", "soak", "-trials", str(trials), "-loops", "4"]
    output: list[str] = []
    loops = threading.Thread(target=lambda: output.append(go(programs, "soak", *command)), daemon=True)
    with connect(site) as client:
        loops.start()
        kills = 0
        while kills < KILLS and loops.is_alive():
            until(lambda: _answers(client), "the study is there, and the scheduler answers")
            signal.sigtimedwait((), 0.2 + 0.5 * rng.random())
            kills += site.kill(site.child("scheduler"))
        loops.join(PATIENCE_S)
        (text,) = output
        told = json.loads(text)
        study = client.study("soak")
        status = study.status()
        stored = Counter((report.trial, report.step) for report in study.reports())
    answered = Counter(tuple(one) for one in told["reports"])
    assert kills == KILLS, "the loops were over before the last kill"
    assert status.state is StudyState.COMPLETED
    assert not answered - stored, "a report that was answered is lost"
    assert max(stored.values()) == 1, "a report is there twice"
    assert told["cursors"] == list(range(1, status.cursor + 1)), "an event is missing, or came twice"
    print(
        f"{kills} kills, {len(told['reports'])} reports, {len(told['cursors'])} events, {told['seconds']:.0f} s"
    )


def _answers(client: Client) -> bool:
    try:
        return client.study("soak").status().cursor > 0
    except StudyNotFoundError:
        return False


def racing(programs: Path, **changes: Any) -> StudySpec:
    fields: dict[str, Any] = {
        "objective": {"metric": "loss", "goal": "minimize"},
        "space": {
            "lr": {"type": "float", "low": 0.001, "high": 0.1, "log": True},
            "momentum": {"type": "float", "low": 0.0, "high": 0.8},
        },
        "sampler": {"kind": "random"},
        "policy": {"kind": "asha", "eta": 3, "rungs": [2, 6, 18], "variant": "promotion"},
        "template": {
            "command": {"args": ["./train"]},
            "working_dir": str(programs),
            "env": {"STEP_PAUSE": "50ms"},
        },
        "max_trials": 12,
        "max_steps": 18,
        "max_retries": 0,
        "seed": 7,
    }
    return StudySpec.model_validate({**fields, **changes})


def curves(study: Study) -> dict[int, dict[int, set[float]]]:
    """Every stored loss, by trial and step."""
    found: dict[int, dict[int, set[float]]] = {}
    for report in study.reports():
        found.setdefault(report.trial, {}).setdefault(report.step, set()).add(report.metrics["loss"])
    return found


def test_trials_in_go_are_paused_and_resumed_exactly(programs: Path, site: Cluster) -> None:
    with connect(site) as client:
        undisturbed = client.create_study(
            "straight", racing(programs, policy={"kind": "run_all"}, template=_fast(programs))
        )
        assert undisturbed.wait(120).state is StudyState.COMPLETED
        study = client.create_study("raced", racing(programs))
        kills = 0
        for paused in range(1, 1 + WORKER_KILLS):
            until(lambda least=paused: _paused_or_over(study, least), "a trial is paused")
            kills += site.kill(site.child("worker"))
            signal.sigtimedwait((), 1.0)  # until it is restarted
        done = study.wait(200)
        trials = study.trials()
    assert done.state is StudyState.COMPLETED, done
    assert done.counts.failed == 0
    assert kills == WORKER_KILLS
    assert sum(trial.interruptions for trial in trials) > 0, "no kill struck a trial"
    assert any(len(trial.rungs) == 3 for trial in trials), "no trial was promoted to the end"
    with connect(site) as client:
        straight, raced = curves(client.study("straight")), curves(client.study("raced"))
    assert {number: len(curve) for number, curve in straight.items()} == dict.fromkeys(range(12), 18)
    for number, curve in raced.items():
        for step, losses in curve.items():
            assert losses == straight[number][step], f"trial {number} differs at step {step}"
    alike = sum(map(len, raced.values()))
    struck = sum(trial.interruptions for trial in trials)
    print(f"{kills} kills of the worker, {struck} interruptions, {alike} steps alike")


def _fast(programs: Path) -> dict[str, Any]:
    return {"command": {"args": ["./train"]}, "working_dir": str(programs)}


def _paused_or_over(study: Study, least: int) -> bool:
    now = study.status()
    return now.counts.paused + now.counts.terminated >= least and now.counts.running > 0
