"""The scheduler's log: nobody waits for a disk that hangs, and nothing is lost."""

import logging
import threading

import pytest

from headrace_services.scheduler.log_aside import log_aside


class Stuck(logging.Handler):
    """A handler whose file hangs until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.free = threading.Event()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        assert self.free.wait(30)
        self.lines.append(record.getMessage())


def test_a_stuck_file_keeps_nobody_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    stuck = Stuck()
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [stuck])
    monkeypatch.setattr(root, "level", logging.INFO)
    with log_aside():
        for number in range(100):
            logging.getLogger("a").info("line %s", number)
        assert stuck.lines == []
        stuck.free.set()
    assert stuck.lines == [f"line {number}" for number in range(100)]
    assert root.handlers == [stuck]
