"""A free port for a program that listens a moment later, or repeatedly.

Until then nobody holds the port. So it is outside the range from which the system takes ports for outgoing
connections of any process.
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
"""Used if the system does not say where its range starts: Linux's default, which is below that of others."""


def any_port() -> int:
    """A port on this machine that is free now."""
    with socket.socket() as listener:
        return bind_any(listener)


def bind_any(listener: socket.socket) -> int:
    """Bind a socket to a free port on this machine, and return the port."""
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
    """The first port that the system uses for outgoing connections."""
    try:
        return int(_OUTGOING.read_text("ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return _OUTGOING_FROM
