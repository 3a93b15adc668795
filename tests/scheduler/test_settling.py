"""Modules that are imported after the start are imported in another thread than the event loop's."""

import sys
import threading
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from headrace_services.scheduler.engine import turns
from headrace_services.scheduler.engine.turns import Turn, Turns
from headrace_services.scheduler.settling import imported

NAME = "imported_late"


@pytest.fixture
def late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A module that nobody has imported yet. It records the thread that imports it."""
    (tmp_path / f"{NAME}.py").write_text("import threading\nthread = threading.get_ident()\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop(NAME, None)


@pytest.mark.usefixtures("late")
async def test_a_module_is_imported_once_and_in_another_thread() -> None:
    await imported(NAME)
    first = sys.modules[NAME]
    assert first.thread != threading.get_ident()
    await imported(NAME)
    assert import_module(NAME) is first


@pytest.mark.usefixtures("late")
async def test_what_draws_proposals_is_there_before_a_cycle_looks_for_slots(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns, "DRAWS", NAME)
    there: list[bool] = []
    turn = Turn(Turns(), lambda: there.append(NAME in sys.modules))
    await turn.acquire()
    assert there == [True]
    assert sys.modules[NAME].thread != threading.get_ident()
    turn.give_up()
