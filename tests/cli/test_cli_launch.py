"""`headrace launch slurm`: what it refuses, and what it shows before it does anything."""

import os
from pathlib import Path

import pytest
from commands_run import Invoke
from fake_study_service import FakeStudyService

TEMPLATE = "#!/bin/bash\n#SBATCH --partition=long\n{{worker}}\n"


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where doubles of Slurm's commands write how they were called."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sbatch", "squeue", "scontrol", "scancel"):
        (folder / name).write_text(f'#!/bin/sh\necho {name} "$@" >> {tmp_path}/calls\n')
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    return tmp_path / "calls"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--max", "2"], "--gpus-per-worker and --cpu-slots: are both 0. Give one of them"),
        (["--max", "2", "--gpus-per-worker", "1", "--cpu-slots", "1"], "exclude each other"),
        (
            ["--max", "2", "--cpu-slots", "1", "--idle-exit", "soon"],
            "--idle-exit: is not a time (got 'soon')",
        ),
        (["--max", "2", "--cpu-slots", "1", "--interval", "1"], "--interval: is not a time (got '1')"),
        (["--max", "2", "--cpu-slots", "1", "--lifetime", "2m"], "--lifetime: is too short"),
        (["--max", "2", "--cpu-slots", "1", "--label", "eu"], "--label: is not KEY=VALUE (got eu)"),
        (["--max", "2", "--cpu-slots", "1", "--name", "a b"], "--name: "),
        (
            ["--max", "2", "--cpu-slots", "1", "--pass-env", "A-B"],
            "--pass-env: is not the name of a variable",
        ),
        (["--max", "2", "--cpu-slots", "1", "--template", "absent.sh"], "absent.sh"),
    ],
)
def test_bad_input_is_named_before_slurm_is_asked(
    fake: FakeStudyService, invoke: Invoke, calls: Path, options: list[str], said: str
) -> None:
    done = invoke("launch", "slurm", *options, "--once")
    assert done.code == 2, done.err
    assert said in " ".join(done.err.split())
    assert not calls.exists()


def test_a_template_without_its_placeholder_is_refused(
    fake: FakeStudyService, invoke: Invoke, calls: Path, tmp_path: Path
) -> None:
    path = tmp_path / "site.sh"
    path.write_text("#!/bin/bash\nheadrace worker\n")
    done = invoke("launch", "slurm", "--max", "2", "--cpu-slots", "1", "--template", str(path), "--once")
    assert done.code == 2
    assert "has no placeholder {{worker}}. Write it as the last line" in " ".join(done.err.split())
    assert not calls.exists()


def test_a_dry_run_prints_the_command_and_the_script_and_submits_nothing(
    fake: FakeStudyService, invoke: Invoke, calls: Path, tmp_path: Path
) -> None:
    path = tmp_path / "site.sh"
    path.write_text(TEMPLATE)
    options = [
        "--max",
        "2",
        "--cpu-slots",
        "3",
        "--template",
        str(path),
        "--lifetime",
        "4h",
        "--name",
        "long",
    ]
    done = invoke("launch", "slurm", *options, "--dry-run")
    assert done.code == 0, done.err
    first, _, *script = done.out.splitlines()
    assert first.startswith("sbatch --parsable --job-name=headrace-long-0 --array=0 --dependency=singleton ")
    assert "--time=240" in first
    assert script[:2] == ["#!/bin/bash", "#SBATCH --partition=long"]
    assert "--cpu-slots=3" in script[-1]
    assert "Nothing would be requested now" in done.err
    assert [line.split()[0] for line in calls.read_text().splitlines()] == ["squeue"]
