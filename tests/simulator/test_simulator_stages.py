"""`headrace simulate --stages`: a large job beside the machines, with and without its bubbles."""

import json
from pathlib import Path

import pytest
import typer
from simulated_studies import make_spec
from typer.testing import CliRunner

from headrace.cli.failure import CommandError
from headrace_services.scheduler.simulator.command import simulate
from headrace_services.scheduler.simulator.stages import Stages, parse_stages

STUDY = """
name: low
objective: {metric: loss, goal: minimize}
space: {x: {type: float, low: 0, high: 1}}
policy: {kind: asha, eta: 3, rungs: [1, 3, 9]}
trial: {callable: train:train}
trials: 60
steps: 9
"""
ON_GPUS = "resources: {gpus: 1, gpu_memory_bytes: 16e9}\nfuse: {most: 4}\n"


def run(*words: str) -> str:
    app = typer.Typer()
    app.command()(simulate)
    result = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def study(tmp_path: Path) -> Path:
    path = tmp_path / "study.yaml"
    path.write_text(STUDY + "bubbles: true\n")
    return path


def test_every_stage_of_every_replica_is_idle_as_1f1b_says() -> None:
    job = parse_stages("4x8/16@0.5")
    assert (job.stages, job.replicas, job.micro_batches, job.devices) == (4, 8, 16, 32)
    assert job.idle == pytest.approx(3 / 19)
    assert job.duty == pytest.approx(3 / 19 / 2)
    made = job.machines(make_spec(), first=3)
    assert [machine.id for machine in made] == list(range(3, 11))
    slots = [slot for machine in made for slot in machine.devices()]
    assert [slot.stage for slot in slots] == 8 * [0, 1, 2, 3]
    assert {(slot.owner, slot.duty) for slot in slots} == {("job", job.duty)}
    assert parse_stages("2/2@1").duty == pytest.approx(1 / 3)


def test_a_study_is_simulated_with_and_without_the_bubbles(study: Path) -> None:
    text = run(str(study), "--workers", "1", "--stages", "4x2/4@1")
    assert "on 1 workers\n" in text
    assert "a job of 4 stages on 8 devices with 4 micro-batches. Each is idle for 42.9% of a step" in text
    assert "asha, no bubbles" in text
    assert "times as fast with bubbles, wall time" in text
    assert "replica-2/3" in text
    many = run(str(study), "--workers", "1", "--stages", "4x2/4@1", "--seeds", "2")
    assert "times as fast with bubbles, wall time" in many


def test_time_in_bubbles_is_no_slot_time(study: Path) -> None:
    told = json.loads(run(str(study), "--workers", "1", "--stages", "4x2/4@1", "--json"))
    runs = {one["policy"]: one for one in told["runs"]}
    alone, both = runs["asha, no bubbles"], runs["asha"]
    assert alone["bubble_s"] == 0
    assert both["bubble_s"] > both["slot_s"]
    assert both["slot_s"] <= both["wall_s"], "there is one slot of its own"
    assert {one["slots"] for one in runs.values()} == {1}
    assert both["wall_s"] < 0.6 * alone["wall_s"]


@pytest.mark.parametrize(("gb", "some"), [("16", True), ("4", True), ("3.9", False)])
def test_a_stage_holds_as_many_members_as_its_memory(tmp_path: Path, gb: str, some: bool) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(STUDY + ON_GPUS + "bubbles: true\n")
    told = json.loads(run(str(path), "--workers", "1", "--stages", "2/2@1", "--stage-gb", gb, "--json"))
    assert bool(told["runs"][-1]["bubble_s"]) is some


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--stages", "4x9"],
            r"--stages: '4x9' is not of the form STAGES\[xREPLICAS\]/MICRO_BATCHES@HARVEST",
        ),
        (["--stages", "4/8@-1"], "is not of the form"),
        (["--stages", "4/2@0.5"], "2 micro-batches do not fill 4 stages"),
        (["--stages", "1/4@0.5"], "at least two stages"),
        (["--stages", "4x0/4@0.5"], "one replica"),
        (["--stages", "4/8@0"], "a harvest of 0"),
        (["--stages", "4/8@1.5"], "a harvest of 1.5"),
        (["--stages", "4x90000/8@0.5"], "at most 100000"),
        (["--stage-gb", "3"], "--stages, which is not given"),
    ],
)
def test_what_is_wrong_is_reported(study: Path, words: list[str], said: str) -> None:
    with pytest.raises(CommandError, match=said):
        run(str(study), *words)


def test_a_study_without_bubbles_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(STUDY)
    with pytest.raises(CommandError, match="does not run in bubbles") as refusal:
        run(str(path), "--stages", "4/8@0.5")
    assert "bubbles: true" in (refusal.value.remedy or "")


def test_a_job_is_checked_however_it_is_made() -> None:
    with pytest.raises(ValueError, match="harvest"):
        Stages(stages=4, micro_batches=8, harvest=float("nan"))
