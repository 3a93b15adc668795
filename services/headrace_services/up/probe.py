"""How `headrace up` sees that what it started is ready: it asks, with a deadline, and tries again."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from headrace.ports import HOST
from headrace.v1 import study_pb2, study_pb2_grpc
from headrace_services.instance import health_service

DEADLINE_S = 2.0
# What runs on this machine is never behind a proxy, whatever the environment says.
OPTIONS = (("grpc.enable_http_proxy", 0),)

Probe = Callable[[], Awaitable[str | None]]


def scheduler_serves(address: str, instance: str, tls_ca: Path | None = None) -> Probe:
    """Ready when the standard health check answers SERVING for this run of `up`; works for a planner too. With TLS
    if there is an authority to trust."""

    wanted = health_pb2.HealthCheckRequest(service=health_service(instance))

    async def ask() -> str | None:
        async with _channel(address, tls_ca) as channel:
            try:
                check = health_pb2_grpc.HealthStub(channel).Check  # type: ignore[attr-defined]  # not in its stubs
                answer = await check(wanted, timeout=DEADLINE_S)
            except grpc.aio.AioRpcError:
                return None
        serving = answer.status == health_pb2.HealthCheckResponse.SERVING
        return f"serving on {'' if tls_ca is None else 'tls://'}{address}" if serving else None

    return ask


def worker_connected(
    address: str, worker: str, tls_ca: Path | None = None, token: Callable[[], str] | None = None
) -> Probe:
    """Ready when the scheduler lists the worker as connected; says what slots it brings. A `token` that has been
    revoked meanwhile cannot ask: then the worker counts as ready."""

    async def ask() -> str | None:
        metadata = () if token is None else (("authorization", f"Bearer {token()}"),)
        async with _channel(address, tls_ca) as channel:
            try:
                answer = await study_pb2_grpc.StudyServiceStub(channel).ListWorkers(
                    study_pb2.ListWorkersRequest(page_size=1000), timeout=DEADLINE_S, metadata=metadata
                )
            except grpc.aio.AioRpcError as error:
                refused = error.code() is grpc.StatusCode.UNAUTHENTICATED
                return "started; the token of this home cannot ask for its slots" if refused else None
        for status in answer.workers:
            if status.name == f"workers/{worker}" and status.connected:
                return f"connected with {_slots([slot.device for slot in status.slots])}"
        return None

    return ask


def console_serves(port: int) -> Probe:
    """Ready when the console answers. That its port takes connections means nothing: `up` itself listens there."""

    async def ask() -> str | None:
        try:
            async with asyncio.timeout(DEADLINE_S):
                reader, writer = await asyncio.open_connection(HOST, port)
                try:
                    writer.write(f"GET /static/icon.svg HTTP/1.0\r\nHost: {HOST}\r\n\r\n".encode())
                    answered = await reader.read(5) == b"HTTP/"
                finally:
                    writer.close()
        except (OSError, TimeoutError):
            return None
        return f"serving on http://{HOST}:{port}" if answered else None

    return ask


def _channel(address: str, tls_ca: Path | None) -> grpc.aio.Channel:
    if tls_ca is None:
        return grpc.aio.insecure_channel(address, OPTIONS)
    return grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(tls_ca.read_bytes()), OPTIONS)


def _slots(devices: list[str]) -> str:
    """`2 slots (2 × cpu)`."""
    kinds = ", ".join(f"{devices.count(device)} × {device}" for device in dict.fromkeys(devices))
    return f"{len(devices)} slot{'' if len(devices) == 1 else 's'}" + (f" ({kinds})" if kinds else "")
