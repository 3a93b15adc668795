"""How long calls take, and how they end; named by OpenTelemetry's conventions for RPC.

A stream lasts as long as its client wants. So streams are counted, and only other calls are timed.
"""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from time import perf_counter
from typing import Any, TypeAlias

import grpc
from prometheus_client import Counter, Gauge, Histogram

from headrace_services.monitoring.registry import REGISTRY, SECONDS

CALLS = Histogram(
    "rpc_server_call_duration_seconds",
    "How long calls took, without streams.",
    ("rpc_method", "rpc_response_status_code"),
    buckets=SECONDS,
    registry=REGISTRY,
)
STREAMS = Gauge("headrace_streams_open", "Streams that are open now.", ("rpc_method",), registry=REGISTRY)
STREAMS_ENDED = Counter(
    "headrace_streams_ended",
    "Streams that have ended.",
    ("rpc_method", "rpc_response_status_code"),
    registry=REGISTRY,
)
_CODES = {code.value[0]: code.name for code in grpc.StatusCode}

Context = grpc.aio.ServicerContext[Any, Any]
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any] | None"  # generic only in its stub
Behaviour = Callable[[Any, Any], Any]


class MeasuringInterceptor(grpc.aio.ServerInterceptor):
    """Measures every asynchronous method.

    It is placed before interceptors that set a status, so that it sees the status, and after the gate, which
    answers again at each call.
    """

    def __init__(self) -> None:
        self._wrapped: dict[str, Handler] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """Wrap the handler of a method, once. An unknown method gets no label."""
        method = handler_call_details.method
        if method not in self._wrapped:
            handler = await continuation(handler_call_details)
            if handler is None:
                return None
            self._wrapped[method] = _measured(handler, method.lstrip("/"))
        return self._wrapped[method]


def _measured(handler: "grpc.RpcMethodHandler[Any, Any]", method: str) -> Handler:
    coding = {
        "request_deserializer": handler.request_deserializer,
        "response_serializer": handler.response_serializer,
    }
    if handler.unary_unary and inspect.iscoroutinefunction(handler.unary_unary):
        return grpc.unary_unary_rpc_method_handler(_timed(handler.unary_unary, method), **coding)
    if handler.unary_stream and inspect.isasyncgenfunction(handler.unary_stream):
        return grpc.unary_stream_rpc_method_handler(_yielded(handler.unary_stream, method), **coding)
    if handler.unary_stream and inspect.iscoroutinefunction(handler.unary_stream):
        return grpc.unary_stream_rpc_method_handler(_counted(handler.unary_stream, method), **coding)
    if handler.stream_stream and inspect.iscoroutinefunction(handler.stream_stream):
        return grpc.stream_stream_rpc_method_handler(_counted(handler.stream_stream, method), **coding)
    return handler


def _timed(behaviour: Behaviour, method: str) -> Behaviour:
    async def call(request: Any, context: Context) -> Any:
        began, ended = perf_counter(), "CANCELLED"  # its client is gone, or its deadline has passed
        try:
            answer = await behaviour(request, context)
            ended = _status(context)
        except Exception:
            ended = _status(context, otherwise="UNKNOWN")
            raise
        finally:
            CALLS.labels(method, ended).observe(perf_counter() - began)
        return answer

    return call


def _counted(behaviour: Behaviour, method: str) -> Behaviour:
    async def call(request: Any, context: Context) -> None:
        with _open(method, context):
            await behaviour(request, context)

    return call


def _yielded(behaviour: Behaviour, method: str) -> Behaviour:
    async def call(request: Any, context: Context) -> AsyncIterator[Any]:
        with _open(method, context):
            async with aclosing(behaviour(request, context)) as responses:
                async for response in responses:
                    yield response

    return call


@contextmanager
def _open(method: str, context: Context) -> Iterator[None]:
    """Count a stream while it is open, and how it ends."""
    ended = "CANCELLED"
    STREAMS.labels(method).inc()
    try:
        yield
        ended = _status(context)
    except Exception:
        ended = _status(context, otherwise="UNKNOWN")
        raise
    finally:
        STREAMS.labels(method).dec()
        STREAMS_ENDED.labels(method, ended).inc()


def _status(context: Context, *, otherwise: str = "OK") -> str:
    """The name of the status with which a call ends."""
    code: Any = context.code()  # the stubs say StatusCode, and it is a number
    number = code.value[0] if isinstance(code, grpc.StatusCode) else int(code or 0)
    return _CODES.get(number, "UNKNOWN") if number else otherwise
