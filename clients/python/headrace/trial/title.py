"""The title of a trial's process in `ps` and `top`: `headrace: trial digits/7`; for a gang, also the rank.

The title is written over the arguments, where the kernel reads them for /proc/PID/cmdline. The environment is
behind them and must not change, because a worker finds a trial's processes by it. So a title can be only as long
as the arguments: if that is too short, the study's name is cut and the number is kept. Arguments that are too
short even for the number (`python t.py`) do not change. A system without /proc shows no title.
"""

import ctypes
import re
from collections.abc import Mapping
from pathlib import Path

from headrace.grants import RANK

TRIAL_VARIABLE = "HEADRACE_TRIAL"
_TRIAL = re.compile(r"studies/([^/]+)/trials/(\d+)")
_PR_SET_NAME = 15
_NAME_BYTES = 15
_ARG_START = 48
"""The position of `arg_start` in /proc/PID/stat, counted from 1 as in proc(5); `arg_end` is the next field."""


def show_trial(environment: Mapping[str, str], *, more: str = "") -> None:
    """Gives this process a title with the trial that its environment names."""
    named = _TRIAL.fullmatch(environment.get(TRIAL_VARIABLE, ""))
    if named is None:
        return
    rank = f" rank {environment[RANK]}" if RANK in environment else ""
    _show("headrace: trial ", named[1], f"/{named[2]}{rank}{more}")
    short = _fitting("", named[1], f"/{named[2]}", _NAME_BYTES)
    ctypes.CDLL(None).prctl(_PR_SET_NAME, short.encode(), 0, 0, 0)


def show_standby(target: str) -> None:
    """Gives this process the title of a standby process for the next trial."""
    _show("headrace: stands by for ", target, "")


def show_waiting() -> None:
    """Gives this process the title of one that has run a trial and waits for the next one."""
    _show("headrace: ", "waits for another trial", "")
    ctypes.CDLL(None).prctl(_PR_SET_NAME, b"headrace waits", 0, 0, 0)


def _show(before: str, name: str, after: str) -> None:
    try:
        stat = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end = (int(stat[place - 3]) for place in (_ARG_START, _ARG_START + 1))
    except (OSError, ValueError, IndexError):
        return
    room = end - start - 1  # the last byte stays 0: otherwise the kernel reads on into the environment
    if len(before + after) >= room:
        before = ""
    title = _fitting(before, name, after, room).encode()
    if start and len(after) < len(title) <= room:
        ctypes.memmove(start, title.ljust(room, b"\0"), room)


def _fitting(before: str, name: str, after: str, room: int) -> str:
    """The parts as one text of at most `room` characters; the name in the middle is cut if necessary."""
    return f"{before}{name[: max(0, room - len(before) - len(after))]}{after}"
