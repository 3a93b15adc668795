"""The interceptor that asks the gate, before a request is read or a method is chosen, and of streams again
(`open_streams`).
"""

import inspect
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeAlias

import grpc

from headrace.bounds.edge import refuse
from headrace.errors import HeadraceError, InternalError
from headrace_services.identity.gate import Gate, Identity, Metadata
from headrace_services.identity.open_streams import ASKED_AGAIN_S, Ask, NoLongerLetInError, until_refused

log = logging.getLogger(__name__)

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any] | None"  # generic in its stub alone
Behaviour = Callable[[Any, Any], Any]


class GateInterceptor(grpc.aio.ServerInterceptor):
    """The first of a server's interceptors. `let_in` is told who makes the call, in the call's own task."""

    def __init__(
        self,
        gate: Gate,
        let_in: Callable[[Identity], None] = lambda _: None,
        *,
        asked_again_s: float = ASKED_AGAIN_S,
    ) -> None:
        self._gate = gate
        self._let_in = let_in
        self._asked_again_s = asked_again_s

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """Let the call in, or refuse it."""
        method = handler_call_details.method
        metadata: Metadata = handler_call_details.invocation_metadata or ()
        try:
            who = await self._gate.admit(method, metadata)
        except HeadraceError as error:
            return _refusing(error)
        except Exception:
            log.exception("%s: the caller's token could not be looked up", method)
            return _refusing(InternalError("the server failed to look up the caller's token"))
        handler = await continuation(handler_call_details)
        if who is None or handler is None:
            return handler
        self._let_in(who)
        return self._while_let_in(handler, lambda: self._gate.admit(method, metadata))

    def _while_let_in(self, handler: "grpc.RpcMethodHandler[Any, Any]", ask: Ask) -> Handler:
        coding = {
            "request_deserializer": handler.request_deserializer,
            "response_serializer": handler.response_serializer,
        }
        if handler.stream_unary:
            kept = self._kept(handler.stream_unary, ask)
            return grpc.stream_unary_rpc_method_handler(kept, **coding)
        if handler.unary_stream:
            kept = self._kept(handler.unary_stream, ask)
            return grpc.unary_stream_rpc_method_handler(kept, **coding)
        if handler.stream_stream:
            kept = self._kept(handler.stream_stream, ask)
            return grpc.stream_stream_rpc_method_handler(kept, **coding)
        return handler  # one request and one answer: it is soon over

    def _kept(self, behaviour: Behaviour, ask: Ask) -> Behaviour:
        async def call(request: Any, context: Any) -> Any:
            try:
                async with until_refused(ask, self._asked_again_s):
                    if not inspect.isasyncgenfunction(behaviour):
                        return await behaviour(request, context)
                    async with aclosing(behaviour(request, context)) as responses:
                        async for response in responses:
                            await context.write(response)
            except NoLongerLetInError as error:
                refuse(
                    context, error.why
                )  # it waits behind what was sent before, where the client does not read
            return None

        return call


def _refusing(error: HeadraceError) -> Handler:
    """Refuses a call of any kind, and reads nothing of it."""

    async def call(_: Any, context: Any) -> None:
        refuse(context, error)

    return grpc.stream_stream_rpc_method_handler(call)
