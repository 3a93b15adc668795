"""Ports for what `headrace up` starts.

They are chosen here and not by those who listen, because a restarted program must be found where it was.
"""

import errno
import socket
from collections.abc import Collection
from contextlib import ExitStack, suppress

from headrace.errors import HeadraceError
from headrace.ports import HOST, bind_any


def free_ports(first: int, count: int, *, option: str = "--port") -> tuple[int, ...]:
    """The ports for `count` programs, each free now: `first` (0: any), which `option` gives, and any others."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(_bound(port, option)) for port in (first, *[0] * (count - 1))]
        return tuple(int(one.getsockname()[1]) for one in sockets)


def console_listener(
    port: int | None, first: int, *, others: Collection[int] = (), tries: int = 50
) -> socket.socket:
    """A socket that listens on a port (0: any), so that no other program can take it; without one, on the first free
    port from `first` on, or any free one if `tries` in a row are taken. `others` are ports that are for other programs.
    """
    if port in others:
        message = f"--console {port} is the port of the scheduler or the planner."
        raise HeadraceError(message, remedy="Give another one; 0 takes any free one.")
    if port:
        return _listening(port)
    near = () if port == 0 else range(first, min(first + tries, 65536))
    for candidate in near:
        with suppress(HeadraceError):
            if candidate not in others:
                return _listening(candidate)
    while (found := _listening(0)).getsockname()[1] in others:
        found.close()
    return found


def _listening(port: int) -> socket.socket:
    found = _bound(port, "--console")
    try:
        found.listen(128)  # of two programs that have bound a port at once, only one may listen
    except OSError as error:
        found.close()
        raise _taken(port, "--console", error) from error
    return found


def _bound(port: int, option: str) -> socket.socket:
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if port:
            found.bind((HOST, port))
        else:
            bind_any(found)
    except OSError as error:
        found.close()
        raise _taken(port, option, error) from error
    return found


def _taken(port: int, option: str, error: OSError) -> HeadraceError:
    message = f"cannot listen on {HOST}:{port}: {error.strerror}."
    return HeadraceError(message, remedy=_other_port(port, option, error))


def _other_port(port: int, option: str, error: OSError) -> str:
    remedy = f"Give another {option}; 0 takes any free one."
    if error.errno != errno.EADDRINUSE or option != "--port":
        return remedy
    return (
        f"Another Headrace may run there: `headrace --address {HOST}:{port} studies` asks it. "
        f"To start one beside it: {remedy[0].lower()}{remedy[1:]}"
    )
