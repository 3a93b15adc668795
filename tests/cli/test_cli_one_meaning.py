"""Against a real scheduler: each word and number has one meaning, in tables for people and in output for programs."""

import csv
import io
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace import Client
from headrace.cli import main
from headrace.client.sync import Study

STUDY = """
name: digits
objective: {metric: loss, goal: minimize}
space: {x: {type: float, low: 0.0, high: 1.0}}
policy: {kind: asha, eta: 3, rungs: [1, 3, 9]}
trials: 9
seed: 1
baseline: {x: 0.9}
"""
SERVING = "headrace scheduler: serving on "
Run = Callable[..., str]


@pytest.fixture
def address(database_url: str) -> Iterator[str]:
    """The address of a scheduler of its own."""
    command = [sys.executable, "-m", "headrace.cli", "scheduler", "--listen", "127.0.0.1:0"]
    command += ["--sampler-processes", "1", "--database-url", database_url]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert server.stdout is not None
        yield server.stdout.readline().strip().removeprefix(SERVING)
    finally:
        server.terminate()
        server.wait(60)
        if server.stdout is not None:
            server.stdout.close()


@pytest.fixture
def study(address: str, tmp_path: Path) -> Iterator[Study]:
    """A study that a user's own loop ran to its end."""
    file = tmp_path / "study.yaml"
    file.write_text(STUDY)
    with Client(address, timeout_s=60) as client:
        made = client.create_study(None, file)
        for asked in made.ask_all(client_id="loop"):
            for step in range(asked.step + 1, 10):
                if not asked.report(step, loss=float(asked.params["x"]) + 1 / step).goes_on:
                    break
        yield made


@pytest.fixture
def run(address: str, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command and returns what it prints."""

    def invoke(*arguments: str) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            main(["--address", address, *arguments])
        assert left.value.code in (0, None), capsys.readouterr().err
        return capsys.readouterr().out

    return invoke


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("  ") if cell.strip()]


@pytest.mark.full
def test_a_rung_is_told_by_its_step_everywhere(study: Study, run: Run) -> None:
    best = study.best()
    assert best is not None
    listed = run("trials", "digits").splitlines()
    assert cells(listed[0])[2:4] == ["STEP", "RUNG AT STEP"]
    assert cells(listed[1])[2:4] == ["9", "9"]
    shown = run("show", "digits").splitlines()
    start = next(place for place, line in enumerate(shown) if "RECORDED" in line)
    table = shown[start : shown.index("", start)]
    assert cells(table[0])[:2] == ["RUNG AT STEP", "RECORDED"]
    assert [cells(line)[0] for line in table[1:]] == ["1", "3", "9"]
    one = run("show", "digits", str(best.number))
    assert [line.split("  ")[1] for line in one.splitlines() if "arrival" in line] == [
        "rung at step 1",
        "rung at step 3",
        "rung at step 9",
    ]
    why = run("why", "digits", str(best.number))
    assert "recorded at step 3 with" in why
    assert "rung at step 3" in why
    assert not re.search(r"rungs? \d", why)
    messages = [
        event["message"] for event in json.loads(run("why", "digits", str(best.number), "--json"))["events"]
    ]
    assert any("recorded at the rung at step 3: " in message for message in messages)


def test_the_best_trial_has_its_rungs(study: Study, run: Run) -> None:
    best = json.loads(run("best", "digits", "--json"))
    assert [(one["rung"], one["milestone"]) for one in best["rungs"]] == [(0, 1), (1, 3), (2, 9)]
    whole = json.loads(run("show", "digits", "--json"))
    assert whole["best"]["rungs"] == best["rungs"]
    found = study.best()
    assert found is not None
    assert found.rungs == study.trial(found.number).info().rungs


@pytest.mark.full
def test_an_export_counts_attempts_and_names_rungs_by_their_steps(study: Study, run: Run) -> None:
    reports = list(csv.DictReader(io.StringIO(run("export", "digits", "--reports"))))
    assert list(reports[0])[:6] == ["study", "trial", "attempt", "sequence", "step", "time"]
    assert {report["attempt"] for report in reports} >= {"1", "2"}
    best = study.best()
    assert best is not None
    rows = {row["trial"]: row for row in csv.DictReader(io.StringIO(run("export", "digits")))}
    assert (rows[str(best.number)]["rung"], rows[str(best.number)]["rung_step"]) == ("2", "9")
    events = json.loads(run("why", "digits", str(best.number), "--json"))["events"]
    attempts = [event["trial_moved"]["attempt"] for event in events if event["kind"] == "trial_moved"]
    assert attempts[0] == 1
    assert attempts == sorted(attempts)
    assert not any(
        "epoch" in detail for event in events for detail in event.values() if isinstance(detail, dict)
    )


@pytest.mark.full
def test_the_steps_of_a_preview_add_up(address: str, run: Run, tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(STUDY)
    lines = [cells(line) for line in run("preview", str(file)).splitlines()]
    rows = lines[lines.index(["RUNG AT STEP", "TRIALS", "STEPS"]) + 1 :]
    rows = rows[: rows.index([])]
    assert [row[0] for row in rows] == ["1", "3", "9", "baseline", "in all"]
    assert rows[-2] == ["baseline", "1", "9"]
    assert rows[-1][1] == "10"
    assert sum(int(row[2]) for row in rows[:-1]) == int(rows[-1][2])
    plan = json.loads(run("preview", str(file), "--json"))
    assert sum(rung["steps"] for rung in plan["rungs"]) + plan["baseline_steps"] == plan["steps"]
