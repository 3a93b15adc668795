"""The one place for the gRPC settings of a server: the scheduler's, the planner's, the bubble agent's."""

import asyncio
import logging
import random
import resource
from collections.abc import Sequence
from contextlib import suppress

import grpc

from headrace.errors import HeadraceError
from headrace_services.serving import limits
from headrace_services.serving.connections import Connections

CONNECTION_AGE_S = 30 * 60
"""Clients' connections end about this often, so that clients spread over the replicas again. Workers are asked to
reconnect earlier, through their sessions (`Timing.stream_age_s`)."""
_AGE_GRACE_S = 30
_OWN_DESCRIPTORS = 256
"""How many descriptors are kept for everything except connections."""
_LISTENERS = 2
"""The most that a process may have."""
_LEAST_CONNECTIONS = 256
_MOST_DESCRIPTORS = 1 << 16


def _is_told(record: logging.LogRecord) -> bool:
    """Drops reports of clients that have disconnected, which gRPC logs as an error with its traceback."""
    error = record.exc_info[1] if record.exc_info else None
    return type(error).__name__ != "ExecuteBatchError"


class Server:
    """A gRPC server, and the watch over its connections."""

    def __init__(
        self,
        interceptors: Sequence[grpc.aio.ServerInterceptor],
        connections: Connections,
        *,
        message_bytes: int = limits.MESSAGE_BYTES,
    ) -> None:
        logging.getLogger("grpc._cython.cygrpc").addFilter(_is_told)
        most = _most_connections()
        self.grpc = grpc.aio.server(interceptors=interceptors, options=_options(message_bytes, most))
        connections.share(most)
        self._connections = connections
        self._watch: asyncio.Task[None] | None = None

    def bind(self, option: str, address: str, credentials: grpc.ServerCredentials | None) -> int:
        """Binds a port, and returns it. `option` is how the address was given. Raises HeadraceError."""
        try:
            if credentials is not None:
                port = self.grpc.add_secure_port(address, credentials)
            else:
                port = self.grpc.add_insecure_port(address)
        except (OSError, RuntimeError) as error:
            port, reason = 0, str(error)
        else:
            reason = "the address is in use"
        if not port:
            raise HeadraceError(f"cannot listen on {address}: {reason}", remedy=f"Choose another {option}.")
        if not address.startswith("unix:"):
            self._connections.serve(address.rpartition(":")[0], port)
        return port

    async def start(self) -> None:
        """Starts serving."""
        await self.grpc.start()
        self._watch = asyncio.create_task(self._connections.run())

    async def stop(self, grace_s: float) -> None:
        """Ends, after the calls that finish by then."""
        await self.grpc.stop(grace=grace_s)
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)


def _options(message_bytes: int, connections: int) -> list[tuple[str, int]]:
    age_ms = int(CONNECTION_AGE_S * 1000 * random.uniform(0.8, 1.2))  # noqa: S311  # jitter
    return [
        ("grpc.so_reuseport", 0),
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.max_connection_age_ms", age_ms),
        ("grpc.max_connection_age_grace_ms", _AGE_GRACE_S * 1000),
        ("grpc.max_receive_message_length", message_bytes),
        ("grpc.max_metadata_size", limits.METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", limits.METADATA_BYTES),
        ("grpc.max_concurrent_streams", limits.STREAMS_OF_A_CONNECTION),
        # With it, calls of honest clients that respect the limit are reset too.
        ("grpc.http.overload_protection", 0),
        ("grpc.server.max_pending_requests", limits.WAITING),
        ("grpc.server.max_pending_requests_hard_limit", limits.MOST_WAITING),
        ("grpc.max_allowed_incoming_connections", connections),
        ("grpc.server_handshake_timeout_ms", int(limits.HANDSHAKE_S * 1000)),
        # A window that grows with the line would also grow with a hostile client, for each call.
        ("grpc.http2.lookahead_bytes", limits.WINDOW_BYTES),
        ("grpc.http2.bdp_probe", 0),
        # None of our clients compresses, and a small message may be large when unpacked.
        ("grpc.compression_enabled_algorithms_bitset", 1),
    ]


def _most_connections() -> int:
    """How many connections leave enough descriptors for the rest: the soft limit, often 1024, is raised first."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, _MOST_DESCRIPTORS) if hard != resource.RLIM_INFINITY else _MOST_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    least = wanted if soft == resource.RLIM_INFINITY else soft
    return max(_LEAST_CONNECTIONS, (least - _OWN_DESCRIPTORS) // _LISTENERS)
