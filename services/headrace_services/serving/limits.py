"""What callers may use of a server: the numbers and their reasons."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Strangers:
    """What all unidentified callers may use together: some 100 MB at most."""

    connections: int = 1024
    """Connections. Each takes 20 kB, with TLS 60 kB. A worker or a client stops being a stranger with its first
    call. Load balancers and probes remain strangers; they need a handful."""
    calls: int = 512
    """Calls. Each takes 30 kB, or 60 kB with the metadata that it may send. These are calls whose token is being
    looked up, health checks and their watches; a load balancer has one watch for each of its connections."""
    messages: int = 8
    """Requests read at once, each up to the server's maximum message size: gRPC has no limit of its own for a
    call. An honest request has already arrived when it is read, so it holds its place for a millisecond."""
    message_bytes: int = 64 << 10
    """The largest message that is read. A join takes up to 10 kB."""
    within_s: float = 10.0
    """How long a request may take to arrive, and an answer to be received."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What one caller may use at once. A caller is a token, a worker's certificate or, if neither is required, a
    connection."""

    calls: int = 4096
    """Calls. A token may serve thousands of ask/tell clients: each has one call at a time."""
    streams: int = 512
    """Streams, such as watches of studies. They have no deadline, so they are counted separately."""
    connections: int = 2048
    """Connections. Each takes 60 kB with TLS. If the process has few descriptors, the limit is `SHARE` of its
    connections."""
    messages: int = 32
    """Requests read at once; further ones wait for their turn. They delay nobody else."""
    within_s: float = 300.0
    """How long a request may take to arrive, and an answer to be received: 4 MB over a slow line."""


WORKERS = Known(calls=256, streams=64, connections=64)
"""What a worker that presents its certificate may use: a session, and the code that it fetches."""
SHARE = 4
"""One caller has at most one in this many of the connections."""
STREAMS_OF_A_CONNECTION = 1024
"""Concurrent calls of a connection. Further calls wait at the client. The clients of one process may share a
connection."""
WAITING = 1000
"""Calls that gRPC holds before the event loop has taken them, usually for a few milliseconds. Of those beyond the
limit, from any caller, some are dropped as CANCELLED."""
MOST_WAITING = 3000
"""All calls beyond this are dropped."""
MESSAGE_BYTES = 4 << 20
METADATA_BYTES = 8 << 10
"""Metadata. A token has 63 bytes; tracing and proxies add a few thousand. Each call's metadata is kept several
times."""
WINDOW_BYTES = 16 << 10
"""How much of a call is received before anybody reads it. A larger message costs one more round trip."""
HANDSHAKE_S = 20.0
