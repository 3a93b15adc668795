"""Keeps a process's secrets from other processes of the machine.

The command line is for everybody to read.

The kernel shows a process's arguments from its own memory (/proc/PID/cmdline). So a program that has read a secret
writes over it there. Between its start and then it can be seen: a variable or a file is the better way to give one.
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
"""The place of `arg_start` in /proc/PID/stat, counted from 1 as in proc(5); `arg_end` is the next."""


def hide_from_command_line(*secrets: str | None) -> None:
    """Writes over these texts wherever they stand in this process's arguments. Without /proc it does nothing."""
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
    """Hides an address on the command line that may hold a password."""
    if url and ("@" in url or "password" in url):
        hide_from_command_line(url)


def without_credentials(text: str) -> str:
    """A text whose addresses show no user and no password: `http://…@host`."""
    return _USER_INFO.sub(r"\1…@", text)


def close_to_others() -> None:
    """Lets no other process of this user read this one's memory and environment, unless the user is root.

    It writes no core dumps from now on, and debuggers need root. What it starts is not concerned.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
