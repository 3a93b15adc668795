"""Programs that leave nothing behind: a process that ends after each of them would be no use."""

from pathlib import Path

import pytest
from leaking_modules import Finder, Leaking, programs
from leaking_run import run


@pytest.mark.cases(8)
@pytest.mark.parametrize("program", programs(Finder.NOTHING), ids=lambda program: program.name)
def test_process_runs_another_trial(program: Leaking, tmp_path: Path) -> None:
    assert run(program, tmp_path, trials=3).reasons == ("", "", "")
