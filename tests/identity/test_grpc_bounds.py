"""What gRPC itself bounds for every caller: large messages, much metadata, many calls over one connection. And
what it costs a server to check its connections."""

import asyncio
import sys
import time
from contextlib import AsyncExitStack

import grpc
import pytest
from admission_site import CALL, CHECK, STREAM, WATCH, Site, admission_site
from raw_http2 import message

from headrace.error_status import from_rpc_error
from headrace.errors import BusyError
from headrace_services.serving import connections as looking
from headrace_services.serving import limits
from headrace_services.serving.connections import Connections, Seen

EMPTY = message(b"")
NOBODY: tuple[tuple[str, str], ...] = ()
linux = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere connections are not looked at")


def said(site: Site, who: str) -> tuple[tuple[str, str], ...]:
    return site.said(who) if who else NOBODY


@pytest.mark.parametrize(("who", "path"), [("ann", CALL), ("", CHECK)])
async def test_a_message_over_the_bound_is_refused_and_the_server_serves_on(who: str, path: str) -> None:
    async with admission_site() as site, site.client("ann") as ann:
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
        async with grpc.aio.insecure_channel(site.address, options) as channel:
            call = channel.unary_unary(path)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call(b"x" * (limits.MESSAGE_BYTES + 1), timeout=60, metadata=said(site, who))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert str(limits.MESSAGE_BYTES) in (refused.value.details() or "")
        largest = b"x" * (limits.MESSAGE_BYTES - 100)
        assert await ann.call(largest) == b"answerxxxxxxxxxx"


@pytest.mark.parametrize(("who", "path"), [("ann", CALL), ("", CHECK)])
async def test_metadata_over_the_bound_is_refused(who: str, path: str) -> None:
    async with admission_site() as site, site.client() as client:
        large = ("x-large", "v" * limits.METADATA_BYTES)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await client._channel.unary_unary(path)(b"", timeout=60, metadata=(*said(site, who), large))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        small = ("x-small", "v" * (limits.METADATA_BYTES // 4))
        await client._channel.unary_unary(path)(b"", timeout=60, metadata=(*said(site, who), small))


@pytest.mark.parametrize(("who", "path"), [("ann", STREAM), ("", WATCH)])
async def test_a_connection_has_so_many_calls_at_once(
    who: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that respects the limit lets its further calls wait; those of one that does not are reset."""
    monkeypatch.setattr(limits, "STREAMS_OF_A_CONNECTION", 3)
    many = {"calls": 64, "streams": 64}
    async with admission_site(strangers={"calls": 64, "messages": 64}, known=many) as site:
        caller = await site.caller()
        assert caller.most_streams == 3
        numbers = [caller.call(path, said(site, who), body=EMPTY, end=True) for _ in range(8)]
        await site.comes_to(lambda: caller.open() == 3)
        assert [caller.streams[number].over for number in numbers] == [False] * 3 + [True] * 5
        caller.reset(numbers[0])
        again = caller.call(path, said(site, who), body=EMPTY, end=True)
        await site.comes_to(lambda: not caller.open() or bool(caller.streams[again].data))
        assert caller.streams[again].data
        assert caller.open() == 3


def test_the_bound_of_calls_over_one_connection() -> None:
    assert limits.Known().calls >= limits.STREAMS_OF_A_CONNECTION


@linux
@pytest.mark.full
async def test_looks_take_a_small_part_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a check takes, and however many connections there are."""
    monkeypatch.setattr(looking, "LOOK_S", 0.001)
    monkeypatch.setattr(looking, "LEAST_S", 0.001)
    watched = Connections(0, 0)
    watched.serve("127.0.0.1", 1)
    began, looks = time.monotonic(), []

    def look(*_: object) -> Seen:
        start = time.monotonic()
        time.sleep(0.02)
        looks.append(time.monotonic() - start)
        return Seen(frozenset(), 0)

    monkeypatch.setattr(watched, "look", look)
    task = asyncio.create_task(watched.run())
    while len(looks) < 5:
        await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert sum(looks[:-1]) < 0.2 * (time.monotonic() - began)


@linux
async def test_callers_that_want_too_many_connections_share_a_look() -> None:
    async with admission_site(known={"connections": 1}) as site, AsyncExitStack() as stack:
        first = await stack.enter_async_context(site.client("ann"))
        await first.call()
        looks, look = [], site.door.connections.look

        def counted(*args: frozenset[looking.Peer]) -> Seen:
            looks.append(1)
            return look(*args)

        site.door.connections.look = counted  # type: ignore[method-assign]  # a spy
        others = [await stack.enter_async_context(site.client("ann")) for _ in range(4)]
        refused = await asyncio.gather(*(one.call() for one in others), return_exceptions=True)
        for error in refused:
            assert isinstance(error, grpc.aio.AioRpcError)
            assert isinstance(from_rpc_error(error), BusyError)
        assert 1 <= len(looks) <= 4
        assert await first.call() == b"answer"
