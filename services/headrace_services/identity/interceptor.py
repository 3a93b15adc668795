"""The interceptor that asks the gate, before a request is read or a method is chosen."""

import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import grpc

from headrace.bounds.edge import refuse
from headrace.errors import HeadraceError, InternalError
from headrace_services.identity.gate import Gate, Identity

log = logging.getLogger(__name__)

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any] | None"  # generic in its stub alone


class GateInterceptor(grpc.aio.ServerInterceptor):
    """The first of a server's interceptors. `let_in` is told who makes the call, in the call's own task."""

    def __init__(self, gate: Gate, let_in: Callable[[Identity], None] = lambda _: None) -> None:
        self._gate = gate
        self._let_in = let_in

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """Let the call in, or refuse it."""
        method = handler_call_details.method
        try:
            who = await self._gate.admit(method, handler_call_details.invocation_metadata or ())
        except HeadraceError as error:
            return _refusing(error)
        except Exception:
            log.exception("%s: the caller's token could not be looked up", method)
            return _refusing(InternalError("the server failed to look up the caller's token"))
        if who is not None:
            self._let_in(who)
        return await continuation(handler_call_details)


def _refusing(error: HeadraceError) -> Handler:
    """Refuses a call of any kind, and reads nothing of it."""

    async def call(_: Any, context: Any) -> None:
        refuse(context, error)

    return grpc.stream_stream_rpc_method_handler(call)
