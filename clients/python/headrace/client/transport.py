"""The two drivers of flows: one on an ordinary gRPC channel, one on a `grpc.aio` channel.

Both do the same four things (a call with retries, a sleep, a watch, closing) and differ only in `await`.
Everything that can be decided without I/O is elsewhere: timeouts in `connection`, the watch's cursor in `watch`,
the operations in `flows`. gRPC's errors end here and leave as a `HeadraceError`.
"""

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing
from operator import methodcaller
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message
from tenacity import AsyncRetrying, Retrying

from headrace.client import connection, convert
from headrace.client.connection import Patience
from headrace.client.events import Event, Update
from headrace.client.flow import Call, Effect, ErrorsBeginHere, Flow, Method, Upload, method_of
from headrace.client.model import StudyInfo
from headrace.client.names import study_name
from headrace.client.renewing import AsyncRenewer, Renewer
from headrace.client.route import Route
from headrace.client.watch import OnBreak, WatchPosition
from headrace.error_status import from_rpc_error
from headrace.errors import CallCancelledError, DeadlineError, HeadraceError, UnreachableError
from headrace.target import Target, proxy_options
from headrace.v1 import study_pb2

T = TypeVar("T")
_PAUSE_AFTER_GOOD_END_S = 0.2
_SERIALIZED = methodcaller("SerializeToString")


class _Transport:
    """What both have in common: the target, and this client's timeouts."""

    _route: Route[Any]

    def __init__(self, target: Target, patience: Patience) -> None:
        self.target = target
        self._patience = patience

    def _retrying(self, started: float, route: Route[Any]) -> dict[str, Any]:
        """The retry policy for tenacity, for an operation that started at a given time."""
        return {
            "retry": connection.retry_transient,
            "stop": self._patience.exhausted(started),
            "wait": lambda state: 0.0 if route.has_untried else connection.wait(state),
            "reraise": True,
        }

    def _attempt_timeout_s(self, started: float) -> float:
        """The deadline of an attempt that starts now."""
        return self._patience.attempt_timeout_s(time.monotonic() - started, len(self.target.replicas))

    def _position(self, study: str, after: int, until: int) -> WatchPosition:
        """The position of a watch up to a cursor: it waits no longer than any other operation."""
        return WatchPosition(study, after, until=until, give_up_after_s=self._patience.timeout_s)

    def _stream_timeout_s(self, position: WatchPosition) -> float:
        """The deadline of one stream of a watch."""
        return connection.STREAM_TIMEOUT_S if position.until is None else self._patience.timeout_s

    def _failure(self, error: grpc.RpcError | HeadraceError) -> HeadraceError:
        """The error as the SDK raises it."""
        if isinstance(error, HeadraceError):
            return error  # from a call within a watch, which is already translated
        known = from_rpc_error(error)
        if isinstance(known, DeadlineError) and not self._patience.answered:
            known = UnreachableError("No Headrace server answers.")  # a silent address, not a slow scheduler
        return connection.name_address(known, self.target)

    def _note(self, channel: Any, failure: HeadraceError | None) -> None:
        """Take the result of a call on a channel (None: success). If nobody answers, the home may have another
        address.
        """
        self._patience.note(failure)
        self._route.note(channel, failure)
        if isinstance(failure, UnreachableError | DeadlineError):
            now = self.target.again()
            if now.replicas != self.target.replicas:
                self.target = now
                self._route.lead_to(now.replicas)


class BlockingTransport(_Transport):
    """Runs flows on the calling thread. Thread-safe."""

    def __init__(self, target: Target, patience: Patience) -> None:
        super().__init__(target, patience)
        self._credentials = target.credentials()
        self._route = Route(target.replicas, self._open)
        self._closed = threading.Event()
        self._calls: dict[tuple[grpc.Channel, str], Any] = {}
        self.renewer = Renewer(self.run)

    def run(self, flow: Flow[T], /) -> T:
        """Performs the flow's effects and returns its result."""
        try:
            with ErrorsBeginHere():
                effect = next(flow)
                while True:
                    try:
                        answer = self._perform(effect)
                    except HeadraceError as error:
                        effect = flow.throw(error)
                    else:
                        effect = flow.send(answer)
        except StopIteration as stop:
            result: T = stop.value
            return result

    def watch(
        self, study: str, after: int, on_break: OnBreak | None = None, deadline: float | None = None
    ) -> Iterator[Update]:
        """Updates until the study has ended; `TimeoutError` at the deadline (monotonic clock)."""
        return self._follow(study, WatchPosition(study, after), on_break, deadline)

    def events(self, study: str, after: int, until: int) -> Iterator[Event]:
        """The events after a cursor up to another one."""
        position = self._position(study, after, until)
        for update in self._follow(study, position):
            yield from update.events
        if not position.done:
            raise _client_closed()

    def _follow(
        self,
        study: str,
        position: WatchPosition,
        on_break: OnBreak | None = None,
        deadline: float | None = None,
    ) -> Iterator[Update]:
        with ErrorsBeginHere():
            while not (position.done or self._closed.is_set()):
                timeout_s = self._stream_timeout_s(position)
                if deadline is not None:
                    timeout_s = min(timeout_s, deadline - time.monotonic())
                    if timeout_s <= 0:
                        raise TimeoutError(f"Study {study} has not ended in time.")
                channel = self._route.channel()
                stream = _unary_stream(channel, method_of(study_pb2.WatchStudyResponse))(
                    position.request(), timeout=timeout_s, metadata=self.target.metadata
                )
                try:
                    for response in stream:
                        update = position.accept(response)
                        self._note(channel, None)
                        if update is not None:
                            yield update
                        if position.enough:
                            return
                    if not position.done and position.missed(self._status(study)):
                        self._sleep(_PAUSE_AFTER_GOOD_END_S)
                except (grpc.RpcError, HeadraceError) as error:
                    if self._closed.is_set():
                        return
                    failure = self._failure(error)
                    self._note(channel, failure)
                    delay_s = position.delay_s(failure, time.monotonic(), on_break)
                    self._sleep(delay_s)
                finally:
                    stream.cancel()

    def close(self) -> None:
        """Closes the channel. Watches end, and leases of asked trials are no longer renewed."""
        self._closed.set()
        self.renewer.close()
        for channel in self._route.opened():
            channel.close()

    def _status(self, study: str) -> StudyInfo:
        """One attempt: the watch that asks tries again by itself, and says so."""
        request = study_pb2.GetStudyRequest(name=study_name(study))
        response = _unary(self._route.channel(), method_of(study_pb2.GetStudyResponse))(
            request, timeout=connection.STATUS_TIMEOUT_S, metadata=self.target.metadata
        )
        return convert.study(response.study)

    def _perform(self, effect: Effect) -> Any:
        match effect:
            case Call():
                return self._call(effect.method, effect.request)
            case Upload():
                return self._upload(effect)
            case _:
                return self._sleep(effect.seconds)

    def _upload(self, effect: Upload) -> Any:
        started = time.monotonic()
        for attempt in Retrying(sleep=self._sleep, **self._retrying(started, self._route)):
            with attempt:
                channel = self._route.channel()
                timeout_s = max(1.0, connection.UPLOAD_TIMEOUT_S - (time.monotonic() - started))
                try:
                    response = _stream_unary(channel, effect.method)(
                        iter(effect.requests()), timeout=timeout_s, metadata=self.target.metadata
                    )
                except grpc.RpcError as error:
                    failure = self._failure(error)
                    self._note(channel, failure)
                    raise failure from None
                self._note(channel, None)
        return response

    def _sleep(self, seconds: float) -> None:
        self._closed.wait(seconds)  # closing the client ends every wait

    def _call(self, method: Method, request: Message) -> Any:
        started = time.monotonic()
        for attempt in Retrying(sleep=self._sleep, **self._retrying(started, self._route)):
            with attempt:
                if self._closed.is_set():
                    raise _client_closed()
                channel = self._route.channel()
                timeout_s = self._attempt_timeout_s(started)
                try:
                    response = self._callable(channel, method)(
                        request, timeout=timeout_s, metadata=self.target.metadata
                    )
                except grpc.RpcError as error:
                    failure = self._failure(error)
                    self._note(channel, failure)
                    raise failure from None
                self._note(channel, None)
        return response

    def _open(self, replica: str) -> grpc.Channel:
        options = (*connection.OPTIONS, *proxy_options(replica))
        if self._credentials is None:
            return grpc.insecure_channel(replica, options)
        return grpc.secure_channel(replica, self._credentials, options)

    def _callable(self, channel: grpc.Channel, method: Method) -> Any:
        call = self._calls.get((channel, method.path))
        if call is None:
            call = self._calls[channel, method.path] = _unary(channel, method)
        return call


class AsyncTransport(_Transport):
    """Runs flows on the event loop that first uses it."""

    def __init__(self, target: Target, patience: Patience) -> None:
        super().__init__(target, patience)
        self._credentials = target.credentials()  # now, so that an unreadable file is reported at once
        self._route = Route(target.replicas, self._open)
        self._closed = False
        self.renewer = AsyncRenewer(self.run)

    async def run(self, flow: Flow[T], /) -> T:
        """Performs the flow's effects and returns its result."""
        try:
            with ErrorsBeginHere():
                effect = next(flow)
                while True:
                    try:
                        answer = await self._perform(effect)
                    except HeadraceError as error:
                        effect = flow.throw(error)
                    else:
                        effect = flow.send(answer)
        except StopIteration as stop:
            result: T = stop.value
            return result

    def watch(self, study: str, after: int, on_break: OnBreak | None = None) -> AsyncIterator[Update]:
        """Updates until the study has ended."""
        return self._follow(study, WatchPosition(study, after), on_break)

    async def events(self, study: str, after: int, until: int) -> AsyncGenerator[Event]:
        """The events after a cursor up to another one."""
        position = self._position(study, after, until)
        async with aclosing(self._follow(study, position)) as updates:
            async for update in updates:
                for event in update.events:
                    yield event
        if not position.done:
            raise _client_closed()

    async def _follow(
        self, study: str, position: WatchPosition, on_break: OnBreak | None = None
    ) -> AsyncGenerator[Update]:
        with ErrorsBeginHere():
            while not (position.done or self._closed):
                channel = self._route.channel()
                stream = _unary_stream(channel, method_of(study_pb2.WatchStudyResponse))(
                    position.request(),
                    timeout=self._stream_timeout_s(position),
                    metadata=self.target.metadata,
                )
                try:
                    async for response in stream:
                        update = position.accept(response)
                        self._note(channel, None)
                        if update is not None:
                            yield update
                        if position.enough:
                            return
                    if not position.done and position.missed(await self._status(study)):
                        await asyncio.sleep(_PAUSE_AFTER_GOOD_END_S)
                except asyncio.CancelledError:
                    if self._cut_by_close():
                        return
                    raise
                except (grpc.RpcError, HeadraceError) as error:
                    if self._closed:
                        return
                    failure = self._failure(error)
                    self._note(channel, failure)
                    delay_s = position.delay_s(failure, time.monotonic(), on_break)
                    await asyncio.sleep(delay_s)
                finally:
                    stream.cancel()

    async def close(self) -> None:
        """Closes the channel. Watches end, leases of asked trials are no longer renewed, and calls in progress
        raise `CallCancelledError`.
        """
        self._closed = True
        await self.renewer.close()
        for channel in self._route.opened():
            await channel.close()

    def _cut_by_close(self) -> bool:
        """Whether a `CancelledError` is gRPC's sign of a closed channel, and nobody cancelled this task."""
        task = asyncio.current_task()
        return self._closed and (task is None or not task.cancelling())

    def _open(self, replica: str) -> grpc.aio.Channel:
        """Opened late, because an aio channel belongs to the loop that is running when it is created."""
        options = (*connection.OPTIONS, *proxy_options(replica))
        if self._credentials is None:
            return grpc.aio.insecure_channel(replica, options)
        return grpc.aio.secure_channel(replica, self._credentials, options)

    async def _status(self, study: str) -> StudyInfo:
        """One attempt: the watch that asks tries again by itself, and says so."""
        request = study_pb2.GetStudyRequest(name=study_name(study))
        response = await _unary(self._route.channel(), method_of(study_pb2.GetStudyResponse))(
            request, timeout=connection.STATUS_TIMEOUT_S, metadata=self.target.metadata
        )
        return convert.study(response.study)

    async def _perform(self, effect: Effect) -> Any:
        match effect:
            case Call():
                return await self._call(effect.method, effect.request)
            case Upload():
                return await self._upload(effect)
            case _:
                return await asyncio.sleep(effect.seconds)

    async def _upload(self, effect: Upload) -> Any:
        started = time.monotonic()
        async for attempt in AsyncRetrying(**self._retrying(started, self._route)):
            with attempt:
                channel = self._route.channel()
                timeout_s = max(1.0, connection.UPLOAD_TIMEOUT_S - (time.monotonic() - started))
                try:
                    response = await _stream_unary(channel, effect.method)(
                        iter(effect.requests()), timeout=timeout_s, metadata=self.target.metadata
                    )
                except grpc.RpcError as error:
                    failure = self._failure(error)
                    self._note(channel, failure)
                    raise failure from None
                self._note(channel, None)
        return response

    async def _call(self, method: Method, request: Message) -> Any:
        started = time.monotonic()
        if self._closed:
            raise _client_closed()
        try:
            async for attempt in AsyncRetrying(**self._retrying(started, self._route)):
                with attempt:
                    if self._closed:
                        raise _client_closed()
                    channel = self._route.channel()
                    timeout_s = self._attempt_timeout_s(started)
                    try:
                        response = await _unary(channel, method)(
                            request, timeout=timeout_s, metadata=self.target.metadata
                        )
                    except grpc.RpcError as error:
                        failure = self._failure(error)
                        self._note(channel, failure)
                        raise failure from None
                    self._note(channel, None)
        except asyncio.CancelledError:
            if self._cut_by_close():
                raise _client_closed() from None
            raise
        return response


def _client_closed() -> CallCancelledError:
    return CallCancelledError("This client is closed.", remedy="Make another one.")


def _unary(channel: Any, method: Method) -> Any:
    """The callable of a method on either kind of channel (their types share no base)."""
    return channel.unary_unary(
        method.path,
        request_serializer=_SERIALIZED,
        response_deserializer=method.response.FromString,
    )


def _stream_unary(channel: Any, method: Method) -> Any:
    return channel.stream_unary(
        method.path,
        request_serializer=_SERIALIZED,
        response_deserializer=method.response.FromString,
    )


def _unary_stream(channel: Any, method: Method) -> Any:
    return channel.unary_stream(
        method.path,
        request_serializer=_SERIALIZED,
        response_deserializer=method.response.FromString,
    )
