"""Hides a process's secrets from other processes on the machine.

Everybody can read a process's command line. The kernel shows the arguments from the process's own memory
(/proc/PID/cmdline), so a program that has read a secret overwrites it there. Until then the secret is visible: a
variable or a file is a better way to pass one.
"""

import ctypes
import os
import re
import sys
from pathlib import Path
from typing import Final

_PR_SET_DUMPABLE: Final = 4
_USER_INFO: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*:/{0,2})[^\s'\"]*@")
_ARG_START: Final = 48
"""The position of `arg_start` in /proc/PID/stat, counted from 1 as in proc(5); `arg_end` is the next field."""


def hide_from_command_line(*secrets: str | None) -> None:
    """Overwrites these texts wherever they occur in this process's arguments. Without /proc it does nothing."""
    found = [os.fsencode(secret) for secret in secrets if secret]
    try:
        stat = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end = (int(stat[place - 3]) for place in (_ARG_START, _ARG_START + 1))
    except (OSError, ValueError, IndexError):
        return
    if not found or not start or end <= start:
        return
    shown = ctypes.string_at(start, end - start)
    for secret in found:
        at = shown.find(secret)
        while at >= 0:
            ctypes.memmove(start + at, b"x" * len(secret), len(secret))
            at = shown.find(secret, at + len(secret))


def hide_url(url: str | None) -> None:
    """Hides an address on the command line that may contain a password."""
    if url and ("@" in url or "password" in url):
        hide_from_command_line(url)


def without_credentials(text: str) -> str:
    """The text with users and passwords removed from its addresses: `http://…@host`."""
    return _USER_INFO.sub(r"\1…@", text)


def close_to_others() -> None:
    """Prevents other processes of this user from reading this one's memory and environment, unless the user is
    root.

    From now on the process writes no core dumps, and debuggers need root. Its children are not affected.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
