"""A TCP proxy that misbehaves on purpose: the network between workers and a scheduler.

Each accepted connection is a `Link` with two directions, both pumped by one task each. What can be done to a link:

- `cut`: both ends get a reset at once, as when a machine on the way forgets the connection;
- `swallow`: bytes are still read and discarded, nothing is forwarded, and neither end notices: a half-open
  connection, which only a heartbeat can find;
- `stall`: the proxy stops reading what one side sends, so that side's buffers fill up: a reader that hangs;
- `delay_s`: every chunk is delayed before it is forwarded (in order);
- `bytes_per_s`: a slow line.

`refuse` makes the proxy close new connections at once; `blackhole` makes it accept and swallow them.
All state is read by the pumps before every chunk, so a change takes effect on running links too.
"""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

CHUNK = 64 * 1024
_LINGER_RESET = struct.pack("ii", 1, 0)


@dataclass(slots=True)
class Direction:
    """One direction of a link."""

    delay_s: float = 0.0
    bytes_per_s: float | None = None
    swallow: bool = False
    open: asyncio.Event = field(default_factory=asyncio.Event)
    """Cleared while the direction is stalled."""
    bytes: int = 0
    """How many arrived."""

    def __post_init__(self) -> None:
        self.open.set()


@dataclass(slots=True, eq=False)
class Link:
    """One connection through the proxy."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter | None
    up: Direction = field(default_factory=Direction)
    """From the client to the server."""
    down: Direction = field(default_factory=Direction)
    """From the server to the client."""

    def cut(self) -> None:
        """Reset both ends."""
        for writer in (self.client, self.server):
            if writer is not None:
                _reset(writer)

    def swallow(self) -> None:
        """Leave both ends unaware that the connection is dead."""
        self.up.swallow = self.down.swallow = True

    def stall(self, *, down: bool = True) -> None:
        """Stop reading what the server (or, without `down`, the client) sends."""
        (self.down if down else self.up).open.clear()

    def flow(self) -> None:
        """Undo `stall`."""
        self.up.open.set()
        self.down.open.set()


class TcpProxy:
    """Listens on a port of its own and forwards to one address."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self.address = ""
        self.links: list[Link] = []
        self.accepted = 0
        self.refuse = False
        self.blackhole = False
        self.delay_s = 0.0
        self.bytes_per_s: float | None = None

    async def serve(self) -> asyncio.Server:
        """Start to listen; `address` says where."""
        server = await asyncio.start_server(self._serve_link, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        return server

    def cut_all(self) -> int:
        """Reset every connection; returns how many."""
        links = list(self.links)
        for link in links:
            link.cut()
        return len(links)

    async def _serve_link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        if self.refuse:
            _reset(writer)
            return
        link = Link(client=writer, server=None)
        self.links.append(link)
        try:
            if self.blackhole:
                link.swallow()
                await self._pump(reader, None, link.up)
                return
            try:
                from_server, to_server = await asyncio.open_connection(*self._target)
            except OSError:
                _reset(writer)
                return
            link.server = to_server
            pumps = [
                asyncio.create_task(self._pump(reader, to_server, link.up)),
                asyncio.create_task(self._pump(from_server, writer, link.down)),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
                if link.up.swallow:  # one end is gone; the other one is not notified
                    await asyncio.wait(pumps)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        finally:
            self.links.remove(link)
            link.cut()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter | None, way: Direction
    ) -> None:
        with suppress(ConnectionError, TimeoutError):
            while True:
                await way.open.wait()
                data = await reader.read(CHUNK)
                if not data:
                    return
                await way.open.wait()
                way.bytes += len(data)
                if way.swallow or writer is None:
                    continue
                speed = way.bytes_per_s or self.bytes_per_s
                pause_s = way.delay_s + self.delay_s + (len(data) / speed if speed else 0.0)
                if pause_s:
                    await asyncio.sleep(pause_s)
                writer.write(data)
                await writer.drain()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with a reset instead of a clean end."""
    raw = writer.get_extra_info("socket")
    if raw is not None:
        with suppress(OSError):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_RESET)
    writer.transport.abort()


@asynccontextmanager
async def proxied(target: str) -> AsyncIterator[TcpProxy]:
    """A proxy before `target` until the block ends."""
    proxy = TcpProxy(target)
    server = await proxy.serve()
    try:
        yield proxy
    finally:
        server.close()
        proxy.cut_all()
        while proxy.links:
            for link in proxy.links:
                link.flow()
            await asyncio.sleep(0.01)
        await server.wait_closed()
