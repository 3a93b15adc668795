"""Settings of the process, which are restored between its trials."""

from pathlib import Path

import pytest
from leaking_modules import Finder, Leaking, programs
from leaking_run import run


@pytest.mark.cases(12)
@pytest.mark.parametrize("program", programs(Finder.SETTING), ids=lambda program: program.name)
def test_setting_is_restored(program: Leaking, tmp_path: Path) -> None:
    result = run(program, tmp_path)
    assert result.reasons == ("", ""), result
    assert len(set(result.values)) == 1, result
