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
from collections.abc import Collection, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from headrace_worker import control_groups
from headrace_worker.launch import LEASE_VARIABLE

log = logging.getLogger(__name__)
_CREDENTIALS = struct.Struct("3i")
_CHUNK_BYTES = 1 << 16
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
        server = await asyncio.start_unix_server(self._serve, path, backlog=_BACKLOG)
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

    async def _serve(self, trial: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._lines.add(task)
        name = ""
        try:
            caller = _caller(answers.get_extra_info("socket"))
            line, name = await _named_connection(self._inner)
            self._callers[name] = caller
            server, calls = await asyncio.open_unix_connection(sock=line)
            try:
                await _both_ways(_passed_on(trial, calls), _passed_on(server, answers))
            finally:
                calls.close()
        except (OSError, asyncio.CancelledError):
            pass  # either end is gone, or the daemon is
        finally:
            self._callers.pop(name, None)
            self._lines.discard(task)
            answers.close()


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
    stat = _stat(pid)
    return Identity(pid, int(stat[19])) if len(stat) > 19 else None


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
    found, parent = {identity(pid)}, pid
    for _ in range(_DEEPEST):
        parent = _parent(parent)
        if parent <= 1 or parent == os.getpid():
            break
        found.add(identity(parent))
    with suppress(OSError):
        found.add(identity(os.getsid(pid)))
    family = frozenset(one for one in found if one is not None)
    return Caller(pid=pid, family=family, mark=_mark(pid), apart=_apart(pid))


def _parent(pid: int) -> int:
    """The parent of a process; 0 if the process is gone."""
    stat = _stat(pid)
    return int(stat[1]) if len(stat) > 1 else 0


def _stat(pid: int) -> list[str]:
    """What the kernel reports about a process, from its state on; empty if it is gone."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
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


async def _both_ways(*directions: Coroutine[Any, Any, None]) -> None:
    """Runs both until one ends: gRPC cannot use half of a connection."""
    tasks = [asyncio.create_task(direction) for direction in directions]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _passed_on(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while chunk := await source.read(_CHUNK_BYTES):
        sink.write(chunk)
        await sink.drain()
