"""A worker's calls against its certificate, on the listener that asks for certificates."""

from dataclasses import replace
from typing import Any

import grpc
from sqlalchemy.ext.asyncio import AsyncConnection

from headrace.errors import WorkerIdentityError
from headrace_services.identity.shown import WorkerCertificate, certificate_of
from headrace_services.scheduler.store import joins
from headrace_services.scheduler.store.workers import Greeting


async def identified(conn: AsyncConnection, greeting: Greeting, certificate: WorkerCertificate) -> Greeting:
    """A greeting of the worker that the certificate names. Raises WorkerIdentityError, WorkerRevokedError."""
    if greeting.name != certificate.worker:
        raise WorkerIdentityError(
            f"hello.worker: the certificate is that of worker '{certificate.worker}', "
            f"and it speaks for '{greeting.name}'"
        )
    await joins.check(conn, worker=certificate.worker, issued=certificate.issued)
    return replace(greeting, certificate_until=certificate.until)


async def certified(conn: AsyncConnection, context: "grpc.aio.ServicerContext[Any, Any]") -> None:
    """Refuse a call whose certificate was revoked: gRPC knows only that it was signed here. Raises WorkerIdentityError,
    WorkerRevokedError."""
    shown = certificate_of(context)
    await joins.check(conn, worker=shown.worker, issued=shown.issued)
