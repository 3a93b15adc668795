"""Lines: streams on which a client tells of its trials, for a fraction of what calls cost the scheduler.

A line serves one caller at a time: it is taken from the client's store, and comes back with the answer. Where none
comes (the request was refused, the stream ended, the time is up, the scheduler is too old to know lines), the caller
makes an ordinary call of the same request. It has the same id, so it changes nothing that has been changed already,
and it is the call that says what is wrong. So no line needs a rule for what may happen to it.
"""

import asyncio
import queue
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Final, Generic, Protocol, TypeVar

import grpc
from google.protobuf.message import Message

from headrace.client.flow import Method
from headrace.client.methods import COMPLETE_TRIAL, REPORT_TRIAL, TELL_TRIALS
from headrace.v1 import study_pb2 as pb

AGE_S = 600.0
"""A line that is older serves no more, so that the scheduler need not cut it off when the connection is old."""

_FIELDS: Final = {REPORT_TRIAL.name: "report", COMPLETE_TRIAL.name: "complete"}


def telling(method: Method[Any, Any], request: Message) -> pb.TellTrialsRequest | None:
    """The request as it is said on a line; None where it is not for one."""
    field = _FIELDS.get(method.name)
    return None if field is None else pb.TellTrialsRequest(**{field: request})  # type: ignore[arg-type]


def told(answer: pb.TellTrialsResponse | None) -> Any:
    """The response to the request; None where there is none."""
    field = answer.WhichOneof("response") if answer else None
    return None if field is None else getattr(answer, field)


class _Line(Protocol):
    until: float
    """When it is too old, by the monotonic clock."""

    def close(self) -> None: ...


L = TypeVar("L", bound=_Line)


class Lines(Generic[L]):
    """The lines of a client that nobody uses now. Threads may share it. They end with it."""

    def __init__(self, open_line: Callable[[], L]) -> None:
        self.known = True
        """False once a scheduler has said that it does not know lines."""
        self._open = open_line
        self._idle: list[L] = []
        weakref.finalize(self, _close, self._idle)

    def take(self) -> L:
        """A line for one request."""
        while True:
            try:
                line = self._idle.pop()
            except IndexError:
                return self._open()
            if time.monotonic() < line.until:
                return line
            line.close()

    def give_back(self, line: L, answer: pb.TellTrialsResponse | None) -> None:
        """A line that has served a request; one without an answer serves no other."""
        if answer is None:
            line.close()
        else:
            self._idle.append(line)

    def note(self, error: grpc.RpcError) -> None:
        """Learns from a line that broke."""
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            self.known = False


def _close(lines: list[Any]) -> None:
    for line in lines:
        line.close()


class BlockingLine:
    """Whoever tells reads the answer; gRPC's thread that sends looks after the time, as reading knows no limit."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.until = time.monotonic() + AGE_S
        self._requests: queue.SimpleQueue[pb.TellTrialsRequest | None] = queue.SimpleQueue()
        self._limit_s: float | None = None
        self._call = _opened(channel, self._send())
        if not self._call.add_callback(self._end):
            self._end()

    def tell(self, request: pb.TellTrialsRequest, timeout_s: float) -> pb.TellTrialsResponse | None:
        """The answer; None where none came. Raises grpc.RpcError for a stream that is broken."""
        self._limit_s = timeout_s
        self._requests.put(request)
        answer: pb.TellTrialsResponse | None = next(self._call, None)
        self._limit_s = None
        return answer

    def close(self) -> None:
        """End the stream."""
        self._call.cancel()

    def _end(self) -> None:
        self._requests.put(None)

    def _send(self) -> Iterator[pb.TellTrialsRequest]:
        """What gRPC sends. Having sent a request it asks for the next one at once, and waits for it here."""
        wait_s = None
        while True:
            try:
                request = self._requests.get(timeout=wait_s)
            except queue.Empty:
                if self._limit_s is not None:
                    self._call.cancel()
                wait_s = None
                continue
            if request is None:
                return
            wait_s = self._limit_s
            yield request


class AsyncLine:
    """For one event loop."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.until = time.monotonic() + AGE_S
        self._call = _opened(channel)

    async def tell(self, request: pb.TellTrialsRequest, timeout_s: float) -> pb.TellTrialsResponse | None:
        """The answer; None where none came. Raises grpc.RpcError for a stream that is broken."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._call.write(request)
                answer = await self._call.read()
        except (TimeoutError, asyncio.InvalidStateError):  # the latter: it has ended
            return None
        return None if answer is grpc.aio.EOF else answer

    def close(self) -> None:
        """End the stream."""
        self._call.cancel()


def _opened(channel: Any, *requests: Iterator[pb.TellTrialsRequest]) -> Any:
    """A new stream on either kind of channel."""
    return channel.stream_stream(
        TELL_TRIALS.path,
        request_serializer=TELL_TRIALS.request.SerializeToString,
        response_deserializer=TELL_TRIALS.response.FromString,
    )(*requests)
