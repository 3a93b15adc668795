"""Operations as generators, so that each is written once and serves both clients.

A `Flow[T]` is an operation that does no input or output itself. It yields an effect (a `Call` or an `Upload` to
make, or a `Sleep` to wait) and is sent the answer. Its return value is the result. Two small drivers perform
flows: `BlockingTransport.run` on an ordinary gRPC channel and `AsyncTransport.run` on a `grpc.aio` one. Inside a
flow,

    response = yield from rpc(study_pb2.GetStudyResponse, study_pb2.GetStudyRequest(name=...))

names the RPC by its response, so mypy knows the type.

Why is neither client built on the other? A blocking client over a private event loop needs a thread per client
and puts two loops into one process, which makes `grpc.aio` log poller errors. An async client over blocking
calls needs a thread per call. With flows, neither client depends on the other, and `blocking` and `awaiting`
below turn a flow into a method with the flow's own signature and docstring.
"""

from collections.abc import Awaitable, Callable, Generator, Iterable
from dataclasses import dataclass
from functools import cache, partial, wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

from google.protobuf.message import Message

from headrace.errors import HeadraceError

T = TypeVar("T")
P = ParamSpec("P")
Resp = TypeVar("Resp", bound=Message)


@dataclass(frozen=True, slots=True)
class Method:
    """One RPC."""

    path: str
    """The method's HTTP/2 path."""
    response: type[Message]


@cache
def method_of(response: type[Message]) -> Method:
    """The RPC that answers with this message. Each RPC has its own response type, defined in the same file as
    its service.
    """
    (found,) = (
        method
        for service in response.DESCRIPTOR.file.services_by_name.values()
        for method in service.methods
        if method.output_type.full_name == response.DESCRIPTOR.full_name
    )
    return Method(f"/{found.containing_service.full_name}/{found.name}", response)


@dataclass(frozen=True, slots=True)
class Call:
    """Make this call, retrying within the deadline. The request, including its id, stays the same."""

    method: Method
    request: Message


@dataclass(frozen=True, slots=True)
class Upload:
    """Make this call with a stream of requests, which starts again with each attempt."""

    method: Method
    requests: Callable[[], Iterable[Message]]


@dataclass(frozen=True, slots=True)
class Sleep:
    """Wait."""

    seconds: float


Effect = Call | Upload | Sleep
Flow = Generator[Effect, Any, T]


def rpc(response: type[Resp], request: Message) -> Flow[Resp]:
    """The response to a request."""
    kind: Any = response
    answer: Resp = yield Call(method_of(kind), request)
    return answer


class ErrorsBeginHere:
    """Wraps what a user calls: an error that leaves appears to start here, not ten frames inside the client."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, HeadraceError):
            error.__traceback__ = error.__cause__ = None


class Blocking(Protocol):
    """Performs flows and returns their results."""

    def run(self, flow: Flow[T], /) -> T: ...


class Awaiting(Protocol):
    """Performs flows and returns awaitables of their results."""

    async def run(self, flow: Flow[T], /) -> T: ...


class BlockingHandle(Protocol):
    """An object whose methods block."""

    @property
    def transport(self) -> Blocking: ...


class AwaitingHandle(Protocol):
    """An object whose methods are coroutines."""

    @property
    def transport(self) -> Awaiting: ...


def blocking(flow: Callable[Concatenate[Any, P], Flow[T]]) -> Callable[Concatenate[Any, P], T]:
    """The flow as a method of a blocking handle."""

    @wraps(flow)
    def method(handle: BlockingHandle, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return handle.transport.run(flow(handle, *args, **kwargs))

    return cast("Callable[Concatenate[Any, P], T]", _Member(method, "{}()"))


def awaiting(flow: Callable[Concatenate[Any, P], Flow[T]]) -> Callable[Concatenate[Any, P], Awaitable[T]]:
    """The flow as a method of an async handle."""

    @wraps(flow)
    async def method(handle: AwaitingHandle, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await handle.transport.run(flow(handle, *args, **kwargs))

    return cast("Callable[Concatenate[Any, P], Awaitable[T]]", _Member(method, "(await {}())"))


class _Member:
    """The method, bound in its class."""

    def __init__(self, function: Callable[..., Any], call: str) -> None:
        self._function = function
        self._call = call

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, handle: object, owner: type | None = None) -> Callable[..., Any]:
        if handle is None:
            return self._function
        bound = _Bound(self._function, handle)
        bound.__doc__ = self._function.__doc__
        bound.called = self._name, self._call.format(self._name)
        return bound


class _Bound(partial[Any]):
    """A method of a handle. If a user forgets to call it, as in `study.best.params`, the error says so."""

    called: tuple[str, str]

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name in ("__name__", "__qualname__"):
                return getattr(self.func, name)
            method, call = self.called
            raise AttributeError(f"{method} is a method: write {call}.{name}", name=name, obj=self)
