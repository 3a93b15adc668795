"""The first interceptor of every server: who makes a call, and that callers stay within their limits (`limits`).

It presents every method to gRPC as a stream. So it can ask the gate before a byte of the request is read, read a
single request itself, and track a call until its answer has been received:

    a stranger's place → the gate → the caller's own count → the request → the method → the end of the call

A stranger whose place another call gets loses its connection: a status might be stuck behind data that it does not
read. An answer that is not received in time ends its connection too, whoever called. Streams of known callers may
pause.

If a proxy is in between, strangers' calls may share a connection with those of known callers. Such calls count as
strangers', and end alone.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import DecodeError

from headrace.bounds.edge import refuse
from headrace.errors import (
    BusyError,
    DeadlineError,
    HeadraceError,
    InternalError,
    InvalidFieldError,
    Violation,
)
from headrace_services.identity.admitted import admit
from headrace_services.identity.gate import Gate, Identity
from headrace_services.identity.open_streams import ASKED_AGAIN_S, NoLongerLetInError, until_refused
from headrace_services.identity.permissions import PERMISSIONS, Permission
from headrace_services.serving.callers import KnownCallers, Slot, StrangersCalls
from headrace_services.serving.connections import Connections
from headrace_services.serving.limits import Known, Strangers
from headrace_services.serving.writes import uncut

log = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any] | None"  # generic only in its stub


class AdmissionInterceptor(grpc.aio.ServerInterceptor):
    """Wraps every method, including those that do not exist. Without a gate everybody is known, by the certificate
    or by the connection."""

    def __init__(
        self,
        gate: Gate | None = None,
        connections: Connections | None = None,
        *,
        strangers: Strangers | None = None,
        known: Known | None = None,
        asked_again_s: float = ASKED_AGAIN_S,
    ) -> None:
        """How often, in seconds, the gate is asked again about open streams."""
        strangers = strangers or Strangers()
        self.gate = gate
        self.connections = connections or Connections(strangers.connections, (known or Known()).connections)
        self.strangers = StrangersCalls(strangers, self.connections)
        self.known = KnownCallers(known or Known())
        self.asked_again_s = asked_again_s
        self._wrapped: dict[str, Handler] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """Wrap the handler of a method, once: gRPC asks at every call."""
        method = handler_call_details.method
        if method not in self._wrapped:
            handler = await continuation(handler_call_details)
            if handler is None:  # callers choose the names of methods, so none is cached
                return _Method(self, method, grpc.stream_stream_rpc_method_handler(_unknown)).handler()
            self._wrapped[method] = _Method(self, method, handler).handler()
        return self._wrapped[method]


class _Call:
    """One call, and what happens to its connection."""

    def __init__(self, door: AdmissionInterceptor, peer: str, context: Context, *, may_pause: bool) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.task, self.peer, self.context, self.may_pause = task, peer, context, may_pause
        self.gave_way = False
        self._door = door
        self._is_known = False

    async def known_as(self, name: str, *, is_stream: bool) -> Slot:
        """Its caller has been identified. Raises BusyError."""
        await self._door.connections.know(self.peer, name)
        self._is_known = True
        return _until_its_end(self.context, self._door.known.enter(name, is_stream=is_stream))

    def give_way(self) -> None:
        """Ends the call alone."""
        if not self.task.done():
            self.gave_way = self.task.cancel()

    def wait_for_the_client(self) -> None:
        """The call is served. If its answer is not received in time, the connection ends, unless somebody else's
        calls use it too."""
        connections = self._door.connections
        if connections.knows(self.peer) and (self.may_pause or not self._is_known):
            return
        within_s = (self._door.known if self._is_known else self._door.strangers).limits.within_s
        timer = asyncio.get_running_loop().call_later(within_s, connections.hang_up, self.peer)
        _at_its_end(self.context, timer.cancel)


class _Method:
    """A method in the form that gRPC gets."""

    def __init__(
        self, door: AdmissionInterceptor, method: str, handler: "grpc.RpcMethodHandler[Any, Any]"
    ) -> None:
        self._door = door
        self._method = method
        self._inner = handler
        self._is_open = _is_open(method)
        self._is_stream = bool(handler.request_streaming or handler.response_streaming)
        self._behaviour: Any = (
            handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
        )

    def handler(self) -> Handler:
        """The handler."""
        read = self._inner.request_deserializer if self._inner.request_streaming else None
        write = self._inner.response_serializer
        if self._inner.response_streaming:
            return grpc.stream_stream_rpc_method_handler(self._call, read, write)
        return grpc.stream_unary_rpc_method_handler(self._call, read, write)

    async def _call(self, requests: Any, context: Context) -> Any:
        door, peer = self._door, context.peer()
        if door.connections.ends(peer):  # what it has sent before is worthless
            context.set_code(grpc.StatusCode.UNAVAILABLE)
            return None
        one = _Call(door, peer, context, may_pause=self._is_stream)
        try:
            slot = await self._entered(one)
            if not self._inner.request_streaming:
                requests = await self._request(context, slot)
            async with self._while_let_in(context):
                return await self._answered(requests, context)
        except NoLongerLetInError as error:
            one.may_pause = False  # the status waits behind what was sent before, if the client does not read
            return refuse(context, error.why)
        except HeadraceError as error:
            return refuse(context, error)
        except asyncio.CancelledError:
            if not one.gave_way or one.task.uncancel():
                raise
            return refuse(context, BusyError("too many calls without a token or a certificate are open"))
        finally:
            one.wait_for_the_client()

    async def _entered(self, one: "_Call") -> Slot:
        """The call's place with its caller. Raises HeadraceError if the caller may not make the call."""
        door, peer, context = self._door, one.peer, one.context
        if door.gate is None and (name := _certificate(context) or ("" if self._is_open else peer)):
            return await one.known_as(name, is_stream=self._is_stream)
        strange = _until_its_end(context, door.strangers.enter(peer, one.give_way))
        if door.gate is None or self._is_open:
            return strange
        who = await _identified(door.gate, self._method, context)
        admit(who)
        slot = await one.known_as(who.token, is_stream=self._is_stream)
        strange.leave()
        return slot

    async def _request(self, context: Context, slot: Slot) -> Any:
        """The one request of a call. Raises HeadraceError."""
        try:
            async with asyncio.timeout(slot.within_s), slot.reading():
                data = await context.read()
        except TimeoutError:
            raise DeadlineError(f"the request has not arrived within {slot.within_s:g} s") from None
        if data is grpc.aio.EOF:
            raise _unread("is missing")
        if len(data) > slot.message_bytes:
            raise _unread(f"has {len(data)} bytes, and {slot.message_bytes} is the limit without a token")
        try:
            return self._inner.request_deserializer(data) if self._inner.request_deserializer else data
        except DecodeError:
            raise _unread("cannot be read") from None

    def _while_let_in(self, context: Context) -> AbstractAsyncContextManager[None]:
        gate = self._door.gate
        if gate is None or self._is_open or not self._is_stream:  # a single request is soon received
            return nullcontext()
        metadata = context.invocation_metadata() or ()
        return until_refused(lambda: gate.admit(self._method, metadata), self._door.asked_again_s)

    async def _answered(self, requests: Any, context: Context) -> Any:
        if not inspect.isasyncgenfunction(self._behaviour):
            return await self._behaviour(requests, context)
        write = uncut(context.write)
        async with aclosing(self._behaviour(requests, context)) as responses:
            async for response in responses:
                await write(response)
        return None


def _is_open(method: str) -> bool:
    rule = PERMISSIONS.get(method)
    return rule is not None and rule.permission is Permission.OPEN


async def _unknown(_: Any, context: Context) -> None:
    context.set_code(grpc.StatusCode.UNIMPLEMENTED)
    context.set_details("Method not found!")  # in gRPC's own words


async def _identified(gate: Gate, method: str, context: Context) -> Identity:
    """Who makes a call. Raises HeadraceError."""
    try:
        who = await gate.admit(method, context.invocation_metadata() or ())
    except HeadraceError:
        raise
    except Exception as error:
        log.exception("%s: the caller's token could not be looked up", method)
        raise InternalError("the server failed to look up the caller's token") from error
    assert who is not None, "only open methods need nobody"
    return who


def _until_its_end(context: Context, slot: Slot) -> Slot:
    _at_its_end(context, slot.leave)
    return slot


def _at_its_end(context: Context, then: Callable[[], None]) -> None:
    """Returns when its status has been sent, or the call is gone."""

    def done(_: Context) -> None:
        then()

    context.add_done_callback(done)  # type: ignore[arg-type]  # its stub wants a class that there is not


def _certificate(context: Context) -> str:
    """The names in the certificate of a connection, which gRPC has verified; empty if it presents none."""
    names = context.auth_context().get("x509_subject_alternative_name") or ()
    return " ".join(name.decode(errors="replace") for name in names)


def _unread(message: str) -> InvalidFieldError:
    remedy = "Call with a client of Headrace."
    return InvalidFieldError([Violation(field="request", message=message, remedy=remedy)])
