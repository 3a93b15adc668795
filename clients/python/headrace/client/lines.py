"""Lines: streams on which a client tells of its trials, for a fraction of what calls cost the scheduler.

A line serves one caller at a time: it is taken from the client's store, and comes back with the answer. Where none
comes (the request was refused, the stream ended, the time is up, there is no line to be had), the caller makes an
ordinary call of the same request. It has the same id, so it changes nothing that has been changed already, and it is
the call that says what is wrong.

Lines are few, young and busy, as each holds a thread, and a stream's place on a connection that calls need too: at most
`MOST` of a client, none for longer than `AGE_S`, none idle for longer than `IDLE_S`. Where a new one gets no answer
(an old scheduler, a proxy that does not pass streams on) the client does without for a while.
"""

import asyncio
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from math import inf
from typing import Any, Final, Generic, TypeVar

import grpc
from google.protobuf.message import Message

from headrace.client.flow import Method
from headrace.client.methods import COMPLETE_TRIAL, REPORT_TRIAL, TELL_TRIALS
from headrace.v1 import study_pb2 as pb

MOST = 16
"""Proxies allow about a hundred streams on a connection."""
AGE_S = 20.0
"""Less than the scheduler leaves to a connection that has become too old (`max_connection_age_grace`)."""
IDLE_S = 5.0
REST_S = 300.0
SWEEP_S = 0.25
"""How often lines are looked at; a time limit may be passed by so much."""

_FIELDS: Final = {REPORT_TRIAL.name: "report", COMPLETE_TRIAL.name: "complete"}


def telling(method: Method[Any, Any], request: Message) -> pb.TellTrialsRequest | None:
    """The request as it is said on a line; None where it is not for one."""
    field = _FIELDS.get(method.name)
    return None if field is None else pb.TellTrialsRequest(**{field: request})  # type: ignore[arg-type]


def told(answer: pb.TellTrialsResponse | None) -> Any:
    """The response to the request; None where there is none."""
    field = answer.WhichOneof("response") if answer else None
    return None if field is None else getattr(answer, field)


class _Line:
    """An open stream."""

    def __init__(self) -> None:
        self.until = self.old_at = time.monotonic() + AGE_S
        """When it is closed, whatever it does: its caller's time is up, or nobody has needed it."""
        self.has_answered = False
        self.call: Any = None

    def close(self) -> None:
        self.call.cancel()


L = TypeVar("L", bound=_Line)


class _Lines(ABC, Generic[L]):
    """The lines of a client."""

    def __init__(self) -> None:
        self._open = set[L]()
        self._idle = list[L]()
        self._resting_until = -inf

    def _take(self) -> L | None:
        """A line for one request; None where there is none to be had."""
        if time.monotonic() < self._resting_until:
            return None
        try:
            return self._idle.pop()
        except IndexError:
            return self._opened() if len(self._open) < MOST else None

    def _back(self, line: L, answer: pb.TellTrialsResponse | None, *, failed: bool) -> None:
        """A line has served a request. It may have no answer and not have failed: its caller was interrupted."""
        now = time.monotonic()
        if answer is not None and now < line.old_at:
            line.has_answered = True
            line.until = now + IDLE_S
            self._idle.append(line)
            return
        self._drop(line)
        if failed and not line.has_answered:
            self._resting_until = now + REST_S

    def _sweep(self) -> None:
        """Close the lines whose time is up."""
        now = time.monotonic()
        for line in tuple(self._open):
            if now > line.until:
                self._drop(line)

    def _drop(self, line: L) -> None:
        self._open.discard(line)
        with suppress(ValueError):  # it was not idle, or somebody takes it just now and finds it closed
            self._idle.remove(line)
        line.close()

    @abstractmethod
    def _opened(self) -> L:
        """Another line, which is looked after from now on."""


class _BlockingLine(_Line):
    def __init__(self, channel: grpc.Channel) -> None:
        super().__init__()
        self.requests: queue.SimpleQueue[pb.TellTrialsRequest | None] = queue.SimpleQueue()
        self.call = _stream(channel)(iter(self.requests.get, None))  # in a thread of gRPC's
        if not self.call.add_callback(self._end):
            self._end()

    def _end(self) -> None:
        self.requests.put(None)


class BlockingLines(_Lines[_BlockingLine]):
    """Those of a blocking client; threads may share them. Reading knows no time limit, so a thread sweeps."""

    def __init__(self, channel: Callable[[], grpc.Channel]) -> None:
        """`channel` says which one a new line uses."""
        super().__init__()
        self._channel = channel
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._sweeping = False

    def tell(self, request: pb.TellTrialsRequest, limit_s: float) -> pb.TellTrialsResponse | None:
        """The answer; None where a call is to be made."""
        try:
            line = self._take()
        except (RuntimeError, ValueError):  # no thread can be started; the channel was closed just now
            return None
        if line is None:
            return None
        line.until = time.monotonic() + limit_s
        answer, failed = None, False
        try:
            line.requests.put(request)
            answer = next(line.call, None)
            failed = answer is None
        except grpc.RpcError as error:
            failed = _is_to_blame(error)
        finally:
            self._back(line, answer, failed=failed)
        return answer

    def close(self) -> None:
        """Once the channel is closed, which ends the streams."""
        self._closed.set()

    def _opened(self) -> _BlockingLine:
        line = _BlockingLine(self._channel())
        with self._lock:
            self._open.add(line)
            if not self._sweeping:
                threading.Thread(target=self._sweep_on, name="headrace lines", daemon=True).start()
                self._sweeping = True
        return line

    def _sweep_on(self) -> None:
        while not self._closed.wait(SWEEP_S):
            self._sweep()
            with self._lock:
                if not self._open:
                    self._sweeping = False
                    return


class _AsyncLine(_Line):
    def __init__(self, channel: grpc.aio.Channel) -> None:
        super().__init__()
        self.call = _stream(channel)()


class AsyncLines(_Lines[_AsyncLine]):
    """Those of a client on an event loop."""

    def __init__(self, channel: Callable[[], grpc.aio.Channel]) -> None:
        """`channel` says which one a new line uses."""
        super().__init__()
        self._channel = channel
        self._sweeper: asyncio.TimerHandle | None = None

    async def tell(self, request: pb.TellTrialsRequest, limit_s: float) -> pb.TellTrialsResponse | None:
        """The answer; None where a call is to be made."""
        line = self._take()
        if line is None:
            return None
        line.until = inf
        answer, failed = None, False
        try:
            async with asyncio.timeout(limit_s):
                await line.call.write(request)
                read = await line.call.read()
            answer = None if read is grpc.aio.EOF else read
            failed = answer is None
        except (TimeoutError, asyncio.InvalidStateError):  # the latter: it has ended
            failed = True
        except grpc.RpcError as error:
            failed = _is_to_blame(error)
        finally:
            self._back(line, answer, failed=failed)
        return answer

    def close(self) -> None:
        """Before the channel is closed, which ends the streams."""
        if self._sweeper is not None:
            self._sweeper.cancel()

    def _opened(self) -> _AsyncLine:
        line = _AsyncLine(self._channel())
        self._open.add(line)
        if self._sweeper is None:
            self._sweep_on()
        return line

    def _sweep_on(self) -> None:
        self._sweep()
        loop = asyncio.get_running_loop()
        self._sweeper = loop.call_later(IDLE_S, self._sweep_on) if self._open else None


def _is_to_blame(error: grpc.RpcError) -> bool:
    """Whether calls may get through where a line broke like this."""
    return error.code() is not grpc.StatusCode.UNAVAILABLE


def _stream(channel: Any) -> Any:
    """The callable on either kind of channel."""
    return channel.stream_stream(
        TELL_TRIALS.path,
        request_serializer=TELL_TRIALS.request.SerializeToString,
        response_deserializer=TELL_TRIALS.response.FromString,
    )
