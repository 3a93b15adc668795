"""What a trial leaves behind, for which its process ends."""

from pathlib import Path

import pytest
from leaking_modules import Finder, Leaking, programs
from leaking_run import run


@pytest.mark.cases(8)
@pytest.mark.parametrize("program", programs(Finder.LEFTOVER), ids=lambda program: program.name)
def test_leftover_ends_process(program: Leaking, tmp_path: Path) -> None:
    folder = tmp_path / "study"
    folder.mkdir()
    result = run(program, folder)
    assert result.reasons
    assert program.words in result.reasons[-1], result


@pytest.mark.parametrize("program", programs(Finder.DEATH), ids=lambda program: program.name)
def test_process_dies_with_trial(program: Leaking, tmp_path: Path) -> None:
    result = run(program, tmp_path)
    assert result.status
    assert not result.reasons


@pytest.mark.parametrize("program", programs(Finder.CHECK), ids=lambda program: program.name)
def test_left_to_the_check(program: Leaking, tmp_path: Path) -> None:
    assert run(program, tmp_path).reasons == ("", "")
