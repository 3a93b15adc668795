"""The daemon's connection to a process that waits for a trial (`headrace.trial.handover`)."""

import asyncio
import json
import socket as sockets
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.bounds.sessions import WARNING
from headrace_worker.logs import AttemptLog

_MESSAGE_BYTES = 1 << 16


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

    def give(self, names: Mapping[str, str], attempt_log: AttemptLog) -> bool:
        """Gives the process a trial: the variables that name its lease, and its log. False if the process is gone."""
        try:
            sockets.send_fds(self.socket, [json.dumps(names).encode()], [attempt_log.file.fileno()])
        except OSError:
            return False
        return True

    async def left_behind(self) -> str | None:
        """Waits until the process offers itself for another trial, or says what its trial left behind. None if it is
        gone, or says neither."""
        try:
            said = await asyncio.get_running_loop().sock_recv(self.socket, _MESSAGE_BYTES)
            return WARNING.kept(str(json.loads(said)["left_behind"])) if said else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def close(self) -> None:
        """The process gets no trial any more."""
        self.socket.close()
