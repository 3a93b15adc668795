"""Ways in which strangers may try to use up a server's memory, each against a real port. None of them has a token."""

import secrets
import socket
import ssl
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from raw_http2 import PING, Caller, frame, message, text_field

MIB = 1 << 20
CHECK = "/grpc.health.v1.Health/Check"
WATCH = "/grpc.health.v1.Health/Watch"
JOIN = "/headrace.v1.JoinService/Join"
WHO_AM_I = "/headrace.v1.IdentityService/WhoAmI"
REFLECT = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
LARGE = message(text_field(1, b"x" * (4 * MIB - 1000)))
"""The largest message that a server accepts: a name of a service, or a token, of 4 MB."""
EMPTY = message(b"")


@dataclass(slots=True)
class Crowd:
    """Strangers at one server, and the connections that they keep."""

    address: str
    tls: ssl.SSLContext | None = None
    callers: list[Caller] = field(default_factory=list)
    sockets: list[socket.socket] = field(default_factory=list)

    def come(self, count: int, *, window: int = 2**31 - 1) -> list[Caller]:
        """Open `count` more connections."""
        came = []
        for number in range(count):
            try:
                caller = Caller(self.address, self.tls, window=window, source=f"127.0.0.{number % 7 + 2}")
            except OSError:
                break
            caller.pump(0)
            came.append(caller)
        self.callers += came
        return came

    def open(self) -> int:
        """How many calls they have open."""
        return sum(caller.open() for caller in self.callers)

    def connected(self) -> int:
        """How many connections."""
        for caller in self.callers:
            caller.pump(0)
        return sum(not caller.closed for caller in self.callers)

    def leave(self) -> None:
        """Close all connections."""
        for one in (*self.callers, *self.sockets):
            one.close()


def calls(
    crowd: Crowd,
    count: int,
    path: str,
    *,
    body: bytes = EMPTY,
    end: bool = True,
    over: int = 20,
    metadata: Callable[[], Iterable[tuple[str, str]]] = lambda: (),
    window: int = 2**31 - 1,
) -> None:
    """`count` calls, spread over some connections. With `end`, each sends its whole request."""
    came = crowd.come(over, window=window)
    for number in range(count):
        caller = came[number % len(came)]
        if caller.closed:
            continue
        stream = caller.call(path, metadata())
        caller.send(stream, body, end=end, within_s=0.3)
        if number % 50 == 0:
            for one in came:
                one.pump(0)


def bogus_token() -> list[tuple[str, str]]:
    """A token that looks like a real one."""
    return [("authorization", f"Bearer hr_{secrets.token_hex(8)}_{secrets.token_urlsafe(32)}")]


def much_metadata() -> list[tuple[str, str]]:
    """As much metadata as a server accepts."""
    return [(f"x-{number}", "v" * 1100) for number in range(3)]


def connections(crowd: Crowd, count: int = 3000) -> None:
    """Connections that send nothing more."""
    crowd.come(count)


def half_open(crowd: Crowd, count: int = 3000) -> None:
    """Connections that send nothing at all."""
    host, _, port = crowd.address.rpartition(":")
    for _ in range(count):
        try:
            crowd.sockets.append(socket.create_connection((host, int(port)), timeout=2))
        except OSError:
            break


def deaf(crowd: Crowd, count: int = 5000) -> None:
    """Calls of connections that never read their answers."""
    came = crowd.come(20)
    for number in range(count):
        caller = came[number % len(came)]
        caller.socket.settimeout(0.2)
        if not caller.closed:
            caller.call(WHO_AM_I, body=EMPTY, end=True)


def resets(crowd: Crowd, seconds: float = 5.0) -> None:
    """Calls that are cancelled at once."""
    came, until = crowd.come(4), time.monotonic() + seconds
    while time.monotonic() < until:
        for caller in came:
            if not caller.closed:
                stream = caller.call(WATCH, body=EMPTY, end=True)
                caller.reset(stream)
                del caller.streams[stream]
                caller.pump(0)


def pings(crowd: Crowd, seconds: float = 3.0) -> None:
    """Pings, whose answers nobody reads."""
    came, until = crowd.come(4), time.monotonic() + seconds
    for caller in came:
        caller.socket.settimeout(0.5)
        while time.monotonic() < until and not caller.closed:
            caller.write(frame(PING, 0, 0, b"12345678") * 1000)


def everything(crowd: Crowd) -> None:
    """Everything that a server keeps for strangers, at once."""
    half_open(crowd, 600)
    connections(crowd, 600)
    calls(crowd, 1200, WATCH, metadata=much_metadata)
    calls(crowd, 60, JOIN, body=LARGE[:-10], end=False, over=8)
    calls(crowd, 600, CHECK, window=0)


ATTACKS: dict[str, Callable[[Crowd], None]] = {
    "240 watches of names of 4 MB": lambda crowd: calls(crowd, 240, WATCH, body=LARGE, over=8),
    "240 checks of names of 4 MB": lambda crowd: calls(crowd, 240, CHECK, body=LARGE, over=8),
    "240 joins, all but the last bytes": lambda crowd: calls(crowd, 240, JOIN, body=LARGE[:-10], end=False, over=8),
    "240 checks, all but the last bytes": lambda crowd: calls(crowd, 240, CHECK, body=LARGE[:-10], end=False, over=8),
    "10,000 watches": lambda crowd: calls(crowd, 10_000, WATCH),
    "10,000 watches with much metadata": lambda crowd: calls(crowd, 10_000, WATCH, metadata=much_metadata),
    "30,000 watches with much metadata, 200 connections": lambda crowd: calls(
        crowd, 30_000, WATCH, metadata=much_metadata, over=200
    ),
    "10,000 joins of 60 kB that say 1 MB": lambda crowd: calls(
        crowd, 10_000, JOIN, body=message(b"z" * 60_000, length=MIB), end=False
    ),
    "3,000 tokens that nobody has": lambda crowd: calls(
        crowd, 3000, WHO_AM_I, body=message(b"z" * 60_000, length=MIB), end=False, metadata=bogus_token
    ),
    "5,000 streams of reflection": lambda crowd: calls(crowd, 5000, REFLECT, body=message(b"z" * 60_000), end=False),
    "3,000 methods that there are not": lambda crowd: calls(crowd, 3000, f"/x/{'y' * 4000}"),
    "5,000 checks whose answer is not read": lambda crowd: calls(crowd, 5000, CHECK, window=0),
    "5,000 refusals that are not read": deaf,
    "3,000 connections": connections,
    "3,000 connections without a handshake": half_open,
    "calls that are given up, for 5 s": resets,
    "pings, for 3 s": pings,
    "all that is kept, at once": everything,
}  # fmt: skip
