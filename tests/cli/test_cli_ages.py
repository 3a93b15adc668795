"""Retention times on the command line: invalid ones are refused before anything starts."""

from pathlib import Path

import pytest
from commands_run import Invoke

from headrace_services.up.children import Options, children


@pytest.mark.parametrize("command", ["scheduler", "up"])
def test_what_is_no_age_is_refused_before_anything_starts(
    invoke: Invoke, tmp_path: Path, command: str
) -> None:
    where = {
        "scheduler": ["--database-url", "postgresql://nobody@127.0.0.1:1/x"],
        "up": ["--home", str(tmp_path / "h")],
    }
    done = invoke(command, *where[command], "--keep", "events=soon")
    assert done.code != 0
    assert "events=soon" in done.err
    assert "KIND=AGE" in done.err
    assert not (tmp_path / "h" / "postgres").exists()


def test_up_gives_every_scheduler_the_same_ages(tmp_path: Path) -> None:
    options = Options(home=tmp_path, ports=(1, 2), keep=("events=1d", "logs=forever"))
    found = [spec.command for spec in children(options) if spec.name.startswith("scheduler")]
    assert len(found) == 2
    for command in found:
        assert command[-4:] == ("--keep", "events=1d", "--keep", "logs=forever")
