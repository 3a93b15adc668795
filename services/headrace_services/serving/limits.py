"""How much callers may have of a server. The numbers and their reasons; `docs/reference/limits.md` shows them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Strangers:
    """What all callers have together that have not shown who they are: some 80 MB at most."""

    connections: int = 512
    """Each takes 20 kB, with TLS 60 kB. A worker or a client is no stranger any more after its first call. Those that
    stay are load balancers and probes, which need a handful."""
    calls: int = 512
    """Each takes 30 kB, with the metadata that it may send 60 kB: calls whose token is looked up, checks of health
    and their watches, of which a load balancer has one for each of its connections."""
    messages: int = 8
    """Read at once, each up to the greatest message of the server: gRPC has no bound of its own for a call. An honest
    one is here in whole when it is read, so it has its place for a millisecond."""
    message_bytes: int = 64 << 10
    """The greatest message that is looked at. A join takes up to 10 kB."""
    within_s: float = 10.0
    """So long a request may take to arrive, and an answer to be taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What one caller has at once: a token, a worker's certificate, or a connection where neither is asked for."""

    calls: int = 4096
    """A token may serve thousands of clients that ask and tell: each has one call at a time."""
    streams: int = 512
    """Such as studies that are watched. They have no deadline, so they are counted apart."""
    messages: int = 32
    """Read at once; further ones wait for their turn. They hold up nobody else."""
    within_s: float = 60.0
    """So long a request may take to arrive, and an answer to be taken."""


BESIDE = Known(calls=512, messages=2, within_s=10.0)
"""What comes without an identity over a connection whose caller is known: from a proxy, in whose name others call."""
WORKERS = Known(calls=256, streams=64)
"""What a worker has that shows its certificate: a session, and the codes that it fetches."""
STREAMS_OF_A_CONNECTION = 256
"""What is over waits at the client. A client has one connection to a replica."""
WAITING = 600
"""Calls that gRPC holds before the event loop has taken them, some milliseconds mostly. Some that come then are dropped
as CANCELLED, of whomever they are."""
MOST_WAITING = 1000
"""All that come then are dropped."""
MESSAGE_BYTES = 4 << 20
METADATA_BYTES = 4 << 10
"""A token has 63 bytes; tracing and proxies add some. Each call's is kept several times."""
WINDOW_BYTES = 16 << 10
"""So much of a call is taken in before anybody reads it. A larger message costs one round trip more."""
HANDSHAKE_S = 20.0
