"""What gRPC's words about a failed TLS handshake mean, with the remedy."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFault:
    """Why a client does not accept a server."""

    message: str
    remedy: str


_AUTHORITY: Final = TlsFault(
    message="its certificate is not from the authority that this client trusts",
    remedy="Give the authority of its certificate with --tls-ca or HEADRACE_TLS_CA: the file ca.pem, or its "
    "fingerprint, sha256:…, which `headrace ca show DIR` and `headrace up --listen` print.",
)
_HOST: Final = TlsFault(
    message="its certificate is not for this host",
    remedy="Use a host that it is for, or make one for this host: `headrace ca server DIR HOST…`, or `headrace up "
    "--listen … --advertise HOST`.",
)
_EXPIRED: Final = TlsFault(
    message="its certificate has expired, or this machine's clock is wrong",
    remedy="Make a new one: `headrace ca server DIR HOST…`, or restart `headrace up --listen`.",
)
_PLAIN: Final = TlsFault(
    message="it does not use TLS", remedy="Leave out tls://, or start the scheduler with a certificate."
)
_SIGNS: Final = {
    "certificate has expired": _EXPIRED,
    "CERTIFICATE_VERIFY_FAILED": _AUTHORITY,
    "Peer name": _HOST,
    "Hostname Verification": _HOST,
    "WRONG_VERSION_NUMBER": _PLAIN,
}
"""In this order: an expired certificate is not verified either."""


def tls_fault(text: str) -> TlsFault | None:
    """The fault that a message of gRPC tells; None if it tells none."""
    return next((fault for sign, fault in _SIGNS.items() if sign in text), None)
