"""The gate: a gRPC proxy before a scheduler that deliberately does what networks and other releases do.

It passes bytes on and knows only the messages that it changes. All faults are plain attributes, read at each call:

- `refuse`: this many calls of a method never reach the scheduler, UNAVAILABLE;
- `lose`: this many calls reach it, and their answers are lost, UNAVAILABLE;
- `watches`: this many watches are let through, and none after them, UNAVAILABLE;
- `break_after`: each watch breaks after this many messages; with `in_order` it ends cleanly instead;
- `repeat`: each message of a watch arrives twice;
- `page_size`: lists arrive in pages of this size;
- `slow_s`: the delay before a call is passed on;
- `older`: these methods are unknown, UNIMPLEMENTED, as gRPC's own servers report it;
- `newer`: the scheduler is of a later release, with states, kinds of events and fields that nobody knows yet.
"""

import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from headrace.v1 import event_pb2, study_pb2

_WATCH = "WatchStudy"
_UNKNOWN_FIELD = b"\xa2\xc2\x03\x05newer"
"""Field 7204, which no message has, with a string."""
_UNKNOWN_ENUM = 77


@dataclass(frozen=True, slots=True)
class Seen:
    """One call that reached the gate."""

    method: str
    request: bytes
    metadata: dict[str, str]


@dataclass(kw_only=True)
class Gate(grpc.GenericRpcHandler):
    """A proxy before one address; a context manager."""

    target: str
    certificate: tuple[Path, Path] | None = None
    refuse: Counter[str] = field(default_factory=Counter)
    lose: Counter[str] = field(default_factory=Counter)
    watches: int | None = None
    break_after: int = 0
    in_order: bool = False
    repeat: bool = False
    page_size: int = 0
    slow_s: float = 0.0
    older: tuple[str, ...] = ()
    newer: bool = False
    seen: list[Seen] = field(default_factory=list)
    address: str = ""
    tls_address: str = ""

    def __enter__(self) -> "Gate":
        self._channel: Any = grpc.insecure_channel(self.target, (("grpc.max_reconnect_backoff_ms", 500),))
        self._server = grpc.server(ThreadPoolExecutor(48), [self])
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        if self.certificate is not None:
            chain, key = (file.read_bytes() for file in self.certificate)
            port = self._server.add_secure_port("localhost:0", grpc.ssl_server_credentials([(key, chain)]))
            self.tls_address = f"tls://localhost:{port}"
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(0).wait()
        self._channel.close()

    def service(self, handler_call_details: Any) -> Any:
        """The handler of any method."""
        path: str = handler_call_details.method
        name = path.rpartition("/")[2]
        metadata = dict(handler_call_details.invocation_metadata)
        if name == _WATCH:
            return grpc.unary_stream_rpc_method_handler(
                lambda request, context: self._stream(path, request, metadata, context)
            )
        return grpc.unary_unary_rpc_method_handler(
            lambda request, context: self._call(path, name, request, metadata, context)
        )

    def _call(self, path: str, name: str, request: bytes, metadata: dict[str, str], context: Any) -> bytes:
        self.seen.append(Seen(name, request, metadata))
        time.sleep(self.slow_s)
        if name in self.older:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
        if self._takes(self.refuse, name):
            context.abort(grpc.StatusCode.UNAVAILABLE, "the gate is closed")
        if self.page_size and name.startswith("List"):
            asked = getattr(study_pb2, f"{name}Request").FromString(request)
            asked.page_size = self.page_size
            request = asked.SerializeToString()
        try:
            answer: bytes = self._channel.unary_unary(path)(request, timeout=context.time_remaining())
        except grpc.RpcError as error:
            _pass_on(context, error)
        if self._takes(self.lose, name):
            context.abort(grpc.StatusCode.UNAVAILABLE, "the gate lost the answer")
        return _newer(name, answer) if self.newer else answer

    def _stream(self, path: str, request: bytes, metadata: dict[str, str], context: Any) -> Iterator[bytes]:
        self.seen.append(Seen(_WATCH, request, metadata))
        if self.watches is not None:
            if not self.watches:
                context.abort(grpc.StatusCode.UNAVAILABLE, "the gate is closed")
            self.watches -= 1
        stream = self._channel.unary_stream(path)(request, timeout=context.time_remaining())
        context.add_callback(stream.cancel)
        try:
            for count, message in enumerate(stream, start=1):
                changed = _newer(_WATCH, message) if self.newer else message
                yield changed
                if self.repeat:
                    yield changed
                if count == self.break_after:
                    if self.in_order:
                        return
                    context.abort(grpc.StatusCode.UNAVAILABLE, "the gate broke the stream")
        except grpc.RpcError as error:
            _pass_on(context, error)
        finally:
            stream.cancel()

    @staticmethod
    def _takes(counts: Counter[str], name: str) -> bool:
        if counts[name] <= 0:
            return False
        counts[name] -= 1
        return True


def _pass_on(context: Any, error: grpc.RpcError) -> None:
    """Ends a call as the scheduler did."""
    assert isinstance(error, grpc.Call)
    context.set_trailing_metadata(error.trailing_metadata() or ())
    context.abort(error.code(), error.details() or "")


def _newer(name: str, answer: bytes) -> bytes:
    """The answer as a later release would give it."""
    match name:
        case "GetStudy":
            study = study_pb2.GetStudyResponse.FromString(answer)
            study.study.state = _UNKNOWN_ENUM  # type: ignore[assignment]
            study.study.MergeFromString(_UNKNOWN_FIELD)
            return study.SerializeToString()
        case "GetTrial":
            trial = study_pb2.GetTrialResponse.FromString(answer)
            trial.trial.state = _UNKNOWN_ENUM  # type: ignore[assignment]
            trial.trial.MergeFromString(_UNKNOWN_FIELD)
            return trial.SerializeToString()
        case "ReportTrial":
            told = study_pb2.ReportTrialResponse.FromString(answer)
            told.decision.MergeFromString(_UNKNOWN_FIELD)
            return told.SerializeToString()
        case "WatchStudy":
            update = study_pb2.WatchStudyResponse.FromString(answer)
            for event in update.events:
                _unknown_detail(event)
            update.study.MergeFromString(_UNKNOWN_FIELD)
            return update.SerializeToString()
    return answer + _UNKNOWN_FIELD


def _unknown_detail(event: event_pb2.Event) -> None:
    """A creation event becomes an event of an unknown kind."""
    if event.HasField("trial_created"):
        event.ClearField("trial_created")
        event.MergeFromString(_UNKNOWN_FIELD)
