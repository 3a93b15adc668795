"""The interceptor that refuses requests out of bounds, at every server: the scheduler's, the planner's, the worker's.

It looks at the one request of a call. On a stream each message is answered by itself, so the stream's method asks
`headrace.bounds.violations` of every message and says how it is refused; the stream goes on.
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
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any] | None"  # generic in its stub alone
Context = grpc.aio.ServicerContext[Any, Any]
Wording = Callable[[Message, Sequence[Violation]], Sequence[Violation]]
"""What is told of the violations of a request."""


def refuse(context: Context, error: HeadraceError) -> None:
    """Make an error the status of a call, whose method is to return now.

    `context.abort` does the same by an exception, whose traceback and task hold each other, and the request with them,
    until a full garbage collection: a caller could fill the memory with what is refused.
    """
    status = rpc_status.to_status(to_status(error))
    context.set_code(status.code)
    context.set_details(status.details)
    context.set_trailing_metadata(status.trailing_metadata)


class BoundsInterceptor(grpc.aio.ServerInterceptor):
    """Refuses with INVALID_ARGUMENT before the method sees the request. Methods must be asynchronous."""

    def __init__(self, wording: Wording = lambda _, found: found) -> None:
        self._wording = wording

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """Wrap the methods of this contract that take one request."""
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
