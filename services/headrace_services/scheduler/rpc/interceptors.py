"""The edge of every call: its deadline, its bounds, and the status that an error becomes.

The caller is determined earlier (`serving/admission`), before the request is read. Methods use `caller()`
(`rpc/caller.py`).

Requests out of bounds (`headrace.bounds`) are refused here too, before a method sees them.

This is also the only place where exceptions become statuses. A HeadraceError carries its reason and remedy in the
status's details; an unavailable database is one of them, whichever layer noticed it. Anything else is a defect of
the server: it is logged with its traceback, and the caller learns only that it happened.
"""

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final, TypeAlias

import grpc

from headrace.bounds.edge import BoundsInterceptor, refuse
from headrace.errors import DatabaseUnavailableError, DeadlineError, HeadraceError, InternalError
from headrace_services.monitoring.calls import MeasuringInterceptor
from headrace_services.scheduler.rpc.caller import caller, calling, let_call
from headrace_services.scheduler.rpc.choosing import in_chosen_project
from headrace_services.scheduler.rpc.spec_faults import in_own_words
from headrace_services.scheduler.store.database import is_away, is_strained
from headrace_services.scheduler.store.defects import reason_of
from headrace_services.serving.admission import AdmissionInterceptor
from headrace_services.serving.writes import uncut

log = logging.getLogger(__name__)

DEADLINE_S = 60.0
"""How long a call may take from its request to its answer, whatever deadline its caller gives. Waits within a call
are shorter: `LONGEST_WAIT_S`, the analysis pools, `log_reads`."""
DEADLINES_S: Final[Mapping[str, float]] = {
    # 100 MiB at the lowest pace (`uploads`), after waiting for a place
    "/headrace.v1.CodeService/PutCode": 3600.0,
}
"""Deadlines of methods that may take longer."""

Context = grpc.aio.ServicerContext[Any, Any]
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any] | None"  # generic only in its stub
Behaviour = Callable[[Any, Any], Any]


def make_server_interceptors(
    admission: AdmissionInterceptor | None = None, *, deadline_s: float = DEADLINE_S
) -> Sequence[grpc.aio.ServerInterceptor]:
    """The interceptors of a scheduler's server; unless another admission is given, every caller is admitted."""
    admission = admission or AdmissionInterceptor()
    return (admission, MeasuringInterceptor(), EdgeInterceptor(deadline_s), BoundsInterceptor(in_own_words))


class EdgeInterceptor(grpc.aio.ServerInterceptor):
    """Wraps every asynchronous handler; synchronous ones, of which there are none here, are left as they are."""

    def __init__(self, deadline_s: float) -> None:
        self._deadline_s = deadline_s
        self._wrapped: dict[str, Handler] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """Wrap the handler of a method only once: gRPC asks at every call."""
        method = handler_call_details.method
        if method not in self._wrapped:
            handler = await continuation(handler_call_details)
            if handler is None:  # an unknown method: callers choose the names, so none is cached
                return None
            self._wrapped[method] = self._wrap(handler, method)
        return self._wrapped[method]

    def _wrap(self, handler: "grpc.RpcMethodHandler[Any, Any]", method: str) -> Handler:
        coding = {
            "request_deserializer": handler.request_deserializer,
            "response_serializer": handler.response_serializer,
        }
        deadline_s = DEADLINES_S.get(method, self._deadline_s)
        if handler.unary_unary and inspect.iscoroutinefunction(handler.unary_unary):
            unary = _unary(handler.unary_unary, method, deadline_s)
            return grpc.unary_unary_rpc_method_handler(unary, **coding)
        if handler.stream_unary and inspect.iscoroutinefunction(handler.stream_unary):
            upload = _unary(handler.stream_unary, method, deadline_s)
            return grpc.stream_unary_rpc_method_handler(upload, **coding)
        if handler.unary_stream and _is_async(handler.unary_stream):
            stream = _stream(handler.unary_stream, method)
            return grpc.unary_stream_rpc_method_handler(stream, **coding)
        if handler.stream_stream and _is_async(handler.stream_stream):
            stream = _stream(handler.stream_stream, method)
            return grpc.stream_stream_rpc_method_handler(stream, **coding)
        return handler


def _is_async(behaviour: Behaviour) -> bool:
    return inspect.isasyncgenfunction(behaviour) or inspect.iscoroutinefunction(behaviour)


def _unary(behaviour: Behaviour, method: str, deadline_s: float) -> Behaviour:
    async def call(request: Any, context: Context) -> Any:
        let_call(calling(context.peer()))
        # A shorter deadline of the caller ends the call by cancelling it.
        limit = asyncio.timeout(deadline_s)
        async with _translating(context, method):
            let_call(in_chosen_project(caller(), context.invocation_metadata()))
            try:
                async with limit:
                    return await behaviour(request, context)
            except TimeoutError:
                if not limit.expired():
                    raise
                raise DeadlineError(f"the call took longer than {deadline_s:g} s") from None

    return call


def _stream(behaviour: Behaviour, method: str) -> Behaviour:
    """Support both ways to write a streaming method: yielding messages, and writing them to the context."""

    async def call(request: Any, context: Context) -> None:
        let_call(calling(context.peer()))
        async with _translating(context, method):
            let_call(in_chosen_project(caller(), context.invocation_metadata()))
            if not inspect.isasyncgenfunction(behaviour):
                await behaviour(request, context)
                return
            # Closed at once when the client goes away, not whenever it is collected.
            write = uncut(context.write)
            async with aclosing(behaviour(request, context)) as responses:
                async for response in responses:
                    await write(response)

    return call


@asynccontextmanager
async def _translating(context: Context, method: str) -> AsyncIterator[None]:
    """Turn an exception into the status of the call. Cancellation passes through."""
    try:
        yield
    except grpc.aio.AbortError:
        raise
    except Exception as error:  # noqa: BLE001  (whatever it is, it becomes a status here)
        refuse(context, presentable(error, method))


def presentable(error: Exception, method: str) -> HeadraceError:
    """The part of an error that the caller may see; errors that the caller did not cause are logged."""
    if isinstance(error, HeadraceError) and not isinstance(error, InternalError):
        if is_strained(error):
            log.warning("%s: %s", method, error)
        return error
    if is_away(error):
        log.warning("%s: the database does not answer: %s", method, error)
        return DatabaseUnavailableError("the database does not answer")
    if is_strained(error):
        log.warning("%s: the database could not do it: %s", method, error)
        return DatabaseUnavailableError(f"the database could not do this now: {reason_of(error)}")
    log.error("%s failed", method, exc_info=error)
    return InternalError("the scheduler failed on this call")
