"""The proxy does to a connection what it says: the other chaos tests rely on it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tcp_proxy import TcpProxy, proxied

DEADLINE_S = 60.0


@asynccontextmanager
async def echoing() -> AsyncIterator[str]:
    """A server that echoes everything."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def dial(proxy: TcpProxy) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect and check that it works."""
    host, port = proxy.address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    await ask(reader, writer, b"hello")
    return reader, writer


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, words: bytes) -> None:
    """Send something and read it back."""
    writer.write(words)
    async with asyncio.timeout(DEADLINE_S):
        assert await reader.readexactly(len(words)) == words


async def silent(reader: asyncio.StreamReader) -> bool:
    """Whether nothing arrives, for a moment."""
    try:
        async with asyncio.timeout(0.2):
            await reader.read(1)
    except TimeoutError:
        return True
    return False


async def test_a_cut_is_a_reset() -> None:
    async with echoing() as server, proxied(server) as proxy:
        reader, writer = await dial(proxy)
        assert proxy.cut_all() == 1
        with pytest.raises(ConnectionResetError):
            async with asyncio.timeout(DEADLINE_S):
                await reader.read(1)
        writer.transport.abort()
        reader, writer = await dial(proxy)
        writer.close()
        assert proxy.accepted == 2


async def test_a_swallowed_link_takes_everything_and_gives_nothing() -> None:
    async with echoing() as server, proxied(server) as proxy:
        reader, writer = await dial(proxy)
        proxy.links[0].swallow()
        writer.write(b"x" * 1_000_000)
        async with asyncio.timeout(DEADLINE_S):
            await writer.drain()
        assert await silent(reader)
        assert not writer.is_closing()
        writer.close()


async def test_a_stalled_link_continues_where_it_stopped() -> None:
    async with echoing() as server, proxied(server) as proxy:
        reader, writer = await dial(proxy)
        proxy.links[0].stall()
        writer.write(b"later")
        assert await silent(reader)
        proxy.links[0].flow()
        async with asyncio.timeout(DEADLINE_S):
            assert await reader.readexactly(5) == b"later"
        writer.close()


async def test_a_slow_link_keeps_the_order() -> None:
    async with echoing() as server, proxied(server) as proxy:
        reader, writer = await dial(proxy)
        proxy.delay_s, proxy.bytes_per_s = 0.01, 1_000_000
        began = asyncio.get_running_loop().time()
        await ask(reader, writer, bytes(range(256)) * 400)
        assert asyncio.get_running_loop().time() - began > 0.2
        writer.close()


async def test_a_black_hole_accepts_and_a_refusal_does_not() -> None:
    async with echoing() as server, proxied(server) as proxy:
        host, port = proxy.address.split(":")
        proxy.blackhole = True
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"anybody?")
        assert await silent(reader)
        writer.transport.abort()
        proxy.blackhole, proxy.refuse = False, True
        reader, writer = await asyncio.open_connection(host, int(port))
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(reader.readexactly(1), DEADLINE_S)
        writer.transport.abort()
