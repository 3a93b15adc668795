"""Calls are measured, whatever kind they are and however they end."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import grpc
import pytest

from headrace_services.monitoring.calls import MeasuringInterceptor
from headrace_services.monitoring.registry import REGISTRY

SERVICE = "probe.Probe"


class Probe:
    """One method of each kind; the request says how it ends."""

    def __init__(self) -> None:
        self.open = asyncio.Event()

    async def _end(self, how: bytes, context: Any) -> None:
        if how == b"code":
            context.set_code(grpc.StatusCode.NOT_FOUND)
        elif how == b"abort":
            await context.abort(grpc.StatusCode.ABORTED, "no")
        elif how == b"raise":
            raise RuntimeError("a defect")
        elif how == b"wait":
            self.open.set()
            await asyncio.Event().wait()

    async def unary(self, request: bytes, context: Any) -> bytes:
        await self._end(request, context)
        return b"x"

    async def writing(self, request: bytes, context: Any) -> None:
        await context.write(b"x")
        await self._end(request, context)

    async def yielding(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        yield b"x"
        await self._end(request, context)


def counted(method: str, status: str) -> float:
    name = "rpc_server_call_duration_seconds_count" if method == "unary" else "headrace_streams_ended_total"
    labels = {"rpc_method": f"{SERVICE}/{method}", "rpc_response_status_code": status}
    return REGISTRY.get_sample_value(name, labels) or 0.0


@pytest.mark.parametrize("method", ["unary", "writing", "yielding"])
async def test_the_status_of_every_end_is_counted(method: str) -> None:
    probe = Probe()
    server = grpc.aio.server(interceptors=(MeasuringInterceptor(),))
    behaviour = getattr(probe, method)
    handler = (
        grpc.unary_unary_rpc_method_handler(behaviour)
        if method == "unary"
        else grpc.unary_stream_rpc_method_handler(behaviour)
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {method: handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    ends = {b"": "OK", b"code": "NOT_FOUND", b"abort": "ABORTED", b"raise": "UNKNOWN"}
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        path = f"/{SERVICE}/{method}"
        call: Any = (channel.unary_unary if method == "unary" else channel.unary_stream)(path)
        for how, status in ends.items():
            before = counted(method, status)
            running = call(how, timeout=60)
            if method != "unary":
                with suppress(grpc.RpcError):
                    assert [response async for response in running] == [b"x"]
            assert (await running.code()).name == status
            async with asyncio.timeout(60):
                while counted(method, status) == before:
                    await asyncio.sleep(0.01)
            assert counted(method, status) == before + 1
        before, waiting = counted(method, "CANCELLED"), call(b"wait")
        if method != "unary":
            assert await waiting.read() == b"x"
        await probe.open.wait()
        if method != "unary":
            opened = {"rpc_method": f"{SERVICE}/{method}"}
            assert REGISTRY.get_sample_value("headrace_streams_open", opened) == 1
        waiting.cancel()
        async with asyncio.timeout(60):
            while counted(method, "CANCELLED") == before:
                await asyncio.sleep(0.01)
        with pytest.raises(grpc.RpcError):
            await (channel.unary_unary(f"/{SERVICE}/nowhere"))(b"", timeout=60)
    await server.stop(0)
    text = {sample.labels.get("rpc_method", "") for family in REGISTRY.collect() for sample in family.samples}
    assert f"{SERVICE}/nowhere" not in text
