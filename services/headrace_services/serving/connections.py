"""The connections to one listener: how many strangers have, how many each caller has, and how one is closed. Linux
only.

gRPC has one limit for all connections together, and strangers must not take them from workers. It neither says who
connects nor closes a single connection. So this module inspects the sockets of its own process: when strangers may
have too many, and when one must be closed. An inspection takes some microseconds for each socket, in a thread.

A socket is shut down, not closed: gRPC closes it when it reads its end.
"""

import asyncio
import logging
import os
import socket
import stat
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from ipaddress import ip_address

from headrace.errors import BusyError
from headrace_services.serving.limits import SHARE
from headrace_services.serving.measures import REFUSED
from headrace_services.serving.peers import Peer, host_of, network_of, peer_of
from headrace_services.serving.places import too_many

log = logging.getLogger(__name__)

LOOK_S = 0.1
"""How often sockets are counted."""
LEAST_S = 0.02
"""The minimum time between two inspections."""
PRUNED_S = 60.0
"""How often connections that have ended are dropped."""
_SHARE = 10
"""An inspection that took a second is followed by this many seconds without one. The exception is that connections
must be closed: what they send costs more than inspections."""
_DESCRIPTORS = "/proc/self/fd"


@dataclass(frozen=True, slots=True)
class Seen:
    """The result of an inspection."""

    served: frozenset[Peer]
    excess: int
    """Strangers' connections that were closed because there were too many."""


class Connections:
    """The connections to one listener."""

    def __init__(self, most_strangers: int, most_each: int) -> None:
        self._most = most_strangers
        self._most_each = most_each
        self._port = 0
        self._hosts: frozenset[str] | None = frozenset()
        """The addresses where it listens; None: every address."""
        self._known: dict[Peer, str] = {}
        """The caller that each connection belongs to: the first one that identified itself there."""
        self._counts = Counter[str]()
        self._counted = asyncio.Event()
        """Set at the end of the next inspection that starts; then it is replaced by a new one."""
        self._is_wanted = self._looks = False
        self._ending: dict[Peer, int] = {}
        """Those to be closed, and how often they were searched for without success."""
        self._wanted = asyncio.Event()
        self._peers: dict[int, Peer | None] = {}
        """By the inode of their socket, oldest first; None for a socket that is not a connection to this listener."""

    def share(self, connections: int) -> None:
        """Limits each caller to its share of the server's connections."""
        self._most_each = min(self._most_each, max(1, connections // SHARE))

    def serve(self, host: str, port: int) -> None:
        """The server listens at this host."""
        self._port, self._hosts = port, _hosts(host)

    async def know(self, peer: str, name: str) -> None:
        """The caller over a connection, named as gRPC names peers, has been identified.

        Raises BusyError if the caller has too many connections: this one then stays a stranger's.
        """
        key = peer_of(peer)
        if key is None or key in self._known:
            return
        if self._looks and self._counts[name] >= self._most_each:
            await self._look_again()  # some of them may be closed by now
            if self._counts[name] >= self._most_each and key not in self._known:
                REFUSED.labels("own connection").inc()
                raise BusyError(
                    f"this caller has {self._counts[name]} connections to this server already, and may have no more",
                    remedy="Close some, or let the clients of a process share one.",
                )
        if key not in self._known:  # a concurrent call may have identified it meanwhile
            self._known[key] = name
            self._counts[name] += 1

    async def _look_again(self) -> None:
        counted = self._counted
        self._is_wanted = True
        self._wanted.set()
        await counted.wait()

    def _forget(self, peer: Peer) -> None:
        name = self._known.pop(peer)
        self._counts[name] -= 1
        if not self._counts[name]:
            del self._counts[name]

    def knows(self, peer: str) -> bool:
        """Whether the caller of a connection has been identified."""
        return peer_of(peer) in self._known

    def ends(self, peer: str) -> bool:
        """Whether the connection will be closed soon."""
        return peer_of(peer) in self._ending

    def hang_up(self, peer: str) -> None:
        """Close a connection soon."""
        if (key := peer_of(peer)) is not None:
            self._ending.setdefault(key, 0)
            self._wanted.set()

    async def run(self) -> None:
        """Inspect until cancelled."""
        if sys.platform != "linux" or not self._port:
            return
        loop = asyncio.get_running_loop()
        looked = loop.time()
        self._looks = True
        with ThreadPoolExecutor(1, "connections") as thread:
            while True:
                await asyncio.sleep(LEAST_S)
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S):
                        await self._wanted.wait()
                self._wanted.clear()
                try:
                    late = loop.time() - looked > PRUNED_S
                    if not (self._ending or self._is_wanted or self._is_crowded() or late):
                        continue
                    began = loop.time()
                    await self._looked(thread)
                except OSError:  # such as too many open files
                    log.exception("unauthenticated connections could not be checked")
                    await asyncio.sleep(1.0)
                    continue
                looked = loop.time()
                if not self._ending:
                    await asyncio.sleep(_SHARE * (looked - began))

    def _is_crowded(self) -> bool:
        return len(os.listdir(_DESCRIPTORS)) > self._most + len(self._known)  # noqa: PTH208  # ten times as fast

    async def _looked(self, thread: ThreadPoolExecutor) -> None:
        known, ending = frozenset(self._known), frozenset(self._ending)
        counted, self._counted, self._is_wanted = self._counted, asyncio.Event(), False
        try:
            seen = await asyncio.get_running_loop().run_in_executor(thread, self.look, known, ending)
            self._take_in(seen, known, ending)
        finally:
            counted.set()

    def _take_in(self, seen: Seen, known: frozenset[Peer], ending: frozenset[Peer]) -> None:
        if seen.excess:
            REFUSED.labels("connection").inc(seen.excess)
            log.info(
                "%s connections without an identity were closed: %s are the most", seen.excess, self._most
            )
        for peer in known - seen.served:
            self._forget(peer)
        for peer in ending:
            tries = self._ending.pop(peer)
            if peer not in seen.served and not tries:  # it may have been opened during the inspection
                self._ending[peer] = 1

    def look(self, known: frozenset[Peer], ending: frozenset[Peer]) -> Seen:
        """Close the connections that must end, and strangers' connections if there are too many. Raises OSError."""
        found = dict(_sockets())
        self._peers = {inode: peer for inode, peer in self._peers.items() if inode in found}
        for inode, descriptor in found.items():
            if inode not in self._peers:
                self._peers[inode] = self._peer(descriptor)
        served = {inode: peer for inode, peer in self._peers.items() if peer is not None}
        strangers = [inode for inode, peer in served.items() if peer not in known]
        excess = {
            strangers[n]
            for n in too_many([network_of(served[inode].host) for inode in strangers], self._most)
        }
        closed = 0
        for inode, peer in served.items():
            if peer in ending:
                _shut(found[inode], peer)
            elif inode in excess and peer not in self._known:  # it may have been identified meanwhile
                _shut(found[inode], peer)
                closed += 1
        return Seen(frozenset(served.values()), closed)

    def _peer(self, descriptor: int) -> Peer | None:
        with _copy(descriptor) as one:
            if one.family not in (socket.AF_INET, socket.AF_INET6):
                return None
            try:
                here, there = one.getsockname(), one.getpeername()
            except OSError:  # it is listening, or closed
                return None
        if here[1] != self._port or (self._hosts is not None and host_of(here[0]) not in self._hosts):
            return None
        return Peer(host_of(there[0]), there[1])


def _sockets() -> Iterator[tuple[int, int]]:
    """The inode of each socket of this process, and its descriptor."""
    for name in os.listdir(_DESCRIPTORS):  # noqa: PTH208  # as above
        try:
            found = os.fstat(int(name))
        except OSError:  # already closed
            continue
        if stat.S_ISSOCK(found.st_mode):
            yield found.st_ino, int(name)


def _shut(descriptor: int, peer: Peer) -> None:
    with _copy(descriptor) as one, suppress(OSError):
        there = one.getpeername()
        if Peer(host_of(there[0]), there[1]) == peer:  # the descriptor may have been reused
            one.shutdown(socket.SHUT_RDWR)


def _copy(descriptor: int) -> "closing[socket.socket]":
    return closing(socket.socket(fileno=os.dup(descriptor)))


def _hosts(host: str) -> frozenset[str] | None:
    """The addresses of a listener's host; None if it is every address."""
    found = (
        {host_of(str(one[4][0])) for one in socket.getaddrinfo(host.strip("[]") or None, None)}
        if host
        else set()
    )
    return frozenset(found) if found and not any(ip_address(one).is_unspecified for one in found) else None
