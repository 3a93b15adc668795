"""What a console is started with, and what that allows."""

import ipaddress
import socket
from contextlib import suppress
from dataclasses import dataclass, field

from headrace.errors import InvalidFieldError, Violation
from headrace.target import Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """A console's settings."""

    target: Target
    """The scheduler, without a token: each user's own is added."""
    host: str = "127.0.0.1"
    port: int = 7450
    root_path: str = ""
    """The path under which a proxy serves it, such as `/headrace`; empty for `/`."""
    hosts: tuple[str, ...] = ()
    """Further names under which browsers reach it."""
    https: bool = False
    """Whether browsers reach it over HTTPS, through a proxy: the cookie is then sent over nothing else."""
    allowed: frozenset[str] = field(init=False)
    """The values of `Host`, without a port, that are answered."""

    def __post_init__(self) -> None:
        own = (
            {self.host, "localhost", "127.0.0.1", "[::1]"}
            if self.is_local
            else {f"[{self.host}]" if ":" in self.host else self.host}
        )
        object.__setattr__(self, "allowed", frozenset(name.lower() for name in own | set(self.hosts)))

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches it."""
        return self.host == "localhost" or _is_loopback(self.host)


def parse_listen(text: str) -> tuple[str, int, socket.socket | None]:
    """`127.0.0.1:7450` as a host and a port; `fd:3` also as the socket that this process has inherited, which listens.

    Raises InvalidFieldError.
    """
    host, _, port = text.rpartition(":")
    if host == "fd" and port.isdecimal() and (inherited := _inherited(int(port))) is not None:
        return *inherited.getsockname()[:2], inherited
    if host in ("", "fd") or not port.isdecimal() or int(port) > 65535:
        raise InvalidFieldError(
            [
                Violation(
                    field="--listen",
                    value=f"'{text}'",
                    message="is not HOST:PORT",
                    remedy="Write 127.0.0.1:7450; port 0 takes a free one.",
                )
            ]
        )
    return host.strip("[]") if "]" in host else host, int(port), None


def _inherited(number: int) -> socket.socket | None:
    """The socket with this descriptor, if it listens for connections of the network."""
    with suppress(OSError, OverflowError):
        found = socket.socket(fileno=number)
        listens = found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        if listens and found.family in (socket.AF_INET, socket.AF_INET6):
            return found
        found.detach()  # it is somebody else's
    return None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
