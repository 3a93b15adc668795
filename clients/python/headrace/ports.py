"""A free port for somebody who listens a moment later, or again later on.

Between the choice and then nobody holds the port. So it is one that the system gives to no outgoing connection, of
anybody: those come from a range of their own.
"""

import secrets
import socket
from pathlib import Path
from typing import Final

HOST: Final = "127.0.0.1"
_LOWEST: Final = 15_000
_TRIES: Final = 100
_OUTGOING: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_OUTGOING_FROM: Final = 32_768
"""Where the system does not say where its range begins: Linux's default, and below that of others."""


def any_port() -> int:
    """A port of this machine that is free now."""
    with socket.socket() as listener:
        return bind_any(listener)


def bind_any(listener: socket.socket) -> int:
    """Bind a socket to a free port of this machine, and return that."""
    end = outgoing_from()
    for _ in range(_TRIES if end > _LOWEST else 0):
        try:
            listener.bind((HOST, _LOWEST + secrets.randbelow(end - _LOWEST)))
        except OSError:
            continue
        break
    else:
        listener.bind((HOST, 0))
    return int(listener.getsockname()[1])


def outgoing_from() -> int:
    """The first port of those that the system takes for outgoing connections."""
    try:
        return int(_OUTGOING.read_text("ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return _OUTGOING_FROM
