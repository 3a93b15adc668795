"""Reflection with a limit on the size of questions: answers repeat the question, and a client that does not read
them keeps both in the server's memory.
"""

from collections.abc import AsyncIterable, AsyncIterator, Iterable
from typing import Any, Final

import grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc

from headrace.bounds.edge import refuse
from headrace.errors import BusyError, InvalidFieldError, Violation

MOST_BYTES: Final = 1024
"""The maximum size of a question. The names of files, services and messages have a few dozen bytes."""
MOST_STREAMS: Final = 16
"""How many streams may be open at once. gRPC receives up to 4 MiB of a question before its size is known."""


def enable(names: Iterable[str], server: grpc.aio.Server) -> None:
    """Serve reflection for these services, and for itself."""
    servicer = _Bounded([*names, reflection.SERVICE_NAME])
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]  # generated


class _Bounded(reflection.aio.ReflectionServicer):
    _open = 0

    async def ServerReflectionInfo(  # type: ignore[override]  # noqa: N802  # its stub says that it must be awaited
        self, request_iterator: AsyncIterable[reflection_pb2.ServerReflectionRequest], context: Any
    ) -> AsyncIterator[reflection_pb2.ServerReflectionResponse]:
        """Answer questions until one is too long."""
        if self._open >= MOST_STREAMS:
            refuse(context, BusyError(f"{self._open} reflection streams are open, which is the limit"))
            return
        self._open += 1
        try:
            answers: Any = super().ServerReflectionInfo(_short(request_iterator, context), context)
            async for answer in answers:
                yield answer
        finally:
            self._open -= 1


async def _short(
    requests: AsyncIterable[reflection_pb2.ServerReflectionRequest], context: Any
) -> AsyncIterator[reflection_pb2.ServerReflectionRequest]:
    async for request in requests:
        size = request.ByteSize()
        if size > MOST_BYTES:
            remedy = "Ask for a file, a service or a message by its name."
            message = f"has {size} bytes, and {MOST_BYTES} are the most"
            refuse(context, InvalidFieldError([Violation(field="request", message=message, remedy=remedy)]))
            return
        yield request
