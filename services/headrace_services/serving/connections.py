"""The connections of a server: how many strangers have, and how one is hung up.

gRPC has one bound for all connections together, and strangers must not take them from workers. Nor does it say who
connects, or close one connection. So this looks at the sockets of the process itself: when there may be too many, and
when one is to be hung up. It looks at each of them in a thread, some microseconds at one that it does not know.

A socket that is hung up is shut down, not closed: it is gRPC that closes it, which then reads its end.
"""

import asyncio
import logging
import os
import socket
import stat
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import quote

from headrace_services.serving.measures import REFUSED
from headrace_services.serving.places import too_many

log = logging.getLogger(__name__)

LOOK_S = 0.1
LEAST_S = 0.02
"""Between two looks."""
_DESCRIPTORS = Path("/proc/self/fd" if sys.platform == "linux" else "/dev/fd")
_MAPPED = "::ffff:"


class Connections:
    """Those to one port."""

    def __init__(self, most_strangers: int) -> None:
        self._most = most_strangers
        self._port = 0
        self._known: set[str] = set()
        self._ending: set[str] = set()
        self._wanted = asyncio.Event()
        self._peers: dict[int, str] = {}
        """By the inode of their socket, the oldest first; empty for a socket that is no connection to this port."""

    def serve(self, port: int) -> None:
        """The server listens there."""
        self._port = port

    def know(self, peer: str) -> None:
        """Who calls over a connection has shown who it is."""
        self._known.add(peer)

    def knows(self, peer: str) -> bool:
        """Whether it has."""
        return peer in self._known

    def ends(self, peer: str) -> bool:
        """Whether it is hung up soon."""
        return peer in self._ending

    def hang_up(self, peer: str) -> None:
        """End a connection soon."""
        if peer.startswith(("ipv4:", "ipv6:")):
            self._ending.add(peer)
            self._wanted.set()

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(LEAST_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._wanted.wait()
            self._wanted.clear()
            count = _count()
            if self._ending or count > self._most or len(self._known) > 2 * count + self._most:
                await asyncio.to_thread(self.look)

    def look(self) -> None:
        """Hang up what is to end, and strangers' connections where there are too many. For any thread."""
        known = set(self._known)
        found = dict(_sockets())
        self._peers = {inode: peer for inode, peer in self._peers.items() if inode in found}
        for inode, descriptor in found.items():
            if inode not in self._peers:
                self._peers[inode] = self._peer(descriptor)
        served = {inode: peer for inode, peer in self._peers.items() if peer}
        strangers = [inode for inode, peer in served.items() if peer not in known]
        too_many_now = {strangers[n] for n in too_many([served[inode] for inode in strangers], self._most)}
        ending, self._ending = self._ending, set()
        for inode, peer in served.items():
            if peer in ending or (inode in too_many_now and peer not in self._known):
                self._shut(found[inode], peer)
        if too_many_now:
            REFUSED.labels("connection").inc(len(too_many_now))
            log.info(
                "%s connections of strangers were hung up: they have %s at most",
                len(too_many_now),
                self._most,
            )
        self._known -= known - set(served.values())

    def _peer(self, descriptor: int) -> str:
        try:
            with _copy(descriptor) as one:
                here, there = one.getsockname(), one.getpeername()
        except OSError:
            return ""
        return _uri(there) if one.family != socket.AF_UNIX and here[1] == self._port else ""

    def _shut(self, descriptor: int, peer: str) -> None:
        try:
            with _copy(descriptor) as one:
                if _uri(one.getpeername()) == peer:  # it may be another one by now
                    one.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


def _count() -> int:
    return len(os.listdir(_DESCRIPTORS))  # noqa: PTH208  # ten times as fast


def _sockets() -> Iterator[tuple[int, int]]:
    """The inode of each socket of this process, and its descriptor."""
    for entry in _DESCRIPTORS.iterdir():
        try:
            found = os.fstat(int(entry.name))
        except OSError:
            continue
        if stat.S_ISSOCK(found.st_mode):
            yield found.st_ino, int(entry.name)


def _copy(descriptor: int) -> "closing[socket.socket]":
    return closing(socket.socket(fileno=os.dup(descriptor)))


def _uri(address: tuple[str, int]) -> str:
    """An address as gRPC names peers."""
    host, port = address[0], address[1]
    if ":" not in host or host.startswith(_MAPPED):
        return f"ipv4:{host.removeprefix(_MAPPED)}:{port}"
    return f"ipv6:{quote(f'[{host}]')}:{port}"
