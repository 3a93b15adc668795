"""`headrace run` and code: what `--dry-run` lists, what is refused before anything starts, what `show` says."""

import json
from pathlib import Path

from commands_run import Invoke
from fake_study_service import FakeStudyService


def test_a_dry_run_lists_what_would_be_shipped_and_starts_nothing(
    fake: FakeStudyService, invoke: Invoke, study_file: Path
) -> None:
    folder = study_file.parent
    (folder / "weights.bin").write_bytes(b"x" * 2048)
    (folder / "requirements.txt").write_text("numpy\n")
    (folder / ".headraceignore").write_text("*.log\n")
    (folder / "run.log").write_text("")
    result = invoke("run", str(study_file), "--dry-run")
    assert result.code == 0
    lines = result.out.splitlines()
    assert lines[1].split() == ["2.0", "KiB", "weights.bin"]
    assert "Left out: run.log" in result.err
    assert "Not shipped to 127.0.0.1:" in result.err, "the scheduler is on this machine"
    assert "trial: {requirements: requirements.txt}" in result.err
    shipped = json.loads(invoke("run", str(study_file), "--dry-run", "--ship", "--json").out)
    assert shipped["ships"] is True
    assert {"path": "weights.bin", "size_bytes": 2048} in shipped["files"]
    assert len(shipped["digest"]) == 64
    assert not fake.requests["CreateStudy"]


def test_a_folder_that_is_too_large_starts_nothing(
    fake: FakeStudyService, invoke: Invoke, study_file: Path
) -> None:
    with (study_file.parent / "weights.bin").open("wb") as file:
        file.truncate(101 << 20)
    result = invoke("run", str(study_file), "--ship")
    assert result.code == 2
    assert "101.0 MiB  weights.bin" in result.err
    assert "--no-ship" in result.err
    assert not fake.requests["CreateStudy"]


def test_a_link_that_leaves_the_folder_starts_nothing(
    fake: FakeStudyService, invoke: Invoke, study_file: Path
) -> None:
    (study_file.parent / "data").symlink_to("/etc")
    result = invoke("run", str(study_file), "--ship")
    assert (result.code, "link data leads out of the folder, to /etc" in result.err) == (2, True)
    assert not fake.requests["CreateStudy"]
