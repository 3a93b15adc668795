"""The interceptor that asks the gate: before a request is read or a method is chosen, and again while a stream is open.

A stream may last for days, and nothing need pass over it. So it is ended from the outside, as if its client had hung
up, within `ASKED_AGAIN_S` of the gate's noticing that the token was revoked or has expired. The gate keeps what it
knows for some seconds, so it costs little to ask.
"""

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final, TypeAlias

import grpc

from headrace.bounds.edge import refuse
from headrace.errors import HeadraceError, InternalError, PermissionDeniedError, UnauthenticatedError
from headrace_services.identity.gate import Gate, Identity, Metadata

log = logging.getLogger(__name__)

ASKED_AGAIN_S: Final = 10.0

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any] | None"  # generic in its stub alone
Behaviour = Callable[[Any, Any], Any]
Ask = Callable[[], Awaitable[object]]


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
                async with _until_refused(ask, self._asked_again_s):
                    if not inspect.isasyncgenfunction(behaviour):
                        return await behaviour(request, context)
                    async with aclosing(behaviour(request, context)) as responses:
                        async for response in responses:
                            await context.write(response)
            except _NoLongerLetInError as error:
                refuse(
                    context, error.why
                )  # it waits behind what was sent before, where the client does not read
            return None

        return call


class _NoLongerLetInError(Exception):
    """The gate would refuse the call now."""

    def __init__(self, why: HeadraceError) -> None:
        super().__init__(str(why))
        self.why = why


@asynccontextmanager
async def _until_refused(ask: Ask, every_s: float) -> AsyncIterator[None]:
    """Cancels the block when the gate refuses its call, and raises _NoLongerLetInError then.

    While the gate cannot say, because the database is away, the call continues.
    """
    refused: list[HeadraceError] = []
    watching = asyncio.create_task(_watch(_task(), ask, every_s, refused))
    try:
        yield
    except asyncio.CancelledError:
        if not refused or _task().uncancel():
            raise
        raise _NoLongerLetInError(refused[0]) from None
    finally:
        watching.cancel()


async def _watch(task: "asyncio.Task[Any]", ask: Ask, every_s: float, refused: list[HeadraceError]) -> None:
    while True:
        await asyncio.sleep(every_s)
        try:
            await ask()
        except (UnauthenticatedError, PermissionDeniedError) as error:
            refused.append(error)
            task.cancel()
            return
        except Exception as error:  # noqa: BLE001  (whatever it is, the next try may say)
            log.warning("whether a stream's token still works is not known now: %s", error)


def _task() -> "asyncio.Task[Any]":
    task = asyncio.current_task()
    assert task is not None
    return task


def _refusing(error: HeadraceError) -> Handler:
    """Refuses a call of any kind, and reads nothing of it."""

    async def call(_: Any, context: Any) -> None:
        refuse(context, error)

    return grpc.stream_stream_rpc_method_handler(call)
