"""A caller that speaks HTTP/2 by hand, so that it can do what no gRPC library allows: half a message, no reading,
large amounts of everything."""

import select
import socket
import ssl
import struct
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM, ACK, END_HEADERS = 0x1, 0x1, 0x4
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
WINDOW = 65_535
FRAME_BYTES = 16_384


@dataclass(slots=True)
class Stream:
    """One call."""

    window: int
    over: bool = False
    headers: list[bytes] = field(default_factory=list)
    """Blocks of headers as they arrived; a status is in the last one."""
    data: int = 0
    """How many bytes of answers arrived."""


class Caller:
    """One connection, and the calls on it."""

    def __init__(
        self,
        address: str,
        tls: ssl.SSLContext | None = None,
        *,
        window: int = 2**31 - 1,
        source: str = "",
    ) -> None:
        """`window`: how much the server may send on each stream unasked. `source`: the address to call from."""
        host, _, port = address.rpartition(":")
        plain = socket.create_connection(
            (host.strip("[]"), int(port)), timeout=20, source_address=(source, 0)
        )
        self.socket: socket.socket = plain if tls is None else tls.wrap_socket(plain, server_hostname=host)
        self.streams: dict[int, Stream] = {}
        self.closed = False
        self.most_streams = 2**31
        self._next, self._window, self._initial = 1, WINDOW, WINDOW
        self._read = bytearray()
        self.write(PREFACE + frame(SETTINGS, 0, 0, struct.pack(">HI", 4, window)))
        self.write(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 2**31 - 1 - WINDOW)))

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()
        self.closed = True

    def call(
        self, path: str, metadata: Iterable[tuple[str, str]] = (), *, body: bytes = b"", end: bool = False
    ) -> int:
        """Start a call; returns its stream."""
        number, self._next = self._next, self._next + 2
        self.streams[number] = Stream(window=self._initial)
        fields = [
            (":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "localhost"),
            ("content-type", "application/grpc"), ("te", "trailers"), *metadata,
        ]  # fmt: skip
        block = b"".join(_field(name.encode(), value.encode()) for name, value in fields)
        first, rest = block[:FRAME_BYTES], block[FRAME_BYTES:]
        ended = END_STREAM if end and not body else 0
        self.write(frame(HEADERS, ended | (0 if rest else END_HEADERS), number, first))
        while rest:
            some, rest = rest[:FRAME_BYTES], rest[FRAME_BYTES:]
            self.write(frame(CONTINUATION, 0 if rest else END_HEADERS, number, some))
        if body:
            self.send(number, body, end=end)
        return number

    def send(self, number: int, data: bytes, *, end: bool = False, within_s: float = 10.0) -> int:
        """Send data as far as the server accepts it; returns how much was sent."""
        stream, sent, until = self.streams[number], 0, time.monotonic() + within_s
        while sent < len(data) and not stream.over and not self.closed:
            some = min(len(data) - sent, self._window, stream.window, FRAME_BYTES)
            if some <= 0:
                if time.monotonic() > until:
                    break
                self.pump(0.05)
                continue
            last = end and sent + some == len(data)
            self.write(frame(DATA, END_STREAM if last else 0, number, data[sent : sent + some]))
            sent, self._window, stream.window = sent + some, self._window - some, stream.window - some
            self.pump(0)
        return sent

    def end(self, number: int, data: bytes = b"") -> None:
        """Send the last data of a call, however little."""
        self.write(frame(DATA, END_STREAM, number, data))

    def reset(self, number: int) -> None:
        """Cancel a call."""
        self.write(frame(RST_STREAM, 0, number, struct.pack(">I", 8)))
        self.streams[number].over = True

    def wait(self, number: int, within_s: float = 20.0) -> Stream:
        """The call when it has ended, or its state after that time."""
        until = time.monotonic() + within_s
        while not self.streams[number].over and not self.closed and time.monotonic() < until:
            self.pump(0.05)
        return self.streams[number]

    def open(self) -> int:
        """How many calls are open."""
        self.pump(0)
        return 0 if self.closed else sum(not stream.over for stream in self.streams.values())

    def pump(self, within_s: float) -> None:
        """Process what the server sends within that time; answer what HTTP/2 requires."""
        while not self.closed and self._ready(within_s):
            try:
                data = self.socket.recv(1 << 20)
            except ssl.SSLWantReadError:
                continue
            except OSError:
                data = b""
            if not data:
                self.closed = True
                return
            self._read += data
            while len(self._read) >= 9:
                length = int.from_bytes(self._read[:3])
                if len(self._read) < 9 + length:
                    break
                kind, flags, number = self._read[3], self._read[4], int.from_bytes(self._read[5:9])
                payload = bytes(self._read[9 : 9 + length])
                del self._read[: 9 + length]
                self._receive(kind, flags, number, payload)
            within_s = 0

    def _ready(self, within_s: float) -> bool:
        poll = select.poll()  # `select` cannot handle descriptors above 1024
        poll.register(self.socket, select.POLLIN)
        return bool(poll.poll(within_s * 1000))

    def _receive(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        stream = self.streams.get(number)
        if kind == SETTINGS and not flags & ACK:
            for at in range(0, len(payload), 6):
                name, value = struct.unpack(">HI", payload[at : at + 6])
                if name == 4:
                    for one in self.streams.values():
                        one.window += value - self._initial
                    self._initial = value
                if name == 3:
                    self.most_streams = value
            self.write(frame(SETTINGS, ACK, 0, b""))
        elif kind == PING and not flags & ACK:
            self.write(frame(PING, ACK, 0, payload))
        elif kind == WINDOW_UPDATE:
            more = int.from_bytes(payload)
            if number == 0:
                self._window += more
            elif stream is not None:
                stream.window += more
        elif kind == GOAWAY:
            pass
        elif stream is not None:
            if kind == HEADERS:
                stream.headers.append(payload)
            if kind == DATA:
                stream.data += len(payload)
            stream.over |= kind == RST_STREAM or bool(kind in (DATA, HEADERS) and flags & END_STREAM)

    def write(self, data: bytes) -> None:
        """Send frames."""
        try:
            self.socket.sendall(data)
        except OSError:
            self.closed = True


def frame(kind: int, flags: int, number: int, payload: bytes) -> bytes:
    """An HTTP/2 frame."""
    return len(payload).to_bytes(3) + bytes((kind, flags)) + number.to_bytes(4) + payload


def message(payload: bytes, *, length: int | None = None, compressed: bool = False) -> bytes:
    """A gRPC message; `length` is the length that it claims."""
    return bytes([compressed]) + (len(payload) if length is None else length).to_bytes(4) + payload


def text_field(number: int, value: bytes) -> bytes:
    """A field of a protobuf message."""
    size, rest = bytearray(), len(value)
    while rest > 127:
        size.append(rest & 127 | 128)
        rest >>= 7
    return bytes([number << 3 | 2]) + bytes(size) + bytes([rest]) + value


def _field(name: bytes, value: bytes) -> bytes:
    return b"\0" + _length(len(name)) + name + _length(len(value)) + value


def _length(count: int) -> bytes:
    if count < 127:
        return bytes([count])
    found, count = bytearray([127]), count - 127
    while count > 127:
        found.append(count & 127 | 128)
        count >>= 7
    return bytes([*found, count])
