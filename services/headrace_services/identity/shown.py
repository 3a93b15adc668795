"""Which worker calls, according to the certificate that it presents. gRPC has verified it against the authority."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import grpc

from headrace.errors import WorkerIdentityError
from headrace.spiffe import worker_of


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerCertificate:
    """What a worker's certificate says."""

    worker: str
    issued: datetime
    until: datetime


def certificate_of(context: "grpc.aio.ServicerContext[Any, Any]") -> WorkerCertificate:
    """The caller's certificate. Raises WorkerIdentityError if it presents none of a worker."""
    shown = context.auth_context().get("x509_pem_cert") or [b""]
    pem = next(iter(shown), b"")
    if not pem:
        raise WorkerIdentityError(
            "the call presents no certificate",
            remedy="Join with a token (`headrace worker --join`), and call the listener for workers.",
        )
    return _read(pem)


def _read(pem: bytes) -> WorkerCertificate:
    # Slow to import, and not needed by a scheduler whose workers have no certificates.
    from cryptography import x509

    from headrace_services.identity.authority import issued

    certificate = x509.load_pem_x509_certificate(pem)
    try:
        named = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        uris = []
    else:
        uris = named.get_values_for_type(x509.UniformResourceIdentifier)
    names = [worker for uri in uris if (worker := worker_of(uri)) is not None]
    if len(names) != 1:
        raise WorkerIdentityError("the certificate names no worker")
    return WorkerCertificate(
        worker=names[0], issued=issued(certificate), until=certificate.not_valid_after_utc
    )
