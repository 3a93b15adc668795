"""Runs the application: checks what would be unsafe, and serves until a signal."""

import asyncio
import logging
import signal
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import uvicorn

from headrace.client.aio import connected_to
from headrace.errors import HeadraceError, InvalidFieldError, UnauthenticatedError, Violation
from headrace.target import Target
from headrace_services.console.app import build
from headrace_services.console.guard import Guard
from headrace_services.console.settings import Settings, parse_listen

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The settings as they were given."""

    address: str | None
    listen: str
    hosts: tuple[str, ...] = ()
    root_path: str = ""
    https: bool = False
    tls_ca: Path | None = None


def serve(options: Options) -> None:
    """Serve until SIGINT or SIGTERM. Raises InvalidFieldError before anything is served."""
    host, port, inherited = parse_listen(options.listen)
    root = options.root_path.rstrip("/")
    if root and not root.startswith("/"):
        raise InvalidFieldError(
            [
                Violation(
                    field="--root-path",
                    value=f"'{root}'",
                    message="does not begin with /",
                    remedy="Write /headrace.",
                )
            ]
        )
    settings = Settings(
        target=Target.of(options.address, field="--address", tls_ca=options.tls_ca),
        host=host,
        port=port,
        root_path=root,
        hosts=options.hosts,
        https=options.https,
    )
    settings.target.credentials()  # which now says what is wrong with them
    if not settings.is_local:
        asyncio.run(_require_tokens(settings))
    listening = _listen(host, port) if inherited is None else inherited
    settings = replace(settings, port=listening.getsockname()[1])
    shown = f"[{host}]" if ":" in host else host
    print(f"The console is on http://{shown}:{settings.port}{root}/", flush=True)
    # Uvicorn sends the signal that ended it to this process once more, at its end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with suppress(KeyboardInterrupt):
        uvicorn.Server(config(build(settings), root)).run(sockets=[listening])


def config(app: Guard, root_path: str = "") -> uvicorn.Config:
    """How the application is served."""
    return uvicorn.Config(
        app,
        root_path=root_path,
        log_level="warning",
        access_log=False,
        ws="none",
        timeout_graceful_shutdown=2,
        server_header=False,
    )


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        raise InvalidFieldError(
            [
                Violation(
                    field="--listen",
                    value=f"'{host}:{port}'",
                    message=f"cannot be listened on: {error.strerror}",
                    remedy="Give another address; port 0 takes a free one.",
                )
            ]
        ) from None


async def _require_tokens(settings: Settings) -> None:
    """Raises InvalidFieldError if the scheduler serves everybody: other machines could then use it through this one."""
    async with connected_to(settings.target) as client:
        try:
            await client.who_am_i()
        except UnauthenticatedError:
            return
        except HeadraceError as error:
            log.warning("the scheduler cannot be asked yet whether it requires tokens: %s", error.message)
            return
    raise InvalidFieldError(
        [
            Violation(
                field="--listen",
                value=f"'{settings.host}'",
                message="is reached by other machines, and the scheduler asks for no token",
                remedy="Listen on 127.0.0.1, or start the scheduler with --auth tokens.",
            )
        ]
    )
