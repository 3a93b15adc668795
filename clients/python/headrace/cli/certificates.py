"""When certificates expire: those of workers, and that of the scheduler."""

import socket
import ssl
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from headrace.client.machines import Worker
from headrace.client.wording import duration
from headrace.target import Target

SERVER_SOON: Final = timedelta(days=30)
_CONNECT_S: Final = 3.0


def ended(workers: Sequence[Worker]) -> list[Worker]:
    """The workers that can no longer connect because their certificates have expired. A connected worker that
    cannot renew its certificate reports that itself (`Worker.trouble`).
    """
    now = datetime.now(UTC)
    return [
        worker for worker in workers if worker.certificate_end is not None and worker.certificate_end <= now
    ]


def first_end(workers: Sequence[Worker]) -> datetime | None:
    """When the first certificate of the connected workers expires; None if they need none."""
    ends = [worker.certificate_end for worker in workers if worker.connected]
    return min((end for end in ends if end is not None), default=None)


def server_end(target: Target) -> datetime | None:
    """When the certificate of the first scheduler expires; None without TLS, or if it cannot be read."""
    if not target.tls:
        return None
    host, _, port = target.replicas[0].rpartition(":")
    host = host.strip("[]")
    try:
        context = ssl.create_default_context(cafile=str(target.tls_ca) if target.tls_ca else None)
        with (
            socket.create_connection((host, int(port)), timeout=_CONNECT_S) as raw,
            context.wrap_socket(raw, server_hostname=host) as line,
        ):
            shown = line.getpeercert() or {}
        return datetime.fromtimestamp(ssl.cert_time_to_seconds(str(shown["notAfter"])), UTC)
    except (OSError, ValueError, KeyError):
        return None


def in_words(end: datetime) -> str:
    """How long it is until the certificate expires, in words."""
    return _left(end - datetime.now(UTC))


def _left(left: timedelta) -> str:
    if left <= timedelta(0):
        return "has expired"
    if left >= timedelta(days=2):
        return f"expires in {left.days} days"
    return f"expires in {duration(left.total_seconds())}"
