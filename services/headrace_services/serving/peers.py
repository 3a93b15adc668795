"""Where callers are, by the names that gRPC gives to peers: `ipv4:HOST:PORT`, `ipv6:%5BHOST%5D:PORT`."""

from functools import lru_cache
from ipaddress import IPv6Network, ip_address
from typing import NamedTuple
from urllib.parse import unquote


class Peer(NamedTuple):
    """The other end of a connection."""

    host: str
    port: int


@lru_cache(maxsize=4096)
def peer_of(name: str) -> Peer | None:
    """The peer with this name; None for one of a Unix socket."""
    kind, _, rest = unquote(name).partition(":")
    if kind not in ("ipv4", "ipv6"):
        return None
    host, _, port = rest.rpartition(":")
    return Peer(host_of(host.strip("[]")), int(port))


def host_of(address: str) -> str:
    """An address without its scope; an IPv4 address that is mapped into IPv6 as itself."""
    found = ip_address(address.partition("%")[0])
    return str(getattr(found, "ipv4_mapped", None) or found)


@lru_cache(maxsize=4096)
def network_of(host: str) -> str:
    """The addresses that count as one machine: for IPv6, a network of 64 bits."""
    return str(IPv6Network((host, 64), strict=False)) if ":" in host else host
