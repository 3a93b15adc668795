"""A worker's greeting against its certificate, on the listener that asks for certificates."""

from dataclasses import replace

from sqlalchemy.ext.asyncio import AsyncConnection

from headrace.errors import WorkerIdentityError
from headrace_services.identity.shown import WorkerCertificate
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
