"""How the ranks of a gang ended, and which of them ended it.

When one rank fails, the others fail with it: a connection is closed by its peer, a collective runs into its time
limit, a watchdog aborts the process. These are echoes, not the cause. The cause is the first end that is not an
echo, or the first of all if every one is.

A rank that fails with an exception reports it on a pipe to its gang's leader before it ends (`speak`). For a
rank that is killed, the exit status is used.
"""

import json
import os
import re
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from headrace.grants import LAST_WORDS
from headrace.userfile import parse_json


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How one rank ended."""

    rank: int
    # By the machine's monotonic clock, in seconds.
    at: float
    # The exit status; negative for a signal, None for a rank that has reported and still runs.
    code: int | None = None
    # The exception's message and traceback; empty if it reported nothing.
    error: str = ""
    traceback: str = ""
    # Its checkpoint cannot be read.
    unreadable: bool = False
    # Its configuration makes no sense.
    infeasible: bool = False

    @property
    def is_echo(self) -> bool:
        """Whether the rank failed because its peer was gone."""
        if self.error:
            return _ECHO.search(self.error) is not None
        return self.code == -signal.SIGABRT  # NCCL's watchdog

    def __str__(self) -> str:
        if self.error:
            return f"on rank {self.rank}: {self.error}"
        if self.code is not None and self.code < 0:
            verb = "stopped" if self.code == -signal.SIGSTOP else "killed"
            return f"rank {self.rank} was {verb} by {signal.Signals(-self.code).name}"
        return f"rank {self.rank} ended with exit status {self.code}"


_ECHO = re.compile(
    r"Connection (closed|reset) by peer|Connection refused|Broken pipe|Socket closed|closed by remote|"
    r"[Tt]imed out (waiting|after)|Application timeout caused pair closure|failed to recv, got 0 bytes|"
    r"NCCL|[Rr]emote process exited|DistNetworkError|DistBackendError|DistStoreError|"
    r"^(ConnectionResetError|ConnectionRefusedError|BrokenPipeError|EOFError)\b"
)
"""The errors of gloo, NCCL, torch's store and sockets for a peer that is gone."""


def cause(ends: Iterable[End]) -> End:
    """The end that caused the others. There must be at least one end."""
    return min(ends, key=lambda end: (end.is_echo, end.at))


_line: int | None = None


def open_line() -> None:
    """Removes the pipe to the leader from the environment, so that child processes do not find it there."""
    global _line
    descriptor = os.environ.pop(LAST_WORDS, "")
    if descriptor:
        _line = int(descriptor)
        os.set_inheritable(_line, False)


def keep_line() -> None:
    """The pipe to the leader stays for the program that replaces this one."""
    if _line is not None and _line >= 0:
        os.environ[LAST_WORDS] = str(_line)
        os.set_inheritable(_line, True)


def speak(*, error: str, traceback: str, unreadable: bool = False, infeasible: bool = False) -> bool:
    """Reports to the gang's leader why this rank fails; False if there is no leader. Only the first call counts."""
    global _line
    if _line is None:
        return False
    word = {"at": time.monotonic(), "error": error, "traceback": traceback}
    word |= {"unreadable": unreadable, "infeasible": infeasible}
    if _line >= 0:
        with suppress(OSError), os.fdopen(_line, "wb") as pipe:
            pipe.write(json.dumps(word).encode() + b"\n")
    _line = -1
    return True


def heard(data: bytes, rank: int) -> End | None:
    """What a rank reported; None if it is incomplete."""
    line, newline, _ = data.partition(b"\n")
    if not newline:
        return None
    with suppress(ValueError, KeyError, TypeError):
        word = parse_json(line)
        return End(
            rank=rank,
            at=float(word["at"]),
            error=str(word["error"]),
            traceback=str(word["traceback"]),
            unreadable=word.get("unreadable") is True,
            infeasible=word.get("infeasible") is True,
        )
    return None
