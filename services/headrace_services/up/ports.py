"""Ports for what `headrace up` starts.

They are chosen here and not by those who listen, because a restarted program must be found where it was.
"""

import errno
import socket
from contextlib import ExitStack

from headrace.errors import HeadraceError
from headrace.ports import HOST, bind_any


def free_ports(first: int, count: int) -> tuple[int, ...]:
    """The ports for `count` programs, each free now: `first` (0: any) and any others."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(_bound(port)) for port in (first, *[0] * (count - 1))]
        return tuple(int(one.getsockname()[1]) for one in sockets)


def listener(port: int | None, first: int, tries: int = 50) -> socket.socket:
    """A socket that listens on a port (0: any), so that no other program can take it; without one, on the first free
    port from `first` on, or any free one if `tries` in a row are taken.
    """
    if port is not None:
        return _listening(port)
    for candidate in range(first, min(first + tries, 65536)):
        try:
            return _listening(candidate)
        except HeadraceError:
            continue
    return _listening(0)


def _listening(port: int) -> socket.socket:
    found = _bound(port)
    try:
        found.listen(128)  # of two programs that have bound a port at once, only one may listen
    except OSError as error:
        found.close()
        raise _taken(port, error) from error
    return found


def _bound(port: int) -> socket.socket:
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if port:
            found.bind((HOST, port))
        else:
            bind_any(found)
    except OSError as error:
        found.close()
        raise _taken(port, error) from error
    return found


def _taken(port: int, error: OSError) -> HeadraceError:
    return HeadraceError(
        f"cannot listen on {HOST}:{port}: {error.strerror}.", remedy=_other_port(port, error)
    )


def _other_port(port: int, error: OSError) -> str:
    remedy = "Give another --port; 0 takes any free one."
    if error.errno != errno.EADDRINUSE:
        return remedy
    return (
        f"Another Headrace may run there: `headrace --address {HOST}:{port} studies` asks it. "
        f"To start one beside it: {remedy[0].lower()}{remedy[1:]}"
    )
