"""Where a head node listens (`headrace up --listen`), and by which names other machines reach it.

Everything is checked before anything is started: an address of another machine, a name that leads only back to this
machine, a port in use.
"""

import errno
import ipaddress
import re
import socket
from dataclasses import dataclass
from typing import Final

from headrace.errors import HeadraceError, InvalidFieldError, Violation
from headrace.ports import any_port

WORKERS_AFTER: Final = 2
"""Workers connect to the port this far after the users'."""
_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_ELSEWHERE: Final = {4: "192.0.2.1", 6: "2001:db8::1"}
"""Addresses for documentation: the route there leads out of this machine, and nothing is sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """The addresses of a head node, each as HOST:PORT."""

    users: str
    """Where the scheduler listens for users and joining workers."""
    workers: str
    """Where it listens for workers with a certificate."""
    local: str
    """How this machine's own processes reach it."""
    advertised: str
    """How other machines reach it."""
    names: tuple[str, ...]
    """Every host that its certificate is for."""


def listening(listen: str, *, port: int, advertise: str | None = None) -> Listening:
    """Where to listen: `HOST:PORT`, or `HOST` with a `port` given elsewhere (0: any free ones).

    Raises InvalidFieldError for an address that cannot be used, and HeadraceError for a port in use.
    """
    host, port = _parsed(listen, port)
    if advertise is not None and not (_is_ip(advertise) or _NAME.fullmatch(advertise)):
        raise _fault(
            "--advertise", advertise, "is not a host name or an IP address", "Give it without a port."
        )
    address = _address(host)
    everywhere = ipaddress.ip_address(address).is_unspecified
    if _is_loopback(address) and not _is_ip(host) and host != "localhost":
        raise _fault(
            "--listen",
            host,
            f"is {address} on this machine, which no other machine reaches",
            f"Give this machine's IP address, or --listen 0.0.0.0 --advertise {host}.",
        )
    used = _free(address, port or any_port())
    workers = _free(address, used + WORKERS_AFTER if port else any_port())
    own = _own_address(address) if everywhere else None
    shown = advertise or own or (socket.gethostname() if everywhere else host)
    local = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address)  # noqa: S104  # what is compared, not bound
    names = (shown, own, None if everywhere else host, local, socket.gethostname())
    return Listening(
        users=joined(address, used),
        workers=joined(address, workers),
        local=joined(local, used),
        advertised=joined(shown, used),
        names=tuple(dict.fromkeys([name for name in names if name] + ["localhost", "127.0.0.1", "::1"])),
    )


def joined(host: str, port: int) -> str:
    """`HOST:PORT`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _parsed(listen: str, port: int) -> tuple[str, int]:
    text = listen.strip()
    if _is_ip(text):
        return text, port
    host, colon, number = text.rpartition(":")
    if not colon:
        host, number = text, str(port)
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not (_is_ip(bare) or _NAME.fullmatch(bare)) or not number.isdecimal() or int(number) > 65535:
        raise _fault(
            "--listen",
            listen,
            "is not an address",
            "Give an IP address or a host name of this machine, perhaps with a port: 10.0.0.5:7440. "
            "0.0.0.0 listens at all of its addresses.",
        )
    return bare, int(number)


def _address(host: str) -> str:
    """The IP address of a host."""
    try:
        return str(socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise _fault(
            "--listen", host, f"is no known host: {error.strerror}", "Give this machine's IP address."
        ) from error


def _free(address: str, port: int) -> int:
    """The port, which is free now."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as found:
        try:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind((address, port))
            found.listen(1)  # with SO_REUSEADDR, two may bind a port, and one may listen
        except OverflowError:
            raise _fault(
                "--listen",
                str(port),
                "is no port",
                "Workers need one, 2 above that of users: give a lower one.",
            ) from None
        except OSError as error:
            raise _refused(address, port, error) from error
        return int(found.getsockname()[1])


def _refused(address: str, port: int, error: OSError) -> HeadraceError:
    where = joined(address, port)
    match error.errno:
        case errno.EADDRNOTAVAIL:
            return _fault(
                "--listen",
                address,
                "is no address of this machine",
                "Run it there, or give one of this machine's own: `hostname -I` lists them.",
            )
        case errno.EADDRINUSE:
            return HeadraceError(
                f"cannot listen on {where}: {error.strerror}.",
                remedy="Another Headrace may run there. To start one beside it, give another port: --listen HOST:PORT. "
                "Users connect to PORT, workers to the one 2 above.",
            )
        case _:
            return HeadraceError(
                f"cannot listen on {where}: {error.strerror}.", remedy="Give another --listen HOST:PORT."
            )


def _own_address(everywhere: str) -> str | None:
    """The address that this machine has on its way to others; None without a network."""
    version = ipaddress.ip_address(everywhere).version
    family = socket.AF_INET6 if version == 6 else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect((_ELSEWHERE[version], 9))
        except OSError:
            return None
        found = str(asking.getsockname()[0])
    return None if _is_loopback(found) else found


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _is_loopback(address: str) -> bool:
    return _is_ip(address) and ipaddress.ip_address(address).is_loopback


def _fault(field: str, value: str, message: str, remedy: str) -> InvalidFieldError:
    return InvalidFieldError([Violation(field=field, value=value, message=message, remedy=remedy)])
