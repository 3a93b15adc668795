"""Check a worker's calls against its certificate, on the listener that requires certificates."""

from dataclasses import replace
from typing import Any

import grpc
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace.errors import WorkerIdentityError
from headrace_services.identity.shown import WorkerCertificate, certificate_of
from headrace_services.scheduler.store import joins
from headrace_services.scheduler.store.workers import Greeting


async def identified(
    conn: AsyncConnection, greeting: Greeting, certificate: WorkerCertificate
) -> tuple[Greeting, float]:
    """A greeting of the worker that the certificate names, and for how many seconds that is valid. Raise
    WorkerIdentityError or WorkerRevokedError."""
    if greeting.name != certificate.worker:
        raise WorkerIdentityError(
            f"hello.worker: the certificate is that of worker '{certificate.worker}', "
            f"and it speaks for '{greeting.name}'"
        )
    left_s = await joins.check(conn, certificate)
    return replace(greeting, certificate_until=certificate.until), left_s


async def certified(conn: AsyncConnection, context: "grpc.aio.ServicerContext[Any, Any]") -> None:
    """Refuse a call whose certificate was revoked, or has ended since its connection started: gRPC only knows that
    it was signed here. Raises WorkerIdentityError or WorkerRevokedError."""
    await joins.check(conn, certificate_of(context))
