"""Where a server listens, and whether its calls need a token by that."""

import ipaddress

from headrace_services.identity.roles import Auth


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine alone."""
    if host == "localhost" or host.startswith("unix:"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def asks_for_tokens(auth: Auth | None, listen: str, *, tls: bool) -> bool:
    """Whether calls at HOST:PORT need a token. Where nobody says, they do if other machines may call and TLS keeps a
    token secret on its way."""
    if auth is None:
        return tls and not is_loopback(listen.rpartition(":")[0])
    return auth is Auth.TOKENS
