"""Which process calls on the socket for trials, according to the kernel.

    a trial connects to the socket → the kernel names its process → its bytes go to gRPC → a call names a lease

gRPC does not say who is at the other end of a Unix socket. So the socket is ours. Each connection is forwarded to
the server's own socket over a second connection, to which the kernel gives a name; the server knows the connection
by it. Nothing of the traffic is read. A process that connects to the server's socket directly has no such name,
and the kernel never gives a name twice.

A process may speak for a lease if it descends from the lease's process or belongs to its session. A process that
descends from no trial of this daemon may do so if it was started with the lease in its environment and is in
another control group. That covers a program in a container, or under another cluster manager. A process that a
trial has left behind stays in the daemon's control group, so it cannot pass for one of those. Whoever can trace
another trial's process, as the same user may on many machines, can speak through it.
"""

import asyncio
import logging
import os
import socket
import struct
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from headrace_worker import control_groups
from headrace_worker.launch import LEASE_VARIABLE

log = logging.getLogger(__name__)
_CREDENTIALS = struct.Struct("3i")
_BACKLOG = 1024
_DEEPEST = 64


class Identity(NamedTuple):
    """A process, identified for good: the kernel reuses the number of a process that is gone."""

    pid: int
    started: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """A process, with its ancestors and the leader of its session."""

    pid: int
    family: frozenset["Identity"]
    # The lease in its environment when it was started.
    mark: str
    # Whether it is in another control group than the daemon.
    apart: bool


class _End(asyncio.Protocol):
    """One end of what is forwarded: its bytes go to the other end, no faster than that takes them. When one is gone,
    so is the other: gRPC cannot use half of a connection."""

    def __init__(self, connected: Callable[["_End"], None] = lambda _: None) -> None:
        self._connected = connected
        self._other: _End | None = None
        # What came before `join`.
        self._early = b""
        self.transport: asyncio.Transport
        self.over = asyncio.Event()

    def join(self, other: "_End") -> None:
        """Both ends are there."""
        self._other, other._other = other, self
        for end in (self, other):
            if end.over.is_set():
                end.connection_lost(None)
            elif early := end._early:
                end._early = b""
                end.transport.resume_reading()
                end.data_received(early)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._connected(self)

    def data_received(self, data: bytes) -> None:
        if self._other is None:
            self._early += data
            self.transport.pause_reading()
        else:
            self._other.transport.write(data)

    def pause_writing(self) -> None:
        if self._other is not None:
            self._other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self._other is not None:
            self._other.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - asyncio's
        self.over.set()
        if self._other is not None:
            self._other.transport.close()


class Callers:
    """The socket, and the processes connected to it."""

    def __init__(self) -> None:
        self._callers: dict[str, Caller] = {}
        self._server: asyncio.Server | None = None
        self._lines: set[asyncio.Task[None]] = set()
        self._inner = Path()

    async def listen(self, path: Path, inner: Path) -> None:
        """Serves the socket and forwards its traffic to the server's own one. Called again, it serves another
        socket instead, and existing connections stay."""
        loop = asyncio.get_running_loop()
        server = await loop.create_unix_server(lambda: _End(self._connected), path, backlog=_BACKLOG)
        before, self._server, self._inner = self._server, server, inner
        if before is not None:
            before.close()

    async def close(self) -> None:
        """Closes all connections."""
        if self._server is not None:
            self._server.close()
        for line in self._lines:
            line.cancel()
        await asyncio.gather(*self._lines, return_exceptions=True)

    def of(self, peer: str) -> Caller | None:
        """Who is at the other end of a connection, by the server's name for it; None if the connection is not
        ours."""
        return self._callers.get(peer)

    def _connected(self, trial: "_End") -> None:
        task = asyncio.create_task(self._serve(trial), name="a trial's connection")
        self._lines.add(task)
        task.add_done_callback(self._lines.discard)

    async def _serve(self, trial: "_End") -> None:
        name = ""
        try:
            caller = _caller(trial.transport.get_extra_info("socket"))
            line, name = await _named_connection(self._inner)
            self._callers[name] = caller
            loop = asyncio.get_running_loop()
            _, server = await loop.create_unix_connection(_End, sock=line)
            server.join(trial)
            await trial.over.wait()
        except (OSError, asyncio.CancelledError):
            pass  # either end is gone, or the daemon is
        finally:
            self._callers.pop(name, None)
            trial.transport.close()


def may_speak(caller: Caller, *, leader: int, mark: str, others: Collection[int]) -> bool:
    """Whether a caller may speak for a lease: that of the process `leader`, whose descendants carry `mark`.

    `others` are the processes of all other leases.
    """
    if descends(caller, [leader]):
        return True
    return caller.apart and not descends(caller, others) and caller.mark == mark


def descends(caller: Caller, pids: Collection[int]) -> bool:
    """Whether a caller is one of these processes as they are now, or descends from one."""
    return any(one in caller.family for pid in pids if (one := identity(pid)) is not None)


def identity(pid: int) -> Identity | None:
    """Who has a process number now; None if nobody has."""
    return _identity(pid, _stat(pid))


async def _named_connection(path: Path) -> tuple[socket.socket, str]:
    """A connection to a socket, and what gRPC calls its other end."""
    line = socket.socket(socket.AF_UNIX)
    try:
        line.setblocking(False)
        line.bind("")  # to a name that nobody has
        await asyncio.get_running_loop().sock_connect(line, str(path))
    except BaseException:
        line.close()
        raise
    return line, f"unix-abstract:{os.fsdecode(line.getsockname()[1:])}"


def _caller(line: socket.socket) -> Caller:
    """The process at the other end of a Unix socket."""
    pid, _, _ = _CREDENTIALS.unpack(line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    family: dict[int, Identity | None] = {}
    one = pid
    while len(family) <= _DEEPEST:
        stat = _stat(one)
        family[one] = _identity(one, stat)
        one = int(stat[1]) if len(stat) > 1 else 0
        if one <= 1 or one == os.getpid():
            break
    with suppress(OSError):
        if (session := os.getsid(pid)) not in family:
            family[session] = identity(session)
    found = frozenset(one for one in family.values() if one is not None)
    return Caller(pid=pid, family=found, mark=_mark(pid), apart=_apart(pid))


def _identity(pid: int, stat: Sequence[str]) -> Identity | None:
    return Identity(pid, int(stat[19])) if len(stat) > 19 else None


def _stat(pid: int) -> list[str]:
    """What the kernel reports about a process, from its state on; empty if it is gone."""
    with suppress(OSError), open(f"/proc/{pid}/stat", errors="replace") as file:  # noqa: PTH123 - read at each call of a trial
        return file.read().rpartition(")")[2].split()
    return []


def _mark(pid: int) -> str:
    beginning = f"{LEASE_VARIABLE}=".encode()
    with suppress(OSError):
        for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if entry.startswith(beginning):
                return os.fsdecode(entry.removeprefix(beginning))
    return ""


def _apart(pid: int) -> bool:
    try:
        return control_groups.of(pid) != control_groups.of("self")
    except OSError:
        return False
