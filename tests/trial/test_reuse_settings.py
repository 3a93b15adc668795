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


def test_warning_is_shown_in_each_trials_log(tmp_path: Path) -> None:
    program = Leaking(
        name="warning",
        source=(
            "import warnings, json\n"
            "SEEN = json.decoder\n"
            "warnings.showwarning = lambda *_: SEEN.BACKSLASH.update(seen=SEEN.BACKSLASH.get('seen', 0) + 1)\n"
            "def train(t):\n"
            "    for _ in range(3):\n"
            "        warnings.warn('x')\n"
        ),
        finder=Finder.SETTING,
        words="__import__('json').decoder.BACKSLASH.get('seen')",
    )
    assert run(program, tmp_path).values == ("None", "1", "2")


def test_niceness_is_restored_or_ends_the_process(tmp_path: Path) -> None:
    """Only the superuser may raise a process's priority again."""
    program = Leaking(
        name="niceness",
        source="import os\ndef train(t):\n    os.nice(1)\n",
        finder=Finder.SETTING,
        words="os.getpriority(os.PRIO_PROCESS, 0)",
    )
    result = run(program, tmp_path)
    if result.reasons[0]:
        assert "it changed the niceness, which cannot be restored" in result.reasons[0]
    else:
        assert len(set(result.values)) == 1
