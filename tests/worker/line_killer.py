"""Kills a process at a line of the hand-over between two trials; it imports this module and says what to watch.

What it counts is kept in `sys`, as a trial's process compares what modules of the user's own hold.
"""

import os
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

_marks = Path(os.environ["MARKS"])
_kill_at = 0 if (_marks / "killed").exists() else int((_marks / "kill-at").read_text())
sys.line_counts = {}  # type: ignore[attr-defined]  # where nothing is compared


def begin() -> None:
    """The trial is over: from now on, lines count."""
    counts: dict[str, int] = sys.line_counts  # type: ignore[attr-defined]  # as above
    (_marks / "lines").write_text(str(counts.get("lines", 0)))
    counts |= {"lines": counts.get("lines", 0), "on": 1}


def watch(files: tuple[str, ...], *, until: str, since: str = "") -> None:
    """Counts lines of these files between `begin`, or a call of the function `since`, and the end of the function
    `until`."""

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        file = frame.f_code.co_filename
        counts: dict[str, int] = sys.line_counts  # type: ignore[attr-defined]  # as above
        if since and event == "call" and not counts.get("on") and frame.f_code.co_name == since:
            begin()
        if event == "return" and frame.f_code.co_name == until:
            counts["on"] = 0
        if counts.get("on") and event == "line" and file.endswith(files):
            counts["lines"] += 1
            if counts["lines"] == _kill_at:
                (_marks / "killed").write_text(f"{file}:{frame.f_lineno}")
                os.kill(os.getpid(), 9)
        return trace

    frame: FrameType | None = sys._getframe()
    while frame is not None:
        frame.f_trace = trace
        frame = frame.f_back
    sys.settrace(trace)
    threading.settrace(trace)


def watch_a_trial() -> None:
    """Watches a trial's process, whose next trial begins when it has taken its names."""
    watch(("trial/handover.py", "trial/reused.py", "reuse/between.py"), until="take_names")


def watch_a_daemon() -> None:
    """Watches a daemon, from a process's offer to run another trial until that trial asks for its configuration."""
    own = ("alone", "attempt", "program", "standby", "trial_line", "outbox", "courier")
    watch(tuple(f"headrace_worker/{name}.py" for name in own), since="_may_stay", until="attached")
