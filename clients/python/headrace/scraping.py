"""The port on which a program shows its metrics, in the text format of Prometheus.

A thread serves it: a scrape is answered while the event loop stands still, and while the database is away. Whoever
reaches the port may read it, so it shows numbers alone: no name of a study or a trial, no address, no secret.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, start_http_server

from headrace.errors import HeadraceError, InvalidFieldError, Violation


def parse_listen(listen: str) -> tuple[str, int]:
    """Split HOST:PORT. Raises InvalidFieldError."""
    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise InvalidFieldError(
            [
                Violation(
                    field="--metrics-listen",
                    value=listen,
                    message="is not HOST:PORT",
                    remedy="Write, for example, 127.0.0.1:9440.",
                )
            ]
        )
    return host.strip("[]"), int(port)


@contextmanager
def scraped(listen: str, registry: CollectorRegistry) -> Iterator[str]:
    """Serve the metrics of a registry within the block; nothing where `listen` is empty. Yields the address.

    Raises InvalidFieldError, and HeadraceError where the port cannot be had.
    """
    if not listen:
        yield ""
        return
    host, port = parse_listen(listen)
    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise HeadraceError(
            f"cannot show metrics on {listen}: {error.strerror or error}",
            remedy="Choose another --metrics-listen, or leave it out.",
        ) from error
    try:
        yield f"{listen.rpartition(':')[0]}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
