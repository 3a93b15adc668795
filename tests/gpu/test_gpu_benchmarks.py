"""The kit's benchmarks, on a CPU in small sizes: code that is meant for a GPU runs at the first try."""

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import forked
import fusion_speed
import gpu_sharing
import pytest
import sharing_speed
import stage_player
import torch
from kit_lines import FILE, read

CPU = torch.device("cpu")


@pytest.fixture
def lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file to which a benchmark writes."""
    monkeypatch.setenv(FILE, str(tmp_path / "lines"))
    return tmp_path / "lines"


def figures(lines: Path) -> dict[tuple[str, str], float | None]:
    found = list(read(lines))
    assert [line for line in found if line.outcome != "measured"] == []
    return {(line.at.rpartition(", ")[2], line.name): line.value for line in found}


def test_fused_members_are_measured_beside_one_alone(lines: Path) -> None:
    plan = fusion_speed.PLANS["cpu"]
    fusion_speed.measure("bfloat16", 2, CPU, replace(plan, size=replace(plan.size, counts=(2,))))
    found = figures(lines)
    assert found.keys() == {
        ("plain", "step"),
        ("plain", "memory"),
        ("members: 2", "step"),
        ("members: 2", "memory"),
        ("members: 2", "times one alone"),
    }
    alone, fused = found["plain", "step"], found["members: 2", "step"]
    assert found["members: 2", "times one alone"] == pytest.approx(2 * alone / fused)


@pytest.mark.parametrize(
    ("error", "outcome"), [(torch.OutOfMemoryError("full"), "skipped"), (RuntimeError("no kernel"), "failed")]
)
def test_a_group_that_cannot_be_measured_is_told(
    error: Exception, outcome: str, lines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raises(*_: object) -> None:
        raise error

    monkeypatch.setattr(fusion_speed, "hydro_step", raises)
    plan = fusion_speed.PLANS["cpu"]
    fusion_speed.measure("float32", 2, CPU, replace(plan, size=replace(plan.size, counts=(2, 3))))
    told = [line for line in read(lines) if line.outcome != "measured"]
    assert [(line.at.rpartition(", ")[2], line.outcome) for line in told] == [
        ("members: 2", outcome),
        ("members: 3", outcome),
    ]
    assert told[0].why == f"{type(error).__name__}: {error}"


def test_processes_are_measured_together(lines: Path) -> None:
    plan = sharing_speed.PLANS["cpu"]
    sharing_speed.measure("time-sliced", "cpu", plan, forked.context())
    found = figures(lines)
    one, two = (found[f"processes: {count}", "all together"] for count in plan.counts)
    assert found["processes: 1", "times one alone"] == 1
    assert found["processes: 2", "times one alone"] == pytest.approx(two / one)


def broken(device: torch.device, **_: object) -> None:
    raise RuntimeError(f"no kernel for {device}")


def test_a_process_that_fails_is_told(lines: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing_speed, "plain", broken)
    sharing_speed.measure("time-sliced", "cpu", sharing_speed.PLANS["cpu"], forked.context())
    (line,) = read(lines)
    assert (line.outcome, line.why) == ("failed", "RuntimeError: no kernel for cpu")


def test_a_stage_is_played_beside_a_trial(lines: Path) -> None:
    plan = stage_player.PLANS["cpu"]
    stage_player.measure("time-sliced", "cpu", plan, forked.context())
    found = figures(lines)
    alone, beside = found["stage alone", "stage's step"], found["no gate", "stage's step"]
    assert alone >= 1e3 * plan.schedule.micro_batches * plan.schedule.period_s
    assert found["no gate", "slower"] == pytest.approx(100 * (beside / alone - 1))
    assert found["no gate", "trial"] > 0
    assert found["trial alone", "trial"] > 0


CONTROL = """#!/bin/sh
echo "$* $(cat)" "$CUDA_MPS_PIPE_DIRECTORY" >> {said}
{does}
"""


def control(folder: Path, does: str = "") -> Path:
    """A program like MPS' control daemon, which only writes down how it is called."""
    program, said = folder / gpu_sharing.CONTROL, folder / "said"
    program.write_text(CONTROL.format(said=said, does=does).replace("$(cat)", '$([ "$1" = -d ] || cat)'))
    program.chmod(0o755)
    return said


def test_a_control_daemon_is_started_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = control(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with gpu_sharing.mps() as env:
        pipe = env["CUDA_MPS_PIPE_DIRECTORY"]
        assert said.read_text().split() == ["-d", pipe]
    assert said.read_text().split() == ["-d", pipe, "quit", pipe]
    assert not Path(pipe).exists()


def test_a_control_daemon_ends_with_a_program_that_is_killed(tmp_path: Path) -> None:
    said = control(tmp_path)
    code = "import gpu_sharing, os\nwith gpu_sharing.mps(): os.kill(os.getpid(), 9)"
    env = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PYTHONPATH": str(Path(gpu_sharing.__file__).parent),
        "TMPDIR": str(tmp_path),
    }
    ran = subprocess.run([sys.executable, "-c", code], env={**os.environ, **env}, check=False)
    assert ran.returncode == -9
    while "quit" not in said.read_text():  # the keeper outlives the program by a moment
        time.sleep(0.01)


def test_a_control_daemon_that_does_not_start_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    control(tmp_path, "echo 'An instance of this daemon is already running'; exit 1")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(gpu_sharing.UnavailableError, match="already running"), gpu_sharing.mps():
        pass
