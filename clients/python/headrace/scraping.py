"""The port on which a program serves its metrics, in the text format of Prometheus.

A thread serves it, so a scrape is answered even while the event loop is blocked, or the database is unavailable.
Anyone who reaches the port may read it, so it shows only numbers: no name of a study or a trial, no address, no
secret. Trials can also reach it if they share a machine or a network with it. `HEADRACE_METRICS_TOKEN_FILE`
names a file with a token that each scrape must carry.
"""

import hmac
import os
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

from headrace.errors import HeadraceError, InvalidFieldError, Violation

NAMED_IN: Final = "HEADRACE_METRICS_TOKEN_FILE"
_PATIENCE_S: Final = 10.0
_Start = Callable[..., Any]
_App = Callable[[dict[str, Any], _Start], Iterable[bytes]]


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
    """Serve the metrics of a registry in this context; nothing if `listen` is empty. Yields the address.

    Raises InvalidFieldError, and HeadraceError if the port is not available.
    """
    if not listen:
        yield ""
        return
    host, port = parse_listen(listen)
    shown: _App = make_wsgi_app(registry)
    if token := _token():
        shown = _closed(shown, token)
    try:
        server = make_server(host, port, shown, _server_at(host, port), handler_class=_Handler)
    except OSError as error:
        raise HeadraceError(
            f"cannot show metrics on {listen}: {error.strerror or error}",
            remedy="Choose another --metrics-listen, or leave it out.",
        ) from error
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        yield f"{listen.rpartition(':')[0]}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _token() -> str:
    """The token that a scrape must carry; empty: none. Raises InvalidFieldError if its file cannot be read."""
    name = os.environ.get(NAMED_IN)
    if not name:
        return ""
    try:
        found = Path(name).read_text(encoding="utf-8").strip()
        why = "" if found else "it is empty"
    except (OSError, UnicodeDecodeError) as error:
        found, why = "", str(error)
    if why:
        remedy = "Name a file with a token in it, or leave the variable out."
        raise InvalidFieldError(
            [Violation(field=NAMED_IN, value=name, message=f"holds no token: {why}", remedy=remedy)]
        )
    return found


def _closed(app: _App, token: str) -> _App:
    """Serves metrics only for requests with the token."""
    right = f"Bearer {token}".encode()

    def asked(environ: dict[str, Any], start: _Start) -> Iterable[bytes]:
        if hmac.compare_digest(str(environ.get("HTTP_AUTHORIZATION", "")).encode(), right):
            return app(environ, start)
        start("401 Unauthorized", [("WWW-Authenticate", "Bearer"), ("Content-Type", "text/plain")])
        return [b"Metrics are shown to those who carry the token.\n"]

    return asked


def _server_at(host: str, port: int) -> type[WSGIServer]:
    """A server for the address family of a host. Raises OSError."""
    (family, *_), *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)

    class Server(ThreadingMixIn, WSGIServer):
        address_family = family
        daemon_threads = True

    return Server


class _Handler(WSGIRequestHandler):
    timeout = _PATIENCE_S  # a client that sends nothing blocks a thread no longer than this

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its parent's name
        """Do not log each scrape."""
