"""Where a server listens, whether that is valid, and whether its calls therefore need a token."""

import ipaddress
from collections.abc import Mapping

from headrace.errors import Violation
from headrace_services.identity.roles import Auth


def is_loopback(host: str) -> bool:
    """Whether an address can be reached only from this machine."""
    if host == "localhost" or host.startswith("unix:"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def at_one_address(listen: Mapping[str, str | None]) -> list[Violation]:
    """The options, each with its HOST:PORT, whose address an earlier option already has. A port of 0 is a
    different one each time; an option without an address is left out."""
    given = [(option, *address.rpartition(":")[::2]) for option, address in listen.items() if address]
    found = []
    for place, (option, host, port) in enumerate(given):
        for other, taken_host, taken in given[:place]:
            if port == taken and port.isdecimal() and int(port) and _overlap(host, taken_host):
                message = f"is the address of {other} ({taken_host}:{taken}) already"
                found.append(
                    Violation(
                        field=option, value=f"{host}:{port}", message=message, remedy="Choose another port."
                    )
                )
                break
    return found


def _overlap(one: str, other: str) -> bool:
    """Whether two hosts share an address, as far as names show."""
    first, second = _canonical(one), _canonical(other)
    return first == second or "" in (first, second)


def _canonical(host: str) -> str:
    """A host in canonical spelling; empty: every address."""
    bare = host.strip("[]")
    try:
        found = ipaddress.ip_address("127.0.0.1" if bare == "localhost" else bare)
    except ValueError:
        return bare
    return "" if found.is_unspecified else str(found)


def asks_for_tokens(auth: Auth | None, listen: str, *, tls: bool) -> bool:
    """Whether calls at HOST:PORT need a token. By default they do if other machines may call and TLS keeps a token
    secret in transit."""
    if auth is None:
        return tls and not is_loopback(listen.rpartition(":")[0])
    return auth is Auth.TOKENS
