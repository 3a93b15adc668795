"""How much callers may have of a server: the numbers and their reasons."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Strangers:
    """What all callers have together that have not shown who they are: some 100 MB at most."""

    connections: int = 1024
    """Each takes 20 kB, with TLS 60 kB. A worker or a client is no stranger any more after its first call. Those that
    stay are load balancers and probes, which need a handful."""
    calls: int = 512
    """Each takes 30 kB, with the metadata that it may send 60 kB: calls whose token is looked up, checks of health
    and their watches, of which a load balancer has one for each of its connections."""
    messages: int = 8
    """Read at once, each up to the greatest message of the server: gRPC has no bound of its own for a call. An honest
    one has arrived when it is read, so it has its place for a millisecond."""
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
    connections: int = 2048
    """Each takes 60 kB with TLS. Where the process has few descriptors, `SHARE` of its connections are the most."""
    messages: int = 32
    """Read at once; further ones wait for their turn. They hold up nobody else."""
    within_s: float = 300.0
    """So long a request may take to arrive, and an answer to be taken: one of 4 MB over a slow line."""


WORKERS = Known(calls=256, streams=64, connections=64)
"""What a worker has that shows its certificate: a session, and the codes that it fetches."""
SHARE = 4
"""One caller has a connection of so many, at most."""
STREAMS_OF_A_CONNECTION = 1024
"""Further calls wait at the client. The clients of one process may share a connection."""
WAITING = 1000
"""Calls that gRPC holds before the event loop has taken them, some milliseconds mostly. Of those beyond, of whomever
they are, some are dropped as CANCELLED."""
MOST_WAITING = 3000
"""All beyond are dropped."""
MESSAGE_BYTES = 4 << 20
METADATA_BYTES = 8 << 10
"""A token has 63 bytes; tracing and proxies add some thousand. Each call's is kept several times."""
WINDOW_BYTES = 16 << 10
"""So much of a call is taken in before anybody reads it. A larger message costs one round trip more."""
HANDSHAKE_S = 20.0
