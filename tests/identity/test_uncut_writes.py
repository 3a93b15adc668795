"""A stream that ends while a message is being written still tells its client why."""

import asyncio
from contextlib import suppress
from typing import Any

import grpc
import pytest

from headrace_services.serving.writes import uncut

METHOD = "/test.Service/Stream"


async def read(call: Any) -> None:
    """Read until the stream ends."""
    async for _ in call:
        pass


async def test_the_status_arrives_though_a_write_was_cancelled() -> None:
    """The first write also sends the stream's headers, which must not be sent twice."""

    async def stream(_: Any, context: Any) -> None:
        writing = asyncio.ensure_future(uncut(context.write)(b"x"))
        await asyncio.sleep(0)
        writing.cancel()
        with suppress(asyncio.CancelledError):
            await writing
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, "it is over")

    server = grpc.aio.server()
    handler = grpc.stream_stream_rpc_method_handler(stream)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("test.Service", {"Stream": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            for _ in range(5):
                with pytest.raises(grpc.aio.AioRpcError, match="it is over"):
                    await asyncio.wait_for(read(channel.stream_stream(METHOD)()), 20)
    finally:
        await server.stop(None)


async def test_a_client_that_does_not_read_delays_a_cancellation_only_a_little(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headrace_services.serving.writes._PATIENCE_S", 0.05)
    stuck = asyncio.Event()

    async def write(_: bytes) -> None:
        await stuck.wait()

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await uncut(write)(b"")
    stuck.set()
