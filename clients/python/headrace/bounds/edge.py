"""The interceptor that rejects out-of-bounds requests, on every server: the scheduler's, the planner's, the
worker's.

It checks the single request of a call. On a stream, each message is answered separately, so the stream's
method passes every message to `headrace.bounds.violations` and reports how it is rejected; the stream
continues.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import Message
from grpc_status import rpc_status

from headrace.bounds import violations
from headrace.error_status import to_status
from headrace.errors import HeadraceError, InvalidFieldError, Violation

_PACKAGE = "/headrace.v1."
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any] | None"  # generic only in its stub
Context = grpc.aio.ServicerContext[Any, Any]
Wording = Callable[[Message, Sequence[Violation]], Sequence[Violation]]
"""How the violations of a request are reported."""


def refuse(context: Context, error: HeadraceError) -> None:
    """Set an error as the status of a call. Its method must return immediately afterwards.

    `context.abort` does the same with an exception. Its traceback and task refer to each other, and keep the
    request alive until a full garbage collection: a client could fill the memory with rejected requests.
    """
    status = rpc_status.to_status(to_status(error))
    context.set_code(status.code)
    context.set_details(status.details)
    context.set_trailing_metadata(status.trailing_metadata)


class BoundsInterceptor(grpc.aio.ServerInterceptor):
    """Rejects requests with INVALID_ARGUMENT before the method sees them. Methods must be asynchronous."""

    def __init__(self, wording: Wording = lambda _, found: found) -> None:
        self._wording = wording

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """Wrap the methods of this API that take one request."""
        handler = await continuation(handler_call_details)
        if (
            handler is None
            or handler.request_streaming
            or not handler_call_details.method.startswith(_PACKAGE)
        ):
            return handler
        coding = {
            "request_deserializer": handler.request_deserializer,
            "response_serializer": handler.response_serializer,
        }
        if handler.unary_unary:
            return grpc.unary_unary_rpc_method_handler(_unary(handler.unary_unary, self._wording), **coding)
        if handler.unary_stream:
            return grpc.unary_stream_rpc_method_handler(
                _streaming(handler.unary_stream, self._wording), **coding
            )
        return handler


def _unary(method: Callable[[Any, Any], Any], wording: Wording) -> Callable[[Any, Any], Any]:
    async def call(request: Message, context: Context) -> Any:
        found = violations(request)
        if found:
            return refuse(context, InvalidFieldError(wording(request, found)))
        return await method(request, context)

    return call


def _streaming(method: Callable[[Any, Any], Any], wording: Wording) -> Callable[[Any, Any], Any]:
    async def call(request: Message, context: Context) -> Any:
        found = violations(request)
        if found:
            refuse(context, InvalidFieldError(wording(request, found)))
            return
        async with aclosing(method(request, context)) as responses:
            async for response in responses:
                yield response

    return call
