"""Ports for what `headrace up` starts.

They are chosen here and not by those who listen, because a restarted program must be found where it was.
"""

import errno
import socket

from headrace.errors import HeadraceError
from headrace.ports import HOST, bind_any


def free_ports(first: int, count: int) -> tuple[int, ...]:
    """The ports for `count` programs, each free now: `first` (0: any) and any others."""
    sockets = []
    try:
        for port in (first, *[0] * (count - 1)):
            listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            sockets.append(listener)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                if port:
                    listener.bind((HOST, port))
                else:
                    bind_any(listener)
            except OSError as error:
                raise HeadraceError(
                    f"cannot listen on {HOST}:{port}: {error.strerror}.", remedy=_other_port(port, error)
                ) from error
        return tuple(int(listener.getsockname()[1]) for listener in sockets)
    finally:
        for listener in sockets:
            listener.close()


def next_free_port(first: int, tries: int = 50) -> int:
    """The first free port from `first` on; any free one if `tries` in a row are taken."""
    for port in range(first, min(first + tries, 65536)):
        try:
            return free_ports(port, 1)[0]
        except HeadraceError:
            continue
    return free_ports(0, 1)[0]


def _other_port(port: int, error: OSError) -> str:
    remedy = "Give another --port; 0 takes any free one."
    if error.errno != errno.EADDRINUSE:
        return remedy
    return (
        f"Another Headrace may run there: `headrace --address {HOST}:{port} studies` asks it. "
        f"To start one beside it: {remedy[0].lower()}{remedy[1:]}"
    )
