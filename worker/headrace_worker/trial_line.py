"""The daemon's connection to a process that waits for a trial (`headrace.trial.handover`)."""

import asyncio
import json
import socket as sockets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.bounds.sessions import WARNING
from headrace_worker.logs import AttemptLog

_MESSAGE_BYTES = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What a process says after a trial."""

    waits: bool
    """Whether it offers itself for another one."""
    left_behind: str
    """Why it runs no other one."""
    kind: str
    """The kind of that, as in `headrace.trial.handover`."""
    expected: frozenset[int]
    """The processes that may run while it waits: those of its gang, and resource trackers."""


@dataclass(frozen=True, slots=True)
class TrialLine:
    """One connection, of which each message arrives whole."""

    socket: sockets.socket

    @classmethod
    def pair(cls) -> "tuple[TrialLine, sockets.socket]":
        """The daemon's end, and the process's. Raises `OSError`."""
        ours, theirs = sockets.socketpair(sockets.AF_UNIX, sockets.SOCK_SEQPACKET)
        ours.setblocking(False)
        return cls(ours), theirs

    def give(self, names: Mapping[str, str], folders: Sequence[str], attempt_log: AttemptLog) -> bool:
        """Gives the process a trial: the variables that name its lease, the folders that are the process's own, and its
        log. False if the process is gone."""
        message = {"names": dict(names), "folders": folders}
        try:
            sockets.send_fds(self.socket, [json.dumps(message).encode()], [attempt_log.file.fileno()])
        except OSError:
            return False
        return True

    async def heard(self) -> "Offer | None":
        """Waits until the process offers itself for another trial, or says what its trial left behind. None if it is
        gone, or says neither. It may say anything: the program has the connection too."""
        try:
            said = await asyncio.get_running_loop().sock_recv(self.socket, _MESSAGE_BYTES)
            if not said:
                return None
            word = json.loads(said)
            return Offer(
                waits=word["waits"] is True,
                left_behind=WARNING.kept(str(word["left_behind"])),
                kind=str(word["kind"]),
                expected=frozenset(map(int, word["expected"])),
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            return None

    def close(self) -> None:
        """The process gets no trial any more."""
        self.socket.close()
