"""The standard health service, for strangers: it answers for known names, and stores nothing about others.

The library's own service keeps the request of each watch, whatever name it asks for. And if several watch one
name, the first one that leaves takes the updates away from the others.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

Context = grpc.aio.ServicerContext[Any, Any]
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


class Health(health_pb2_grpc.HealthServicer):
    """The health of one server; the empty name is the server itself."""

    def __init__(self) -> None:
        self._names = {""}
        self._left = asyncio.Event()

    def add(self, service: str) -> None:
        """It also answers for this name."""
        self._names.add(service)

    def leave(self) -> None:
        """Nothing is served any more."""
        self._left.set()

    async def Check(  # noqa: N802  (the contract names it)
        self, request: health_pb2.HealthCheckRequest, context: Context
    ) -> health_pb2.HealthCheckResponse:
        """The status of a service."""
        if request.service not in self._names:
            context.set_code(grpc.StatusCode.NOT_FOUND)
            return health_pb2.HealthCheckResponse()
        return self._status()

    async def Watch(  # noqa: N802  (as above)
        self,
        request: health_pb2.HealthCheckRequest,
        context: Context,  # noqa: ARG002  (the servicer's signature)
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        """The status of a service now, and when it changes to not serving. It stays open, because clients whose
        watch ends start another one at once."""
        is_known = request.service in self._names
        del request  # its name may be long
        if not is_known:
            yield health_pb2.HealthCheckResponse(status=SERVICE_UNKNOWN)
        elif not self._left.is_set():
            yield self._status()
            await self._left.wait()
        if is_known:
            yield self._status()
        await asyncio.Event().wait()

    def _status(self) -> health_pb2.HealthCheckResponse:
        return health_pb2.HealthCheckResponse(status=NOT_SERVING if self._left.is_set() else SERVING)
