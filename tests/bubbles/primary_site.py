"""Starts the training job of `primary.py`, and reports its progress."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).with_name("primary.py")
PATIENCE_S = 120


def until(condition: Callable[[], Any], what: str, timeout_s: float = PATIENCE_S) -> Any:
    """Waits for a condition, and returns its value."""
    end = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < end, f"still not, after {timeout_s} s: {what}"
        time.sleep(0.005)
    return value


class Running:
    """A run of the training job."""

    def __init__(self, program: subprocess.Popen[str], folder: Path, place: Path, pids: list[int]) -> None:
        self._program, self.folder, self.place, self.pids = program, folder, place, pids

    def steps(self, rank: int = 0) -> int:
        """How many steps the rank has completed."""
        told = self.folder / f"rank{rank}.steps"
        return int(told.read_text() or 0) if told.exists() else 0

    def file(self, stage: int) -> Path:
        """The stage's file."""
        return self.place / f"gpt.0.{stage}.bubble"

    def codes(self) -> list[int]:
        """Waits for the ranks; returns their exit codes."""
        assert self._program.stdout is not None
        return json.loads(self._program.stdout.readline())

    def results(self) -> list[dict[str, Any]]:
        """Waits for the ranks, and returns each one's results."""
        codes = self.codes()
        logs = "".join(path.read_text()[-3000:] for path in sorted(self.folder.glob("rank*.log")))
        assert codes == [0, 0], logs
        return [json.loads((self.folder / f"rank{number}.json").read_text()) for number in range(2)]

    def log(self, rank: int = 0) -> str:
        """What the rank has printed."""
        return (self.folder / f"rank{rank}.log").read_text()


class Primary:
    """Runs of the training job, one after the other."""

    def __init__(self) -> None:
        self._program = subprocess.Popen(
            [sys.executable, str(PROGRAM)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def start(self, folder: Path, *, place: Path | None = None, **run: Any) -> Running:
        """Starts two ranks; `run` is the input of `primary.train`."""
        folder.mkdir(exist_ok=True)
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        where = place or folder / "bubbles"
        told = {"folder": str(folder), "place": str(where), "job": "gpt", "steps": 5, **run}
        self._program.stdin.write(json.dumps(told) + "\n")
        self._program.stdin.flush()
        return Running(self._program, folder, where, json.loads(self._program.stdout.readline()))

    def close(self) -> None:
        """Stops the program; its ranks have ended."""
        self._program.kill()
        self._program.communicate()
